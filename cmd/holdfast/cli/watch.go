package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
)

func newWatch(storeURL *string) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "watch NAME",
		Short: "Show the state of a lock, and each change",
		Long: `watch prints a line with the state of the lock NAME, and another whenever it has changed, until a signal ends it or the
store fails (69). A state that lasts only a moment may be left out; the last state never is.

With --json each state is a record of the type "lock".`,
		Args: exactArgs("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return watchLock(*storeURL, args[0], func(info holdfast.Info, lock holdfast.Lock) error {
				if asJSON {
					return writeLockJSON(c.OutOrStdout(), info, lock)
				}
				return printLockLine(c.OutOrStdout(), lock)
			})
		},
	}
	addJSONFlag(c, &asJSON)
	return c
}

// watchLock calls f with each state of the lock, until an error. A signal ends the program at once: it holds nothing.
func watchLock(store, name string, f func(holdfast.Info, holdfast.Lock) error) error {
	ctx := context.Background()
	client, err := openClient(ctx, store, nil)
	if err != nil {
		return err
	}
	defer closeClient(client)
	for lock, err := range client.Watch(ctx, name) {
		if err != nil {
			return storeError(err)
		}
		if err := f(client.Info(), lock); err != nil {
			return err
		}
	}
	return nil
}

func printLockLine(w io.Writer, lock holdfast.Lock) error {
	state := "free"
	if len(lock.Holders) > 0 {
		state = fmt.Sprintf("%s held by %s", describeKind(lock), describeClaims(lock.Holders))
	}
	if len(lock.Waiters) > 0 {
		state += fmt.Sprintf("; waiting: %s", describeClaims(lock.Waiters))
	}
	_, err := fmt.Fprintf(w, "%s %s: %s\n", time.Now().Format(time.RFC3339), quoteName(lock.Name), state)
	return err
}

// describeClaims lists claims in one line: owner, note, token and state.
func describeClaims(all []holdfast.ClaimInfo) string {
	var who []string
	for _, s := range all {
		text := printableText(s.Owner)
		if s.Meta != "" {
			text += " (" + printableText(s.Meta) + ")"
		}
		if s.Token != 0 {
			text += fmt.Sprintf(" token %d", s.Token)
		}
		switch {
		case s.Broken:
			text += " broken"
		case s.Detached:
			text += " detached"
		}
		who = append(who, text)
	}
	return strings.Join(who, ", ")
}

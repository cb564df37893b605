package main

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
		Short: "Show how a lock stands, and each change",
		Long: `watch prints a line for how the lock NAME stands, and another whenever that has changed, until it is interrupted. A state
that passes quickly may be left out; the last one never is.

With --json each line is an object: time, name, kind, limit, token, holders and waiters.`,
		Args: exactArgs("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return watchLock(*storeURL, args[0], func(lock holdfast.Lock) error {
				if asJSON {
					return writeLockJSON(c.OutOrStdout(), lock)
				}
				return printLockLine(c.OutOrStdout(), lock)
			})
		},
	}
	addJSONFlag(c, &asJSON)
	return c
}

// watchLock calls f with each state of the lock. A signal ends the program, which holds nothing, and so does the first error.
func watchLock(store, name string, f func(holdfast.Lock) error) error {
	exitOnQuit()
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
		if err := f(lock); err != nil {
			return err
		}
	}
	return nil
}

func printLockLine(w io.Writer, lock holdfast.Lock) error {
	does := "free"
	if len(lock.Holders) > 0 {
		does = fmt.Sprintf("%s held by %s", describeKind(lock), describeClaims(lock.Holders))
	}
	if len(lock.Waiters) > 0 {
		does += fmt.Sprintf("; waited for by %s", describeClaims(lock.Waiters))
	}
	_, err := fmt.Fprintf(w, "%s %s: %s\n", time.Now().Format(time.RFC3339), quoteName(lock.Name), does)
	return err
}

// describeClaims are claims in one line: who, with which token.
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

package main

import (
	"context"
	"encoding/json"
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

With --json each line is an object: name, kind, limit, token, holders and waiters.`,
		Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return watch(*storeURL, args[0], func(lock holdfast.Lock) error {
				if asJSON {
					return json.NewEncoder(c.OutOrStdout()).Encode(lockRecord(lock))
				}
				return printLock(c.OutOrStdout(), lock)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print lines of JSON")
	return c
}

// watch calls f with each state of the lock. A signal ends the program, which holds nothing, and so does the first error.
func watch(store, name string, f func(holdfast.Lock) error) error {
	quitQuietly()
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

func printLock(w io.Writer, lock holdfast.Lock) error {
	does := "free"
	if len(lock.Holders) > 0 {
		does = fmt.Sprintf("%s held by %s", usedAs(lock), standings(lock.Holders))
	}
	if len(lock.Waiters) > 0 {
		does += fmt.Sprintf("; waited for by %s", standings(lock.Waiters))
	}
	_, err := fmt.Fprintf(w, "%s %s: %s\n", time.Now().Format(time.RFC3339), shown(lock.Name), does)
	return err
}

// standings are claims in one line: who, with which token.
func standings(all []holdfast.Standing) string {
	var who []string
	for _, s := range all {
		text := words(s.Owner)
		if s.Meta != "" {
			text += " (" + words(s.Meta) + ")"
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

// lockRecord is a lock as programs read it.
func lockRecord(lock holdfast.Lock) fields {
	return fields{
		"time": time.Now().Format(time.RFC3339Nano), "name": lock.Name, "kind": lock.Kind, "limit": lock.Limit, "token": lock.Token,
		"holders": standingRecords(lock.Holders), "waiters": standingRecords(lock.Waiters),
	}
}

func standingRecords(all []holdfast.Standing) []fields {
	records := []fields{}
	for _, s := range all {
		f := fields{"owner": s.Owner, "note": s.Meta, "weight": s.Weight, "ref": s.Ref}
		if s.Token != 0 {
			f["token"] = s.Token
		}
		if !s.Since.IsZero() {
			f["since"] = s.Since.Format(time.RFC3339Nano)
		}
		for name, is := range map[string]bool{"broken": s.Broken, "detached": s.Detached, "foreign": s.Foreign, "asked": s.Asked} {
			if is {
				f[name] = true
			}
		}
		records = append(records, f)
	}
	return records
}

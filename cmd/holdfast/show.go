package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
)

func newShow(storeURL *string) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show NAME",
		Short: "Show who holds a lock and who waits for it",
		Long: `show prints the state of the lock NAME: who holds it and who waits for it.

With --json it prints one object, as watch does, even if the lock is free.`,
		Args: exactArgs("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return withClient(*storeURL, func(ctx context.Context, client *holdfast.Client) error {
				lock, err := client.Inspect(ctx, args[0])
				if err != nil {
					return storeError(err)
				}
				if asJSON {
					return writeLockJSON(c.OutOrStdout(), lock)
				}
				return printClaims(c.OutOrStdout(), args[0], lock)
			})
		},
	}
	addJSONFlag(c, &asJSON)
	return c
}

func printClaims(w io.Writer, name string, lock holdfast.Lock) error {
	if len(lock.Holders)+len(lock.Waiters) == 0 {
		_, err := fmt.Fprintf(w, "%s is free\n", quoteName(name))
		return err
	}
	fmt.Fprintf(w, "%s: %s, %d holding, %d waiting\n\n",
		quoteName(name), describeKind(lock), len(lock.Holders), len(lock.Waiters))
	rows := [][]string{{"", "OWNER", "NOTE", "WEIGHT", "TOKEN", "SINCE", "EXPIRES", "REF"}}
	for _, s := range lock.Holders {
		rows = append(rows, claimRow(lock, "holds", s))
	}
	for _, s := range lock.Waiters {
		rows = append(rows, claimRow(lock, "waits", s))
	}
	return writeTable(w, rows)
}

// claimRow is a row of the table. state is what the claim does, unless it is broken or detached.
func claimRow(lock holdfast.Lock, state string, s holdfast.ClaimInfo) []string {
	switch {
	case s.Broken:
		state = "broken" // it still excludes others, until its holder has released it or it expires
	case s.Detached:
		state = "detached"
	}
	note, token, weight, ends := "-", "-", fmt.Sprint(s.Weight), "-"
	if s.Meta != "" {
		note = printableText(s.Meta)
	}
	if s.Token != 0 {
		token = fmt.Sprint(s.Token)
	}
	if s.Remaining > 0 {
		ends = formatRelative(s.Remaining)
	}
	if lock.Kind == holdfast.KindRW {
		weight = "reader"
		if s.Weight == lock.Limit {
			weight = "writer"
		}
	}
	return []string{state, printableText(s.Owner), note, weight, token, formatTime(s.Since), ends, printableText(s.Ref)}
}

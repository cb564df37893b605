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
		Long: `show prints how the lock NAME stands: who holds it and who waits for it.

With --json it is one object, as watch prints them, also where the lock is free.`,
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
	fmt.Fprintf(w, "%s: %s, held by %d, waited for by %d\n\n", quoteName(name), describeKind(lock), len(lock.Holders), len(lock.Waiters))
	rows := [][]string{{"", "OWNER", "NOTE", "WEIGHT", "TOKEN", "SINCE", "ENDS IF SILENT", "REF"}}
	for _, s := range lock.Holders {
		rows = append(rows, claimRow(lock, "holds", s))
	}
	for _, s := range lock.Waiters {
		rows = append(rows, claimRow(lock, "waits", s))
	}
	return writeTable(w, rows)
}

func claimRow(lock holdfast.Lock, does string, s holdfast.ClaimInfo) []string {
	switch {
	case s.Broken:
		does = "broken" // no more is granted to it, and it stands only until it has let go
	case s.Detached:
		does = "detached"
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
	return []string{does, printableText(s.Owner), note, weight, token, formatTime(s.Since), ends, printableText(s.Ref)}
}

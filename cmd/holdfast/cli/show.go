package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
)

func newShow(storeURL *string) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show NAME",
		Short: "Show who holds a lock and who waits for it",
		Long: `show prints the state of the lock NAME: who holds it and who waits for it.

With --json it prints one record of the type "lock", even if the lock is free.`,
		Args: exactArgs("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return withClient(*storeURL, func(ctx context.Context, client *holdfast.Client) error {
				lock, err := client.Inspect(ctx, args[0])
				if err != nil {
					return storeError(err)
				}
				if asJSON {
					return writeLockJSON(c.OutOrStdout(), client.Info(), lock)
				}
				return printClaims(c.OutOrStdout(), client.Info(), lock)
			})
		},
	}
	addJSONFlag(c, &asJSON)
	return c
}

func printClaims(w io.Writer, info holdfast.Info, lock holdfast.Lock) error {
	name := quoteName(lock.Name)
	if len(lock.Holders)+len(lock.Waiters) == 0 {
		_, err := fmt.Fprintf(w, "%s is free\n", name)
		return err
	}
	waiting := fmt.Sprintf("%d waiting", len(lock.Waiters))
	switch {
	case shown.AllWaiters(info, lock):
	case len(lock.Waiters) == 0:
		waiting = "how many wait is not known"
	default:
		waiting = "at least " + waiting
	}
	fmt.Fprintf(w, "%s: %s, %d holding, %s\n\n", name, describeKind(lock), len(lock.Holders), waiting)
	d := newDisplay(w)
	rows := [][]string{{"", "OWNER", "NOTE", "WEIGHT", "TOKEN", "SINCE", "EXPIRES", "REF"}}
	for _, s := range lock.Holders {
		rows = append(rows, d.claimRow(lock, "holds", s))
	}
	for _, s := range lock.Waiters {
		rows = append(rows, d.claimRow(lock, "waits", s))
	}
	return d.writeTable(rows, 1, 2)
}

// claimRow is a row of the table. state is what the claim does, unless it is broken, detached or foreign.
func (d *display) claimRow(lock holdfast.Lock, state string, s holdfast.ClaimInfo) []string {
	note, token, weight := "-", "-", fmt.Sprint(s.Weight)
	if s.Meta != "" {
		note = printableText(s.Meta)
	}
	if s.Token != 0 {
		token = fmt.Sprint(s.Token)
	}
	if lock.Kind == holdfast.KindRW {
		weight = "reader"
		if s.Weight == lock.Limit {
			weight = "writer"
		}
	}
	return []string{claimState(s, state), printableText(s.Owner), note, weight, token, d.formatSince(s.Since),
		formatExpiry(s.Remaining), printableText(s.Ref)}
}

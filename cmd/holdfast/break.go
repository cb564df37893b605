package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
)

func newBreak(storeURL *string) *cobra.Command {
	var ref string
	var force bool
	c := &cobra.Command{
		Use:   "break NAME [--holder REF] [--force]",
		Short: "Take a lock away from its holder",
		Long: `break marks a holder: it hears at its next renewal, a third of its TTL away at most, that it has lost the lock, ends its
command and lets go. If it stays silent, the lock passes on when its TTL is over.

With --force the lock is free at once. Its old holder may then still be working, and so may the next one.

If several hold the lock, say which with --holder and the REF that "holdfast show NAME" prints. One that waits holds nothing,
and loses its place in line by its REF: that ends its wait.

Exits 1 if nobody holds the lock.`,
		Args: exactArgs("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return withClient(*storeURL, func(ctx context.Context, client *holdfast.Client) error {
				return breakLock(ctx, c, client, args[0], ref, force)
			})
		},
	}
	c.Flags().Var(nonEmptyString{&ref}, "holder", "which holder, or which that waits, by the `REF` that show prints (default: the only holder)")
	c.Flags().BoolVar(&force, "force", false, "free the lock at once, though its holder may still be working")
	return c
}

func breakLock(ctx context.Context, c *cobra.Command, client *holdfast.Client, name, ref string, force bool) error {
	lock, err := client.Inspect(ctx, name)
	if err != nil {
		return storeError(err)
	}
	who, err := chooseClaim(lock, name, ref)
	if err != nil {
		return err
	}
	mode := holdfast.BreakGraceful
	if force {
		mode = holdfast.BreakForce
	}
	if err := client.Break(ctx, name, who.Ref, mode); err != nil {
		return storeError(err)
	}
	if slices.ContainsFunc(lock.Waiters, func(s holdfast.ClaimInfo) bool { return s.Ref == who.Ref }) {
		_, err := fmt.Fprintf(c.OutOrStdout(), "%s has lost its place in line for %s\n", printableText(who.Owner), quoteName(name))
		return err
	}
	if force {
		printMessage("%s was taken from %s at once, who may still be working", quoteName(name), printableText(who.Owner))
		return nil
	}
	silent := "when its TTL is over"
	if who.Remaining > 0 {
		silent = formatRelative(who.Remaining)
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "%s is taken from %s, who hears it at the next renewal; else it passes on %s\n",
		quoteName(name), printableText(who.Owner), silent)
	return err
}

// chooseClaim finds the claim to break.
func chooseClaim(lock holdfast.Lock, name, ref string) (holdfast.ClaimInfo, error) {
	switch {
	case ref != "":
		for _, s := range append(lock.Holders, lock.Waiters...) {
			if s.Ref == ref {
				return s, nil
			}
		}
		return holdfast.ClaimInfo{}, exitWith(exitNoHolder, "no claim %s stands on %s; it may have ended by itself", quoteName(ref), quoteName(name))
	case len(lock.Holders) == 0:
		return holdfast.ClaimInfo{}, exitWith(exitNoHolder, "nobody holds %s", quoteName(name))
	case len(lock.Holders) > 1:
		var refs []string
		for _, s := range lock.Holders {
			refs = append(refs, printableText(s.Ref)+" ("+printableText(s.Owner)+")")
		}
		for _, s := range lock.Waiters {
			refs = append(refs, printableText(s.Ref)+" ("+printableText(s.Owner)+", waits)")
		}
		return holdfast.ClaimInfo{}, usageError("%d hold %s; say which with --holder and one of %s", len(lock.Holders), quoteName(name), strings.Join(refs, ", "))
	}
	return lock.Holders[0], nil
}

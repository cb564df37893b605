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
		Long: `break marks a holder as broken. The holder learns at its next renewal, after at most a third of its TTL, that it has lost
the lock; it then ends its command and releases the lock. If it does not renew, the lock passes on when its TTL has
passed.

With --force the lock is free at once. The old holder may then still be working while the next one starts.

If the lock has several holders, choose one with --holder and the REF that "holdfast show NAME" prints. The REF of a
waiter ends its wait: it loses its place in the queue.

break exits 1 if nobody holds the lock.`,
		Args: exactArgs("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return withClient(*storeURL, func(ctx context.Context, client *holdfast.Client) error {
				return breakLock(ctx, c, client, args[0], ref, force)
			})
		},
	}
	c.Flags().Var(nonEmptyString{&ref}, "holder",
		"which holder or waiter, by the `REF` that show prints (default the only holder)")
	c.Flags().BoolVar(&force, "force", false, "free the lock at once, even though its holder may still be working")
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
		_, err := fmt.Fprintf(c.OutOrStdout(), "%s has lost its place in the queue for %s\n", printableText(who.Owner), quoteName(name))
		return err
	}
	if force {
		printMessage("%s was taken from %s at once, which may still be working", quoteName(name), printableText(who.Owner))
		return nil
	}
	expiry := "when its TTL has passed"
	if who.Remaining > 0 {
		expiry = formatRelative(who.Remaining)
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "%s is taken from %s, which learns it at its next renewal; otherwise the lock passes on %s\n",
		quoteName(name), printableText(who.Owner), expiry)
	return err
}

// chooseClaim finds the claim with a ref, or the only holder.
func chooseClaim(lock holdfast.Lock, name, ref string) (holdfast.ClaimInfo, error) {
	switch {
	case ref != "":
		for _, s := range append(lock.Holders, lock.Waiters...) {
			if s.Ref == ref {
				return s, nil
			}
		}
		return holdfast.ClaimInfo{}, exitWith(exitNoHolder, "there is no claim %s on %s; it may have ended meanwhile", quoteName(ref), quoteName(name))
	case len(lock.Holders) == 0:
		return holdfast.ClaimInfo{}, exitWith(exitNoHolder, "nobody holds %s", quoteName(name))
	case len(lock.Holders) > 1:
		var refs []string
		for _, s := range lock.Holders {
			refs = append(refs, printableText(s.Ref)+" ("+printableText(s.Owner)+")")
		}
		for _, s := range lock.Waiters {
			refs = append(refs, printableText(s.Ref)+" ("+printableText(s.Owner)+", waiting)")
		}
		return holdfast.ClaimInfo{}, usageError("%s has %d holders; choose one with --holder and one of %s",
			quoteName(name), len(lock.Holders), strings.Join(refs, ", "))
	}
	return lock.Holders[0], nil
}

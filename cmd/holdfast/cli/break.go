package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
)

func newBreak(storeURL *string) *cobra.Command {
	var b lockBreak
	c := &cobra.Command{
		Use:   "break NAME [--holder REF] [--force] [--reason TEXT]",
		Short: "Take a lock away from its holder",
		Long: `break marks a holder as broken. The holder learns at its next renewal, after at most a third of its TTL, that it has lost
the lock; it then ends its command and releases the lock. If it does not renew, the lock passes on when its TTL has
passed.

With --force the lock is free at once. The old holder may then still be working while the next one starts.

If the lock has several holders, choose one with --holder and the REF that "holdfast show NAME" prints. The REF of a
waiter ends its wait: it loses its place in the queue.

The holder learns who has broken the lock, and with --reason why, on all stores, but not in the layouts of other clients
that have no room for it.

break exits 1 if nobody holds the lock. To ask the holder instead, use request-release.`,
		Args: exactArgs("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return withClient(*storeURL, func(ctx context.Context, client *holdfast.Client) error {
				return b.run(ctx, c, client, args[0])
			})
		},
	}
	c.Flags().Var(nonEmptyString{&b.ref}, "holder",
		"which holder or waiter, by the `REF` that show prints (default the only holder)")
	c.Flags().BoolVar(&b.force, "force", false, "free the lock at once, even though its holder may still be working")
	c.Flags().Var(&labelFlag{&b.reason, operator.MaxReason}, "reason",
		"`TEXT` for the holder, such as a ticket: why you break the lock")
	addJSONFlag(c, &b.asJSON)
	return c
}

// lockBreak is one run of break.
type lockBreak struct {
	ref, reason   string
	force, asJSON bool
}

// run breaks a claim, and prints what that means for its holder: at once, at its next renewal, or not at all
// because it was only waiting.
func (b *lockBreak) run(ctx context.Context, c *cobra.Command, client *holdfast.Client, name string) error {
	lock, err := client.Inspect(ctx, name)
	if err != nil {
		return storeError(err)
	}
	claim, err := chooseClaim(lock, name, b.ref, "choose one with --holder")
	if err != nil {
		return err
	}
	action := operator.Break
	if b.force {
		action = operator.BreakForce
	}
	if err := claim.Act(ctx, client, action, operator.DescribeBreak(breakerName(), action, b.reason)); err != nil {
		return foreignError(err, claim)
	}
	owner := printableText(claim.Owner)
	if b.asJSON {
		f := changeAsJSON(client.Info(), claim)
		f["force"] = b.force
		err := writeRecord(c.OutOrStdout(), recordBreak, f)
		if err != nil || !b.force || claim.Waits {
			return err
		}
	}
	if claim.Waits {
		_, err := fmt.Fprintf(c.OutOrStdout(), "%s has lost its place in the queue for %s\n", owner, quoteName(name))
		return err
	}
	if b.force { // a warning, and so on stderr
		printMessage("%s was taken from %s at once, which may still be working", quoteName(name), owner)
		return nil
	}
	expiry := "when its TTL has passed"
	if claim.Remaining > 0 {
		expiry = formatRelative(claim.Remaining)
	}
	if claim.Detached {
		_, err := fmt.Fprintf(c.OutOrStdout(), "%s is taken from its handle; no process renews it and could notice, so the lock "+
			"passes on %s, or at once with --force\n", quoteName(name), expiry)
		return err
	}
	_, err = fmt.Fprintf(c.OutOrStdout(),
		"%s is taken from %s, which learns it at its next renewal; otherwise the lock passes on %s\n",
		quoteName(name), owner, expiry)
	return err
}

// foreignError is the error of a break or of a request that the store refuses because another kind of client holds
// the lock.
func foreignError(err error, claim *operator.Claim) error {
	if !claim.Foreign || !errors.Is(err, holdfast.ErrUnsupported) {
		return storeError(err)
	}
	return usageError("%s is held by another kind of client, which cannot be told; holdfast break --force frees it at once, and "+
		"that client may still be working", quoteName(claim.Lock.Name))
}

// changeAsJSON is the claim that was broken, or asked to release its lock, as it was before.
func changeAsJSON(info holdfast.Info, claim *operator.Claim) fields {
	return fields{"store": info.Store, "lock": claim.Lock.Name, "claim": shown.NewClaim(claim.ClaimInfo, shown.PlainRef),
		"waiting": claim.Waits}
}

// breakerName is who breaks a lock, for its holder: a name that leaves room for a reason.
func breakerName() string {
	who := operatorName()
	if len(who) > holdfast.MaxReason-operator.MaxReason-len(", by force: ") || strings.ContainsFunc(who, isNotPrintable) {
		return strconv.Itoa(os.Getuid())
	}
	return who
}

// chooseClaim finds the claim with a ref, or the only holder if ref is empty. how tells the user how to choose one of
// several.
func chooseClaim(lock holdfast.Lock, name, ref, how string) (*operator.Claim, error) {
	claim, err := operator.FindClaim(lock, ref, shown.PlainRef)
	switch {
	case errors.Is(err, operator.ErrNoClaim):
		return nil, exitWith(exitNoHolder, "there is no claim %s on %s; it may have ended meanwhile", quoteName(ref),
			quoteName(name))
	case errors.Is(err, operator.ErrNoHolder):
		return nil, exitWith(exitNoHolder, "nobody holds %s", quoteName(name))
	case errors.Is(err, operator.ErrAmbiguous):
		var refs []string
		for _, s := range lock.Holders {
			refs = append(refs, fmt.Sprintf("%s (%s)", printableText(s.Ref), printableText(s.Owner)))
		}
		for _, s := range lock.Waiters {
			refs = append(refs, fmt.Sprintf("%s (%s, waiting)", printableText(s.Ref), printableText(s.Owner)))
		}
		return nil, usageError("%s has %d holders; %s: %s", quoteName(name), len(lock.Holders), how, strings.Join(refs, ", "))
	}
	return claim, err
}

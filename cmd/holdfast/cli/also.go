package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
)

// lockNames are the values of --also.
type lockNames []string

func (n *lockNames) Type() string   { return "name" }
func (n *lockNames) String() string { return "" }

// Set adds a name.
func (n *lockNames) Set(name string) error {
	if name == "" {
		return errors.New("give the name of a lock, or leave the flag out")
	}
	*n = append(*n, name)
	return nil
}

// check reports what does not go with --also.
func (n lockNames) check(c *cobra.Command, name string) error {
	if len(n) == 0 {
		return nil
	}
	for _, flag := range []string{"shared", "limit", "permits"} {
		if c.Flags().Changed(flag) {
			return usageError("--also and --%s exclude each other: with --also, each lock is held alone", flag)
		}
	}
	if c.Flags().Changed("newest-only") {
		return usageError("--also and --newest-only exclude each other: a run that waits for one of its locks, and holds " +
			"another, would not see the newer run that waits for that")
	}
	sorted := slices.Sorted(slices.Values(append(slices.Clone(n), name)))
	for i := 1; i < len(sorted); i++ {
		if sorted[i] == sorted[i-1] {
			return usageError("%s is named twice", quoteName(sorted[i]))
		}
	}
	return nil
}

// names are the names of all locks, in the order in which they are acquired.
func (r *lockRequest) names() []string {
	return slices.Sorted(slices.Values(append(slices.Clone(r.also), r.name)))
}

// acquireNow acquires the lock, or all of them, and returns the lease of the one that is NAME.
func (r *lockRequest) acquireNow(ctx context.Context, client *holdfast.Client) (*holdfast.Lease, error) {
	request := r.request()
	if len(r.also) == 0 {
		return request.Acquire(ctx, client)
	}
	request.Options.MaxHold = 0 // it would count from the first grant, while the next lock is waited for: see allHeld
	group, err := request.AcquireAll(ctx, client)
	if err != nil {
		return nil, err
	}
	r.group = group
	all := group.Leases()
	return all[slices.IndexFunc(all, func(l *holdfast.Lease) bool { return l.Name() == r.name })], nil
}

// leases has the lease of each lock, in the order in which they were acquired. lease is NAME's.
func (r *lockRequest) leases(lease *holdfast.Lease) []*holdfast.Lease {
	if r.group == nil {
		return []*holdfast.Lease{lease}
	}
	return r.group.Leases()
}

// releaseAll releases all locks.
func (r *lockRequest) releaseAll(lease *holdfast.Lease) error {
	if r.group == nil {
		return lease.Release()
	}
	return r.group.Release()
}

// alsoFields are what a record says of the other locks.
func (r *lockRequest) alsoFields() fields {
	if r.group == nil {
		return nil
	}
	var also []fields
	for _, l := range r.group.Leases() {
		if l.Name() != r.name {
			also = append(also, fields{"lock": l.Name(), "token": l.Token(), "id": l.ID(), "ref": l.Ref()})
		}
	}
	return fields{"also": also}
}

// allHeld is what the command runs under: the lease, or all of them until maxHoldEnd, which is 0 without --max-hold.
func (r *lockRequest) allHeld(lease *holdfast.Lease, maxHoldEnd time.Duration) (held heldLease, stop func()) {
	switch {
	case r.group == nil:
		return lease, func() {}
	case maxHoldEnd == 0:
		return r.group, func() {}
	}
	ctx, cancel := context.WithCancelCause(r.group.Context())
	b := &boundedGroup{r.group, ctx, cancel, maxHoldEnd}
	timer := time.AfterFunc(maxHoldEnd-guard.BoottimeNow(), func() { b.Remaining() })
	return b, func() { timer.Stop(); cancel(nil) }
}

// boundedGroup is a group of leases that ends by --max-hold as one lease does.
type boundedGroup struct {
	*holdfast.LeaseGroup
	ctx    context.Context
	cancel context.CancelCauseFunc
	end    time.Duration // as guard.BoottimeNow counts
}

func (b *boundedGroup) Context() context.Context { return b.ctx }

func (b *boundedGroup) Remaining() time.Duration {
	left := b.end - guard.BoottimeNow()
	if left <= 0 {
		b.cancel(&holdfast.LossError{Cause: holdfast.LossMaxHold})
	}
	return max(0, min(left, b.LeaseGroup.Remaining()))
}

// findAwaited finds the lock that is waited for: the first one that others hold, by the owner, which is good enough
// for a message.
func (r *lockRequest) findAwaited(ctx context.Context, client *holdfast.Client) (lock holdfast.Lock, err error) {
	for _, name := range r.names() {
		lock, err = client.Inspect(ctx, name)
		if err != nil || len(r.also) == 0 || slices.ContainsFunc(lock.Holders, r.isOthers) {
			break
		}
	}
	return lock, err
}

// isOthers reports whether a claim is none of this program, by the owner.
func (r *lockRequest) isOthers(h holdfast.ClaimInfo) bool {
	return h.Owner != cmp.Or(r.labels.owner, ownerName())
}

// isOwnClaim reports whether a lock was refused because this program holds it.
func (r *lockRequest) isOwnClaim(err error) bool {
	var held *holdfast.HeldError
	return errors.As(err, &held) && len(held.Holders) > 0 && !slices.ContainsFunc(held.Holders, r.isOthers)
}

// lockOf is the name of the lock that an error is about.
func lockOf(err error, name string) string {
	var failed *holdfast.Error
	if errors.As(err, &failed) && failed.Lock != "" {
		return failed.Lock
	}
	return name
}

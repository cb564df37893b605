package holdfast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// LeaseGroup is the leases of one [LockAll]. They are valid only together: when one of them ends, all do. All methods
// may be called from any goroutine.
type LeaseGroup struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	leases []*Lease // in the order in which they were taken
}

// LockAll acquires all locks or none. It waits until it has them all, or until ctx ends, which bounds the waiting as a
// whole. The locks may belong to several clients and stores. If one cannot be acquired, or one is lost before the last
// one is acquired, LockAll releases everything and returns the reason; errors are those of Mutex.Lock. Then no work has
// been done under the locks, so their LockOptions.MinHold does not count.
//
// Locks are acquired one after the other, in the order of their store (Info.Store) and name: callers that use only
// LockAll never deadlock, provided that all of them address a store in the same way. If several items name one lock,
// the strongest is acquired and the others are ignored: a writer rather than a reader, more permits rather than fewer.
// All items are checked before the first lock is acquired. LockAll returns ErrInvalid if there are no items or one is
// nil, and ErrMismatch if two items want one name as different kinds of lock.
func LockAll(ctx context.Context, items ...Lockable) (*LeaseGroup, error) {
	if ctx == nil {
		return nil, &Error{Op: "lock all", Err: errNilContext}
	}
	list, err := sortSpecs(ctx, items)
	if err != nil {
		return nil, err
	}
	s := &LeaseGroup{}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ends := s.ctx // which add wraps
	defer context.AfterFunc(ends, func() { cancel(context.Cause(ends)) })()
	for i, it := range list {
		stands := false
		if i > 0 {
			stands, err = it.isHeldByGroup(waiting, list[i-1], s.leases)
		}
		var l *Lease
		switch {
		case err != nil:
		case stands && it.kind == list[i-1].kind && it.limit == list[i-1].limit:
			continue
		case stands:
			err = it.client.wrapError("lock all", it.name, ErrMismatch)
		default:
			if l, err = it.client.takeLock(waiting, "lock all", it, true); err == nil {
				s.addLease(l, it.opts.Reentrant)
			}
		}
		if lost := s.Err(); lost != nil {
			err = it.client.wrapError("lock all", it.name, lost)
		}
		if err != nil {
			s.releaseUnused(ctx)
			return nil, err
		}
	}
	s.markUsed()
	return s, nil
}

// markUsed ends the time in which the leases do not count as used, because no work can have begun under them.
func (lg *LeaseGroup) markUsed() {
	for _, l := range lg.leases {
		l.hold.setUnused(l, false)
	}
}

// releaseUnused releases what was acquired before LockAll failed. Its error is of no use to a caller that never had the
// locks, and a caller whose context has ended does not wait for it: the rest is done in the background.
func (lg *LeaseGroup) releaseUnused(ctx context.Context) {
	done := make(chan struct{})
	go func() { _ = lg.Release(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// sortSpecs returns the items in the order in which they are acquired, without duplicates. The items that one client
// has for one name are one lock, of which the strongest comes first. All items are checked: an error in the last one
// should not be found after hours of waiting for the first.
func sortSpecs(ctx context.Context, items []Lockable) ([]lockSpec, error) {
	var list []lockSpec
	for n, i := range items {
		var it lockSpec
		if i != nil {
			it = i.lockSpec()
		}
		if it.client == nil {
			return nil, &Error{Op: "lock all",
				Err: newInvalidError("item %d is nil: items are made by a client's Mutex, RWMutex or Semaphore", n+1)}
		}
		if err := it.check(ctx); err != nil {
			return nil, it.client.wrapError("lock all", it.name, err)
		}
		list = append(list, it)
	}
	if len(list) == 0 {
		return nil, &Error{Op: "lock all", Err: newInvalidError("no locks were named")}
	}
	slices.SortStableFunc(list, func(a, b lockSpec) int {
		return cmp.Or(cmp.Compare(a.client.Info().Store, b.client.Info().Store), cmp.Compare(a.name, b.name),
			cmp.Compare(b.weight, a.weight))
	})
	var kept []lockSpec
	for _, i := range list {
		at := slices.IndexFunc(kept, func(k lockSpec) bool { return k.client == i.client && k.name == i.name })
		switch {
		case at < 0:
			kept = append(kept, i)
		case kept[at].kind != i.kind || kept[at].limit != i.limit:
			return nil, i.client.wrapError("lock all", i.name, ErrMismatch)
		}
	}
	return kept, nil
}

// check reports why the lock can never be acquired in this way, as far as that is known before it is tried.
func (s lockSpec) check(ctx context.Context) error {
	claim, err := s.client.newClaim(s)
	info := s.client.store.Info()
	switch {
	case err != nil:
		return err
	case !slices.Contains(info.Kinds, s.kind):
		return fmt.Errorf("%w: the store has no lock of the kind %s, see Info.Kinds", ErrUnsupported, s.kind)
	case claim.Fair && info.Order == driver.OrderNone:
		return fmt.Errorf("%w: the store has no fair mutex, see Info.Order", ErrUnsupported)
	case s.opts.Reentrant:
		return s.client.checkReentry(ctx, claim)
	}
	return nil
}

// isHeldByGroup reports whether the lock is the same as one that was acquired before through another client: the claim
// is found there under its ref. Two stores with the same address (several in the memory of one process) are told apart
// by that. If the store does not answer, it is not known, and acquiring the lock could mean to wait for oneself.
func (s lockSpec) isHeldByGroup(ctx context.Context, before lockSpec, taken []*Lease) (bool, error) {
	if before.name != s.name || before.client.Info().Store != s.client.Info().Store {
		return false, nil
	}
	lock, err := s.client.Inspect(ctx, s.name)
	return slices.ContainsFunc(lock.Holders, func(h ClaimInfo) bool {
		return slices.ContainsFunc(taken,
			func(l *Lease) bool { return l.Name() == s.name && l.Ref() == h.Ref && l.Token() == h.Token })
	}), err
}

// addLease adds a lease to the group. When it ends, all end.
func (lg *LeaseGroup) addLease(l *Lease, reentrant bool) {
	lg.leases = append(lg.leases, l)
	l.hold.setUnused(l, true)
	ends := l.Context()
	context.AfterFunc(ends, func() { lg.cancel(context.Cause(ends)) })
	if reentrant {
		lg.ctx = withHold(lg.ctx, l.hold)
	}
}

// All returns the leases, one per lock, in the order in which they were acquired: for their names and tokens. Do not
// release them one by one.
func (lg *LeaseGroup) All() []*Lease { return slices.Clone(lg.leases) }

// Context returns a context that ends when the first of the leases does, with the same cause. It carries the values of
// the context that was given to LockAll, and re-enters those of the locks that are re-entrant.
func (lg *LeaseGroup) Context() context.Context { return lg.ctx }

// Valid reports whether all leases are valid, by the clock and at this moment: see [Lease.Valid].
func (lg *LeaseGroup) Valid() bool { return lg.Remaining() > 0 }

// Remaining is the smallest Remaining of the leases.
func (lg *LeaseGroup) Remaining() time.Duration {
	left := lg.leases[0].Remaining()
	for _, l := range lg.leases[1:] {
		left = min(left, l.Remaining())
	}
	return left
}

// Err is nil while all leases are valid, then the reason why the first of them ended.
func (lg *LeaseGroup) Err() error {
	for _, l := range lg.leases {
		if err := l.Err(); err != nil {
			lg.cancel(err)
		}
	}
	return context.Cause(lg.ctx)
}

// Release releases all locks, the last acquired first, and joins the errors. It takes at most as long as the longest
// [Lease.Release]; a lock that could not be released in that time is released in the background.
func (lg *LeaseGroup) Release() error {
	var timeout time.Duration
	for _, l := range lg.leases {
		timeout = max(timeout, driver.UnreachableTimeout(l.hold.asked.TTL))
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return lg.ReleaseContext(ctx)
}

// ReleaseContext is Release with ctx as its bound. If ctx is nil, it changes nothing and returns ErrInvalid.
func (lg *LeaseGroup) ReleaseContext(ctx context.Context) error {
	if ctx == nil {
		return &Error{Op: "release", Err: errNilContext}
	}
	lg.cancel(ErrReleased)
	var errs []error
	for _, l := range slices.Backward(lg.leases) {
		errs = append(errs, l.ReleaseContext(ctx))
	}
	return errors.Join(errs...)
}

package holdfast

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// LeaseGroup are those of a [LockAll]. They are good only together: when one of them is lost, all are. All methods may be
// called from any goroutine.
type LeaseGroup struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	leases []*Lease // in the order in which they were taken
}

// LockAll locks all items or none: it waits until it has them all, or ctx ends, which bounds the waiting as a whole.
// Items may be of several clients and stores. If one cannot be had, or one is lost before the last is there, everything
// is given back and the error says why; errors are those of Mutex.Lock.
//
// Locks are taken one after the other, in the order of their store (by Info.Store) and name: whoever takes locks by
// LockAll only never waits in a circle, provided that all address a store alike. Of several items for one lock the
// strongest counts and the others are dropped: a writer before a reader, more permits before fewer. ErrInvalid if there
// are no items or one is nil, ErrMismatch if two want one name as different kinds of lock.
func LockAll(ctx context.Context, items ...Lockable) (*LeaseGroup, error) {
	list, err := sortSpecs(items)
	if err != nil {
		return nil, err
	}
	if ctx == nil {
		return nil, &Error{Op: "lock all", Err: errNilContext}
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
	return s, nil
}

// releaseUnused gives back what was taken in vain. What Unlock says is of no use to somebody who never had the locks, and whose time is
// over does not wait for it: the rest is done in the background.
func (s *LeaseGroup) releaseUnused(ctx context.Context) {
	done := make(chan struct{})
	go func() { _ = s.Release(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// sortSpecs gives the items in the order in which they are taken, without doubles. What one client has under a name is one
// lock, of which the strongest comes first.
func sortSpecs(items []Lockable) ([]lockSpec, error) {
	var list []lockSpec
	for n, i := range items {
		var it lockSpec
		if i != nil {
			it = i.lockSpec()
		}
		if it.client == nil {
			return nil, &Error{Op: "lock all", Err: newInvalidError("item %d is nil: items are made by a client's Mutex, RWMutex or Semaphore", n+1)}
		}
		list = append(list, it)
	}
	if len(list) == 0 {
		return nil, &Error{Op: "lock all", Err: newInvalidError("no locks were named")}
	}
	slices.SortStableFunc(list, func(a, b lockSpec) int {
		return cmp.Or(cmp.Compare(a.client.Info().Store, b.client.Info().Store), cmp.Compare(a.name, b.name), cmp.Compare(b.weight, a.weight))
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

// isHeldByGroup reports whether the lock is the very one that was taken before through another client: there the claim stands
// under its own ref. Two stores of one address (several in one process's memory) are told apart by that.
// Without an answer it is not known, and taking the lock could be to wait for oneself.
func (i lockSpec) isHeldByGroup(ctx context.Context, before lockSpec, taken []*Lease) (bool, error) {
	if before.name != i.name || before.client.Info().Store != i.client.Info().Store {
		return false, nil
	}
	lock, err := i.client.Inspect(ctx, i.name)
	return slices.ContainsFunc(lock.Holders, func(h ClaimInfo) bool {
		return slices.ContainsFunc(taken, func(l *Lease) bool { return l.Name() == i.name && l.Ref() == h.Ref && l.Token() == h.Token })
	}), err
}

// addLease takes a lease in. When it ends, all end.
func (s *LeaseGroup) addLease(l *Lease, reentrant bool) {
	s.leases = append(s.leases, l)
	ends := l.Context()
	context.AfterFunc(ends, func() { s.cancel(context.Cause(ends)) })
	if reentrant {
		s.ctx = withHold(s.ctx, l.hold)
	}
}

// All are the leases, one a lock, in the order in which they were taken: for their names and tokens.
func (s *LeaseGroup) All() []*Lease { return slices.Clone(s.leases) }

// Context ends when the first of the leases does, with its cause. It carries the values of the context that was given to
// LockAll, and enters those of the locks that are re-entrant.
func (s *LeaseGroup) Context() context.Context { return s.ctx }

// Valid reports whether all of the leases may still be believed in, by the clock and now.
func (s *LeaseGroup) Valid() bool { return s.Remaining() > 0 }

// Remaining is the least of what the leases say.
func (s *LeaseGroup) Remaining() time.Duration {
	left := s.leases[0].Remaining()
	for _, l := range s.leases[1:] {
		left = min(left, l.Remaining())
	}
	return left
}

// Err is nil while all of the leases are valid, then why the first of them ended.
func (s *LeaseGroup) Err() error {
	for _, l := range s.leases {
		if err := l.Err(); err != nil {
			s.cancel(err)
		}
	}
	return context.Cause(s.ctx)
}

// Release gives all locks back, the last one taken first, and joins the errors. It takes as long as the longest
// Lease.Unlock; what could not be given back in that time is given back in the background.
func (s *LeaseGroup) Release() error {
	var patience time.Duration
	for _, l := range s.leases {
		patience = max(patience, driver.UnreachableTimeout(l.hold.grant.Claim.TTL))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.ReleaseContext(ctx)
}

// ReleaseContext is Unlock bounded by ctx instead.
func (s *LeaseGroup) ReleaseContext(ctx context.Context) error {
	s.cancel(ErrReleased)
	var errs []error
	for _, l := range slices.Backward(s.leases) {
		errs = append(errs, l.ReleaseContext(ctx))
	}
	return errors.Join(errs...)
}

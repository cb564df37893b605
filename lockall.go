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

// newLeaseGroup makes a group without leases.
func newLeaseGroup(ctx context.Context) *LeaseGroup {
	lg := &LeaseGroup{}
	lg.ctx, lg.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return lg
}

// LockAll over several clients needs no order between stores. It never waits for a lock while it holds another one. It
// tries all but the first, and if one is held, it gives back the rest and waits for that one. A random pause, which
// doubles up to a second, ends a chase of two calls. A lock that it gives back was never used, so its MinHold does not
// count. Within one client the order of the names is enough, and a place in a queue is kept. Rejected: an order by the
// addresses of the stores. Two stores can show the same address, and one store another address after a failover. An
// identity kept in the store would have to survive a failover, and reading would create it. The simulation runs LockAll
// over one store and over two, with a MinHold on some locks.

// LockAll acquires all locks or none. It waits until it has them all, or until ctx ends, which bounds the waiting as a
// whole. The locks may belong to several clients and stores. If one cannot be acquired, or one is lost before the last
// one is acquired, LockAll releases everything and returns the reason: an error of Mutex.Lock. Then no work has
// been done under the locks, so their LockOptions.MinHold does not count.
//
// Callers that use only LockAll never deadlock. The locks of one client are acquired one after the other, in the
// order of their names. Between clients there is no order: a store has no address that is the same for all its users.
// So a LockAll over several clients never waits for a lock while it holds another one. It waits for the first and
// tries the others. If one of those is held, it releases all, waits for that one, and tries the rest again. It tries
// again after a random pause of up to 10 ms at first and 1 s in the end, so that two calls do not get in each other's
// way forever. While nobody else uses the locks, it costs no more than locks of one client. But it has a place in the
// queue of one lock at a time: while others always hold or want one of its locks, even a fair one, it may be
// overtaken for as long as ctx lasts.
//
// If several items name one lock, the strongest is acquired and the others are ignored: a writer rather than a reader,
// more permits rather than fewer. Items of two clients of one store are two claims even if they name one lock. LockAll
// returns ErrInvalid when one of them keeps the other out: use one client per store.
//
// All items are checked before the first lock is acquired. LockAll returns ErrInvalid if there are no items or one is
// nil, and ErrMismatch if two items want one name as different kinds of lock.
func LockAll(ctx context.Context, items ...Lockable) (*LeaseGroup, error) {
	return lockAll(ctx, "lock all", true, items)
}

// TryLockAll is LockAll without a wait: it acquires all locks or none, and returns ErrHeld if one of them is held.
// Error.Lock is its name.
func TryLockAll(ctx context.Context, items ...Lockable) (*LeaseGroup, error) {
	return lockAll(ctx, "try lock all", false, items)
}

// lockAll takes all the locks, one after another in a fixed order, or none. If they belong to several clients,
// there is no order that all programs share; then it never waits while it holds one, and waits first for the lock
// that was taken.
func lockAll(ctx context.Context, op string, wait bool, items []Lockable) (*LeaseGroup, error) {
	if ctx == nil {
		return nil, &Error{Op: op, Err: errNilContext}
	}
	list, err := sortSpecs(ctx, op, items)
	if err != nil {
		return nil, err
	}
	severalClients := slices.ContainsFunc(list, func(s lockSpec) bool { return s.client != list[0].client })
	for pause := minPause; ; pause = min(2*pause, maxLockAllPause) {
		lg := newLeaseGroup(ctx)
		n, err := lg.takeLocks(ctx, op, list, wait, wait && !severalClients)
		if err == nil {
			lg.markUsed()
			return lg, nil
		}
		lg.releaseUnused(ctx)
		if n == 0 || !wait || !severalClients || isOneOf(err, lastingErrors...) ||
			isOneOf(err, ErrMismatch, ErrLost, ErrSuperseded) {
			return nil, err
		}
		it := list[n]
		sleepContext(ctx, randomPart(pause))
		if ctx.Err() != nil {
			return nil, it.client.wrapError(op, it.name, newWaitEndedError(ctx, err))
		}
		copy(list[1:], list[:n])
		list[0] = it // which is waited for now
	}
}

// maxLockAllPause is the longest pause of a LockAll between a try that has failed and the next. It is longer than a few
// calls to a slow store, so that of two calls that want the same locks one can finish while the other pauses.
const maxLockAllPause = time.Second

// takeLocks acquires the locks one after the other. It waits for the first if wait is set, and for the others only if
// waitForAll is set: else one that is held is an ErrHeld. n is the index of the lock that err is about.
func (lg *LeaseGroup) takeLocks(ctx context.Context, op string, list []lockSpec, wait, waitForAll bool) (n int, err error) {
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ends := lg.ctx // which addLease wraps
	defer context.AfterFunc(ends, func() { cancel(context.Cause(ends)) })()
	for i, it := range list {
		l, err := it.client.takeLock(waiting, op, it, waitForAll || wait && i == 0)
		if err == nil {
			lg.addLease(l, it.opts.Reentrant)
		}
		if lost := lg.Err(); lost != nil {
			err = it.client.wrapError(op, it.name, lost)
		}
		if err != nil && lg.isHolder(ctx, it, err) {
			err = it.client.wrapError(op, it.name, newInvalidError("two of the items are the same lock, by way of "+
				"two clients, and would wait for each other: name it once, or use one client for both"))
		}
		if err != nil {
			return i, err
		}
	}
	return 0, nil
}

// isHolder reports whether a lease of the group itself keeps a try out: then both are claims of one lock. The error of
// the try shows the holders, or the store is asked. If it does not answer now, it will when the lock is tried again.
func (lg *LeaseGroup) isHolder(ctx context.Context, s lockSpec, err error) bool {
	if len(lg.leases) == 0 || !errors.Is(err, ErrHeld) {
		return false
	}
	held := findHeldError(err)
	if held == nil || len(held.Holders) == 0 {
		held = findHeldError(s.client.heldError(ctx, s.name))
	}
	return slices.ContainsFunc(held.Holders, func(h ClaimInfo) bool {
		return slices.ContainsFunc(lg.leases, func(l *Lease) bool { return l.Ref() == h.Ref && l.Token() == h.Token })
	})
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
// has for one name are one lock, of which the strongest comes first. The order within one client is what prevents a
// deadlock. The order of the clients, by the addresses of their stores, is a hint: with one order, calls seldom meet in
// the middle. All items are checked: an error in the last one should not be found after hours of waiting for the first.
func sortSpecs(ctx context.Context, op string, items []Lockable) ([]lockSpec, error) {
	var list []lockSpec
	addresses := map[*Client]string{} // read once: the address of a store may change while they are sorted
	for n, i := range items {
		var it lockSpec
		if i != nil {
			it = i.lockSpec()
		}
		if it.client == nil {
			return nil, &Error{Op: op,
				Err: newInvalidError("item %d is nil: items are made by a client's Mutex, RWMutex or Semaphore", n+1)}
		}
		if err := it.check(ctx); err != nil {
			return nil, it.client.wrapError(op, it.name, err)
		}
		list = append(list, it)
		addresses[it.client] = it.client.Info().Store
	}
	if len(list) == 0 {
		return nil, &Error{Op: op, Err: newInvalidError("no locks were named")}
	}
	slices.SortStableFunc(list, func(a, b lockSpec) int {
		return cmp.Or(cmp.Compare(addresses[a.client], addresses[b.client]), cmp.Compare(a.name, b.name),
			cmp.Compare(b.weight, a.weight))
	})
	var kept []lockSpec
	for _, i := range list {
		at := slices.IndexFunc(kept, func(k lockSpec) bool { return k.client == i.client && k.name == i.name })
		switch {
		case at < 0:
			kept = append(kept, i)
		case kept[at].kind != i.kind || kept[at].limit != i.limit:
			return nil, i.client.wrapError(op, i.name, ErrMismatch)
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

// addLease adds a lease to the group. When it ends, all end.
func (lg *LeaseGroup) addLease(l *Lease, reentrant bool) {
	lg.leases = append(lg.leases, l)
	l.hold.setUnused(l, true)
	ends := l.Context()
	context.AfterFunc(ends, func() { lg.end(l, context.Cause(ends)) })
	if reentrant {
		lg.ctx = withHold(lg.ctx, l.hold)
	}
}

// end ends the group because one of its leases has ended. The cause names the lock that was lost.
func (lg *LeaseGroup) end(l *Lease, cause error) {
	if errors.Is(cause, ErrLost) {
		cause = l.hold.client.wrapError("hold", l.Name(), cause)
	}
	lg.cancel(cause)
}

// Leases returns the leases, one per lock, in the order in which they were acquired: for their names and tokens. Do not
// release them one by one.
func (lg *LeaseGroup) Leases() []*Lease { return slices.Clone(lg.leases) }

// Context returns a context that ends when the first of the leases does, with its cause. A loss is wrapped in an
// [*Error] with the name of the lock. It carries the values of the context that was given to LockAll, and re-enters
// those of the locks that are re-entrant.
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

// Progress notes that the work gets on, for all leases: see [Lease.Progress].
func (lg *LeaseGroup) Progress() bool {
	valid := true
	for _, l := range lg.leases {
		valid = l.Progress() && valid
	}
	return valid
}

// Err is nil while all leases are valid, then the reason why the first of them ended.
func (lg *LeaseGroup) Err() error {
	for _, l := range lg.leases {
		if err := l.Err(); err != nil {
			lg.end(l, err)
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

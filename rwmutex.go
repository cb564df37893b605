package holdfast

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// RWMutex is a lock that one writer or any number of readers hold (the store has a bound: Info.MaxHolders). All claims
// on it wait in one queue in the store, in order of arrival, so neither side starves the other. A reader that locks
// again behind a waiting writer waits forever, unless LockOptions.Reentrant lets it enter the lock again.
type RWMutex struct {
	client *Client
	name   string
	opts   LockOptions
}

// RWMutex names a read-write lock; see [Client.Mutex]. The name must not be in use as another kind of lock.
// LockOptions.Fair has no effect: a read-write lock is always fair.
func (c *Client) RWMutex(name string, opts *LockOptions) *RWMutex {
	return &RWMutex{client: c, name: name, opts: opts.orZero()}
}

// lockSpec is empty for a nil RWMutex, which LockAll and Explain report as an error.
func (m *RWMutex) lockSpec() lockSpec {
	if m == nil {
		return lockSpec{}
	}
	return lockSpec{m.client, m.name, KindRW, driver.RWLimit, driver.RWLimit, m.opts}
}

func (m *RWMutex) readerSpec() lockSpec {
	s := m.lockSpec()
	s.weight = 1
	return s
}

// Reader returns the reader's side of the lock, as an item for [LockAll] and Explain.
func (m *RWMutex) Reader() Lockable { return m.readerSpec() }

// Explain returns how a writer's claim on the lock would be kept in the store; see [Lockable].
func (m *RWMutex) Explain() (Plan, error) { return m.lockSpec().Explain() }

// Lock waits until the caller is the only holder. It returns the errors of Mutex.Lock.
func (m *RWMutex) Lock(ctx context.Context) (*Lease, error) {
	return m.client.takeLock(ctx, "lock", m.lockSpec(), true)
}

// TryLock is Lock without waiting. It returns the errors of Mutex.TryLock.
func (m *RWMutex) TryLock(ctx context.Context) (*Lease, error) {
	return m.client.takeLock(ctx, "try lock", m.lockSpec(), false)
}

// RLock waits until no writer holds the lock or is ahead of the caller. The lease's token does not fence. Errors are
// those of Mutex.Lock.
func (m *RWMutex) RLock(ctx context.Context) (*Lease, error) {
	return m.client.takeLock(ctx, "read lock", m.readerSpec(), true)
}

// TryRLock is RLock without waiting. It never passes a waiting writer. It returns the errors of Mutex.TryLock.
func (m *RWMutex) TryRLock(ctx context.Context) (*Lease, error) {
	return m.client.takeLock(ctx, "try read lock", m.readerSpec(), false)
}

// Do locks for writing, runs f, and releases the lock. See [Client.Do].
func (m *RWMutex) Do(ctx context.Context, f func(ctx context.Context, l *Lease) error) error {
	return m.client.doLocked(ctx, "lock", m.lockSpec(), f)
}

// RDo locks for reading, runs f, and releases the lock. See [Client.Do].
func (m *RWMutex) RDo(ctx context.Context, f func(ctx context.Context, l *Lease) error) error {
	return m.client.doLocked(ctx, "read lock", m.readerSpec(), f)
}

// Downgrade makes a writer's lease a reader's, with no moment in between at which another writer could get the lock.
// Waiting readers that are next in the queue are granted next to it. The lease keeps its token and is renewed as
// before; from the call on it is no longer [Lease.Exclusive]. On a reader's lease Downgrade confirms that with the
// store and changes nothing.
//
// It returns ErrInvalid if this is no lease of an RWMutex, or if the lock was entered more than once (code inside may
// be writing); ErrUnsupported where the store cannot do it; ErrLost; ErrUncertain if the store did not answer: the
// lease is then a reader's, others may still be kept out, and Downgrade may be called again.
func (l *Lease) Downgrade(ctx context.Context) error { return l.changeWeight(ctx, "downgrade", 1) }

// A lease that changes its weight keeps its token. No exclusive claim can have been granted since, so the token of an
// upgraded reader is larger than that of every writer before it. Rejected: a new token. It would have to be settled
// after a lost answer, during which renewals with the old one would look like losses.
//
// An upgrade passes the waiters: it held the lock before they came. It never waits, so two upgrades cannot block each
// other.

// TryUpgrade makes a reader's lease a writer's if it is the only holder. It never waits, since two readers that waited
// for each other would wait forever. If there is another holder it returns ErrHeld, with a [*HeldError] that says who,
// and the lease stays a reader's: to write, release it and lock again. An upgrade overtakes waiting claims: the lease
// was granted before they arrived.
//
// The lease keeps its token, which fences from then on: no writer has been granted the lock since the token was. It
// also returns the errors of Downgrade; after ErrUncertain the lease is a reader's, others may be kept out, and
// calling either method again settles it.
func (l *Lease) TryUpgrade(ctx context.Context) error {
	return l.changeWeight(ctx, "try upgrade", driver.RWLimit)
}

// changeWeight upgrades or downgrades the lease, for the method op.
func (l *Lease) changeWeight(ctx context.Context, op string, weight int64) error {
	c := l.hold.client
	err := checkCall(c, ctx)
	switch {
	case err != nil:
	case !c.inflight.enterHeld():
		err = l.errAfterClose()
	default:
		defer c.inflight.exit()
		err = l.hold.changeWeight(ctx, l, weight)
	}
	if err != nil {
		return c.wrapError(op, l.Name(), err)
	}
	return nil
}

// changeWeight changes what the lease is good for: to less before the store is asked, to more only after the store has
// confirmed it. So the client never believes in more than the store has granted.
func (h *hold) changeWeight(ctx context.Context, l *Lease, weight int64) error {
	c := h.client
	if h.asked.Kind != KindRW {
		return newInvalidError("only a lease of an RWMutex can be downgraded or upgraded")
	}
	h.checkExpiry()
	select {
	case h.extras.changingWeight <- struct{}{}:
		defer func() { <-h.extras.changingWeight }()
	case <-ctx.Done(): // the outcome of the change that is under way is not known
		return fmt.Errorf("%w: %w", ErrUncertain, contextError(ctx))
	}
	grant, err := h.lowerWeight(l, weight)
	if err != nil {
		return err
	}
	err = c.store.SetWeight(ctx, grant, weight)
	h.checkExpiry()
	if errors.Is(err, ErrLost) && h.endAs(stateLost, lossOf(err)) {
		c.handleLoss(h)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	held := findHeldError(err)
	switch {
	case held != nil && !errors.Is(err, ErrUncertain): // this client is one of the holders, which it knows
		own := func(s ClaimInfo) bool { return s.Ref == h.ref }
		return &HeldError{Holders: slices.DeleteFunc(slices.Clone(held.Holders), own), Waiting: held.Waiting}
	case errors.Is(err, ErrUnsupported): // nothing was tried
		h.extras.weight = grant.Weight
		return err
	case err != nil:
		return driverutil.Uncertain(err)
	case h.state != stateHeld:
		return h.err()
	}
	h.extras.weight = weight
	return nil
}

// lowerWeight takes from the lease what it is about to lose, and returns the grant as it was.
func (h *hold) lowerWeight(l *Lease, weight int64) (grant driver.Grant, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	grant = h.currentGrant()
	switch {
	case l.state != leaseOpen:
		return grant, l.releaseErr()
	case h.state != stateHeld:
		return grant, h.err()
	case h.countLeases() > 1:
		return grant, newInvalidError("cannot change a lease that was entered %d times", h.countLeases())
	}
	h.extras.weight = min(h.extras.weight, weight)
	return grant, nil
}

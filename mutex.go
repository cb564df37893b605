package holdfast

import (
	"context"
	"errors"
)

// Mutex is a lock that one lease at a time holds, among all clients of the store. It is a name and options, costs
// nothing, and needs no Close. It is re-entrant only if LockOptions.Reentrant says so.
type Mutex struct {
	client *Client
	name   string
	opts   LockOptions
}

// Mutex names a mutex: 1 to 512 bytes of UTF-8 without NUL. o may be nil. Name and options are checked when it is used.
func (c *Client) Mutex(name string, o *LockOptions) *Mutex {
	return &Mutex{client: c, name: name, opts: o.orZero()}
}

func (o *LockOptions) orZero() LockOptions {
	if o == nil {
		return LockOptions{}
	}
	return *o
}

// Lock waits until the mutex is granted, or ctx ends. ctx bounds the waiting and not the lease; its values are found
// in the lease's context.
//
// Callers of one client are served in order of arrival; among clients LockOptions.Fair gives that. The error is an
// [*Error] and Is context.Canceled or context.DeadlineExceeded when ctx ended (then at once; a claim that may have
// been left behind is cleaned up in the background), ErrInvalid, ErrMismatch, ErrQueueFull, ErrDenied, ErrUnsupported,
// ErrCorrupt, ErrClosed, ErrLost if the claim was ended from outside while it waited, by Client.Break for example, or says
// that the store could not be reached for 10 s (or the TTL, if that is less).
func (m *Mutex) Lock(ctx context.Context) (*Lease, error) {
	return m.client.take(ctx, "lock", m.name, KindMutex, 1, 1, m.opts, true)
}

// TryLock makes one attempt. The error Is ErrHeld if somebody holds the mutex or waits for it, here or elsewhere, and
// says who, as far as one look can tell. It Is ErrUncertain if the store's answer did not come in time to be of use.
// Other errors are as for Lock.
func (m *Mutex) TryLock(ctx context.Context) (*Lease, error) {
	return m.client.take(ctx, "try lock", m.name, KindMutex, 1, 1, m.opts, false)
}

// Do locks the mutex, runs f, and unlocks. See [Client.Do].
func (m *Mutex) Do(ctx context.Context, f func(ctx context.Context, l *Lease) error) error {
	lease, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	return lease.do(ctx, f)
}

// Do runs f under the mutex of that name: it waits for the lock as Mutex.Lock does, runs f, and unlocks when f is gone,
// be it by a panic. f's context ends when ctx does, or when the lease is lost; context.Cause tells which.
//
// The result is f's error, joined with that of Unlock: if the lease was lost it Is ErrLost even if f returned nil,
// since somebody else may have held the lock while f was running. That f unlocks the lease itself is no error.
func (c *Client) Do(ctx context.Context, name string, f func(ctx context.Context, l *Lease) error) error {
	return c.Mutex(name, nil).Do(ctx, f)
}

func (l *Lease) do(ctx context.Context, f func(ctx context.Context, l *Lease) error) (err error) {
	ends := l.Context()
	ctx, cancel := context.WithCancelCause(carryOn(ctx, ends))
	stop := context.AfterFunc(ends, func() { cancel(context.Cause(ends)) })
	defer func() { // also while a panic goes by, which then goes on
		stop()
		cancel(context.Canceled)
		if unlockErr := l.Release(); unlockErr != nil && !errors.Is(unlockErr, ErrReleased) {
			err = errors.Join(err, unlockErr)
		}
	}()
	return f(ctx, l)
}

// take checks a claim and acquires it.
func (c *Client) take(ctx context.Context, op, name string, kind Kind, limit, weight int64, o LockOptions, wait bool) (*Lease, error) {
	claim, err := c.newClaim(name, kind, limit, weight, o)
	if err != nil {
		return nil, c.wrap(op, name, err)
	}
	claim.Wait = wait
	if o.Reentrant {
		if lease, err := c.enter(ctx, claim); err != nil {
			return nil, c.wrap(op, name, err)
		} else if lease != nil {
			return lease, nil
		}
	}
	return c.acquire(ctx, op, claim, o)
}

package holdfast

import "context"

// Mutex is a lock that one lease at a time holds, among all clients of the store. A Mutex is a name and options: it
// costs nothing, holds no state, and needs no Close. It is re-entrant only if LockOptions.Reentrant is set.
type Mutex struct {
	client *Client
	name   string
	opts   LockOptions
}

// Mutex returns the mutex with that name: UTF-8 without NUL, from 1 to Info.MaxName bytes (512 on most stores). opts
// may be nil. Name and options are checked when the mutex is used.
func (c *Client) Mutex(name string, opts *LockOptions) *Mutex {
	return &Mutex{client: c, name: name, opts: opts.orZero()}
}

// lockSpec is empty for a nil Mutex, which LockAll and Explain report as an error.
func (m *Mutex) lockSpec() lockSpec {
	if m == nil {
		return lockSpec{}
	}
	return lockSpec{m.client, m.name, KindMutex, 1, 1, m.opts}
}

// Explain returns how a claim on the mutex would be kept in the store; see [Lockable].
func (m *Mutex) Explain() (Plan, error) { return m.lockSpec().Explain() }

// Lock waits until the mutex is granted, or ctx ends. ctx bounds the waiting and not the lease; its values are found in
// the lease's context. Callers of one client are served in order of arrival; LockOptions.Fair extends that order to all
// clients.
//
// When ctx ends, Lock returns its error at once, and a claim that may be left in the store is removed in the
// background. Otherwise Lock returns ErrInvalid, ErrMismatch, ErrQueueFull, ErrSuperseded, ErrDenied, ErrUnsupported,
// ErrCorrupt, ErrClosed, ErrLost if the waiting claim was ended from outside (by Client.Break, for example), or an
// error which says that the store could not be reached for 10 s (or for the TTL, if that is less). The error is an
// [*Error].
func (m *Mutex) Lock(ctx context.Context) (*Lease, error) {
	return m.client.takeLock(ctx, "lock", m.lockSpec(), true)
}

// TryLock makes one attempt. It returns ErrHeld if the mutex is held, or if another claim waits for it, here or
// elsewhere; the error is a [*HeldError] that says who holds it, as far as one read can tell. On etcd and ZooKeeper a
// try that is just being refused can count as a claim that waits. It returns ErrUncertain if the store's answer came
// too late to be of use. It also returns the errors of Lock.
func (m *Mutex) TryLock(ctx context.Context) (*Lease, error) {
	return m.client.takeLock(ctx, "try lock", m.lockSpec(), false)
}

// Do acquires the mutex, runs f, and releases the mutex. See [Client.Do].
func (m *Mutex) Do(ctx context.Context, f func(ctx context.Context, l *Lease) error) error {
	return m.client.doLocked(ctx, "lock", m.lockSpec(), f)
}

// Do runs f under the mutex of that name: it waits for the lock as Mutex.Lock does, runs f, and releases the lock when
// f returns or panics. f's context ends when ctx does, or when the lease is lost; context.Cause tells which.
//
// The result is f's error, joined with the error of Release. If the lease was lost, errors.Is(err, ErrLost) is true
// even if f returned nil, because somebody else may have held the lock while f was running. f may release the lease
// itself.
func (c *Client) Do(ctx context.Context, name string, f func(ctx context.Context, l *Lease) error) error {
	return c.Mutex(name, nil).Do(ctx, f)
}

package holdfast

import "context"

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

// lockSpec is empty for a nil Mutex, which LockAll and Explain report as an error.
func (m *Mutex) lockSpec() lockSpec {
	if m == nil {
		return lockSpec{}
	}
	return lockSpec{m.client, m.name, KindMutex, 1, 1, m.opts}
}

// Explain returns how a claim on the mutex would be kept in the store; see [Lockable].
func (m *Mutex) Explain() (Plan, error) { return m.lockSpec().Explain() }

// Lock waits until the mutex is granted, or ctx ends. ctx bounds the waiting and not the lease; its values are found
// in the lease's context.
//
// Callers of one client are served in order of arrival; among clients LockOptions.Fair gives that. The error is an
// [*Error] and Is context.Canceled or context.DeadlineExceeded when ctx ended (then at once; a claim that may have
// been left behind is cleaned up in the background), ErrInvalid, ErrMismatch, ErrQueueFull, ErrDenied, ErrUnsupported,
// ErrCorrupt, ErrClosed, ErrLost if the claim was ended from outside while it waited, by Client.Break for example, or says
// that the store could not be reached for 10 s (or the TTL, if that is less).
func (m *Mutex) Lock(ctx context.Context) (*Lease, error) {
	return m.client.takeLock(ctx, "lock", m.lockSpec(), true)
}

// TryLock makes one attempt. The error Is ErrHeld if somebody holds the mutex or waits for it, here or elsewhere, and
// says who, as far as one look can tell. It Is ErrUncertain if the store's answer did not come in time to be of use.
// Other errors are as for Lock.
func (m *Mutex) TryLock(ctx context.Context) (*Lease, error) {
	return m.client.takeLock(ctx, "try lock", m.lockSpec(), false)
}

// Do locks the mutex, runs f, and unlocks. See [Client.Do].
func (m *Mutex) Do(ctx context.Context, f func(ctx context.Context, l *Lease) error) error {
	return m.client.doLocked(ctx, "lock", m.lockSpec(), f)
}

// Do runs f under the mutex of that name: it waits for the lock as Mutex.Lock does, runs f, and unlocks when f is gone,
// be it by a panic. f's context ends when ctx does, or when the lease is lost; context.Cause tells which.
//
// The result is f's error, joined with that of Unlock: if the lease was lost it Is ErrLost even if f returned nil,
// since somebody else may have held the lock while f was running. That f unlocks the lease itself is no error.
func (c *Client) Do(ctx context.Context, name string, f func(ctx context.Context, l *Lease) error) error {
	return c.Mutex(name, nil).Do(ctx, f)
}

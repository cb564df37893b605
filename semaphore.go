package holdfast

import "context"

// Semaphore is a lock whose holders' weights add up to at most a limit. Claims wait in one queue in the store, in order
// of arrival, so small claims do not starve a large one.
type Semaphore struct {
	client *Client
	name   string
	limit  int64
	opts   LockOptions
}

// Semaphore names a semaphore; see [Client.Mutex]. limit is 1 to 10^12, and all users of the name must agree on it
// (ErrMismatch). It can be changed while the semaphore has no holders and no waiters. LockOptions.Fair has no effect: a
// semaphore is always fair.
func (c *Client) Semaphore(name string, limit int64, opts *LockOptions) *Semaphore {
	return &Semaphore{client: c, name: name, limit: limit, opts: opts.orZero()}
}

// permitsSpec is what LockAll takes of the semaphore. A nil semaphore gives an empty one, which LockAll refuses.
func (s *Semaphore) permitsSpec(weight int64) lockSpec {
	if s == nil {
		return lockSpec{}
	}
	return lockSpec{s.client, s.name, KindSemaphore, s.limit, weight, s.opts}
}

// Permits returns a claim on weight permits, from 1 to the limit, as an item for [LockAll] and Explain.
func (s *Semaphore) Permits(weight int64) Lockable { return s.permitsSpec(weight) }

// Acquire waits until weight permits are granted, from 1 to the limit. The lease's token fences only if weight is the
// whole limit.
// It returns the errors of Mutex.Lock.
func (s *Semaphore) Acquire(ctx context.Context, weight int64) (*Lease, error) {
	return s.client.takeLock(ctx, "acquire", s.permitsSpec(weight), true)
}

// TryAcquire is Acquire without waiting. It returns the errors of Mutex.TryLock.
func (s *Semaphore) TryAcquire(ctx context.Context, weight int64) (*Lease, error) {
	return s.client.takeLock(ctx, "try acquire", s.permitsSpec(weight), false)
}

// Do acquires weight, runs f, and releases it. See [Client.Do].
func (s *Semaphore) Do(ctx context.Context, weight int64, f func(ctx context.Context, l *Lease) error) error {
	return s.client.doLocked(ctx, "acquire", s.permitsSpec(weight), f)
}

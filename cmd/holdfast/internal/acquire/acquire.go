// Package acquire acquires a lock for the command and for the server: as the kind that it is to have, and again after a
// wait that ended although nobody has decided against it.
package acquire

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast"
)

// Between two tries the pause doubles from MinPause to MaxPause.
const (
	MinPause = 25 * time.Millisecond
	MaxPause = time.Second
)

// maxContradictions is how many times in a row a lock may be refused as one of another kind while an Inspect shows it
// free, or as the very kind that was claimed. The lock may change between the two requests, but hardly so often.
const maxContradictions = 6

// Request is a lock, and how it is to be acquired.
type Request struct {
	Name    string
	Kind    holdfast.Kind
	Shared  bool  // a reader of a KindRW
	Limit   int64 // of a KindSemaphore
	Weight  int64 // on a KindSemaphore
	Options holdfast.LockOptions
	Wait    bool // until the lock is granted, or the context ends
	// AnyKind is for a lock that is held alone or shared, whatever its users call it: a mutex or a read-write lock.
	AnyKind bool
}

// Lockable is the lock as the library has it.
func (r *Request) Lockable(client *holdfast.Client) holdfast.Lockable {
	switch {
	case r.Kind == holdfast.KindSemaphore:
		return client.Semaphore(r.Name, r.Limit, &r.Options).Permits(r.Weight)
	case r.Kind == holdfast.KindMutex:
		return client.Mutex(r.Name, &r.Options)
	case r.Shared:
		return client.RWMutex(r.Name, &r.Options).Reader()
	}
	return client.RWMutex(r.Name, &r.Options)
}

// Acquire acquires the lock. If ctx ends first, it returns the cause. A wait that the store ended (because this program
// was stopped for longer than the TTL, or the store was unreachable), or that found the queue full, is begun again.
//
// With AnyKind it acquires the lock as the kind that is in use. Those who hold it alone and those who share it must
// exclude each other, but a mutex and a read-write lock are two kinds, and a lock has one kind at a time. So a mutex that
// meets readers joins their queue as a writer. A reader that meets a mutex tries again until the mutex is free: in the
// mutex's queue it would be granted the lock for itself alone, and all readers would run one by one from then on.
func (r *Request) Acquire(ctx context.Context, client *holdfast.Client) (*holdfast.Lease, error) {
	as := *r
	contradictions := 0
	for pause := MinPause; ; pause = min(2*pause, MaxPause) {
		lease, err := as.acquireOnce(ctx, client)
		switch {
		case err == nil:
			return lease, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case EndedByStore(err) && r.Wait:
			contradictions = 0
		case errors.Is(err, holdfast.ErrQueueFull) && r.Wait:
			contradictions = 0
			pause = MaxPause // as many as the queue can hold are ahead, and hundreds may be waiting for a place
		case errors.Is(err, holdfast.ErrMismatch) && r.AnyKind:
			lock, inspectErr := client.Inspect(ctx, r.Name)
			switch {
			case ctx.Err() != nil:
				return nil, context.Cause(ctx)
			case inspectErr != nil:
				return nil, inspectErr
			case lock.Kind == holdfast.KindSemaphore:
				return nil, err
			case lock.Kind == "", lock.Kind == as.Kind:
				// It has changed since it was refused; or the store refuses what Inspect does not show.
				if contradictions++; contradictions >= maxContradictions {
					return nil, err
				}
			case !r.Wait && (r.Shared || as.Kind != r.Kind):
				return nil, &holdfast.HeldError{Holders: lock.Holders}
			case !r.Shared:
				isFirst := as.Kind == r.Kind && pause == MinPause
				contradictions, as.Kind = 0, lock.Kind
				if isFirst {
					continue
				}
			default:
				contradictions = 0
			}
		default:
			return nil, err
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// EndedByStore reports whether the store ended a wait, and no operator did: usually because the session of the wait
// expired.
func EndedByStore(err error) bool {
	var loss *holdfast.LossError
	return errors.As(err, &loss) && loss.Cause != holdfast.LossBroken
}

// acquireOnce makes one claim.
func (r *Request) acquireOnce(ctx context.Context, client *holdfast.Client) (*holdfast.Lease, error) {
	switch {
	case r.Kind == holdfast.KindSemaphore && r.Wait:
		return client.Semaphore(r.Name, r.Limit, &r.Options).Acquire(ctx, r.Weight)
	case r.Kind == holdfast.KindSemaphore:
		return client.Semaphore(r.Name, r.Limit, &r.Options).TryAcquire(ctx, r.Weight)
	case r.Kind == holdfast.KindMutex && r.Wait:
		return client.Mutex(r.Name, &r.Options).Lock(ctx)
	case r.Kind == holdfast.KindMutex:
		return client.Mutex(r.Name, &r.Options).TryLock(ctx)
	}
	lock := client.RWMutex(r.Name, &r.Options)
	switch {
	case r.Shared && r.Wait:
		return lock.RLock(ctx)
	case r.Shared:
		return lock.TryRLock(ctx)
	case r.Wait:
		return lock.Lock(ctx)
	}
	return lock.TryLock(ctx)
}

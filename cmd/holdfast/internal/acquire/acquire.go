// Package acquire acquires a lock, or begins a run, for the command and for the server: a lock as the kind that it is to
// have, and both again after a wait that ended although nobody has decided against it.
package acquire

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast"
)

// Between two tries the pause doubles from minPause to maxPause.
const (
	minPause = 25 * time.Millisecond
	maxPause = time.Second
)

// Pauses are the pauses between tries, which get longer. The zero value is ready.
type Pauses struct{ last time.Duration }

// Next is how long the next pause takes. A part of it is random, because many may try at the same time.
func (p *Pauses) Next() time.Duration {
	p.last = min(max(2*p.last, minPause), maxPause)
	return p.last/2 + rand.N(p.last)
}

// verdict is what an error of a try means.
type verdict int

const (
	final verdict = iota
	againAtOnce
	againSoon
	againLater // as many as the queue can hold are ahead, and hundreds may be waiting for a place
)

// endedError is the cause of the end of ctx, in the library's error of the call that it has ended if that knew who holds
// the lock, or that the store was silent.
func endedError(ctx context.Context, err error) error {
	var last *holdfast.Error
	if errors.As(err, &last) && (last.Silent > 0 || len(last.Holders) > 0) {
		ended := *last
		ended.Err = context.Cause(ctx)
		return &ended
	}
	return context.Cause(ctx)
}

// untilFinal tries until it succeeds or has an error that is final. If ctx ends first, it returns the cause: see
// endedError.
func untilFinal[T any](ctx context.Context, try func() (T, error), judge func(error) (verdict, error)) (T, error) {
	var pauses Pauses
	for {
		result, err := try()
		if err == nil {
			return result, nil
		}
		var none T
		if ctx.Err() != nil {
			return none, endedError(ctx, err)
		}
		then, err := judge(err)
		switch {
		case ctx.Err() != nil:
			return none, endedError(ctx, err)
		case then == final:
			return none, err
		case then == againAtOnce:
			continue
		case then == againLater:
			pauses.last = maxPause
		}
		select {
		case <-time.After(pauses.Next()):
		case <-ctx.Done():
			return none, endedError(ctx, err)
		}
	}
}

// judgeWait is the verdict on a wait that has ended.
func judgeWait(err error) (verdict, error) {
	switch {
	case EndedByStore(err):
		return againSoon, err
	case errors.Is(err, holdfast.ErrQueueFull):
		return againLater, err
	}
	return final, err
}

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
	contradictions, moved := 0, false
	return untilFinal(ctx, func() (*holdfast.Lease, error) { return as.acquireOnce(ctx, client) },
		func(err error) (verdict, error) {
			if !errors.Is(err, holdfast.ErrMismatch) || !r.AnyKind {
				contradictions = 0
				if !r.Wait {
					return final, err
				}
				return judgeWait(err)
			}
			lock, inspectErr := client.Inspect(ctx, r.Name)
			switch {
			case inspectErr != nil:
				return final, inspectErr
			case lock.Kind == holdfast.KindSemaphore:
				return final, err
			case lock.Kind == "", lock.Kind == as.Kind:
				// It has changed since it was refused; or the store refuses what Inspect does not show.
				if contradictions++; contradictions >= maxContradictions {
					return final, err
				}
				return againSoon, err
			case !r.Wait && (r.Shared || as.Kind != r.Kind):
				return final, &holdfast.HeldError{Holders: lock.Holders}
			}
			contradictions = 0
			if r.Shared {
				return againSoon, err
			}
			as.Kind = lock.Kind
			if moved {
				return againSoon, err
			}
			moved = true
			return againAtOnce, err
		})
}

// Begin begins a run of a key. It waits for the end of another one if the options say so, and for another slot of the
// job; such a wait is begun again as that of Acquire is.
func Begin(ctx context.Context, ledger *holdfast.Ledger, key string, o *holdfast.RunOptions) (*holdfast.Run, error) {
	return untilFinal(ctx, func() (*holdfast.Run, error) { return ledger.Begin(ctx, key, o) },
		func(err error) (verdict, error) {
			if !o.Wait && !(o.Slot != nil && EndedByStore(err)) {
				return final, err
			}
			return judgeWait(err)
		})
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

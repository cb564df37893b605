// Package acquire acquires a lock, or begins a run, for the command and for the server: a lock as the kind that it is
// to have, and both again after a wait that ended although nobody has decided against it.
package acquire

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
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

// endedError is the cause of the end of ctx, in the library's error of the call that it has ended if that knew who
// holds the lock, or that the store was silent, and why.
func endedError(ctx context.Context, err error) error {
	var last *holdfast.Error
	if errors.As(err, &last) && (last.Silent > 0 || len(last.Holders) > 0) {
		ended := *last
		ended.Err = context.Cause(ctx)
		if silent, ok := errors.AsType[*driver.SilentError](err); ok {
			if silent.Reason != nil {
				ended.Err = fmt.Errorf("%w; the last request: %v", ended.Err, silent.Reason)
			}
			ended.Err = &driver.SilentError{For: silent.For, Reason: silent.Reason, Err: ended.Err}
		}
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

// Request is a lock, or several, and how they are to be acquired.
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
	// Also are the names of more locks, which are mutexes, or locks of any kind with AnyKind. They are acquired with
	// the lock, all or none: see AcquireAll.
	Also []string
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
// exclude each other, but a mutex and a read-write lock are two kinds, and a lock has one kind at a time. So a mutex
// that meets readers joins their queue as a writer. A reader that meets a mutex tries again until the mutex is free:
// in the mutex's queue it would be granted the lock for itself alone, and all readers would run one by one from then
// on.
func (r *Request) Acquire(ctx context.Context, client *holdfast.Client) (*holdfast.Lease, error) {
	as := attempt{Request: *r}
	return untilFinal(ctx, func() (*holdfast.Lease, error) { return as.acquireOnce(ctx, client) },
		func(err error) (verdict, error) { return as.judge(ctx, client, r.Kind, err) })
}

// AcquireAll acquires the lock and those of Also, all or none, in the order of their names: see holdfast.LockAll. For
// the rest it is Acquire.
func (r *Request) AcquireAll(ctx context.Context, client *holdfast.Client) (*holdfast.LeaseGroup, error) {
	all := map[string]*attempt{r.Name: {Request: *r}}
	asked := map[string]holdfast.Kind{r.Name: r.Kind}
	for _, name := range r.Also {
		asked[name] = holdfast.KindMutex
		all[name] = &attempt{Request: Request{Name: name, Kind: asked[name], Options: r.Options, Wait: r.Wait, AnyKind: r.AnyKind}}
	}
	lockAll := holdfast.TryLockAll
	if r.Wait {
		lockAll = holdfast.LockAll
	}
	return untilFinal(ctx, func() (*holdfast.LeaseGroup, error) {
		var items []holdfast.Lockable
		for _, as := range all {
			items = append(items, as.Lockable(client))
		}
		return lockAll(ctx, items...)
	}, func(err error) (verdict, error) {
		name := r.Name
		var failed *holdfast.Error
		if errors.As(err, &failed) && all[failed.Lock] != nil {
			name = failed.Lock
		}
		return all[name].judge(ctx, client, asked[name], err)
	})
}

// attempt is a request as it is made: of the kind that the lock was found to have.
type attempt struct {
	Request
	contradictions int  // how many there were in a row
	moved          bool // to another kind
}

// judge is the verdict on an error of an attempt at a lock that was asked for as a kind.
func (a *attempt) judge(ctx context.Context, client *holdfast.Client, asked holdfast.Kind, err error) (verdict, error) {
	if !errors.Is(err, holdfast.ErrMismatch) || !a.AnyKind {
		a.contradictions = 0
		if !a.Wait {
			return final, err
		}
		return judgeWait(err)
	}
	lock, inspectErr := client.Inspect(ctx, a.Name)
	switch {
	case inspectErr != nil:
		return final, inspectErr
	case lock.Kind == holdfast.KindSemaphore:
		return final, err
	case lock.Kind == "", lock.Kind == a.Kind:
		// It has changed since it was refused; or the store refuses what Inspect does not show.
		if a.contradictions++; a.contradictions >= maxContradictions {
			return final, err
		}
		return againSoon, err
	case !a.Wait && (a.Shared || a.Kind != asked):
		held := &holdfast.HeldError{Holders: lock.Holders}
		return final, &holdfast.Error{Op: "acquire", Lock: a.Name, Holders: lock.Holders, Err: held}
	}
	a.contradictions = 0
	if a.Shared {
		return againSoon, err
	}
	a.Kind = lock.Kind
	if a.moved {
		return againSoon, err
	}
	a.moved = true
	return againAtOnce, err
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

// ReleaseRequested is closed when somebody asks for one of the locks, until ctx ends.
func ReleaseRequested(ctx context.Context, leases []*holdfast.Lease) <-chan struct{} {
	if len(leases) == 1 {
		return leases[0].ReleaseRequested()
	}
	requested := make(chan struct{})
	first := sync.OnceFunc(func() { close(requested) })
	for _, l := range leases {
		go func() {
			select {
			case <-l.ReleaseRequested():
				first()
			case <-ctx.Done():
			}
		}()
	}
	return requested
}

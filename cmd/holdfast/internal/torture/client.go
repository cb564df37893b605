package torture

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// lockClient is what the actors of a worker ask for locks.
type lockClient interface {
	acquire(ctx context.Context, a *actor, try bool) (*grant, error)
	Close() error
}

// ownClient is a client of Holdfast.
type ownClient struct{ *holdfast.Client }

// openOwn opens the store. A worker that was killed may be started again while its link or the server is under a fault.
func openOwn(ctx context.Context, w *worker) (lockClient, error) {
	for {
		c, err := holdfast.Open(ctx, w.task.Store, &holdfast.Options{TTL: w.task.TTL, Owner: w.task.Owner,
			OnEvent: w.countRenewal})
		if err == nil {
			return ownClient{c}, nil
		}
		if driverutil.IsFinal(err) || !sleep(ctx, 200*time.Millisecond) {
			return nil, err
		}
	}
}

// acquire asks for the lock.
func (c ownClient) acquire(ctx context.Context, a *actor, try bool) (*grant, error) {
	opts := &holdfast.LockOptions{Fair: a.lock.Kind == Fair}
	var lease *holdfast.Lease
	var err error
	weight := a.lock.Limit
	switch a.lock.Kind {
	case Ledger:
		return c.begin(ctx, a)
	case RW:
		rw := c.RWMutex(a.lock.Name, opts)
		take, tryTake := rw.RLock, rw.TryRLock
		if a.rnd.IntN(3) == 0 {
			take, tryTake = rw.Lock, rw.TryLock
		} else {
			weight = 1
		}
		if try {
			take = tryTake
		}
		lease, err = take(ctx)
	case Semaphore:
		s := c.Semaphore(a.lock.Name, a.lock.Limit, opts)
		weight = 1 + a.rnd.Int64N(a.lock.Limit-1)
		take := s.Acquire
		if try {
			take = s.TryAcquire
		}
		lease, err = take(ctx, weight)
	default:
		m := c.Mutex(a.lock.Name, opts)
		take := m.Lock
		if try {
			take = m.TryLock
		}
		lease, err = take(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &grant{holding: lease, weight: weight, told: func() bool { return awaitLoss(lease) },
		release: func() (string, error) { return howReleased, lease.Release() }}, nil
}

// begin asks for a run of the present key.
func (c ownClient) begin(ctx context.Context, a *actor) (*grant, error) {
	run, err := c.Ledger(a.lock.Name, nil).Begin(ctx, fmt.Sprint(a.key), nil)
	if err != nil {
		return nil, err
	}
	return &grant{holding: run, weight: 1, told: func() bool { return awaitLoss(run) }, release: func() (string, error) {
		ending, cancel := context.WithTimeout(context.Background(), a.worker.task.TTL)
		defer cancel()
		if a.rnd.IntN(5) == 0 {
			return howFailed, run.Fail(ending, errors.New("torture lets this run fail"))
		}
		return howSucceeded, run.Succeed(ending, nil)
	}}, nil
}

// reportTimeout is how long the context of a lease that is not valid any more may live on. The library ends it by a
// timer, and on a busy machine timers fire late.
const reportTimeout = 10 * time.Second

// awaitLoss reports whether the context of a lease, or of a run, that is not valid any more ends with a cause.
func awaitLoss(l interface {
	Context() context.Context
	Err() error
}) bool {
	select {
	case <-l.Context().Done():
		return l.Err() != nil
	case <-time.After(reportTimeout):
		return false
	}
}

// ForeignClient is a lock client of another project, whose mutexes are put under the same faults as ours.
type ForeignClient interface {
	// Lock waits for a mutex until ctx ends.
	Lock(ctx context.Context, name string) (ForeignLock, error)
	Close() error
}

// ForeignLock is a mutex that a foreign client holds.
type ForeignLock interface {
	Valid() bool // whether the client still lets its user believe that the lock is held
	Token() int64
	Release() error
}

// ForeignOptions say how a worker opens its foreign client.
type ForeignOptions struct {
	Store string
	TTL   time.Duration
	Owner string
	Dial  driverutil.DialFunc // all connections go through the link of the worker
}

// theirClient is a foreign client.
type theirClient struct{ ForeignClient }

// acquire takes the lock with a foreign client. A lock that was not valid any more when it was released counts as
// lost, because not all clients say so.
func (c theirClient) acquire(ctx context.Context, a *actor, _ bool) (*grant, error) {
	held, err := c.Lock(ctx, a.lock.Name)
	if err != nil {
		if ctx.Err() != nil { // each client has an error of its own for this
			err = ctx.Err()
		}
		return nil, err
	}
	return &grant{holding: held, weight: a.lock.Limit, told: func() bool { return true }, release: func() (string, error) {
		valid := held.Valid() // not all of them say so when a lock is released that was lost
		err := held.Release()
		if !valid {
			err = &holdfast.LossError{Cause: holdfast.LossExpired}
		}
		return howReleased, err
	}}, nil
}

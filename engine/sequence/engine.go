// Package sequence keeps locks as ordered children that are bound to sessions.
//
// It is for stores that keep such children and remove those of a session that has fallen silent: etcd, ZooKeeper. All
// that is particular to such a store is a [Tree]; every decision about locks is made here. A claim is one child of its
// lock, and its place among the children is its place in line, whether it holds or waits. Line.go is the whole rule.
//
// What this package sees to, since it is where the recipes in use go wrong:
//
//   - A grant is believed only when a look has shown the claim's own node, under its own session, in a place that fits,
//     and it counts from the earlier of the start of that look and the start of the session's last beat.
//   - The outcome of an add that was not heard is settled by finding the node; a claim that is given up meanwhile is
//     withdrawn, so that the add cannot take effect later.
//   - A waiter watches its own node beside the one that it waits for, and looks again after every event.
//   - A session renews all its nodes, so it would keep those that nobody wants any more: a claim that has not been renewed
//     for its TTL is removed from here.
//   - The session's end, the removal of a node and a mark on it are told as soon as they are seen.
package sequence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Engine is a driver.Store over a Tree. It implements all optional interfaces of package driver; make one with [New].
type Engine struct {
	store NodeStore
	mover Mover // nil if the tree is none
	info  driver.Info
	clock driver.Clock
	life  context.Context
	end   context.CancelCauseFunc

	weightChanger   WeightChanger   // nil if the tree is none
	successorReader SuccessorReader // nil if the tree is none
	breaker         Breaker         // nil if the tree is none
	leftoverChecker LeftoverChecker // nil if the tree is none

	// goroutines counts the engine's own goroutines; it is added to only with mu held and life going on.
	goroutines sync.WaitGroup

	mu           sync.Mutex
	sessions     map[time.Duration]*session // by the TTL that was asked for
	openings     map[time.Duration]*sessionOpening
	claims       map[string]*claim              // by id: those of this client that stand, or may
	waiting      map[string]map[*claim]struct{} // by lock: those of them that wait
	listings     map[string]chan struct{}       // by lock: closed when the look is over that is under way for one of them
	endings      []driver.Ending
	endingQueued chan struct{} // buffered: there are endings
}

const (
	// requestTimeout bounds one request to the tree, so that one server that hangs does not cost all the time there is.
	requestTimeout = 2 * time.Second
	// maxWaiters is more than elsewhere, since waiting writes nothing.
	maxWaiters = 256
	// maxEndings bounds the endings that nobody fetches; beyond it the oldest are dropped, for renewals tell the same.
	maxEndings = 1 << 16
)

// New makes a store of a tree. Closing it closes the tree.
func New(tree NodeStore) *Engine {
	e := &Engine{
		store: tree, sessions: map[time.Duration]*session{}, openings: map[time.Duration]*sessionOpening{},
		claims: map[string]*claim{}, waiting: map[string]map[*claim]struct{}{},
		listings: map[string]chan struct{}{}, endingQueued: make(chan struct{}, 1),
	}
	e.mover, _ = tree.(Mover)
	e.weightChanger, _ = tree.(WeightChanger)
	e.successorReader, _ = tree.(SuccessorReader)
	e.breaker, _ = tree.(Breaker)
	e.leftoverChecker, _ = tree.(LeftoverChecker)
	e.info = completeInfo(tree.Info())
	e.info.Detached = e.mover != nil
	e.clock = e.info.Clock
	e.life, e.end = context.WithCancelCause(context.Background())
	return e
}

func completeInfo(info driver.Info) driver.Info {
	info.Engine = "sequence"
	info.ExpiredBy = driver.ExpiredByStore
	info.ExpiryClock = driver.ExpiryClockStore
	info.Order = driver.OrderAlways
	info.NativeQueue = true
	if info.Kinds == nil {
		info.Kinds = []driver.Kind{driver.KindMutex, driver.KindRW, driver.KindSemaphore}
	}
	if info.Clock.Monotonic == nil {
		info.Clock = driver.SystemClock
	}
	info.MaxWaiters = cmp.Or(info.MaxWaiters, maxWaiters)
	return info.Bounded()
}

// Info does no I/O.
func (e *Engine) Info() driver.Info { return e.info }

// Close ends the calls under way and the goroutines behind them. Sessions under which nothing stands are ended; the
// others are left to the store, which ends them when their TTL is over.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.life.Err() != nil {
		e.mu.Unlock()
		e.goroutines.Wait()
		return nil
	}
	e.end(driver.ErrClosed)
	var idle []*session
	for _, s := range e.sessions {
		if len(s.claims) == 0 {
			idle = append(idle, s)
		}
	}
	e.mu.Unlock()
	e.goroutines.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	for _, s := range idle {
		_ = e.store.EndSession(ctx, s.ID) // else its TTL ends it
	}
	return e.store.Close()
}

// startGoroutine runs f beside the caller, unless the store is closed.
func (e *Engine) startGoroutine(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.startGoroutineLocked(f)
}

func (e *Engine) startGoroutineLocked(f func()) bool {
	if e.life.Err() != nil {
		return false
	}
	e.goroutines.Go(f)
	return true
}

// bindContext makes ctx end with the store, too.
func (e *Engine) bindContext(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.life, func() { cancel(driver.ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// requestContext is the time for one request.
func requestContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, requestTimeout)
}

// retryLoop is the loop around requests that may fail: it tells errors that asking again cannot help from others, backs off,
// and ends with the context, the store, or when the store has not answered for too long.
type retryLoop struct {
	e                  *Engine
	ctx                context.Context
	unreachableTimeout time.Duration
	startedAt          driver.Instant // when the call began
	outage             driver.Outage
	failures           int  // in a row
	writeUnresolved    bool // a write of this call had an unknown outcome
}

func (e *Engine) newRetryLoop(ctx context.Context, limit time.Duration) *retryLoop {
	return &retryLoop{e: e, ctx: ctx, unreachableTimeout: limit, startedAt: e.clock.Now()}
}

// noteAnswer takes in that the store has answered all that one try asks of it: one that answers reads and no writes is silent, too.
func (p *retryLoop) noteAnswer() {
	p.outage.RequestAnswered()
	p.failures = 0
}

// noteFailure takes in one more request that has failed, and reports whether it was the last one.
func (p *retryLoop) noteFailure() bool {
	p.failures++
	return p.outage.RequestFailed(p.e.clock, p.unreachableTimeout)
}

// waitAndRetry waits before the next try and returns nil, or gives the error to return.
func (p *retryLoop) waitAndRetry(err error) error {
	switch {
	case p.e.life.Err() != nil:
		return driver.ErrClosed
	case driver.IsFinal(err):
		return err
	case p.ctx.Err() != nil:
		return driver.Uncertain(p.ctx.Err())
	case p.noteFailure():
		return driver.Uncertain(hideContextError(err))
	}
	if e := p.e.sleep(p.ctx, rand.N(10*time.Millisecond<<min(p.failures, 6))); e != nil {
		return driver.Uncertain(e)
	}
	return nil
}

func (e *Engine) sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-e.life.Done():
		return driver.ErrClosed
	case <-ctx.Done():
		return e.contextError(ctx)
	}
}

// contextError is the error of a call whose context has ended.
func (e *Engine) contextError(ctx context.Context) error {
	if e.life.Err() != nil {
		return driver.ErrClosed
	}
	return ctx.Err()
}

// readError gives the error of a read its final form.
func (e *Engine) readError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return e.contextError(ctx)
	case e.life.Err() != nil:
		return driver.ErrClosed
	}
	return hideContextError(err)
}

// hideContextError hides that an error came from a context: it was a bound of ours, and the caller's goes on.
func hideContextError(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the store gave no answer: %v", err)
	}
	return err
}

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
	tree  NodeStore
	mover Mover // nil if the tree is none
	info  driver.Info
	clock driver.Clock
	life  context.Context
	end   context.CancelCauseFunc

	weigher   WeightChanger   // nil if the tree is none
	successor SuccessorReader // nil if the tree is none
	breaker   Breaker         // nil if the tree is none
	remainder LeftoverChecker // nil if the tree is none

	// inBackground counts the engine's own goroutines; it is added to only with mu held and life going on.
	inBackground sync.WaitGroup
	hands        chan func() // work for goroutines that have nothing to do

	mu       sync.Mutex
	sessions map[time.Duration]*session // by the TTL that was asked for
	opening  map[time.Duration]*opening
	claims   map[string]*claim              // by id: those of this client that stand, or may
	waiting  map[string]map[*claim]struct{} // by lock: those of them that wait
	looking  map[string]chan struct{}       // by lock: closed when the look is over that is under way for one of them
	endings  []driver.Ending
	ended    chan struct{} // buffered: there are endings
}

const (
	// step bounds one request to the tree, so that one server that hangs does not cost all the time there is.
	step = 2 * time.Second
	// maxWaiters is more than elsewhere, since waiting writes nothing.
	maxWaiters = 256
	// maxEndings bounds the endings that nobody fetches; beyond it the oldest are dropped, for renewals tell the same.
	maxEndings = 1 << 16
)

// New makes a store of a tree. Closing it closes the tree.
func New(tree NodeStore) *Engine {
	e := &Engine{
		tree: tree, sessions: map[time.Duration]*session{}, opening: map[time.Duration]*opening{},
		claims: map[string]*claim{}, waiting: map[string]map[*claim]struct{}{},
		looking: map[string]chan struct{}{}, ended: make(chan struct{}, 1), hands: make(chan func()),
	}
	e.mover, _ = tree.(Mover)
	e.weigher, _ = tree.(WeightChanger)
	e.successor, _ = tree.(SuccessorReader)
	e.breaker, _ = tree.(Breaker)
	e.remainder, _ = tree.(LeftoverChecker)
	e.info = complete(tree.Info())
	e.info.Detached = e.mover != nil
	e.clock = e.info.Clock
	e.life, e.end = context.WithCancelCause(context.Background())
	return e
}

func complete(info driver.Info) driver.Info {
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
		e.inBackground.Wait()
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
	e.inBackground.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), step)
	defer cancel()
	for _, s := range idle {
		_ = e.tree.EndSession(ctx, s.ID) // else its TTL ends it
	}
	return e.tree.Close()
}

// spawn runs f beside the caller, unless the store is closed.
func (e *Engine) spawn(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.spawnLocked(f)
}

func (e *Engine) spawnLocked(f func()) bool {
	if e.life.Err() != nil {
		return false
	}
	select {
	case e.hands <- f:
	default:
		e.inBackground.Go(func() { e.work(f) })
	}
	return true
}

// idle is how long a goroutine waits for more to do. A new one for every request would have its stack grown by each.
const idle = time.Second

func (e *Engine) work(f func()) {
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		f()
		timer.Reset(idle)
		select {
		case f = <-e.hands:
		case <-timer.C:
			return
		case <-e.life.Done():
			return
		}
	}
}

// bind makes ctx end with the store, too.
func (e *Engine) bind(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.life, func() { cancel(driver.ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// bounded is the time for one request.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, step)
}

// patience is the loop around requests that may fail: it tells errors that asking again cannot help from others, backs off,
// and ends with the context, the store, or when the store has not answered for too long.
type patience struct {
	e       *Engine
	ctx     context.Context
	limit   time.Duration
	asked   driver.Instant // when the call began
	silence driver.Outage
	fails   int  // in a row
	unsure  bool // a write of this call had an unknown outcome
}

func (e *Engine) patience(ctx context.Context, limit time.Duration) *patience {
	return &patience{e: e, ctx: ctx, limit: limit, asked: e.clock.Now()}
}

// heard takes in that the store has answered all that one try asks of it: one that answers reads and no writes is silent, too.
func (p *patience) heard() {
	p.silence.RequestAnswered()
	p.fails = 0
}

// over takes in one more request that has failed, and reports whether it was the last one.
func (p *patience) over() bool {
	p.fails++
	return p.silence.RequestFailed(p.e.clock, p.limit)
}

// again waits before the next try and returns nil, or gives the error to return.
func (p *patience) again(err error) error {
	switch {
	case p.e.life.Err() != nil:
		return driver.ErrClosed
	case driver.IsFinal(err):
		return err
	case p.ctx.Err() != nil:
		return driver.Uncertain(p.ctx.Err())
	case p.over():
		return driver.Uncertain(own(err))
	}
	if e := p.e.sleep(p.ctx, rand.N(10*time.Millisecond<<min(p.fails, 6))); e != nil {
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
		return e.over(ctx)
	}
}

// over is the error of a call whose context has ended.
func (e *Engine) over(ctx context.Context) error {
	if e.life.Err() != nil {
		return driver.ErrClosed
	}
	return ctx.Err()
}

// fault gives the error of a read its final form.
func (e *Engine) fault(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return e.over(ctx)
	case e.life.Err() != nil:
		return driver.ErrClosed
	}
	return own(err)
}

// own hides that an error came from a context: it was a bound of ours, and the caller's goes on.
func own(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the store gave no answer: %v", err)
	}
	return err
}

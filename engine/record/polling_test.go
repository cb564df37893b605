package record_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// polledTable is a table that is polled. A request takes a round trip, or up to a quarter more or less.
type polledTable struct {
	record.Table
	roundTrip    time.Duration
	loads, swaps *atomic.Int64
	server       *oneThread // nil: the store makes any number of requests at a time
}

// oneThread is a store that makes one request at a time, and whose refusal of a swap brings no row.
type oneThread struct {
	busy chan struct{}
	each time.Duration // on average
}

func (s *oneThread) work() {
	if s == nil {
		return
	}
	s.busy <- struct{}{}
	time.Sleep(time.Duration(float64(s.each) * rand.ExpFloat64()))
	<-s.busy
}

func (polledTable) Watcher() record.Watcher { return nil }

func (t polledTable) travelOneWay() { time.Sleep(t.roundTrip*3/8 + rand.N(t.roundTrip/4+1)) }

func (t polledTable) Load(ctx context.Context, name string) (record.Row, error) {
	t.loads.Add(1)
	t.travelOneWay()
	t.server.work()
	defer t.travelOneWay()
	return t.Table.Load(ctx, name)
}

func (t polledTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	t.swaps.Add(1)
	t.travelOneWay()
	defer t.travelOneWay()
	t.server.work()
	now, err := t.Table.Swap(ctx, row)
	if err != nil && t.server != nil {
		now = record.Row{}
	}
	return now, err
}

// polledStore opens a client of a store in memory that is polled, and counts its requests.
func polledStore(m *memory.Memory, roundTrip time.Duration, server *oneThread) (
	s driver.Store, loads, swaps *atomic.Int64) {
	loads, swaps = new(atomic.Int64), new(atomic.Int64)
	return record.New(polledTable{m.Table(), roundTrip, loads, swaps, server}), loads, swaps
}

// contest is what some clients do that want one lock, each with several callers. Each caller takes the lock, holds it,
// releases it, and comes again.
type contest struct {
	roundTrip, hold, lasts time.Duration
	clients, callers       int
	fair                   bool
	server                 *oneThread
}

// contestResult is what came of it.
type contestResult struct {
	turns    []int         // of each caller
	gap      time.Duration // on average, from a release to the next grant
	requests float64       // per turn
	longest  time.Duration // that a caller waited
}

func (c contest) run(t *testing.T) (r contestResult) {
	r.turns = make([]int, c.clients*c.callers)
	m := fakeMemory()
	ctx, cancel := context.WithTimeout(t.Context(), c.lasts)
	defer cancel()
	var all sync.WaitGroup
	var requests []*atomic.Int64
	var released time.Time // guarded by the lock itself, like the gaps
	var gaps time.Duration
	for client := range c.clients {
		s, loads, swaps := polledStore(m, c.roundTrip, c.server)
		defer s.Close()
		requests = append(requests, loads, swaps)
		inProcess := make(chan struct{}, 1) // of a client's plain claims, one at a time is at the store
		for caller := range c.callers {
			all.Go(func() {
				for turn := 0; ctx.Err() == nil; turn++ {
					claim := paceClaim(0, true)
					claim.ID, claim.Fair = fmt.Sprint("client", client, "caller", caller, "turn", turn), c.fair
					if !c.fair {
						inProcess <- struct{}{}
					}
					asked := time.Now()
					g, err := s.Acquire(ctx, claim)
					if err == nil {
						r.longest = max(r.longest, time.Since(asked))
						if !released.IsZero() {
							gaps += time.Since(released)
						}
						r.turns[client*c.callers+caller]++
						time.Sleep(c.hold)
						released = time.Now()
						err = s.Release(context.Background(), claim, g.Ref)
					}
					if !c.fair {
						<-inProcess
					}
					if err != nil && ctx.Err() == nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	sum := 0
	for _, n := range r.turns {
		sum += n
	}
	for _, n := range requests {
		r.requests += float64(n.Load()) / float64(sum)
	}
	r.gap = gaps / time.Duration(sum)
	t.Logf("%+v: %d turns, %v apart; a caller had %d to %d, and waited for %v at most; %.1f requests per turn", c, sum, r.gap,
		slices.Min(r.turns), slices.Max(r.turns), r.longest, r.requests)
	return r
}

// TestPolledHandOver: where clients poll, a fair lock goes from client to client in the time of six requests at most,
// while one client alone needs two, and that costs few requests, also if many wait.
func TestPolledHandOver(t *testing.T) {
	for _, test := range []struct {
		roundTrip, hold, lasts time.Duration
		clients, callers       int
		requests               float64
	}{
		{200 * time.Microsecond, time.Millisecond, time.Second, 8, 1, 14},
		{500 * time.Microsecond, time.Millisecond, time.Second, 8, 8, 14},
		{5 * time.Millisecond, time.Millisecond, 4 * time.Second, 8, 8, 14},
		{5 * time.Millisecond, 100 * time.Millisecond, 20 * time.Second, 40, 1, 30},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := contest{test.roundTrip, test.hold, test.lasts, test.clients, test.callers, true, nil}.run(t)
			if r.gap > 6*test.roundTrip || r.requests > test.requests {
				t.Errorf("a hand-over took %v and %.1f requests", r.gap, r.requests)
			}
		})
	}
}

// TestFairCallersOnSlowStore: no caller of a fair lock starves where a store makes one request at a time and its refusals
// bring no row, and few requests have no effect: a caller whose swap to join the queue was refused joins by the next
// swap of its client, and that begins with the row as it is.
func TestFairCallersOnSlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &oneThread{make(chan struct{}, 1), time.Millisecond}
		r := contest{time.Millisecond, time.Millisecond, 10 * time.Second, 8, 8, true, server}.run(t)
		if least, most := slices.Min(r.turns), slices.Max(r.turns); most > 2*least || r.requests > 4.5 {
			t.Errorf("one caller had %d turns, another one %d; %.1f requests per turn", least, most, r.requests)
		}
	})
}

// TestPolledPlainClaims: where clients poll, no caller of a busy plain lock starves, although each client hands the
// lock on to its own callers first.
func TestPolledPlainClaims(t *testing.T) {
	for _, roundTrip := range []time.Duration{200 * time.Microsecond, time.Millisecond, 5 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			r := contest{roundTrip, time.Millisecond, 10 * time.Second, 8, 8, false, nil}.run(t)
			if least, most := slices.Min(r.turns), slices.Max(r.turns); most > 5*least {
				t.Errorf("one caller had %d turns, and another one %d", least, most)
			}
			if r.gap > 4*roundTrip {
				t.Errorf("a hand-over took %v", r.gap)
			}
		})
	}
}

// lentTable is a table on which a foreign client can hold all locks.
type lentTable struct {
	record.Table
	isLent  atomic.Bool
	noQueue bool
}

func (t *lentTable) Traits() record.Traits {
	traits := t.Table.Traits()
	traits.NoQueue = t.noQueue
	return traits
}

func (t *lentTable) Load(ctx context.Context, name string) (record.Row, error) {
	row, err := t.Table.Load(ctx, name)
	return t.lend(row), err
}

func (t *lentTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	row, err := t.Table.Swap(ctx, row)
	return t.lend(row), err
}

func (t *lentTable) lend(row record.Row) record.Row {
	if t.isLent.Load() {
		row.Foreign = record.NoEnd
	}
	return row
}

// TestPolledClaimJoins: a plain claim that polls joins the queue when the lock has gone to others twice. It does not
// join where the store has a write interval, nor if it has seen a foreign client hold the lock.
func TestPolledClaimJoins(t *testing.T) {
	for _, test := range []struct {
		writeInterval time.Duration
		foreign       bool
		noQueue       bool
		waiters       int
	}{{0, false, false, 1}, {2 * time.Second, false, false, 0}, {0, true, false, 0}, {0, false, true, 0}} {
		synctest.Test(t, func(t *testing.T) {
			m := fakeMemory()
			others := m.Open()
			defer others.Close()
			table := &lentTable{Table: pacedTable{m.Table(), test.writeInterval, 0, nil}, noQueue: test.noQueue}
			waiter := record.New(table)
			defer waiter.Close()
			held := storetest.Acquire(t, others, paceClaim(0, false))
			table.isLent.Store(test.foreign)
			took := acquireLater(t, waiter, paceClaim(1, true))
			time.Sleep(3 * time.Second)
			table.isLent.Store(false)
			for n := range 2 {
				if l, err := others.Inspect(t.Context(), "m"); err != nil || len(l.Waiters) != 0 {
					t.Errorf("%+v: after %d hand-overs %d claims are in the queue: %v", test, n, len(l.Waiters), err)
				}
				time.Sleep(3 * time.Second)
				storetest.Release(t, others, held.Claim)
				held = storetest.Acquire(t, others, paceClaim(2+n, false))
				time.Sleep(3 * time.Second)
			}
			if l, err := others.Inspect(t.Context(), "m"); err != nil || len(l.Waiters) != test.waiters {
				t.Errorf("%+v: %d claims are in the queue: %v", test, len(l.Waiters), err)
			}
			storetest.Release(t, others, held.Claim)
			<-took
		})
	}
}

// TestPolledWaiterCost: a claim that waits for a lock that is held reads at most 100 times in its first minute, and 40
// times more if the lock went from hand to hand before.
func TestPolledWaiterCost(t *testing.T) {
	for _, busy := range []bool{false, true} {
		for _, fair := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				m := fakeMemory()
				holder, _, _ := polledStore(m, time.Millisecond, nil)
				defer holder.Close()
				waiter, loads, swaps := polledStore(m, time.Millisecond, nil)
				defer waiter.Close()
				claim := func(n int) driver.Claim {
					c := paceClaim(n, true)
					c.TTL, c.Fair = time.Hour, fair
					return c
				}
				held, limit := storetest.Acquire(t, holder, claim(0)), int64(100)
				from, to := holder, waiter
				for turn := 1; busy && turn <= 20; turn++ {
					next := make(chan driver.Grant, 1)
					go func() {
						c := claim(turn)
						c.Fair = true
						next <- storetest.Acquire(t, to, c)
					}()
					time.Sleep(5 * time.Millisecond)
					storetest.Release(t, from, held.Claim)
					held, limit = <-next, 140
					from, to = to, from
				}
				took := acquireLater(t, waiter, claim(100))
				time.Sleep(10 * time.Millisecond) // until it has joined, if it does
				swaps.Store(0)
				loads.Store(0)
				time.Sleep(time.Minute)
				t.Logf("busy %v, fair %v: %d loads, %d swaps", busy, fair, loads.Load(), swaps.Load())
				if n := loads.Load(); n > limit || swaps.Load() > 0 {
					t.Errorf("busy %v, fair %v: a waiter made %d loads and %d swaps in a minute", busy, fair, n, swaps.Load())
				}
				storetest.Release(t, holder, held.Claim)
				<-took
			})
		}
	}
}

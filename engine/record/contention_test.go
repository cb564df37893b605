package record_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
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

// distantTable is a table with a round trip of 50 ms. Each way takes up to half of the spread more or less.
type distantTable struct {
	record.Table
	spread time.Duration
}

func (distantTable) Watcher() record.Watcher { return nil }

func (t distantTable) travelOneWay() {
	time.Sleep(25*time.Millisecond - t.spread/2 + rand.N(t.spread+1))
}

func (t distantTable) Load(ctx context.Context, name string) (record.Row, error) {
	t.travelOneWay()
	defer t.travelOneWay()
	return t.Table.Load(ctx, name)
}

func (t distantTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	t.travelOneWay()
	defer t.travelOneWay()
	return t.Table.Swap(ctx, row)
}

// TestRenewalsGoFirst: a holder's renewals succeed while 120 clients try to acquire the lock, and the queue is
// bounded.
func TestRenewalsGoFirst(t *testing.T) {
	for ttl, renewals := range map[time.Duration]int{3 * time.Second: 6, 30 * time.Second: 1} {
		t.Run(ttl.String(), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { runRush(t, ttl, renewals) }) })
	}
}

func runRush(t *testing.T, ttl time.Duration, renewals int) {
	from := time.Now()
	sinceStart := func() time.Duration { return time.Since(from) }
	m := memory.New(&memory.Options{Clock: driver.Clock{Monotonic: sinceStart, Boottime: sinceStart}})
	claim := func(n int, wait bool) driver.Claim {
		return driver.Claim{Name: "m", ID: fmt.Sprint("claim", n), Kind: driver.KindMutex, Limit: 1, Weight: 1,
			TTL: ttl, Fair: true, Wait: wait}
	}
	holder := record.New(distantTable{m.Table(), 0})
	grant, err := holder.Acquire(t.Context(), claim(0, false))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var crowd sync.WaitGroup
	var full atomic.Int64
	for n := range 120 {
		crowd.Go(func() {
			s := record.New(distantTable{m.Table(), 0})
			defer s.Close()
			_, err := s.Acquire(ctx, claim(n+1, true))
			if errors.Is(err, driver.ErrQueueFull) {
				full.Add(1)
			} else if !errors.Is(err, context.Canceled) {
				t.Errorf("claim %d: %v", n+1, err)
			}
		})
	}
	longest := time.Duration(0)
	for range renewals {
		time.Sleep(ttl / 3)
		start := time.Now()
		holder.Renew(t.Context(), []driver.Grant{grant}, func(_ int, r driver.Renewal) { err = r.Err })
		if err != nil {
			t.Errorf("renewing: %v", err)
			break
		}
		longest = max(longest, time.Since(start))
	}
	lock, err := holder.Inspect(t.Context(), "m")
	if err != nil || len(lock.Waiters) > driver.MaxWaiters {
		t.Errorf("%d claims wait (%v)", len(lock.Waiters), err)
	}
	cancel()
	crowd.Wait()
	holder.Close()
	t.Logf("the longest renewal took %v; %d claims waited, %d were refused", longest, len(lock.Waiters),
		full.Load())
	if longest > time.Second {
		t.Errorf("a renewal took %v", longest)
	}
	if len(lock.Waiters) == driver.MaxWaiters && full.Load() == 0 {
		t.Error("the queue is full, but no claim was refused")
	}
}

// notifyingTable is a table that notifies as another one does.
type notifyingTable struct {
	record.Table
	watcher    record.Watcher
	maxWaiters int // 0: as many as usual
}

func (t notifyingTable) Watcher() record.Watcher { return t.watcher }

func (t notifyingTable) Info() driver.Info {
	i := t.Table.Info()
	if t.maxWaiters > 0 {
		i.MaxWaiters = t.maxWaiters
	}
	return i
}

// runCrowd makes claims of several clients near the store take turns on a lock until ctx ends. Each holds it for 100
// ms.
func runCrowd(ctx context.Context, t *testing.T, open func() record.Table, clients int, fair bool) (wait func()) {
	var crowd sync.WaitGroup
	for n := range clients {
		crowd.Go(func() {
			s := record.New(open())
			defer s.Close()
			for turn := 0; ctx.Err() == nil; turn++ {
				c := paceClaim(turn, true)
				c.ID, c.Fair, c.TTL = fmt.Sprint("client", n, "turn", turn), fair, time.Minute
				g, err := s.Acquire(ctx, c)
				if errors.Is(err, driver.ErrQueueFull) {
					time.Sleep(50 * time.Millisecond)
					continue
				}
				if ctx.Err() != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
				if err == nil {
					err = s.Release(context.Background(), g.Claim, g.Ref)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	return crowd.Wait
}

// openFar opens a store whose client needs 50 ms for each request.
func openFar(m *memory.Memory, maxWaiters int) driver.Store {
	table := m.Table()
	return record.New(notifyingTable{distantTable{Table: table}, table.Watcher(), maxWaiters})
}

// TestPlainClaimIsNotStarved: a plain claim whose client is far from the store, and which comes too late at each
// release, gets the lock nevertheless. It joins the queue when it has watched for a second.
func TestPlainClaimIsNotStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		wait := runCrowd(ctx, t, m.Table, 2, false)
		far := openFar(m, 0)
		defer far.Close()
		from := time.Now()
		c := paceClaim(0, true)
		c.TTL = time.Minute
		_, err := far.Acquire(ctx, c)
		if took := time.Since(from); err != nil || took > 5*time.Second {
			t.Errorf("it took %v: %v", took, err)
		}
		cancel()
		wait()
	})
}

// TestPlainClaimAmongFairOnes: while fair claims wait, the lock is never free. A plain claim that watches joins them,
// and where clients take turns at looking it does so, too.
func TestPlainClaimAmongFairOnes(t *testing.T) {
	for _, test := range []struct {
		name string
		open func(m *memory.Memory) record.Table
	}{
		{"watching", func(m *memory.Memory) record.Table { return m.Table() }},
		{"turns", func(m *memory.Memory) record.Table { return newTurnTable(m) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := fakeMemory()
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				wait := runCrowd(ctx, t, m.Table, 4, true)
				time.Sleep(time.Second)
				plain := record.New(test.open(m))
				defer plain.Close()
				from := time.Now()
				_, err := plain.Acquire(ctx, paceClaim(0, true))
				if took := time.Since(from); err != nil || took > 2*time.Second {
					t.Errorf("it took %v: %v", took, err)
				}
				cancel()
				wait()
			})
		})
	}
}

// TestPlainClaimAtFullQueue: a plain claim that cannot join the queue because that is full goes on to wait. It looks at
// the lock about once per second, not at each change, and takes it when there is room.
func TestPlainClaimAtFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		open := func(table record.Table) driver.Store {
			s := record.New(notifyingTable{table, m.Table().Watcher(), 2})
			t.Cleanup(func() { s.Close() })
			return s
		}
		counted := &countingTable{Table: m.Table()}
		others, outside := open(m.Table()), open(distantTable{Table: counted}) // others join before it
		holder := storetest.Acquire(t, others, paceClaim(0, false))
		took := acquireLater(t, outside, paceClaim(1, true))
		var fair []chan driver.Grant
		for n := range 4 {
			granted := make(chan driver.Grant, 1)
			fair = append(fair, granted)
			c := paceClaim(n+2, true)
			c.Fair = true
			if n >= 2 { // there is room for it when another one has the lock
				time.Sleep(2 * time.Second)
				storetest.Release(t, others, holder.Claim)
				holder = <-fair[n-2]
			}
			go func() { granted <- storetest.Acquire(t, others, c) }()
			synctest.Wait()
		}
		time.Sleep(5 * time.Second)
		counted.takeLog()
		for range 200 {
			time.Sleep(100 * time.Millisecond)
			others.Renew(t.Context(), []driver.Grant{holder}, func(_ int, r driver.Renewal) {
				if r.Err != nil {
					t.Error(r.Err)
				}
			})
		}
		if n := counted.loads.Load() + counted.swaps.Load(); n < 10 || n > 60 {
			t.Errorf("%d requests in 20 s from outside of the queue", n)
		}
		storetest.Release(t, others, holder.Claim)
		for _, granted := range fair[2:] {
			storetest.Release(t, others, (<-granted).Claim)
		}
		<-took
	})
}

// smallNotifyingTable is a table that notifies, and whose records must be small.
type smallNotifyingTable struct{ notifyingTable }

func (smallNotifyingTable) Traits() record.Traits { return record.Traits{MaxRecord: 1000} }

// TestPlainClaimAtFullRecord: a plain claim for which the record has no room goes on to wait.
func TestPlainClaimAtFullRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		others, table := m.Open(), m.Table()
		defer others.Close()
		outside := record.New(smallNotifyingTable{notifyingTable{Table: table, watcher: table.Watcher()}})
		defer outside.Close()
		held := storetest.Acquire(t, others, paceClaim(0, false))
		took := acquireLater(t, outside, paceClaim(1, true))
		var granted []chan driver.Grant
		for n := range 3 {
			c, got := paceClaim(n+2, true), make(chan driver.Grant, 1)
			c.Fair, c.Meta, granted = true, strings.Repeat("m", 500), append(granted, got)
			go func() { got <- storetest.Acquire(t, others, c) }()
			synctest.Wait()
		}
		for _, next := range granted {
			storetest.Release(t, others, held.Claim)
			held = <-next
			time.Sleep(2 * time.Second)
		}
		if len(took) > 0 {
			t.Error("the claim outside of the queue has overtaken those in it")
		}
		storetest.Release(t, others, held.Claim)
		<-took
	})
}

// TestClaimTooLargeForRecord: a plain claim for which even an empty record has no room is refused at once.
func TestClaimTooLargeForRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := fakeMemory().Table()
		s := record.New(smallNotifyingTable{notifyingTable{Table: table, watcher: table.Watcher()}})
		defer s.Close()
		c := paceClaim(0, true)
		c.Meta = strings.Repeat("m", 1000)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := s.Acquire(ctx, c); !errors.Is(err, driver.ErrQueueFull) {
			t.Error(err)
		}
	})
}

// TestOneHandOver: a plain claim that has seen the lock go to another one once does not join the queue for that, since
// candidates that wait for years would write the record all the time. When the lock goes to another one again, it
// joins.
func TestOneHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		others, waiter := m.Open(), openFar(m, 0)
		defer others.Close()
		defer waiter.Close()
		countWaiters := func() int {
			l, err := others.Inspect(t.Context(), "m")
			if err != nil {
				t.Error(err)
			}
			return len(l.Waiters)
		}
		handOver := func(from driver.Grant, n int) driver.Grant {
			storetest.Release(t, others, from.Claim)
			return storetest.Acquire(t, others, paceClaim(n, false))
		}
		held := storetest.Acquire(t, others, paceClaim(0, false))
		took := acquireLater(t, waiter, paceClaim(1, true))
		time.Sleep(2 * time.Second)
		held = handOver(held, 2)
		for range 30 {
			time.Sleep(10 * time.Second)
			others.Renew(t.Context(), []driver.Grant{held}, func(_ int, r driver.Renewal) {
				if r.Err != nil {
					t.Error(r.Err)
				}
			})
			if n := countWaiters(); n > 0 {
				t.Fatalf("%d claims are in the queue", n)
			}
		}
		held = handOver(held, 3)
		time.Sleep(2 * time.Second)
		if n := countWaiters(); n != 1 {
			t.Errorf("%d claims are in the queue", n)
		}
		storetest.Release(t, others, held.Claim)
		<-took
	})
}

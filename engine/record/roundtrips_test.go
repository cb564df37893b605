package record_test

import (
	"context"
	"errors"
	"fmt"
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

// countingTable counts the round trips to a table. Its conflicts do not return the current row, like those of some
// stores.
type countingTable struct {
	record.Table
	loads, swaps atomic.Int64 // a sweep counts in the background
}

func (*countingTable) Watcher() record.Watcher { return nil }

func (t *countingTable) Load(ctx context.Context, name string) (record.Row, error) {
	t.loads.Add(1)
	return t.Table.Load(ctx, name)
}

func (t *countingTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	t.swaps.Add(1)
	now, err := t.Table.Swap(ctx, row)
	if errors.Is(err, record.ErrConflict) {
		now = record.Row{}
	}
	return now, err
}

// takeLog returns the counts, and resets them.
func (t *countingTable) takeLog() string {
	return fmt.Sprintf("%d loads, %d swaps", t.loads.Swap(0), t.swaps.Swap(0))
}

// TestRoundTripsPerStep: a step costs one round trip to acquire a lock that is absent or as this client saw it last,
// one to renew it and one to release it. One more is needed if another client has changed the lock.
func TestRoundTripsPerStep(t *testing.T) {
	ctx := t.Context()
	m := memory.New(nil)
	one, two := &countingTable{Table: m.Table()}, &countingTable{Table: m.Table()}
	ours, theirs := record.New(one), record.New(two)
	claim := func() driver.Claim { return storetest.Mutex("m", time.Minute) }
	expect := func(table *countingTable, what, want string) {
		t.Helper()
		if got := table.takeLog(); got != want {
			t.Errorf("%s took %s, not %s", what, got, want)
		}
	}

	a := storetest.Acquire(t, ours, claim())
	expect(one, "acquiring an absent lock", "0 loads, 1 swaps")

	if err := storetest.Renew(t, ours, a).Err; err != nil {
		t.Fatal(err)
	}
	expect(one, "renewing", "0 loads, 1 swaps")

	storetest.Release(t, ours, a.Claim)
	expect(one, "releasing", "0 loads, 1 swaps")

	a = storetest.Acquire(t, ours, claim())
	expect(one, "acquiring a lock as this client has left it", "0 loads, 1 swaps")

	if _, err := theirs.Acquire(ctx, claim()); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	expect(two, "being refused by another client's lock", "1 loads, 1 swaps")

	if _, err := theirs.Acquire(ctx, claim()); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	expect(two, "being refused again", "1 loads, 0 swaps")

	storetest.Release(t, ours, a.Claim)
	storetest.Acquire(t, theirs, claim())
	expect(two, "acquiring a lock that another client has released", "1 loads, 1 swaps")
}

// queueInfoTable is a table with other limits of waiters and holders.
type queueInfoTable struct {
	record.Table
	limit int
}

func (queueInfoTable) Watcher() record.Watcher { return nil }

func (l queueInfoTable) Info() driver.Info {
	i := l.Table.Info()
	i.MaxWaiters, i.MaxHolders = l.limit, l.limit
	return i
}

// TestRefusalCostIsConstant: a claim that is refused, because the queue is full or the lock has its maximum of holders,
// costs one read and no write, however many claims there are. A client that sees the lock for the first time makes one
// write that fails.
func TestRefusalCostIsConstant(t *testing.T) {
	for _, limit := range []int{1, driver.MaxWaiters} {
		m := memory.New(nil)
		table := &countingTable{Table: m.Table()}
		s, others := record.New(queueInfoTable{table, limit}), record.New(queueInfoTable{m.Table(), limit})
		claim := func(name string, n int) driver.Claim {
			return driver.Claim{Name: name, ID: fmt.Sprint("claim", n), Kind: driver.KindSemaphore, Limit: 1000,
				Weight: 1, TTL: time.Hour}
		}
		for n := range limit {
			storetest.Acquire(t, others, claim("holders", n))
		}
		all := claim("queue", limit)
		all.Weight = 1000
		storetest.Acquire(t, others, all)
		ctx, cancel := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		for n := range limit {
			c := claim("queue", n)
			c.Wait = true
			waiting.Go(func() { others.Acquire(ctx, c) })
		}
		for waiters := 0; waiters < limit; {
			l, err := others.Inspect(t.Context(), "queue")
			if err != nil {
				t.Fatal(err)
			}
			waiters = len(l.Waiters)
		}
		for _, name := range []string{"holders", "queue"} {
			table.takeLog()
			for tries := range 3 {
				c := claim(name, 1000)
				c.Wait = true
				if _, err := s.Acquire(t.Context(), c); !errors.Is(err, driver.ErrQueueFull) {
					t.Fatal(err)
				}
				if cost := table.takeLog(); cost != "1 loads, 0 swaps" && (tries > 0 || cost != "1 loads, 1 swaps") {
					t.Errorf("with %d %s a refusal took %s", limit, name, cost)
				}
			}
		}
		from := time.Now()
		for range 20 {
			c := claim("queue", 1000)
			c.Wait = true
			s.Acquire(t.Context(), c)
		}
		t.Logf("%d claims wait: %v per refusal", limit, time.Since(from)/20)
		cancel()
		waiting.Wait()
		s.Close()
		others.Close()
	}
}

// TestRefusedWaiterLeaves: of two waiters whose turn comes, the second is refused, because a lock may have two holders
// here. Nothing is left of it: its client takes it for refused, and does not release it.
func TestRefusedWaiterLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		s := record.New(queueInfoTable{m.Table(), 2})
		defer s.Close()
		claim := func(n int, weight int64) driver.Claim {
			return driver.Claim{Name: "m", ID: fmt.Sprint("claim", n), Kind: driver.KindSemaphore, Limit: 4,
				Weight: weight, TTL: time.Hour, Wait: true}
		}
		big := claim(0, 3)
		storetest.Acquire(t, s, big)
		storetest.Acquire(t, s, claim(1, 1))
		outcomes := make(chan error, 2)
		for n := range 2 {
			go func() {
				_, err := s.Acquire(t.Context(), claim(2+n, 1))
				outcomes <- err
			}()
		}
		synctest.Wait()
		storetest.Release(t, s, big)
		granted, refused := <-outcomes, <-outcomes
		if granted != nil {
			granted, refused = refused, granted
		}
		if granted != nil || !errors.Is(refused, driver.ErrQueueFull) {
			t.Errorf("one waiter ended with %v, the other with %v", granted, refused)
		}
		if l, err := s.Inspect(t.Context(), "m"); err != nil || len(l.Holders) != 2 || len(l.Waiters) != 0 {
			t.Errorf("the lock is left with %+v, %v", l, err)
		}
	})
}

// watchedTable is a countingTable that notifies, whose requests take a while, and whose conflicts return the current row.
type watchedTable struct{ *countingTable }

func (t watchedTable) Watcher() record.Watcher { return t.Table.Watcher() }

func (t watchedTable) Load(ctx context.Context, name string) (record.Row, error) {
	time.Sleep(500 * time.Microsecond)
	return t.countingTable.Load(ctx, name)
}

func (t watchedTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	t.swaps.Add(1)
	time.Sleep(500 * time.Microsecond)
	return t.Table.Swap(ctx, row)
}

// TestPlainWaitersShareReads: of the goroutines that want one plain lock, those that do not get it wait for the next
// change, and do not read the record each for itself.
func TestPlainWaitersShareReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, goroutines, turns = 2, 16, 10
		m := fakeMemory()
		var crowd sync.WaitGroup
		var loads int64
		for range clients {
			table := watchedTable{&countingTable{Table: m.Table()}}
			s := record.New(table)
			defer s.Close()
			defer func() { loads += table.loads.Load() }()
			for range goroutines {
				crowd.Go(func() {
					for range turns {
						c := storetest.Waiting(storetest.Mutex("m", time.Minute))
						storetest.Acquire(t, s, c)
						time.Sleep(time.Millisecond)
						storetest.Release(t, s, c)
					}
				})
			}
		}
		crowd.Wait()
		t.Cleanup(func() {
			perTurn := float64(loads) / clients / goroutines / turns
			t.Logf("%.1f loads per turn", perTurn)
			if perTurn > 5 { // ten if each reads
				t.Errorf("%.1f loads per turn", perTurn)
			}
		})
	})
}

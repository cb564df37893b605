package record_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// openCounted opens a store whose requests take 50 ms, and are counted.
func openCounted() (driver.Store, *countingTable) {
	table := fakeMemory().Table()
	counted := &countingTable{Table: distantTable{Table: table}}
	return record.New(notifyingTable{counted, table.(record.Notifier), 0}), counted
}

// crowdClaim is a claim of one of the goroutines that want one lock.
func crowdClaim(kind driver.Kind, limit, weight int64, worker, turn int) driver.Claim {
	return driver.Claim{
		Name: "m", ID: fmt.Sprintf("worker %d turn %d", worker, turn), Kind: kind, Limit: limit, Weight: weight,
		TTL: time.Hour, Fair: true, Wait: true,
	}
}

// TestGroupedSteps: 64 goroutines of one client that want one lock do not refuse each other: a turn takes two swaps, one
// to join the queue and one that releases the lock and grants the next claim. They take turns in order, and nobody finds
// the queue full.
func TestGroupedSteps(t *testing.T) {
	for _, k := range []struct {
		kind          driver.Kind
		limit, weight int64
	}{{driver.KindMutex, 1, 1}, {driver.KindRW, 1 << 20, 1 << 20}, {driver.KindSemaphore, 3, 1}} {
		t.Run(string(k.kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runGoroutines(t, func(worker, turn int) driver.Claim {
					return crowdClaim(k.kind, k.limit, k.weight, worker, turn)
				})
			})
		})
	}
}

func runGoroutines(t *testing.T, claim func(worker, turn int) driver.Claim) {
	const workers, turns = 64, 4
	s, table := openCounted()
	defer s.Close()
	var all sync.WaitGroup
	var mu sync.Mutex
	var order []int // the workers, as they got the lock
	began := time.Now()
	for n := range workers {
		all.Go(func() {
			for turn := range turns {
				g, err := s.Acquire(t.Context(), claim(n, turn))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, n)
				mu.Unlock()
				if err := s.Release(t.Context(), g.Claim, g.Ref); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	perTurn := float64(table.swaps.Load()) / workers / turns
	t.Logf("%.2f swaps and %.2f loads per turn, of %v each", perTurn, float64(table.loads.Load())/workers/turns,
		time.Since(began)/workers/turns)
	if perTurn > 2.1 {
		t.Errorf("a turn took %.2f swaps", perTurn)
	}
	for n := range workers {
		if at := slices.Index(order[workers:], n); at > workers+workers/2 {
			t.Errorf("worker %d waited for %d turns of others", n, at)
		}
	}
}

// hangingTable is a table whose next swap hangs until its context ends, if hang is set.
type hangingTable struct {
	record.Table
	mu   sync.Mutex
	hang bool
	hung chan struct{} // closed when a swap hangs
}

func (t *hangingTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	t.mu.Lock()
	hang := t.hang
	t.hang = false
	t.mu.Unlock()
	if hang {
		close(t.hung)
		<-ctx.Done()
		return record.Row{}, ctx.Err()
	}
	return t.Table.Swap(ctx, row)
}

// TestHangingSwap: a renewal does not wait for another call's swap that hangs, and neither does a claim whose caller has
// given up.
func TestHangingSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &hangingTable{Table: fakeMemory().Table(), hung: make(chan struct{})}
		s := record.New(table)
		defer s.Close()
		held, err := s.Acquire(t.Context(), crowdClaim(driver.KindSemaphore, 3, 1, 0, 0))
		if err != nil {
			t.Fatal(err)
		}
		table.mu.Lock()
		table.hang = true
		table.mu.Unlock()
		ctx, cancel := context.WithCancel(t.Context())
		var others sync.WaitGroup
		others.Go(func() { s.Acquire(ctx, crowdClaim(driver.KindSemaphore, 3, 1, 1, 0)) })
		<-table.hung
		others.Go(func() {
			given, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			if _, err := s.Acquire(given, crowdClaim(driver.KindSemaphore, 3, 1, 2, 0)); !isPlainTimeout(err) {
				t.Errorf("a claim that was not sent: %v", err)
			}
		})
		from := time.Now()
		s.Renew(t.Context(), []driver.Grant{held}, func(_ int, r driver.Renewal) {
			if took := time.Since(from); r.Err != nil || took > 500*time.Millisecond {
				t.Errorf("a renewal beside a swap that hangs took %v: %v", took, r.Err)
			}
		})
		cancel()
		others.Wait()
	})
}

// isPlainTimeout reports whether a call ended in time, and nothing is left of it.
func isPlainTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, driver.ErrUncertain)
}

// TestWaiterLeavesWhileGranted: a claim whose caller gives up while another call's swap grants it has an outcome that is
// not known. Its Release makes sure that nothing is left, also if the swap arrives later.
func TestWaiterLeavesWhileGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &hangingTable{Table: fakeMemory().Table(), hung: make(chan struct{})}
		s := record.New(table)
		defer s.Close()
		held, err := s.Acquire(t.Context(), crowdClaim(driver.KindMutex, 1, 1, 0, 0))
		if err != nil {
			t.Fatal(err)
		}
		waiter := crowdClaim(driver.KindMutex, 1, 1, 1, 0)
		ctx, cancel := context.WithCancel(t.Context())
		var others sync.WaitGroup
		others.Go(func() {
			if _, err := s.Acquire(ctx, waiter); !errors.Is(err, driver.ErrUncertain) {
				t.Errorf("a claim that may have been granted: %v", err)
			}
			if err := s.Release(t.Context(), waiter, ""); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait() // it waits in the queue
		table.mu.Lock()
		table.hang = true
		table.mu.Unlock()
		others.Go(func() {
			if err := s.Release(t.Context(), held.Claim, held.Ref); err != nil {
				t.Error(err)
			}
		})
		<-table.hung
		cancel()
		others.Wait()
		if l, err := s.Inspect(t.Context(), "m"); err != nil || len(l.Holders)+len(l.Waiters) > 0 {
			t.Errorf("%d holders, %d waiters are left (%v)", len(l.Holders), len(l.Waiters), err)
		}
	})
}

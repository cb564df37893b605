package record_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/store/memory"
)

// distantTable is a table with a round trip of 50 ms. Each way takes up to half of the spread more or less.
type distantTable struct {
	record.Table
	spread time.Duration
}

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
	for ttl, renewals := range map[time.Duration]int{3 * time.Second: 10, 30 * time.Second: 3} {
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

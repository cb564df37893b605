package record_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/store/memory"
)

// pacedTable is a table with a WriteInterval, and with a rough estimate of its clock.
type pacedTable struct {
	record.Table
	pace   time.Duration
	rough  time.Duration
	writes *[]time.Time
}

func (pacedTable) Watcher() record.Watcher { return nil }

func (t pacedTable) Info() driver.Info {
	i := t.Table.Info()
	i.WriteInterval = t.pace
	return i
}

func (t pacedTable) Clock() record.Clock { return t }

func (t pacedTable) Bounds() (early, late int64, known bool) {
	now := t.TokenFloor()
	return now - t.rough.Microseconds(), now + t.rough.Microseconds(), true
}

func (pacedTable) IsStale() bool { return false }

func (t pacedTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	now, err := t.Table.Swap(ctx, row)
	if err == nil && t.writes != nil {
		*t.writes = append(*t.writes, time.Now())
	}
	return now, err
}

// fakeMemory is a store in memory that uses the bubble's clock.
func fakeMemory() *memory.Memory {
	from := time.Now()
	sinceStart := func() time.Duration { return time.Since(from) }
	return memory.New(&memory.Options{Clock: driver.Clock{Monotonic: sinceStart, Boottime: sinceStart}})
}

func paceClaim(n int, wait bool) driver.Claim {
	return driver.Claim{Name: "m", ID: fmt.Sprint("claim", n), Kind: driver.KindMutex, Limit: 1, Weight: 1,
		TTL: time.Minute, Wait: wait}
}

// TestClaimsKeepWriteInterval: new claims that can wait keep the store's WriteInterval. A release, a renewal, a try and
// a first claim are not delayed.
func TestClaimsKeepWriteInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pace = 2 * time.Second
		m := fakeMemory()
		var writes []time.Time
		s := record.New(pacedTable{m.Table(), pace, 0, &writes})
		took := func(what string, minTime, maxTime time.Duration, do func() error) {
			t.Helper()
			from := time.Now()
			if err := do(); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if d := time.Since(from); d < minTime || d > maxTime {
				t.Errorf("%s took %v, not %v to %v", what, d, minTime, maxTime)
			}
		}
		var g driver.Grant
		take := func(n int, wait bool) func() error {
			return func() (err error) { g, err = s.Acquire(t.Context(), paceClaim(n, wait)); return err }
		}
		release := func() error { return s.Release(t.Context(), g.Claim, "") }
		took("a first claim", 0, 0, take(1, true))
		took("a renewal", 0, 0, func() (err error) {
			s.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) { err = r.Err })
			return err
		})
		took("a release", 0, 0, release)
		took("a claim that comes at once", pace, 3*pace/2, take(2, true))
		took("a release", 0, 0, release)
		took("a try", 0, 0, take(3, false))
		took("a release", 0, 0, release)
		time.Sleep(time.Minute)
		took("a claim that comes late", 0, 0, take(4, true))
		took("a release", 0, 0, release)
		if len(writes) != 9 {
			t.Errorf("%d writes, not 9", len(writes))
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestPacedClaimAmongRenewals: a claim that keeps the store's WriteInterval is granted if it fits, although the holders
// renew more often than that.
func TestPacedClaimAmongRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const holders, ttl = 8, 30 * time.Second
		m := fakeMemory()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		var renewing sync.WaitGroup
		defer renewing.Wait()
		defer cancel()
		for n := range holders {
			s := record.New(pacedTable{m.Table(), 2 * time.Second, 0, nil})
			defer s.Close()
			c := paceClaim(n, true)
			c.Kind, c.Limit, c.TTL = driver.KindSemaphore, holders, ttl
			from := time.Now()
			g, err := s.Acquire(ctx, c)
			if err != nil || time.Since(from) > 5*time.Second {
				t.Fatalf("holder %d was granted after %v: %v", n, time.Since(from), err)
			}
			renewing.Go(func() {
				for every := time.Tick(ttl / 3); ; {
					select {
					case <-every:
						s.Renew(ctx, []driver.Grant{g}, func(int, driver.Renewal) {})
					case <-ctx.Done():
						return
					}
				}
			})
			time.Sleep(ttl / 3 / holders)
		}
	})
}

// TestTryWaitsForRoughClock: a try that finds a claim which may have expired, as far as the store's clock is known,
// waits once until that is certain. It is refused at once if the claim has certainly not expired.
func TestTryWaitsForRoughClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rough = 500 * time.Millisecond
		m := fakeMemory()
		holder, next := record.New(pacedTable{m.Table(), 0, rough, nil}), record.New(pacedTable{m.Table(), 0, rough,
			nil})
		defer holder.Close()
		defer next.Close()
		from := time.Now()
		g, err := holder.Acquire(t.Context(), paceClaim(1, false))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		tried := time.Now()
		if _, err := next.Acquire(t.Context(), paceClaim(2, false)); !errors.Is(err, driver.ErrHeld) ||
			time.Since(tried) > 0 {
			t.Errorf("refused after %v: %v", time.Since(tried), err)
		}
		time.Sleep(time.Until(from.Add(g.GrantedTTL + 100*time.Millisecond)))
		if _, err := next.Acquire(t.Context(), paceClaim(3, false)); err != nil {
			t.Errorf("%v after the end: %v", time.Since(from)-g.GrantedTTL, err)
		}
		if d := time.Since(from) - g.GrantedTTL; d > time.Second+10*time.Millisecond {
			t.Errorf("granted %v after the end", d)
		}
	})
}

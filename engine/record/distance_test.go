package record_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestWriterAmongReadersOnDistantStore: clients with long round trips pause after conflicts, but not for so long that
// one of them never succeeds. A writer gets a place in the queue among readers that come and go all the time, and is
// granted.
func TestWriterAmongReadersOnDistantStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := time.Now()
		sinceStart := func() time.Duration { return time.Since(from) }
		m := memory.New(&memory.Options{Clock: driver.Clock{Monotonic: sinceStart, Boottime: sinceStart}})
		var stop atomic.Bool
		var all sync.WaitGroup
		var n atomic.Int64
		claim := func(weight int64) driver.Claim {
			return driver.Claim{Name: "m", ID: fmt.Sprint("claim", n.Add(1)), Kind: driver.KindRW,
				Limit: driver.RWLimit, Weight: weight,
				TTL: 10 * time.Second, Fair: true, Wait: true}
		}
		for range 4 {
			all.Go(func() {
				s := record.New(distantTable{m.Table(), 10 * time.Millisecond})
				defer s.Close()
				for !stop.Load() {
					g, err := s.Acquire(t.Context(), claim(1))
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(20 * time.Millisecond)
					if err := s.Release(t.Context(), g.Claim, g.Ref); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		s := record.New(distantTable{m.Table(), 10 * time.Millisecond})
		defer s.Close()
		var took []time.Duration
		for range 200 {
			time.Sleep(500 * time.Millisecond)
			start := time.Now()
			g, err := s.Acquire(t.Context(), claim(driver.RWLimit))
			if err != nil {
				t.Fatal(err)
			}
			took = append(took, time.Since(start))
			if err := s.Release(t.Context(), g.Claim, g.Ref); err != nil {
				t.Fatal(err)
			}
		}
		stop.Store(true)
		all.Wait()
		slices.Sort(took)
		t.Logf("half of the writers were granted within %v, nine in ten within %v, all within %v", took[100], took[180],
			took[199])
		if took[199] > 8*time.Second {
			t.Errorf("a writer was granted after %v", took[199])
		}
	})
}

// TestVeryDistantWaiterConfirms: a waiter whose requests take longer than other clients' confirm window is granted the
// lock nevertheless, because its claim states its own confirm window.
func TestVeryDistantWaiterConfirms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var n atomic.Int64
		claim := func() driver.Claim {
			c := paceClaim(int(n.Add(1)), true)
			c.Fair = true
			return c
		}
		var all sync.WaitGroup
		for range 3 {
			s := m.Open()
			defer s.Close()
			all.Go(func() {
				for ctx.Err() == nil {
					g, err := s.Acquire(ctx, claim())
					if err != nil {
						continue
					}
					time.Sleep(25 * time.Second)
					if err := s.Release(t.Context(), g.Claim, g.Ref); err != nil {
						t.Error(err)
					}
				}
			})
		}
		s := record.New(veryDistantTable{m.Table()})
		defer s.Close()
		for range 3 {
			g, err := s.Acquire(ctx, claim())
			if err == nil {
				err = s.Release(t.Context(), g.Claim, g.Ref)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		all.Wait()
	})
}

// veryDistantTable is a table with a round trip of 6 s.
type veryDistantTable struct{ record.Table }

func (veryDistantTable) Watcher() record.Watcher { return nil }

func (v veryDistantTable) Load(ctx context.Context, name string) (record.Row, error) {
	time.Sleep(3 * time.Second)
	defer time.Sleep(3 * time.Second)
	return v.Table.Load(ctx, name)
}

func (v veryDistantTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	time.Sleep(3 * time.Second)
	defer time.Sleep(3 * time.Second)
	return v.Table.Swap(ctx, row)
}

package record_test

import (
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

// TestAWriterGetsInFarAway promises that a few clients who are far from the store do not keep one another out by pausing for
// long: a writer comes to stand in line among readers who come and go all the time, and so comes in.
func TestAWriterGetsInFarAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := time.Now()
		hand := func() time.Duration { return time.Since(from) }
		m := memory.New(&memory.Options{Clock: driver.Clock{Monotonic: hand, Real: hand}})
		var stop atomic.Bool
		var all sync.WaitGroup
		var n atomic.Int64
		claim := func(weight int64) driver.Claim {
			return driver.Claim{Name: "m", ID: fmt.Sprint("claim", n.Add(1)), Kind: driver.KindRW, Limit: driver.RWLimit, Weight: weight,
				TTL: 10 * time.Second, Fair: true, Wait: true}
		}
		for range 4 {
			all.Go(func() {
				s := record.New(far{m.Table(), 10 * time.Millisecond})
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
		s := record.New(far{m.Table(), 10 * time.Millisecond})
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
		t.Logf("half of the writers got in after %v, nine in ten after %v, the last after %v", took[100], took[180], took[199])
		if took[199] > 8*time.Second {
			t.Errorf("a writer got in after %v", took[199])
		}
	})
}

package holdfast_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

// bubbleMemory returns a memory store that uses the bubble's clock.
func bubbleMemory() *memory.Memory {
	start := time.Now()
	sinceStart := func() time.Duration { return time.Since(start) }
	return memory.New(&memory.Options{Clock: driver.Clock{Monotonic: sinceStart, Boottime: sinceStart}})
}

// TestFairHandover: a fair lock with many waiters of several clients is handed over at once. No promoted waiter is
// missed until its confirm window has passed.
//
// The test uses the time of testing/synctest, also for the store. It advances only while all goroutines wait, so a busy
// machine does not affect it.
func TestFairHandover(t *testing.T) { synctest.Test(t, runFairHandover) }

func runFairHandover(t *testing.T) {
	m := bubbleMemory()
	var all sync.WaitGroup
	var mu sync.Mutex
	var gaps []time.Duration
	var freed time.Time
	for range 4 {
		c, err := holdfast.New(m.Open(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for range 8 {
			all.Go(func() {
				for range 20 {
					lease, err := c.Mutex("m", &holdfast.LockOptions{Fair: true}).Lock(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if !freed.IsZero() {
						gaps = append(gaps, time.Since(freed))
					}
					freed = time.Now()
					mu.Unlock()
					if err := lease.Release(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	slices.Sort(gaps)
	t.Logf("%d handovers: median %v, longest %v", len(gaps), gaps[len(gaps)/2], gaps[len(gaps)-1])
	if worst := gaps[len(gaps)-1]; worst > time.Second {
		t.Errorf("a handover took %v", worst)
	}
}

// TestFairOrder: the callers of several clients acquire a fair lock in the order of their calls.
func TestFairOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		var mutexes []*holdfast.Mutex
		for range 3 {
			c, err := holdfast.New(m.Open(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			mutexes = append(mutexes, c.Mutex("m", &holdfast.LockOptions{Fair: true}))
		}
		held, err := mutexes[0].Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		var came []int
		for i := range 12 {
			all.Go(func() {
				lease, err := mutexes[i%3].Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				came = append(came, i)
				if err := lease.Release(); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait() // it is queued
		}
		if err := held.Release(); err != nil {
			t.Error(err)
		}
		all.Wait()
		if len(came) != 12 || !slices.IsSorted(came) {
			t.Errorf("the order of the grants is %v", came)
		}
	})
}

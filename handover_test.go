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

// bubbleMemory is a memory store under the bubble's own time.
func bubbleMemory() *memory.Memory {
	start := time.Now()
	hand := func() time.Duration { return time.Since(start) }
	return memory.New(&memory.Options{Clock: driver.Clock{Monotonic: hand, Boottime: hand}})
}

// TestFairHandOver promises that a fair lock passes on at once among many waiters of several clients: no one whose turn
// has come is overlooked until the confirm window passes it over.
//
// The time, also the store's, is that of testing/synctest, which goes on only when all wait: a busy machine takes none
// of it.
func TestFairHandOver(t *testing.T) { synctest.Test(t, fairHandOver) }

func fairHandOver(t *testing.T) {
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
	t.Logf("%d hand-overs: median %v, longest %v", len(gaps), gaps[len(gaps)/2], gaps[len(gaps)-1])
	if worst := gaps[len(gaps)-1]; worst > time.Second {
		t.Errorf("a hand-over took %v", worst)
	}
}

// TestFairOrder promises that the callers of several clients get a fair lock in the order in which they have asked for
// it.
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
			synctest.Wait() // it stands in line
		}
		if err := held.Release(); err != nil {
			t.Error(err)
		}
		all.Wait()
		if len(came) != 12 || !slices.IsSorted(came) {
			t.Errorf("they came in as %v", came)
		}
	})
}

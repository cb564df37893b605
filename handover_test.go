package holdfast_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestFairHandOver promises that a fair lock passes on at once among many waiters of several clients: no one whose turn
// has come is overlooked until the confirm window passes it over.
//
// The time is that of testing/synctest, which goes on only when all wait: a busy machine takes none of it.
func TestFairHandOver(t *testing.T) { synctest.Test(t, fairHandOver) }

func fairHandOver(t *testing.T) {
	m := memory.New(nil)
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
					if err := lease.Unlock(); err != nil {
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

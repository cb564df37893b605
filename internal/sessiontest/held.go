package sessiontest

import (
	"flag"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

var heldLocks = flag.Int("held", 500, "how many locks are held at a time")

// Held holds many locks and measures what that costs. sent returns what the store has sent since the last call: the
// number of reads, and a description of all requests. In half a TTL, at most maxReads(n) reads may be sent for n
// locks.
func Held(t *testing.T, s driver.Store, ttl time.Duration, sent func() (reads int, all string),
	maxReads func(n int) int) {
	client := NewClient(t, s, ttl)
	before, goroutines := heapSize(), runtime.NumGoroutine()
	leases := make([]*holdfast.Lease, *heldLocks)
	var all sync.WaitGroup
	for w := range 32 {
		all.Go(func() {
			for i := w; i < *heldLocks; i += 32 {
				var err error
				if leases[i], err = client.Mutex(fmt.Sprint(t.Name(), "/", i), nil).Lock(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	time.Sleep(2 * time.Second) // they are watched now
	sent()
	each := (heapSize() - before) / int64(*heldLocks)
	more := runtime.NumGoroutine() - goroutines
	time.Sleep(ttl / 2)
	reads, words := sent()
	t.Logf("%d locks held: %d bytes each, %d goroutines more; in %v, with a TTL of %v: %s", *heldLocks, each, more,
		ttl/2, ttl, words)
	if more > 30 {
		t.Errorf("%d goroutines for %d locks", more, *heldLocks)
	}
	for _, l := range leases {
		if !l.Valid() {
			t.Fatal("lost")
		}
	}
	if reads == 0 || reads > maxReads(*heldLocks) {
		t.Errorf("%d reads", reads)
	}
}

func heapSize() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

package zookeeper

import (
	"flag"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

var many = flag.Int("held", 500, "how many locks are held at a time")

// TestHeld: held locks cost memory, and no goroutine each; their renewals are one sync or two, and a read of each.
func TestHeld(t *testing.T) {
	s, c := counting(t)
	client, err := holdfast.New(s, &holdfast.Options{TTL: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	memory := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, goroutines := memory(), runtime.NumGoroutine()
	leases := make([]*holdfast.Lease, *many)
	var all sync.WaitGroup
	for w := range 32 {
		all.Go(func() {
			for i := w; i < *many; i += 32 {
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
	c.take()
	each := (memory() - before) / uint64(*many)
	more := runtime.NumGoroutine() - goroutines
	time.Sleep(12 * time.Second)
	sent := c.take()
	t.Logf("%d locks held: %d bytes each, %d goroutines more; in 12 s, with a TTL of 30 s: %v", *many, each, more, sent)
	if more > 30 {
		t.Errorf("%d goroutines for %d locks", more, *many)
	}
	for _, l := range leases {
		if !l.Valid() {
			t.Fatal("lost")
		}
	}
	if n := sent[opGetData]; n > 3*(*many) {
		t.Errorf("%d reads", n)
	}
}

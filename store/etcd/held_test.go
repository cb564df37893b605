package etcd

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

const heldTTL = 12 * time.Second

// TestHeld: held locks cost memory, and no goroutine each; their renewals are one beat and one read for every hundred.
func TestHeld(t *testing.T) {
	s, _, c := benchStore(t)
	client, err := holdfast.New(s, &holdfast.Options{TTL: heldTTL})
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
	time.Sleep(heldTTL / 2)
	sent := c.take()
	t.Logf("%d locks held: %d bytes each, %d goroutines more; in %v, with a TTL of %v: %v", *many, each, more, heldTTL/2, heldTTL, sent)
	if more > 30 {
		t.Errorf("%d goroutines for %d locks", more, *many)
	}
	for _, l := range leases {
		if !l.Valid() {
			t.Fatal("lost")
		}
	}
	if n := sent["Txn"]; n == 0 || n > 4*(*many/100+1)+8 {
		t.Errorf("%d reads", n)
	}
}

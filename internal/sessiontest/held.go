//go:build unix

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
	"github.com/holdfast-go/holdfast/internal/storetest"
)

var heldLocks = flag.Int("held", 500, "how many locks are held at a time")

// heldTTL is the TTL of the locks that are held.
const heldTTL = 24 * time.Second

// Held holds many locks: that takes no goroutine for each, and requests only for all together. sent returns how many
// requests the store has sent since the last call, and describes them.
func Held(t *testing.T, s driver.Store, sent func() (n int, all string)) {
	client := NewClient(t, s, heldTTL)
	before, goroutines := heapSize(), runtime.NumGoroutine()
	leases := holdLocks(t, client)
	awaitQuiet(sent)
	each := (heapSize() - before) / int64(*heldLocks)
	more := runtime.NumGoroutine() - goroutines
	time.Sleep(heldTTL / 2)
	n, words := sent()
	t.Logf("%d locks held: %d bytes each, %d goroutines more; in %v, with a TTL of %v: %s", *heldLocks, each, more,
		heldTTL/2, heldTTL, words)
	if more > 30 {
		t.Errorf("%d goroutines for %d locks", more, *heldLocks)
	}
	for _, l := range leases {
		if !l.Valid() {
			t.Fatal("lost")
		}
	}
	if n == 0 || n > 60 {
		t.Errorf("%d requests", n)
	}
}

// holdLocks takes locks, 32 at a time.
func holdLocks(t *testing.T, client *holdfast.Client) []*holdfast.Lease {
	held := make([]*holdfast.Lease, *heldLocks)
	var all sync.WaitGroup
	for w := range 32 {
		all.Go(func() {
			for i := w; i < *heldLocks; i += 32 {
				var err error
				if held[i], err = client.Mutex(fmt.Sprint(t.Name(), "/", i), nil).Lock(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	if all.Wait(); t.Failed() {
		t.FailNow()
	}
	return held
}

// awaitQuiet waits until the locks that were taken are watched: until hardly anything is sent for a second. If that
// never comes, what is sent is too much for the caller, too.
func awaitQuiet(sent func() (n int, all string)) {
	sent()
	for range 30 {
		time.Sleep(time.Second)
		if n, _ := sent(); n < 10 {
			return
		}
	}
}

// AwaitWatched renews a grant until that reads nothing: until the claim is watched. reads returns how many reads the
// store has sent since the last call.
func AwaitWatched(t testing.TB, s driver.Store, g driver.Grant, reads func() int) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); time.Sleep(100 * time.Millisecond) {
		reads()
		if err := storetest.Renew(t, s, g).Err; err != nil {
			t.Fatal(err)
		}
		if reads() == 0 {
			return
		}
	}
	t.Fatal("the claim is not watched")
}

func heapSize() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

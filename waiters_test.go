package holdfast_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	_ "github.com/holdfast-go/holdfast/store/file"
	_ "github.com/holdfast-go/holdfast/store/memory"
)

// countingStore counts a client's requests to its store.
type countingStore struct {
	driver.Store
	acquires, releases, others atomic.Int64
}

func (s *countingStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	s.acquires.Add(1)
	return s.Store.Acquire(ctx, c)
}

func (s *countingStore) Release(ctx context.Context, c driver.Claim, ref string) error {
	s.releases.Add(1)
	return s.Store.Release(ctx, c, ref)
}

func (s *countingStore) Renew(ctx context.Context, g []driver.Grant, done func(int, driver.Renewal)) {
	s.others.Add(1)
	s.Store.Renew(ctx, g, done)
}

func (s *countingStore) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	s.others.Add(1)
	return s.Store.Inspect(ctx, name)
}

// TestManyWaiters: a handover costs one claim, one release and the same memory, however many callers of one client wait
// for the mutex, and all of them are served.
func TestManyWaiters(t *testing.T) {
	for _, url := range []string{"memory://many-waiters", "file://" + t.TempDir()} {
		few, many := measureWaiters(t, url, 100), measureWaiters(t, url, 10_000)
		if many > 2*few+4096 {
			t.Errorf("%s: a handover costs %d bytes with 100 waiters, and %d with 10,000", url, few, many)
		}
	}
}

// measureWaiters lets n callers wait for a lock and hand it over, and returns how many bytes a handover takes.
func measureWaiters(t *testing.T, url string, n int) (bytes uint64) {
	t.Helper()
	store, err := driver.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	s := &countingStore{Store: store}
	c, err := holdfast.New(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	mu := c.Mutex("one", nil)
	first, err := mu.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var before, queued, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var all sync.WaitGroup
	var coming atomic.Int64
	var served int // guarded by the lock itself
	for range n {
		all.Go(func() {
			coming.Add(1)
			l, err := mu.Lock(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			served++
			if err := l.Release(); err != nil {
				t.Error(err)
			}
		})
	}
	for coming.Load() < int64(n) {
		runtime.Gosched()
	}
	runtime.GC()
	runtime.ReadMemStats(&queued)
	start := time.Now()
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if served != n {
		t.Errorf("%d of %d callers were served", served, n)
	}
	if a, r := s.acquires.Load(), s.releases.Load(); a != int64(n)+1 || r != int64(n)+1 {
		t.Errorf("%d waiters: %d claims and %d releases at the store", n, a, r)
	}
	bytes = (after.TotalAlloc - queued.TotalAlloc) / uint64(n)
	t.Logf("%.20s: %d waiters: %d bytes per waiter with its goroutine; per handover: 1 claim, 1 release, %.2f other calls, %d bytes, %v",
		url, n, (inUse(queued)-inUse(before))/int64(n), float64(s.others.Load())/float64(n), bytes, took/time.Duration(n))
	return bytes
}

func inUse(m runtime.MemStats) int64 { return int64(m.HeapAlloc + m.StackInuse) }

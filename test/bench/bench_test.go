// Package bench measures the locks on the stores that need no server. make bench runs it and keeps the figures.
package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/file"
	"github.com/holdfast-go/holdfast/store/memory"
)

// serverlessStores are the stores that need no server.
var serverlessStores = []struct {
	name string
	open func(b *testing.B) driver.Store
}{
	{"memory", func(*testing.B) driver.Store { return memory.New(nil).Open() }},
	{"file", func(b *testing.B) driver.Store {
		s, err := file.New(b.Context(), b.TempDir(), nil)
		if err != nil {
			b.Fatal(err)
		}
		return s
	}},
}

func openClient(b *testing.B, s driver.Store) *holdfast.Client {
	b.Helper()
	c, err := holdfast.New(s, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := c.Close(); err != nil {
			b.Error(err)
		}
	})
	return c
}

func runTurn(b *testing.B, mu *holdfast.Mutex) {
	lease, err := mu.Lock(context.Background())
	if err == nil {
		err = lease.Release()
	}
	if err != nil {
		b.Error(err)
	}
}

func heapSize() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) + int64(m.StackInuse)
}

// countingStore counts the requests of a client to its store.
type countingStore struct {
	driver.Store
	acquires, releases atomic.Int64
}

func (s *countingStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	s.acquires.Add(1)
	return s.Store.Acquire(ctx, c)
}

func (s *countingStore) Release(ctx context.Context, c driver.Claim, ref string) error {
	s.releases.Add(1)
	return s.Store.Release(ctx, c, ref)
}

// BenchmarkWaiters measures many waiters in one process on one lock: the memory per waiter, and the requests per
// handover.
func BenchmarkWaiters(b *testing.B) {
	for _, s := range serverlessStores {
		for _, n := range []int{100, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", s.name, n), func(b *testing.B) {
				for b.Loop() {
					measureWaiters(b, s.open(b), n)
				}
			})
		}
	}
}

func measureWaiters(b *testing.B, store driver.Store, n int) {
	counted := &countingStore{Store: store}
	c := openClient(b, counted)
	mu := c.Mutex("m", nil)
	first, err := mu.Lock(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	before := heapSize()
	var all, started sync.WaitGroup
	started.Add(n)
	for range n {
		all.Go(func() {
			started.Done()
			runTurn(b, mu)
		})
	}
	started.Wait()
	time.Sleep(time.Second) // until all wait
	b.ReportMetric(float64(heapSize()-before)/float64(n), "B/waiter")
	counted.acquires.Store(0)
	counted.releases.Store(0)
	from := time.Now()
	if err := first.Release(); err != nil {
		b.Fatal(err)
	}
	all.Wait()
	b.ReportMetric(float64(time.Since(from).Nanoseconds())/float64(n), "ns/hand-over")
	b.ReportMetric(float64(counted.acquires.Load())/float64(n), "acquires/hand-over")
	b.ReportMetric(float64(counted.releases.Load())/float64(n), "releases/hand-over")
}

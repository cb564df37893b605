//go:build unix

package benchtest

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// runHeld measures many held locks: how long it takes to take them, and what they cost during three renewals of each,
// after a first one. The memory is that of this process: on the heap after a garbage collection, and of the machine
// without.
func (s *Store) runHeld(b *testing.B, l Locker, address string) {
	b.Run(l.Name, func(b *testing.B) {
		for b.Loop() {
			lock := l.Open(b, address)
			debug.FreeOSMemory()
			awaitQuiet()
			heap, resident, goroutines, began := heapSize(), residentSize(), runtime.NumGoroutine(), time.Now()
			leases := holdLocks(b, lock, l.Name)
			b.ReportMetric(time.Since(began).Seconds(), "s-to-take")
			ctx, stop := context.WithCancel(b.Context())
			var renewals sync.WaitGroup
			for _, lease := range leases {
				if lease.Renew != nil {
					renewals.Go(func() { renewUntilDone(ctx, b, lease.Renew) })
				}
			}
			time.Sleep(TTL / 3)
			from, stopMeter, requests := time.Now(), startMeter(), s.countRequests(b)
			time.Sleep(TTL)
			used, took, each := stopMeter(), time.Since(from), float64(len(leases))
			b.ReportMetric(float64(used.clients.Microseconds())/took.Seconds()/each, "client-us/s/lock")
			if used.servers > 0 {
				b.ReportMetric(float64(used.servers.Microseconds())/took.Seconds()/each, "server-us/s/lock")
			}
			if s.Requests != nil {
				b.ReportMetric(float64(s.countRequests(b)-requests)/took.Minutes(), "requests/min")
			}
			b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines")
			b.ReportMetric(float64(residentSize()-resident)/each, "resident-B/lock")
			b.ReportMetric(float64(heapSize()-heap)/each, "heap-B/lock")
			stop()
			renewals.Wait()
			runtime.KeepAlive(leases)
		}
		b.ReportMetric(0, "ns/op")
	})
}

// awaitQuiet waits until what was measured before has ended: until the number of goroutines is the same for a second,
// for ten seconds at most.
func awaitQuiet() {
	for until, before := time.Now().Add(10*time.Second), 0; runtime.NumGoroutine() != before && time.Now().Before(until); {
		before = runtime.NumGoroutine()
		time.Sleep(time.Second)
	}
}

func (s *Store) countRequests(b *testing.B) int64 {
	if s.Requests == nil {
		return 0
	}
	n, err := s.Requests(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// holdLocks takes as many locks as the flag says, 32 at a time.
func holdLocks(b *testing.B, lock Lock, name string) []Lease {
	leases := make([]Lease, *holdCount)
	var all sync.WaitGroup
	var next atomic.Int64
	for range 32 {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(leases)) && !b.Failed(); i = next.Add(1) - 1 {
				var err error
				if leases[i], err = lock(b.Context(), fmt.Sprint(name, "-held", i), 0); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	if all.Wait(); b.Failed() {
		b.FailNow()
	}
	return leases
}

// renewUntilDone renews a lock each third of the TTL.
func renewUntilDone(ctx context.Context, b *testing.B, renew func() error) {
	tick := time.NewTicker(TTL / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := renew(); err != nil && ctx.Err() == nil {
				b.Error(err)
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func heapSize() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// residentSize is the memory that this process has of the machine, without a garbage collection. It is 0 where the
// system does not tell it as Linux does.
func residentSize() int64 {
	var total, resident int64
	data, _ := os.ReadFile("/proc/self/statm")
	fmt.Sscan(string(data), &total, &resident)
	return resident * int64(os.Getpagesize())
}

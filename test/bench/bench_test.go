// Package bench measures the time, memory and requests per lock. make bench runs it and keeps the figures.
package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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

// lockFunc takes a lock, like the method Lock.
type lockFunc func(ctx context.Context) (*holdfast.Lease, error)

func runTurn(b *testing.B, lock lockFunc) {
	lease, err := lock(context.Background())
	if err == nil {
		err = lease.Release()
	}
	if err != nil {
		b.Error(err)
	}
}

// BenchmarkUncontended measures one Lock and Release of a lock that no other client wants.
func BenchmarkUncontended(b *testing.B) {
	for _, s := range serverlessStores {
		b.Run(s.name, func(b *testing.B) {
			lock := openClient(b, s.open(b)).Mutex("m", nil).Lock
			runTurn(b, lock)
			for b.Loop() {
				runTurn(b, lock)
			}
		})
	}
}

// BenchmarkOwnKeys measures 64 goroutines, each on a lock of its own.
func BenchmarkOwnKeys(b *testing.B) {
	for _, s := range serverlessStores {
		b.Run(s.name, func(b *testing.B) {
			c := openClient(b, s.open(b))
			runConcurrently(b, func(i int) lockFunc { return c.Mutex(fmt.Sprint("m", i), nil).Lock })
		})
	}
}

// BenchmarkOneKey measures 64 goroutines on one lock.
func BenchmarkOneKey(b *testing.B) {
	for _, s := range serverlessStores {
		b.Run(s.name, func(b *testing.B) {
			c := openClient(b, s.open(b))
			runConcurrently(b, func(int) lockFunc { return c.Mutex("m", nil).Lock })
		})
	}
}

// BenchmarkOneQueue measures 64 goroutines on one lock whose claims queue in the store.
func BenchmarkOneQueue(b *testing.B) {
	for _, s := range serverlessStores {
		for name, lock := range map[string]func(c *holdfast.Client) lockFunc{
			"fair":    func(c *holdfast.Client) lockFunc { return c.Mutex("m", &holdfast.LockOptions{Fair: true}).Lock },
			"writers": func(c *holdfast.Client) lockFunc { return c.RWMutex("m", nil).Lock },
			"semaphore": func(c *holdfast.Client) lockFunc {
				sem := c.Semaphore("m", 3, nil)
				return func(ctx context.Context) (*holdfast.Lease, error) { return sem.Acquire(ctx, 1) }
			},
		} {
			b.Run(s.name+"/"+name, func(b *testing.B) {
				c := openClient(b, s.open(b))
				runConcurrently(b, func(int) lockFunc { return lock(c) })
			})
		}
	}
}

// runConcurrently distributes b.N turns among 64 goroutines.
func runConcurrently(b *testing.B, lockOf func(i int) lockFunc) {
	var all sync.WaitGroup
	var next atomic.Int64
	b.ResetTimer()
	for i := range 64 {
		lock := lockOf(i)
		all.Go(func() {
			for next.Add(1) <= int64(b.N) {
				runTurn(b, lock)
			}
		})
	}
	all.Wait()
}

// BenchmarkProcesses measures 8 processes on one lock of the file store, for as long as b.N turns take.
func BenchmarkProcesses(b *testing.B) {
	dir := b.TempDir()
	var workers []*exec.Cmd
	var outs []*strings.Builder
	b.ResetTimer()
	for range 8 {
		cmd := exec.Command(os.Args[0])
		order, err := json.Marshal(childJob{Dir: dir, Turns: max(b.N/8, 1)})
		if err != nil {
			b.Fatal(err)
		}
		out := &strings.Builder{}
		cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "BENCH_WORKER="+string(order)), out, os.Stderr
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		workers, outs = append(workers, cmd), append(outs, out)
	}
	for i, cmd := range workers {
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
		if n, err := strconv.Atoi(outs[i].String()); err != nil || n != max(b.N/8, 1) {
			b.Errorf("a process made %q turns", outs[i])
		}
	}
}

type childJob struct {
	Dir   string
	Turns int
}

func TestMain(m *testing.M) {
	order := os.Getenv("BENCH_WORKER")
	if order == "" {
		os.Exit(m.Run())
	}
	var j childJob
	if err := json.Unmarshal([]byte(order), &j); err != nil {
		panic(err)
	}
	c, err := holdfast.Open(context.Background(), "file://"+j.Dir, nil)
	if err != nil {
		panic(err)
	}
	for range j.Turns {
		if err := c.Mutex("m", nil).Do(context.Background(), func(context.Context,
			*holdfast.Lease) error {
			return nil
		}); err != nil {
			panic(err)
		}
	}
	if err := c.Close(); err != nil {
		panic(err)
	}
	fmt.Print(j.Turns)
}

// BenchmarkHeld measures many leases in one client: the memory per lease, and the cost of its renewal.
func BenchmarkHeld(b *testing.B) {
	for _, s := range []struct {
		store  int
		leases int
	}{{0, 100_000}, {1, 2_000}} {
		b.Run(fmt.Sprintf("%s/%d", serverlessStores[s.store].name, s.leases), func(b *testing.B) {
			for b.Loop() {
				measureHeld(b, serverlessStores[s.store].open(b), s.leases)
			}
		})
	}
}

func measureHeld(b *testing.B, store driver.Store, n int) {
	const ttl = 30 * time.Second
	counted := &countingStore{Store: store}
	c := openClient(b, counted)
	before, goroutines := heapSize(), runtime.NumGoroutine()
	bare := bareStore(b, store, n)
	after := heapSize()
	leases := make([]*holdfast.Lease, n)
	for i := range leases {
		lease, err := c.Mutex(fmt.Sprint("held", i), &holdfast.LockOptions{TTL: ttl}).TryLock(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		leases[i] = lease
	}
	now := heapSize()
	b.ReportMetric(float64(now-after)/float64(n), "B/lease")
	b.ReportMetric(float64(after-before)/float64(bare), "B/record-in-store")
	b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines")
	busy := cpuTime()
	for counted.renewed.Load() < int64(n) {
		time.Sleep(100 * time.Millisecond)
	}
	b.ReportMetric(float64((cpuTime()-busy).Nanoseconds())/float64(n), "cpu-ns/renewal")
	for _, lease := range leases {
		if err := lease.Err(); err != nil {
			b.Fatal(err)
		}
	}
}

// bareStore makes as many records as there will be leases, to measure separately what the store itself keeps.
func bareStore(b *testing.B, store driver.Store, n int) int {
	for i := range n {
		claim := driver.Claim{Name: fmt.Sprint("bare", i), ID: fmt.Sprint("bare", i, "-aaaaaaaaaaaaaaaa"),
			Kind:  driver.KindMutex,
			Limit: 1, Weight: 1, TTL: time.Hour, Owner: "bench", Detached: false}
		if _, err := store.Acquire(context.Background(), claim); err != nil {
			b.Fatal(err)
		}
	}
	return n
}

func heapSize() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) + int64(m.StackInuse)
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// countingStore counts the requests of a client to its store.
type countingStore struct {
	driver.Store
	acquires, releases, renewed atomic.Int64
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
	s.Store.Renew(ctx, g, func(i int, r driver.Renewal) {
		if r.Err == nil {
			s.renewed.Add(1)
		}
		done(i, r)
	})
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
			runTurn(b, mu.Lock)
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

//go:build unix

// Package benchtest measures what locks on a store cost, in the same way for all stores: Holdfast's next to those of
// other clients, and next to the floor, which is the least work on the same store that takes a lock and releases it.
//
// A benchmark named Locks has up to six setups. "alone", "own-keys", "one-key" and "processes" measure cycles (one
// takes a lock and releases it), "hand-overs" how long it takes until the next one has a lock that was released, and
// "held" many locks that are held at a time.
package benchtest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

// TTL is the TTL of all locks.
const TTL = 12 * time.Second

const (
	goroutines = 64 // of "own-keys" and "one-key"
	processes  = 8  // of "processes", each with one goroutine, and of "hand-overs"

	// In "hand-overs" each process has so many goroutines, each of which holds the lock for so long.
	processGoroutines = 8
	holdTime          = time.Millisecond
)

var holdCount = flag.Int("hold", 1000, "how many locks a benchmark holds at a time")

// Setup is one way to measure a locker.
type Setup string

// The setups.
const (
	Alone     Setup = "alone"     // one goroutine, and a lock that nobody else wants
	OwnKeys   Setup = "own-keys"  // 64 goroutines, each with a lock of its own
	OneKey    Setup = "one-key"   // 64 goroutines of one process that want one lock
	Processes Setup = "processes" // 8 processes that want one lock
	// HandOvers are 8 processes of 8 goroutines that want one lock, and hold it for a millisecond.
	HandOvers Setup = "hand-overs"
	Held      Setup = "held" // many locks that one process holds
)

var (
	// Contended are the setups in which many want one lock.
	Contended = []Setup{OneKey, Processes, HandOvers}
	// Cycles are the setups without many locks that are held.
	Cycles = []Setup{Alone, OwnKeys, OneKey, Processes, HandOvers}
)

// Locker is one way to take locks.
type Locker struct {
	Name string
	In   []Setup // nil: all
	// Open makes a client of the store at an address. It is closed by b.Cleanup.
	Open func(b testing.TB, address string) Lock

	queued bool // those who want one lock queue in the process, because the locker does not wait
}

func (l *Locker) isIn(s Setup) bool { return l.In == nil || slices.Contains(l.In, s) }

// Lock waits until a lock is free, and takes it. caller is less than 64. Callers that wait at the same time in one
// process have different numbers.
type Lock func(ctx context.Context, name string, caller int) (Lease, error)

// Cycle takes a lock of that name and releases it.
type Cycle func(ctx context.Context, lock string) error

// Lease is a lock that was taken.
type Lease struct {
	Release func() error
	Renew   func() error // nil if the client itself does that
}

// Floor makes the locker of the least work. It need not wait for a lock that is held: where goroutines want one lock,
// they queue in the process, and there are no other processes. [HandOverFloor] is the floor of "hand-overs".
func Floor(open func(b testing.TB, address string) Cycle) Locker {
	return Locker{Name: "floor", In: []Setup{Alone, OwnKeys, OneKey}, queued: true,
		Open: func(b testing.TB, address string) Lock {
			cycle, done := open(b, address), func() error { return nil }
			return func(ctx context.Context, name string, _ int) (Lease, error) {
				return Lease{Release: done}, cycle(ctx, name)
			}
		}}
}

// HandOverFloor makes the locker of the least work that hands a lock on from one process to the next one.
func HandOverFloor(open func(b testing.TB, address string) Lock) Locker {
	return Locker{Name: "floor", In: []Setup{HandOvers}, Open: open}
}

// Holdfast makes the lockers of Holdfast: a mutex, and a fair one where many want it. The address is the store's URL,
// and the options are added to it, such as "create=true".
func Holdfast(options string) []Locker {
	at := func(address string) string { return addOptions(address, options) }
	return []Locker{
		At("holdfast", at),
		holdfastLocker("holdfast-fair", Contended, at, func(c *holdfast.Client, name string) lockMethod {
			return c.Mutex(name, &holdfast.LockOptions{Fair: true}).Lock
		}),
	}
}

// Queues makes the lockers of Holdfast's other locks with a queue: the writers of a read-write lock, and a semaphore of
// 3.
func Queues(options string) []Locker {
	at := func(address string) string { return addOptions(address, options) }
	return []Locker{
		holdfastLocker("holdfast-writers", []Setup{OneKey}, at, func(c *holdfast.Client, name string) lockMethod {
			return c.RWMutex(name, nil).Lock
		}),
		holdfastLocker("holdfast-semaphore", []Setup{OneKey}, at, func(c *holdfast.Client, name string) lockMethod {
			s := c.Semaphore(name, 3, nil)
			return func(ctx context.Context) (*holdfast.Lease, error) { return s.Acquire(ctx, 1) }
		}),
	}
}

// Layout makes the locker of Holdfast's mutex in another layout of the store.
func Layout(layout, options string) Locker {
	return At("holdfast-"+layout, func(address string) string { return addOptions(address, options, "layout="+layout) })
}

// At makes the locker of Holdfast's mutex at another URL, which is made of the address.
func At(name string, url func(address string) string) Locker {
	return holdfastLocker(name, nil, url, func(c *holdfast.Client, name string) lockMethod {
		return c.Mutex(name, nil).Lock
	})
}

// addOptions adds options to a URL.
func addOptions(url string, options ...string) string {
	for _, o := range options {
		switch {
		case o == "":
		case strings.Contains(url, "?"):
			url += "&" + o
		default:
			url += "?" + o
		}
	}
	return url
}

type lockMethod = func(context.Context) (*holdfast.Lease, error)

func holdfastLocker(name string, in []Setup, url func(address string) string,
	lockOf func(*holdfast.Client, string) lockMethod) Locker {
	return Locker{Name: name, In: in, Open: func(b testing.TB, address string) Lock {
		c, err := holdfast.Open(b.Context(), url(address), &holdfast.Options{TTL: TTL})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := c.Close(); err != nil {
				b.Error(err)
			}
		})
		return func(ctx context.Context, name string, _ int) (Lease, error) {
			lease, err := lockOf(c, name)(ctx)
			if err != nil {
				return Lease{}, err
			}
			return Lease{Release: lease.Release}, nil
		}
	}}
}

// Store is what is measured.
type Store struct {
	// Start starts the store's servers, and returns the address with which lockers are opened, also in other processes.
	Start func(b testing.TB) (address string)
	// Requests returns how many requests the servers have had; nil if they do not count them.
	Requests func(ctx context.Context) (int64, error)
	Lockers  []Locker
	Without  []Setup // what the store cannot do
}

// Run measures all lockers in all setups.
func (s *Store) Run(b *testing.B) {
	if task := os.Getenv(workerVariable); task != "" {
		runWorker(b, s.Lockers, task)
		return
	}
	address := s.Start(b)
	s.run(b, Alone, func(b *testing.B, l Locker) {
		s.runCycles(b, l, address, 1, func(int) string { return l.Name + "-alone" })
	})
	s.run(b, OwnKeys, func(b *testing.B, l Locker) {
		s.runCycles(b, l, address, goroutines, func(i int) string { return fmt.Sprint(l.Name, "-own", i) })
	})
	s.run(b, OneKey, func(b *testing.B, l Locker) {
		s.runCycles(b, l, address, goroutines, func(int) string { return l.Name + "-one" })
	})
	s.run(b, Processes, func(b *testing.B, l Locker) {
		s.runProcesses(b, l, workerTask{Setup: Processes, Address: address, Callers: 1})
	})
	s.run(b, HandOvers, func(b *testing.B, l Locker) {
		s.runProcesses(b, l, workerTask{Setup: HandOvers, Address: address, Callers: processGoroutines, Hold: holdTime})
	})
	s.run(b, Held, func(b *testing.B, l Locker) { s.runHeld(b, l, address) })
}

// run measures the lockers of one setup, one after the other.
func (s *Store) run(b *testing.B, setup Setup, measure func(b *testing.B, l Locker)) {
	if slices.Contains(s.Without, setup) {
		return
	}
	b.Run(string(setup), func(b *testing.B) {
		for _, l := range s.Lockers {
			if l.isIn(setup) {
				measure(b, l)
			}
		}
	})
}

// runCycles measures the cycles of goroutines of this process.
func (s *Store) runCycles(b *testing.B, l Locker, address string, callers int, name func(caller int) string) {
	contended := callers > 1 && name(0) == name(1)
	var lock Lock
	parent := b
	b.Run(l.Name, func(b *testing.B) {
		if lock == nil { // this function is called several times
			lock = l.Open(lasting{b, parent}, address)
			if l.queued && contended {
				lock = queueFor(lock)
			}
		}
		var todo atomic.Int64
		todo.Store(int64(b.N))
		took := make([]time.Duration, b.N)
		b.ReportAllocs()
		stop := startMeter()
		b.ResetTimer()
		turns, err := takeTurns(b.Context(), lock, callers, name, &todo, took)
		b.StopTimer()
		if err != nil {
			b.Fatal(err)
		}
		used := stop()
		reportCycles(b, used)
		b.ReportMetric(float64(used.switches)/float64(b.N), "switches/op")
		if callers > 1 {
			reportSlowest(b, took, callers, contended)
		}
		if contended {
			reportFairness(b, turns)
		}
	})
}

// lasting is a benchmark whose clients live as long as its parent.
type lasting struct {
	testing.TB
	parent *testing.B
}

func (l lasting) Cleanup(f func())             { l.parent.Cleanup(f) }
func (l lasting) Context() context.Context     { return l.parent.Context() }
func (l lasting) Error(args ...any)            { l.parent.Error(args...) } // also when the benchmark has ended
func (l lasting) Errorf(f string, args ...any) { l.parent.Errorf(f, args...) }

// queueFor makes a lock that one caller at a time takes.
func queueFor(lock Lock) Lock {
	var queue sync.Mutex
	return func(ctx context.Context, name string, caller int) (Lease, error) {
		queue.Lock()
		lease, err := lock(ctx, name, caller)
		if err != nil {
			queue.Unlock()
			return lease, err
		}
		return Lease{Release: func() error { defer queue.Unlock(); return lease.Release() }}, nil
	}
}

// takeTurns has goroutines take and release locks until nothing is left to do, and returns how often each has done
// so. If took is not nil, it has room for how long each cycle took.
func takeTurns(ctx context.Context, lock Lock, callers int, name func(caller int) string,
	todo *atomic.Int64, took []time.Duration) ([]int, error) {
	turns := make([]int, callers)
	var all sync.WaitGroup
	var failure atomic.Pointer[error]
	for i := range callers {
		name := name(i)
		all.Go(func() {
			for left := todo.Add(-1); left >= 0 && failure.Load() == nil; left = todo.Add(-1) {
				from := time.Now()
				lease, err := lock(ctx, name, i)
				if err == nil {
					err = lease.Release()
				}
				if err != nil {
					failure.Store(&err)
				}
				turns[i]++
				if took != nil {
					took[left] = time.Since(from)
				}
			}
		})
	}
	all.Wait()
	if err := failure.Load(); err != nil {
		return nil, *err
	}
	return turns, nil
}

// reportCycles reports what b.N cycles have cost.
func reportCycles(b *testing.B, used usage) {
	n := float64(b.N)
	b.ReportMetric(0, "ns/op") // which says the same as the next one
	b.ReportMetric(n/b.Elapsed().Seconds(), "cycles/s")
	b.ReportMetric(float64(used.clients.Nanoseconds())/1e3/n, "client-us/op")
	if used.servers > 0 {
		b.ReportMetric(float64(used.servers.Nanoseconds())/1e3/n, "server-us/op")
	}
}

// reportSlowest reports how long the slowest hundredth of the cycles took at least. Where all callers want one lock, it
// also reports that as a multiple of the time in which each of them has had its turn.
func reportSlowest(b *testing.B, took []time.Duration, callers int, contended bool) {
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	b.ReportMetric(p99.Seconds()*1e3, "p99-ms")
	if contended {
		round := b.Elapsed() * time.Duration(callers) / time.Duration(b.N)
		b.ReportMetric(p99.Seconds()/round.Seconds(), "p99/round")
	}
}

// reportFairness reports how much more often than the others the luckiest one had the lock.
func reportFairness(b *testing.B, turns []int) {
	b.ReportMetric(float64(slices.Max(turns))/float64(max(slices.Min(turns), 1)), "max/min")
}

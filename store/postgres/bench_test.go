package postgres

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
)

// The floor is the minimum that any lock in a row has to do: one statement takes it, and one releases it. It has
// no token, no
// waiters and no record, and uses pgx as in its manual.
const (
	floorTake = `update floor set owner = $2, ends = now() + interval '30 seconds' where name = $1 and ends < now()`
	floorFree = `update floor set ends = '-infinity' where name = $1 and owner = $2`
)

// benchPool returns a pool with as many connections as the store uses, and the store.
func benchPool(b testing.TB) (*pgxpool.Pool, driver.Store) {
	s := startServer(b, "max_connections=100")
	if err := s.Exec("create table floor (name text primary key, owner text not null, ends timestamptz not null) with (fillfactor = 50);" +
		"insert into floor select 'm' || i, '', '-infinity' from generate_series(0, 64) i"); err != nil {
		b.Fatal(err)
	}
	pool, err := pgxpool.New(b.Context(), s.URL("test")+"?sslmode=disable&pool_max_conns=4")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	store, err := driver.Open(b.Context(), s.URL("test")+"?sslmode=disable&create=true&pool_max_conns=4")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { store.Close() })
	return pool, store
}

// processorTime is the processor time of this process and of its servers. On a busy machine it says more than
// elapsed time.
func processorTime(b testing.TB) time.Duration {
	var total time.Duration
	family := map[string]bool{strconv.Itoa(os.Getpid()): true}
	for range 2 { // a second pass, because a child may come before its parent
		dirs, _ := filepath.Glob("/proc/[0-9]*/task/*/schedstat")
		total = 0
		for _, path := range dirs {
			pid := strings.Split(path, "/")[2]
			stat, _ := os.ReadFile("/proc/" + pid + "/stat")
			_, after, _ := strings.Cut(string(stat), ") ")
			if f := strings.Fields(after); len(f) > 1 && family[f[1]] {
				family[pid] = true
			}
			if text, err := os.ReadFile(path); err == nil && family[pid] {
				var ns int64
				fmt.Sscan(string(text), &ns)
				total += time.Duration(ns)
			}
		}
	}
	return total
}

func reportCycles(b *testing.B, before time.Duration) {
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
	b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/float64(b.N)/1e3, "cpu-us/op")
}

// lockCycles are the compared ways to take and to release a lock.
func lockCycles(b *testing.B) map[string]func(name string) error {
	pool, store := benchPool(b)
	ctx := context.Background()
	return map[string]func(name string) error{
		"floor": func(name string) error {
			owner := rand.Text()
			if tag, err := pool.Exec(ctx, floorTake, name, owner); err != nil || tag.RowsAffected() != 1 {
				return fmt.Errorf("not taken: %w", err)
			}
			_, err := pool.Exec(ctx, floorFree, name, owner)
			return err
		},
		"advisory": func(name string) error {
			return pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
				var got bool
				if err := c.QueryRow(ctx, "select pg_try_advisory_lock(hashtext($1))", name).Scan(&got); err != nil ||
					!got {
					return fmt.Errorf("not taken: %w", err)
				}
				_, err := c.Exec(ctx, "select pg_advisory_unlock(hashtext($1))", name)
				return err
			})
		},
		"holdfast": func(name string) error {
			c := mutexClaim(name, 30*time.Second)
			if _, err := store.Acquire(ctx, c); err != nil {
				return err
			}
			return store.Release(ctx, c, "")
		},
	}
}

// BenchmarkUncontended: one goroutine takes and releases one lock.
func BenchmarkUncontended(b *testing.B) {
	all := lockCycles(b)
	for _, what := range []string{"floor", "advisory", "holdfast"} {
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			before := processorTime(b)
			for b.Loop() {
				if err := all[what]("m0"); err != nil {
					b.Fatal(err)
				}
			}
			reportCycles(b, before)
		})
	}
}

// BenchmarkParallel: 64 goroutines, each with a lock of its own.
func BenchmarkParallel(b *testing.B) {
	all := lockCycles(b)
	for _, what := range []string{"floor", "advisory", "holdfast"} {
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			before := processorTime(b)
			var n atomic.Int64
			b.SetParallelism(64 / runtime.GOMAXPROCS(0))
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				name := fmt.Sprint("m", n.Add(1))
				for pb.Next() {
					if err := all[what](name); err != nil {
						b.Fatal(err)
					}
				}
			})
			reportCycles(b, before)
		})
	}
}

// BenchmarkOneQueue: 64 goroutines of one client want one lock. "Plain" queues in the process, as the client does for plain
// mutexes.
func BenchmarkOneQueue(b *testing.B) {
	_, store := benchPool(b)
	var plain sync.Mutex
	for _, what := range []string{"plain", "fair", "writers", "semaphore"} {
		b.Run(what, func(b *testing.B) {
			before := processorTime(b)
			var next atomic.Int64
			var all sync.WaitGroup
			for range 64 {
				all.Go(func() {
					for next.Add(1) <= int64(b.N) {
						if what == "plain" {
							plain.Lock()
						}
						if err := runQueuedTurn(b.Context(), store, what); err != nil {
							b.Error(err)
						}
						if what == "plain" {
							plain.Unlock()
						}
					}
				})
			}
			all.Wait()
			reportCycles(b, before)
		})
	}
}

func runQueuedTurn(ctx context.Context, store driver.Store, what string) error {
	c := mutexClaim("queue of "+what, 30*time.Second)
	c.Wait, c.Fair = true, what == "fair"
	switch what {
	case "writers":
		c.Kind, c.Limit, c.Weight = driver.KindRW, 1<<20, 1<<20
	case "semaphore":
		c.Kind, c.Limit = driver.KindSemaphore, 3
	}
	if _, err := store.Acquire(ctx, c); err != nil {
		return err
	}
	return store.Release(ctx, c, "")
}

// BenchmarkBeside lets the floor and Holdfast take turns in short rounds, so that other work of the machine slows
// both, and compares the medians.
func BenchmarkBeside(b *testing.B) {
	all := lockCycles(b)
	for _, many := range []int{1, 64} {
		b.Run(fmt.Sprint("goroutines=", many), func(b *testing.B) {
			round := func(what string) float64 {
				const length = 100 * time.Millisecond
				var n atomic.Int64
				var wg sync.WaitGroup
				start := time.Now()
				for i := range many {
					wg.Go(func() {
						for time.Since(start) < length {
							if err := all[what](fmt.Sprint("m", i)); err != nil {
								b.Error(err)
								return
							}
							n.Add(1)
						}
					})
				}
				wg.Wait()
				return float64(n.Load()) / time.Since(start).Seconds()
			}
			var floor, ours, ratio []float64
			for range 20 {
				f, o := round("floor"), round("holdfast")
				floor, ours, ratio = append(floor, f), append(ours, o), append(ratio, o/f)
			}
			for unit, v := range map[string][]float64{"floor/s": floor, "holdfast/s": ours, "of-floor": ratio} {
				slices.Sort(v)
				b.ReportMetric(v[len(v)/2], unit)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

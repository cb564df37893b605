package postgres

import (
	"context"
	"crypto/rand"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
)

// The floor is what any lock in a row has to do: one statement takes it, and one gives it back. It has no token, no waiting
// and no record, and uses pgx in the way its manual shows.
const (
	floorTake = `insert into floor (name, owner, ends) values ($1, $2, now() + interval '30 seconds')
		on conflict (name) do update set owner = excluded.owner, ends = excluded.ends where floor.ends < now()`
	floorFree = `delete from floor where name = $1 and owner = $2`
)

// benchPool is a pool with as many connections as the store uses.
func benchPool(b testing.TB) (*pgxpool.Pool, driver.Store) {
	s := startServer(b, "max_connections=100")
	if err := s.Exec("create table floor (name text primary key, owner text not null, ends timestamptz not null)"); err != nil {
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

func benchClaim(name string) driver.Claim {
	return driver.Claim{Name: name, ID: strings.ToLower(rand.Text()), Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: 30 * time.Second, Owner: "bench"}
}

// cycles are the ways to take a lock and give it back that are compared.
func cycles(b *testing.B) map[string]func(name string) error {
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
				if err := c.QueryRow(ctx, "select pg_try_advisory_lock(hashtext($1))", name).Scan(&got); err != nil || !got {
					return fmt.Errorf("not taken: %w", err)
				}
				_, err := c.Exec(ctx, "select pg_advisory_unlock(hashtext($1))", name)
				return err
			})
		},
		"holdfast": func(name string) error {
			c := benchClaim(name)
			if _, err := store.Acquire(ctx, c); err != nil {
				return err
			}
			return store.Release(ctx, c, "")
		},
	}
}

// BenchmarkUncontended: one goroutine takes and gives back one lock.
func BenchmarkUncontended(b *testing.B) {
	all := cycles(b)
	for _, what := range []string{"floor", "advisory", "holdfast"} {
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := all[what]("m"); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
		})
	}
}

// BenchmarkParallel: 64 goroutines, each with a lock of its own.
func BenchmarkParallel(b *testing.B) {
	all := cycles(b)
	for _, what := range []string{"floor", "advisory", "holdfast"} {
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			var n atomic.Int64
			b.SetParallelism(64 / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				name := fmt.Sprint("m", n.Add(1))
				for pb.Next() {
					if err := all[what](name); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
		})
	}
}

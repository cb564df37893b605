package postgres_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/benchtest"
	_ "github.com/holdfast-go/holdfast/store/postgres"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
)

// The floor is the minimum that any lock in a row has to do: one statement takes it, and one releases it. It has no
// waiters and no record.
const (
	floorTable = `create table floor (name text primary key, token bigint not null, ends timestamptz not null)
		with (fillfactor = 50)`
	floorTake = `insert into floor values ($1, 1, now() + interval '12 seconds') on conflict (name)
		do update set token = floor.token + 1, ends = excluded.ends where floor.ends < now() returning token`
	floorRelease = `update floor set ends = '-infinity' where name = $1 and token = $2`
)

// BenchmarkLocks: next to the floor is an advisory lock, which has no TTL and no token, and writes nothing. All have
// pools of four connections.
func BenchmarkLocks(b *testing.B) {
	var server *pgtest.Server
	s := benchtest.Store{
		Start: func(b testing.TB) string {
			var err error
			if server, err = pgtest.Start("max_connections=100"); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(server.Stop)
			if err := server.Exec(floorTable); err != nil {
				b.Fatal(err)
			}
			return server.URL("test") + "?sslmode=disable&pool_max_conns=4"
		},
		Requests: func(b testing.TB) int64 {
			text, err := server.QueryValue("select xact_commit from pg_stat_database where datname = 'postgres'")
			if err != nil {
				b.Fatal(err)
			}
			n, _ := strconv.ParseInt(text, 10, 64)
			return n
		},
		Lockers: append(append([]benchtest.Locker{
			benchtest.Floor(openBenchFloor),
			{Name: "advisory", In: benchtest.Cycles, Open: openAdvisory}, // each lock that is held takes a connection
		}, benchtest.Holdfast("create=true")...), benchtest.Queues("create=true")...),
	}
	s.Run(b)
}

func benchPool(b testing.TB, address string) *pgxpool.Pool {
	pool, err := pgxpool.New(b.Context(), address)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool
}

func openBenchFloor(b testing.TB, address string) benchtest.Cycle {
	pool := benchPool(b, address)
	return func(ctx context.Context, lock string) error {
		var token int64
		if err := pool.QueryRow(ctx, floorTake, lock).Scan(&token); err != nil {
			return err
		}
		tag, err := pool.Exec(ctx, floorRelease, lock, token)
		if err == nil && tag.RowsAffected() != 1 {
			err = fmt.Errorf("the lock %s was not held", lock)
		}
		return err
	}
}

func openAdvisory(b testing.TB, address string) benchtest.Lock {
	pool := benchPool(b, address)
	return func(ctx context.Context, name string, _ int) (benchtest.Lease, error) {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return benchtest.Lease{}, err
		}
		_, err = c.Exec(ctx, "select pg_advisory_lock(hashtext($1))", name)
		return benchtest.Lease{Release: func() error {
			defer c.Release()
			_, err := c.Exec(ctx, "select pg_advisory_unlock(hashtext($1))", name)
			return err
		}}, err
	}
}

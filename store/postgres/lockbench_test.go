package postgres_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

	// What the store's own statements are for a lock that nobody else wants: see replaceText.
	sameTable = `create table same (name text primary key, data bytea not null, version uuid not null)
		with (fillfactor = 50)`
	sameInsert  = `insert into same values ($1, $2, $3)`
	sameReplace = `update same set data = $2, version = $3 where name = $1 and version = $4 and sha256(data) = $5
		returning clock_timestamp(), case when pg_try_advisory_xact_lock(1, 1) then '' end`

	// Between processes the least is one statement that enters the queue, whose number is the token, and one that hands
	// the lock to the next one and notifies it.
	lineTable = `create table line (name text primary key, token bigint not null, ids text[] not null)
		with (fillfactor = 50)`
	lineEnter = `insert into line values ($1, 1, array[$2]) on conflict (name)
		do update set ids = line.ids || excluded.ids, token = line.token + 1 returning ids[1] = $2`
	lineLeave = `with left_by as (update line set ids = ids[2:] where name = $1 and ids[1] = $2 returning ids[1] as next)
		select pg_notify(split_part(next, '.', 1), next) from left_by where next is not null`
)

// BenchmarkLocks: next to the floor is an advisory lock, which has no TTL and no token, and writes nothing, and the
// statements of the store itself, without what decides about them. All have pools of four connections.
func BenchmarkLocks(b *testing.B) {
	var server *pgtest.Server
	s := benchtest.Store{
		Start: func(b testing.TB) string {
			var err error
			if server, err = pgtest.Start("max_connections=100", "shared_preload_libraries=pg_stat_statements"); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(server.Stop)
			if err := server.Exec(floorTable + "; " + lineTable + "; " + sameTable + "; create extension pg_stat_statements"); err != nil {
				b.Fatal(err)
			}
			return server.URL("test") + "?sslmode=disable&pool_max_conns=4"
		},
		Requests: func(context.Context) (n int64, err error) { // statements
			text, err := server.QueryValue("select sum(calls)::bigint from pg_stat_statements")
			if err == nil {
				n, err = strconv.ParseInt(text, 10, 64)
			}
			return n, err
		},
		Lockers: append(append([]benchtest.Locker{
			benchtest.Floor(openBenchFloor),
			{Name: "floor-same-requests", In: []benchtest.Setup{benchtest.Alone, benchtest.OwnKeys}, Open: openSameRequests},
			{Name: "advisory", In: benchtest.Cycles, Open: openAdvisory}, // each lock that is held takes a connection
			benchtest.HandOverFloor(openLine),
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

// openSameRequests writes rows of the size of our records. The client knows how the row is, as ours does.
func openSameRequests(b testing.TB, address string) benchtest.Lock {
	pool := benchPool(b, address)
	held, free := bytes.Repeat([]byte("h"), 300), bytes.Repeat([]byte("f"), 60)
	type row struct{ data, version []byte }
	newVersion := func() []byte {
		id := make([]byte, 16)
		_, _ = rand.Read(id) // it never fails
		return id
	}
	var rows sync.Map // name -> row
	replace := func(ctx context.Context, name string, data []byte) error {
		known, _ := rows.Load(name)
		old, next := known.(row), row{data, newVersion()}
		sum := sha256.Sum256(old.data)
		var now time.Time
		var notified *string
		err := pool.QueryRow(ctx, sameReplace, name, next.data, next.version, old.version, sum[:]).Scan(&now, &notified)
		rows.Store(name, next)
		return err
	}
	return func(ctx context.Context, name string, _ int) (benchtest.Lease, error) {
		if _, ok := rows.Load(name); !ok {
			first := row{free, newVersion()}
			if _, err := pool.Exec(ctx, sameInsert, name, first.data, first.version); err != nil {
				return benchtest.Lease{}, err
			}
			rows.Store(name, first)
		}
		return benchtest.Lease{Release: func() error { return replace(ctx, name, free) }}, replace(ctx, name, held)
	}
}

// openLine listens on a connection of its own.
func openLine(b testing.TB, address string) benchtest.Lock {
	pool := benchPool(b, address)
	c, err := pool.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	listener, session := c.Hijack(), rand.Text()
	if _, err := listener.Exec(b.Context(), `listen "`+session+`"`); err != nil {
		b.Fatal(err)
	}
	var waiting sync.Map // id -> channel
	waitingOf := func(id string) chan struct{} {
		notified, _ := waiting.LoadOrStore(id, make(chan struct{}, 1))
		return notified.(chan struct{})
	}
	ctx, stop := context.WithCancel(b.Context())
	b.Cleanup(stop)
	go func() {
		defer listener.Close(context.WithoutCancel(ctx))
		for {
			n, err := listener.WaitForNotification(ctx)
			if err != nil {
				return
			}
			waitingOf(n.Payload) <- struct{}{}
		}
	}()
	var made atomic.Int64
	return func(ctx context.Context, name string, _ int) (benchtest.Lease, error) {
		id := fmt.Sprint(session, ".", made.Add(1))
		defer waiting.Delete(id)
		isFirst := false
		if err := pool.QueryRow(ctx, lineEnter, name, id).Scan(&isFirst); err != nil {
			return benchtest.Lease{}, err
		}
		if !isFirst {
			select {
			case <-waitingOf(id):
			case <-time.After(benchtest.TTL):
				return benchtest.Lease{}, errors.New("nobody handed it on")
			}
		}
		return benchtest.Lease{Release: func() error { _, err := pool.Exec(ctx, lineLeave, name, id); return err }}, nil
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

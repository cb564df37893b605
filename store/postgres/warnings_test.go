package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
)

// warned reads a store's warnings.
func warned(t testing.TB, st driver.Store) []string {
	t.Helper()
	ws, err := st.(driver.Warner).Warnings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ws
}

// says reports whether one of the warnings has these words.
func says(ws []string, words string) bool {
	return slices.ContainsFunc(ws, func(w string) bool { return strings.Contains(w, words) })
}

// TestWarnings: settings of the server, of the user and of the way there that make locks less safe are warned of, and others are not.
func TestWarnings(t *testing.T) {
	t.Parallel()
	if ws := warned(t, opened(t, freshURL(t, server(t)))); len(ws) != 1 || !says(ws, "fsync is off") {
		t.Errorf("on a server without fsync: %q", ws)
	}
	s := startServer(t, "fsync=on")
	url := s.URL("test") + "?sslmode=disable&create=true"
	st := opened(t, url)
	if ws := warned(t, st); len(ws) > 0 {
		t.Errorf("nothing is wrong: %q", ws)
	}
	exec(t, s, `create role hasty superuser login; alter role hasty set synchronous_commit = off;
		create role deaf superuser login; alter role deaf set client_min_messages = error`)
	if ws := warned(t, opened(t, strings.Replace(url, "test@", "hasty@", 1))); !says(ws, "synchronous_commit is off") {
		t.Errorf("without synchronous_commit: %q", ws)
	}
	if ws := warned(t, opened(t, strings.Replace(url, s.Addr, s.Addr+",127.0.0.1:1", 1))); !says(ws, "synchronous_standby_names") {
		t.Errorf("several servers without synchronous standbys: %q", ws)
	}
	for _, user := range []string{"test", "deaf"} { // our own pool asks for warnings
		p := mustPlace(t, nil)
		pool := poolOf(t, strings.Replace(url, "test@", user+"@", 1))
		ours, err := p.look(t.Context(), pool)
		if err != nil || ours.Messages == "error" {
			t.Errorf("our own session: %+v %v", ours, err)
		}
	}
	weak := situation{Fsync: "on", Commit: "on", Standbys: "*", Messages: "error"}
	if ws := weak.warnings(false); !says(ws, "client_min_messages") {
		t.Errorf("where warnings are not sent: %q", ws)
	}
	for raw, want := range map[string]bool{
		"postgres://u@db.example/x": true, "postgres://u@db.example/x?sslmode=allow": true, "postgres://u@localhost,db.example/x": true,
		"postgres://u@db.example/x?sslmode=verify-full": false, "postgres://u@db.example/x?sslmode=disable": false,
		"postgres://u@localhost/x": false, "postgres://u@127.0.0.1/x": false, "postgres://u@[::1]/x": false, "postgres:///x?host=/run/postgresql": false,
	} {
		config, _ := parse(t, raw)
		if ws := wayWarnings(config.ConnConfig); says(ws, "sslmode=verify-full") != want {
			t.Errorf("%s: %q", raw, ws)
		}
	}
	st.Close()
	_, err := st.(driver.Warner).Warnings(t.Context())
	is(t, err, driver.ErrClosed)
}

// poolOf is a pool as a store has it that is opened by a URL.
func poolOf(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	config, _ := parse(t, url)
	config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error { return prepareSession(ctx, c, defaultTimeout) }
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// TestShedLockLocalTime: a client of ShedLock's that writes local time is recognised by what it leaves, east of UTC and west of it,
// and is told of to who is refused, who loses its lock by it, and in the warnings. What others write is not taken for it.
func TestShedLockLocalTime(t *testing.T) {
	t.Parallel()
	server, s, peers := shedlocks(t, 1)
	const told = "usingDbTime()"
	sql := func(text string, zone int) {
		t.Helper()
		exec(t, server, strings.ReplaceAll(text, "LOCAL", fmt.Sprintf("timezone('utc', clock_timestamp()) + interval '%d hours'", zone)))
	}
	if ok, err := peers[0].lock(t.Context(), "right", time.Minute); !ok || err != nil {
		t.Fatal(ok, err)
	}
	_, err := s.Acquire(t.Context(), mutex("right", time.Minute))
	is(t, err, driver.ErrHeld)
	if strings.Contains(err.Error(), told) {
		t.Error(err)
	}
	g := acquire(t, s, mutex("west", time.Minute))
	gone := acquire(t, s, mutex("released", time.Minute))
	release(t, s, gone.Claim)
	exec(t, server, `insert into shedlock values ('freed by hand', '-infinity', timezone('utc', now()), 'x'), ('for ever', 'infinity', timezone('utc', now()), 'x')`)
	if ws := warned(t, s); says(ws, told) {
		t.Errorf("nothing is odd: %q", ws)
	}

	sql(`insert into shedlock values ('east', LOCAL + interval '1 minute', LOCAL, 'tokyo')`, 9)
	_, err = s.Acquire(t.Context(), mutex("east", time.Minute))
	is(t, err, driver.ErrHeld, told, "tokyo", "9h0m")

	sql(`update shedlock set lock_until = LOCAL where name = 'west'`, -5) // as one unlocks that does not ask who holds the lock
	r := renew(t, s, g)
	is(t, r.Err, driver.ErrLost, told, "5h0m")
	ws := warned(t, s)
	if len(ws) != 3 || !says(ws, `"east"`) || !says(ws, `"west"`) || !says(ws, "fsync") {
		t.Errorf("warnings: %q", ws)
	}
}

// TestPoolIsShared: of a pool of the user's own some connections are left to him, whatever the locks wait for.
func TestPoolIsShared(t *testing.T) {
	t.Parallel()
	s := server(t)
	for size, left := range map[int32]int{1: 0, 2: 1, 4: 1, 8: 2} {
		config, opts := parse(t, freshURL(t, s))
		config.MaxConns = size
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		st, err := New(t.Context(), pool, opts)
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		blocker, err := pgx.Connect(t.Context(), s.URL("test")+"?sslmode=disable")
		if err != nil {
			t.Fatal(err)
		}
		defer blocker.Close(context.Background())
		err = pgx.BeginFunc(t.Context(), blocker, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "lock table "+mustPlace(t, opts).locks+" in access exclusive mode"); err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for i := range 20 {
				all.Go(func() { _, _ = st.Inspect(ctx, fmt.Sprint("m", i)) })
			}
			eventually(t, "the locks' use of the pool", func() bool { return pool.Stat().AcquiredConns() >= size-int32(left) })
			for range left {
				c, err := pool.Acquire(t.Context())
				if err != nil {
					t.Error(err)
					break
				}
				defer c.Release()
			}
			if n := pool.Stat().AcquiredConns(); n != size {
				t.Errorf("of %d connections the locks use all but %d, want %d", size, size-n+int32(left), left)
			}
			cancel()
			all.Wait()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestForeignRefs: the ref of a foreign holder is the same whatever way a session writes dates.
func TestForeignRefs(t *testing.T) {
	t.Parallel()
	server, s, peers := shedlocks(t, 1)
	exec(t, server, `create role german superuser login; alter role german set datestyle = 'German'; alter role german set timezone = 'Asia/Tokyo'`)
	other := opened(t, strings.Replace(server.URL("test"), "test@", "german@", 1)+"?sslmode=disable&layout=shedlock")
	for i, st := range []driver.Store{s, other} {
		name := fmt.Sprint("m", i)
		if ok, err := peers[0].lock(t.Context(), name, time.Minute); !ok || err != nil {
			t.Fatal(ok, err)
		}
		seen, err := s.Inspect(t.Context(), name)
		if err != nil || len(seen.Holders) != 1 {
			t.Fatalf("%+v %v", seen, err)
		}
		if err := st.Break(t.Context(), name, seen.Holders[0].Ref, driver.BreakForce); err != nil {
			t.Error(err)
		}
		is(t, st.Break(t.Context(), name, seen.Holders[0].Ref, driver.BreakForce), driver.ErrLost)
		is(t, st.Break(t.Context(), name, foreignRef+"31.12.2026", driver.BreakForce), driver.ErrLost)
	}
}

// TestShedLockLateTakes: what is remembered of takes that were given up is forgotten when they have come to their end, also if
// nobody releases them.
func TestShedLockLateTakes(t *testing.T) {
	t.Parallel()
	s := server(t)
	url := freshURL(t, s, "layout=shedlock", "timeout=2s", "application_name=late_takes")
	st := opened(t, url).(*shedlock)
	_, opts := parse(t, url)
	blocker, err := pgx.Connect(t.Context(), s.URL("test")+"?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer blocker.Close(context.Background())
	err = pgx.BeginFunc(t.Context(), blocker, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "lock table "+mustPlace(t, opts).locks+" in access exclusive mode"); err != nil {
			return err
		}
		for round := range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan error, 1)
			go func() {
				_, err := st.Acquire(ctx, mutex(fmt.Sprint("m", round), time.Minute))
				over <- err
			}()
			eventually(t, "a take that waits", func() bool {
				n, err := s.Ask(`select count(*) from pg_stat_activity where application_name = 'late_takes' and wait_event_type = 'Lock'`)
				return err == nil && n != "0"
			})
			cancel()
			is(t, <-over, driver.ErrUncertain)
			st.mu.Lock()
			flying := maps.Clone(st.flying)
			st.mu.Unlock()
			if len(flying) != 1 {
				t.Errorf("after %d takes that were given up %d are remembered", round+1, len(flying))
			}
			eventually(t, "its end", func() bool {
				for _, r := range flying {
					if len(r.answer) == 0 {
						return false
					}
				}
				return true
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

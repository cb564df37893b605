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

// readWarnings reads a store's warnings.
func readWarnings(t testing.TB, st driver.Store) []string {
	t.Helper()
	ws, err := st.(driver.Warner).Warnings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ws
}

// hasWarning reports whether one of the warnings contains these words.
func hasWarning(ws []string, words string) bool {
	return slices.ContainsFunc(ws, func(w string) bool { return strings.Contains(w, words) })
}

// TestWarnings: the store warns of settings of the server, the user and the connection that make locks less safe,
// and of no others.
func TestWarnings(t *testing.T) {
	t.Parallel()
	if ws := readWarnings(t, mustOpen(t, freshURL(t, sharedServer(t)))); len(ws) != 1 ||
		!hasWarning(ws, "fsync is off") {
		t.Errorf("on a server without fsync: %q", ws)
	}
	s := startServer(t, "fsync=on")
	url := s.URL("test") + "?sslmode=disable&create=true"
	st := mustOpen(t, url)
	if ws := readWarnings(t, st); len(ws) > 0 {
		t.Errorf("nothing is wrong: %q", ws)
	}
	execSQL(t, s, `create role hasty superuser login; alter role hasty set synchronous_commit = off;
		create role deaf superuser login; alter role deaf set client_min_messages = error`)
	if ws := readWarnings(t, mustOpen(t, strings.Replace(url, "test@", "hasty@", 1))); !hasWarning(ws,
		"synchronous_commit is off") {
		t.Errorf("without synchronous_commit: %q", ws)
	}
	if ws := readWarnings(t, mustOpen(t, strings.Replace(url, s.Addr, s.Addr+",127.0.0.1:1", 1))); !hasWarning(ws,
		"synchronous_standby_names") {
		t.Errorf("several servers without synchronous standbys: %q", ws)
	}
	for _, user := range []string{"test", "deaf"} { // our own pool asks for warnings
		p := mustLocate(t, nil)
		pool := openSessionPool(t, strings.Replace(url, "test@", user+"@", 1))
		ours, err := p.readServerState(t.Context(), pool)
		if err != nil || ours.ClientMinMessages == "error" {
			t.Errorf("our own session: %+v %v", ours, err)
		}
	}
	weak := serverState{Fsync: "on", SynchronousCommit: "on", StandbyNames: "*", ClientMinMessages: "error"}
	if ws := weak.listWarnings(false); !hasWarning(ws, "client_min_messages") {
		t.Errorf("where warnings are not sent: %q", ws)
	}
	for raw, want := range map[string]bool{
		"postgres://u@db.example/x": true, "postgres://u@db.example/x?sslmode=allow": true, "postgres://u@localhost,db.example/x": true,
		"postgres://u@db.example/x?sslmode=verify-full": false, "postgres://u@db.example/x?sslmode=disable": false,
		"postgres://u@localhost/x": false, "postgres://u@127.0.0.1/x": false, "postgres://u@[::1]/x": false, "postgres:///x?host=/run/postgresql": false,
	} {
		config, _ := parseURL(t, raw)
		if ws := connectionWarnings(config.ConnConfig); hasWarning(ws, "sslmode=verify-full") != want {
			t.Errorf("%s: %q", raw, ws)
		}
	}
	st.Close()
	_, err := st.(driver.Warner).Warnings(t.Context())
	checkError(t, err, driver.ErrClosed)
}

// openSessionPool makes a pool like that of a store which was opened by a URL.
func openSessionPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	config, _ := parseURL(t, url)
	config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error { return prepareSession(ctx, c, defaultTimeout) }
	return newPool(t, config)
}

// TestShedLockLocalTime: a ShedLock client that writes local time is recognised by the rows that it leaves, east
// and west of UTC. The error of a refused caller, the loss of a holder and the warnings mention it. Other rows are
// not mistaken for such.
func TestShedLockLocalTime(t *testing.T) {
	t.Parallel()
	server, s, peers := startShedLock(t, 1)
	const told = "usingDbTime()"
	sql := func(text string, zone int) {
		t.Helper()
		execSQL(t, server, strings.ReplaceAll(text, "LOCAL",
			fmt.Sprintf("timezone('utc', clock_timestamp()) + interval '%d hours'", zone)))
	}
	if ok, err := peers[0].lock(t.Context(), "right", time.Minute); !ok || err != nil {
		t.Fatal(ok, err)
	}
	_, err := s.Acquire(t.Context(), mutexClaim("right", time.Minute))
	checkError(t, err, driver.ErrHeld)
	if strings.Contains(err.Error(), told) {
		t.Error(err)
	}
	g := acquire(t, s, mutexClaim("west", time.Minute))
	gone := acquire(t, s, mutexClaim("released", time.Minute))
	release(t, s, gone.Claim)
	execSQL(t, server, `insert into shedlock values ('freed by hand', '-infinity', timezone('utc', now()), 'x'), ('for ever', 'infinity', timezone('utc', now()), 'x')`)
	if ws := readWarnings(t, s); hasWarning(ws, told) {
		t.Errorf("nothing is odd: %q", ws)
	}

	sql(`insert into shedlock values ('east', LOCAL + interval '1 minute', LOCAL, 'tokyo')`, 9)
	_, err = s.Acquire(t.Context(), mutexClaim("east", time.Minute))
	checkError(t, err, driver.ErrHeld, told, "tokyo", "9h0m")

	// like a client that unlocks without asking who holds the lock
	sql(`update shedlock set lock_until = LOCAL where name = 'west'`, -5)
	r := renew(t, s, g)
	checkError(t, r.Err, driver.ErrLost, told, "5h0m")
	ws := readWarnings(t, s)
	if len(ws) != 3 || !hasWarning(ws, `"east"`) || !hasWarning(ws, `"west"`) || !hasWarning(ws, "fsync") {
		t.Errorf("warnings: %q", ws)
	}
}

// TestPoolIsShared: some connections of a user's pool are left to the user, however many statements of the locks
// wait.
func TestPoolIsShared(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	for size, left := range map[int32]int{1: 0, 2: 1, 4: 1, 8: 2} {
		config, opts := parseURL(t, freshURL(t, s))
		config.MaxConns = size
		st, pool := openOnPool(t, config, opts)
		lockTableDuring(t, s, opts, func() {
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for i := range 20 {
				all.Go(func() { _, _ = st.Inspect(ctx, fmt.Sprint("m", i)) })
			}
			eventually(t, "the locks' use of the pool",
				func() bool { return pool.Stat().AcquiredConns() >= size-int32(left) })
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
		})
	}
}

// TestForeignRefs: the ref of a foreign holder does not depend on the session's DateStyle or time zone.
func TestForeignRefs(t *testing.T) {
	t.Parallel()
	server, s, peers := startShedLock(t, 1)
	execSQL(t, server, `create role german superuser login; alter role german set datestyle = 'German'; alter role german set timezone = 'Asia/Tokyo'`)
	other := mustOpen(t, strings.Replace(server.URL("test"), "test@", "german@", 1)+"?sslmode=disable&layout=shedlock")
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
		checkError(t, st.Break(t.Context(), name, seen.Holders[0].Ref, driver.BreakForce), driver.ErrLost)
		checkError(t, st.Break(t.Context(), name, foreignRefPrefix+"31.12.2026", driver.BreakForce), driver.ErrLost)
	}
}

// TestShedLockLateTakes: takes that were given up are forgotten when their results have arrived, even if their
// claims are never released.
func TestShedLockLateTakes(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	url := freshURL(t, s, "layout=shedlock", "timeout=2s", "application_name=late_takes")
	st := mustOpen(t, url).(*shedlockStore)
	_, opts := parseURL(t, url)
	lockTableDuring(t, s, opts, func() {
		for round := range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan error, 1)
			go func() {
				_, err := st.Acquire(ctx, mutexClaim(fmt.Sprint("m", round), time.Minute))
				over <- err
			}()
			eventually(t, "a take that waits", func() bool {
				n, err := s.QueryValue(`select count(*) from pg_stat_activity where application_name = 'late_takes' and wait_event_type = 'Lock'`)
				return err == nil && n != "0"
			})
			cancel()
			checkError(t, <-over, driver.ErrUncertain)
			st.mu.Lock()
			flying := maps.Clone(st.pendingTakes)
			st.mu.Unlock()
			if len(flying) != 1 {
				t.Errorf("after %d takes that were given up %d are remembered", round+1, len(flying))
			}
			eventually(t, "its end", func() bool {
				for _, r := range flying {
					if len(r.result) == 0 {
						return false
					}
				}
				return true
			})
		}
	})
}

package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/shedlock"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
)

// TestExamine: each setting of the server, the user, the table and the connection that makes locks less safe is found,
// and nothing else. Nothing is found in sound settings, also while locks are held.
func TestExamine(t *testing.T) {
	t.Parallel()
	expectFindings(t, "a server without fsync", mustOpen(t, freshURL(t, sharedServer(t))), "postgres-fsync")
	s := startServer(t, "fsync=on")
	url := s.URL("test") + "?sslmode=disable&create=true"
	st := mustOpen(t, url)
	expectFindings(t, "a sound server", st)
	g := acquire(t, st, mutexClaim("held", time.Minute))
	expectFindings(t, "a sound server in use", st)
	if err := renew(t, st, g).Err; err != nil {
		t.Error(err)
	}
	for i, c := range []struct{ set, found string }{
		{"synchronous_commit = off", "postgres-synchronous-commit"},
		{"statement_timeout = '200ms'", "postgres-statement-timeout"},
		{"statement_timeout = '1min'", ""},
		{"idle_session_timeout = '10min'", "postgres-idle-timeout"},
		{"lock_timeout = '1s'", ""},
		{"client_min_messages = error", ""}, // our own pool asks for warnings
	} {
		user := fmt.Sprintf("user%d", i)
		execSQL(t, s, fmt.Sprintf("create role %s superuser login; alter role %[1]s set %s", user, c.set))
		expectFindings(t, c.set, mustOpen(t, strings.Replace(url, "test@", user+"@", 1)), found(c.found)...)
	}
	execSQL(t, s, "create role reader superuser login; alter role reader set default_transaction_read_only = on")
	reader := mustOpen(t, s.URL("reader")+"?sslmode=disable")
	expectFindings(t, "a user that may only read", reader, "postgres-read-only")

	for _, c := range []struct{ plant, undo, found string }{
		{"alter table holdfast set unlogged", "alter table holdfast set logged", "postgres-unlogged"},
		{"alter table holdfast set (autovacuum_enabled = off)", "alter table holdfast reset (autovacuum_enabled)",
			"postgres-autovacuum"},
		{"create function skip() returns trigger language plpgsql as 'begin return new;end'; " +
			"create trigger odd before insert on holdfast for each row execute function skip()",
			"drop trigger odd on holdfast", "postgres-trigger"},
		{"alter system set full_page_writes = off; select pg_reload_conf()",
			"alter system reset full_page_writes", "postgres-full-page-writes"},
		{"alter system set autovacuum = off; select pg_reload_conf()", "alter system reset autovacuum",
			"postgres-autovacuum"},
	} {
		execEach(t, s, c.plant)
		expectSoon(t, c.plant, st, c.found)
		execEach(t, s, c.undo+"; select pg_reload_conf()")
		expectSoon(t, c.undo, st)
	}
	execSQL(t, s, "create role limited login; grant select, insert, update, delete on holdfast to limited")
	limited := mustOpen(t, s.URL("limited")+"?sslmode=disable")
	expectFindings(t, "a user without other permissions", limited)
	execSQL(t, s, "alter table holdfast enable row level security")
	expectFindings(t, "row level security", limited, "postgres-row-security")
	expectFindings(t, "a user that it does not apply to", st)

	config, opts := parseURL(t, url)
	ours, _ := openOnPool(t, config, opts)
	expectFindings(t, "a pool of the user's own", ours, "postgres-lock-timeout")
	several := strings.Replace(url, s.Addr, s.Addr+",127.0.0.1:1", 1)
	expectFindings(t, "several servers without synchronous standbys", mustOpen(t, several), "postgres-standbys")
	expectFindings(t, "several servers of any kind", mustOpen(t, several+"&target_session_attrs=any"),
		"postgres-standbys", "postgres-target-session-attrs")

	st.Close()
	_, err := st.Examine(t.Context())
	checkError(t, err, driver.ErrClosed)
}

// found is a list of one code, or an empty one.
func found(code string) []string { return strings.Fields(code) }

// execEach runs statements one by one, because some cannot be in a transaction with others.
func execEach(t testing.TB, s *pgtest.Server, statements string) {
	t.Helper()
	for text := range strings.SplitSeq(statements, "; ") {
		execSQL(t, s, text)
	}
}

// expectSoon is expectFindings for settings that a server takes over in its own time.
func expectSoon(t testing.TB, what string, st driver.Store, codes ...string) {
	t.Helper()
	eventually(t, what, func() bool { return slices.Equal(examine(t, st), append([]string{}, codes...)) })
}

// TestExamineStandby: a standby that was opened in the place of the primary is found.
func TestExamineStandby(t *testing.T) {
	t.Parallel()
	s := startServer(t, "fsync=on")
	mustOpen(t, s.URL("test")+"?sslmode=disable&create=true")
	standby, err := s.Standby("fsync=on")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Stop)
	var st driver.Store
	eventually(t, "the table on the standby", func() bool {
		st, err = driver.Open(t.Context(), standby.URL("test")+"?sslmode=disable")
		return err == nil
	})
	defer st.Close()
	expectFindings(t, "a standby", st, "postgres-read-only")
}

// TestExaminePooler: a pooler is found, in each of its modes.
func TestExaminePooler(t *testing.T) {
	t.Parallel()
	s := startServer(t, "fsync=on")
	mustOpen(t, s.URL("test")+"?sslmode=disable&create=true")
	for _, mode := range []string{"session", "transaction", "statement"} {
		b, err := s.Bouncer(mode, 5)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Stop)
		expectFindings(t, mode, mustOpen(t, b.URL("test")+"?sslmode=disable"), "postgres-pooler")
	}
}

// TestExamineSettings: what cannot be planted in a server of a test is found in what the server would say.
func TestExamineSettings(t *testing.T) {
	t.Parallel()
	weak := serverState{Fsync: "on", SynchronousCommit: "on", StandbyNames: "*", ClientMinMessages: "error"}
	if all := weak.listFindings(false); len(all) != 1 || all[0].Code != "postgres-client-min-messages" {
		t.Errorf("where warnings are not sent: %v", all)
	}
	for raw, want := range map[string]bool{
		"postgres://u@db.example/x": true, "postgres://u@db.example/x?sslmode=allow": true, "postgres://u@localhost,db.example/x": true,
		"postgres://u@db.example/x?sslmode=verify-full": false, "postgres://u@db.example/x?sslmode=disable": false,
		"postgres://u@localhost/x": false, "postgres://u@127.0.0.1/x": false, "postgres://u@[::1]/x": false, "postgres:///x?host=/run/postgresql": false,
	} {
		config, _ := parseURL(t, raw)
		all := connectionFindings(config.ConnConfig)
		if len(all) > 0 != want || want && all[0].Code != "postgres-sslmode" {
			t.Errorf("%s: %v", raw, all)
		}
	}
	s := sharedServer(t)
	url := freshURL(t, s)
	mustOpen(t, url)
	execSQL(t, s, "create role deaf superuser login; alter role deaf set client_min_messages = error")
	for _, user := range []string{"test", "deaf"} { // our own pool asks for warnings
		p := mustLocate(t, nil)
		pool := openSessionPool(t, strings.Replace(url, "test@", user+"@", 1))
		ours, err := p.readServerState(t.Context(), pool)
		if err != nil || ours.ClientMinMessages == "error" {
			t.Errorf("our own session: %+v %v", ours, err)
		}
	}
}

// openSessionPool makes a pool like that of a store which was opened by a URL.
func openSessionPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	config, _ := parseURL(t, url)
	config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error { return prepareSession(ctx, c, defaultTimeout) }
	return newPool(t, config)
}

// TestShedLockLocalTime: a ShedLock client that writes local time is recognized by the rows that it leaves, east
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
	if ok, err := peers[0].Lock(t.Context(), "right", time.Minute); !ok || err != nil {
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
	execSQL(t, server, `insert into shedlock values ('freed by hand', '-infinity', timezone('utc', now()), 'x'), ('forever', 'infinity', timezone('utc', now()), 'x')`)
	if codes := examine(t, s); slices.Contains(codes, "postgres-shedlock-time") {
		t.Errorf("nothing is odd: %q", codes)
	}

	sql(`insert into shedlock values ('east', LOCAL + interval '1 minute', LOCAL, 'tokyo')`, 9)
	_, err = s.Acquire(t.Context(), mutexClaim("east", time.Minute))
	checkError(t, err, driver.ErrHeld, told, "tokyo", "9h0m")

	// like a client that unlocks without asking who holds the lock
	sql(`update shedlock set lock_until = LOCAL where name = 'west'`, -5)
	r := renew(t, s, g)
	checkError(t, r.Err, driver.ErrLost, told, "5h0m")
	expectFindings(t, "rows in local time", s, "postgres-fsync", "postgres-shedlock-time", "postgres-shedlock-time")
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
		if ok, err := peers[0].Lock(t.Context(), name, time.Minute); !ok || err != nil {
			t.Fatal(ok, err)
		}
		seen, err := s.Inspect(t.Context(), name)
		if err != nil || len(seen.Holders) != 1 {
			t.Fatalf("%+v %v", seen, err)
		}
		if err := st.Break(t.Context(), name, seen.Holders[0].Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
			t.Error(err)
		}
		checkError(t, st.Break(t.Context(), name, seen.Holders[0].Ref, driver.Break{Mode: driver.BreakForce}), driver.ErrLost)
		checkError(t, st.Break(t.Context(), name, shedlock.ForeignRefPrefix+"31.12.2026", driver.Break{Mode: driver.BreakForce}), driver.ErrLost)
	}
}

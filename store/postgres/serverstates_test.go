package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
)

// TestUsersPool: a store works on the user's own pool, and does not close it. When the program uses the whole
// pool, the error says so, and a grant survives if a connection becomes free in time.
func TestUsersPool(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	config, opts := parseURL(t, freshURL(t, s))
	config.MaxConns = 2
	opts.Timeout = time.Second
	st, pool := openOnPool(t, config, opts)
	g := acquire(t, st, mutexClaim("m", time.Minute))
	var taken []*pgxpool.Conn
	for range 2 {
		c, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, c)
	}
	if _, err := st.Acquire(t.Context(), mutexClaim("n", 3*time.Second)); err == nil || driverutil.IsFinal(err) ||
		!strings.Contains(err.Error(), "no free connection in the pool of 2") {
		t.Errorf("with the pool used up: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := st.Acquire(ctx, mutexClaim("n", time.Second)); !errors.Is(err, context.DeadlineExceeded) ||
		time.Since(start) > 5*time.Second {
		t.Errorf("with the pool used up, after %v: %v", time.Since(start), err)
	}
	for _, c := range taken {
		c.Release()
	}
	if err := renewUntilKnown(t, st, g); err != nil {
		t.Errorf("with a free connection again: %v", err)
	}
	st.Close()
	if err := pool.Ping(t.Context()); err != nil {
		t.Errorf("the user's pool, after the store was closed: %v", err)
	}
}

// TestReadOnly: a server that accepts no writes is named as such. If it accepted writes before, claims and
// renewals are tried again for a while. Locks can be read on a standby.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	url := freshURL(t, s)
	st := mustOpen(t, url)
	g := acquire(t, st, mutexClaim("m", 5*time.Minute))
	standby, err := s.Standby()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Stop)
	execSQL(t, s, `alter system set default_transaction_read_only = on`)
	execSQL(t, s, `select pg_reload_conf()`)
	eventually(t, "a read-only server", func() bool {
		on, err := s.QueryValue(`show default_transaction_read_only`)
		return err == nil && on == "on"
	})
	_, err = mustOpen(t, url).Acquire(t.Context(), mutexClaim("n", time.Minute))
	checkError(t, err, driver.ErrDenied, "takes no writes")
	r := renew(t, st, g)
	for until := time.Now().Add(testTimeout); r.Err == nil &&
		time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		r = renew(t, st, g) // its connection may not know it yet
	}
	if r.Err == nil || driverutil.IsFinal(r.Err) || !strings.Contains(r.Err.Error(), "it took writes before") {
		t.Errorf("the renewal on a read-only server: %v", r.Err)
	}
	came := make(chan error, 1)
	go func() {
		_, err := st.Acquire(t.Context(), mutexClaim("n", time.Minute))
		came <- err
	}()
	select {
	case err := <-came:
		t.Errorf("a claim on a read-only server: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	execSQL(t, s, `alter system reset default_transaction_read_only`)
	execSQL(t, s, `select pg_reload_conf()`)
	if err := <-came; err != nil {
		t.Errorf("the claim afterwards: %v", err)
	}
	eventually(t, "the renewal afterwards", func() bool { return renew(t, st, g).Err == nil })
	config, opts := parseURL(t, strings.Replace(url, s.Addr, standby.Addr, 1))
	opts.Create = false
	follower, err := openConfig(t.Context(), config, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer follower.Close()
	eventually(t, "the lock on the standby", func() bool {
		l, err := follower.Inspect(t.Context(), "m")
		return err == nil && len(l.Holders) == 1 && l.Holders[0].Token == g.Token
	})
	_, err = follower.Acquire(t.Context(), mutexClaim("m", time.Minute))
	checkError(t, err, driver.ErrHeld)
	_, err = follower.Acquire(t.Context(), mutexClaim("o", time.Minute))
	checkError(t, err, driver.ErrDenied, "standby")
}

// TestReadOnlyAmongSeveral: if several servers are named and the one that is reached accepts no writes, the error
// says how to reach one that does.
func TestReadOnlyAmongSeveral(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	url := freshURL(t, s)
	mustOpen(t, url)
	_, opts := parseURL(t, url)
	execSQL(t, s, `create role looker login; alter role looker set default_transaction_read_only = on;
		grant usage on schema tests to looker; grant select, insert, update, delete on `+mustLocate(t, opts).locksTable+` to looker`)
	url = strings.Replace(url, "test@"+s.Addr, "looker@"+s.Addr+",127.0.0.1:1", 1) + "&target_session_attrs=any"
	_, err := mustOpen(t, url).Acquire(t.Context(), mutexClaim("m", 5*time.Second))
	if err == nil || driverutil.IsFinal(err) || !strings.Contains(err.Error(), "target_session_attrs=read-write") {
		t.Errorf("on a server that takes no writes: %v", err)
	}
}

// TestFullDisk: the error says at once that the server's disk is full, and a holder keeps its lock if there is
// room again in time. (A trigger replaces the full disk.)
func TestFullDisk(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	url := freshURL(t, s)
	st := mustOpen(t, url)
	g := acquire(t, st, mutexClaim("m", time.Minute))
	_, opts := parseURL(t, url)
	execSQL(t, s, `create function tests.full_disk() returns trigger language plpgsql as
		$$ begin raise exception 'could not extend file "base/5/1": No space left on device' using errcode = 'disk_full'; end $$;
		create trigger full_disk before insert or update on `+mustLocate(t, opts).locksTable+` execute function tests.full_disk()`)
	began := time.Now()
	_, err := st.Acquire(t.Context(), mutexClaim("n", time.Minute))
	checkError(t, err, driver.ErrDenied, "make room")
	if took := time.Since(began); took > 30*time.Second { // it would try again for a minute
		t.Errorf("told after %v", took)
	}
	checkError(t, renew(t, st, g).Err, driver.ErrDenied, "make room")
	execSQL(t, s, `drop function tests.full_disk cascade`)
	if r := renew(t, st, g); r.Err != nil {
		t.Errorf("with room again: %v", r.Err)
	}
}

// TestFailover: when a synchronous standby takes over, nothing is forgotten: the holder renews, no other claim is
// granted, and tokens rise. The URL names both servers. The old primary is killed, or continues without accepting
// writes.
func TestFailover(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"killed", "read-only"} {
		t.Run(how, func(t *testing.T) { testFailover(t, how == "killed") })
	}
}

func testFailover(t *testing.T, kill bool) {
	t.Parallel()
	s := startServer(t)
	standby, err := s.Standby()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Stop)
	execSQL(t, s, `alter system set synchronous_standby_names = '*'`)
	execSQL(t, s, `select pg_reload_conf()`)
	eventually(t, "the synchronous standby", func() bool {
		state, err := s.QueryValue(`select sync_state from pg_stat_replication`)
		return err == nil && state == "sync"
	})
	both := "postgres://test@" + s.Addr + "," + standby.Addr +
		"/postgres?sslmode=disable&create=true&target_session_attrs=read-write&timeout=2s"
	st := mustOpen(t, both)
	held := acquire(t, st, mutexClaim("held", 5*time.Minute))
	freed := acquire(t, st, mutexClaim("freed", time.Minute))
	release(t, st, freed.Claim)
	if kill {
		s.Kill()
	} else {
		execSQL(t, s, `alter system reset synchronous_standby_names`)
		execSQL(t, s, `alter system set default_transaction_read_only = on`)
		execSQL(t, s, `select pg_reload_conf()`)
	}
	execSQL(t, standby, `select pg_promote()`)
	acquire(t, st, mutexClaim("new", time.Minute)) // bears with the change
	if err := renewUntilKnown(t, st, held); err != nil {
		t.Fatalf("after the failover: %v", err)
	}
	other := mustOpen(t, both)
	_, err = other.Acquire(t.Context(), mutexClaim("held", time.Minute))
	checkError(t, err, driver.ErrHeld)
	if g := acquire(t, other, mutexClaim("freed", time.Minute)); g.Token <= freed.Token {
		t.Errorf("token %d after %d", g.Token, freed.Token)
	}
}

// TestInfoSurvives: the server's settings determine what Info promises.
func TestInfoSurvives(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s    serverState
		want driver.Survives
	}{
		{serverState{Fsync: "on", SynchronousCommit: "on"}, driver.Survives{Restart: true, PowerCut: true}},
		{serverState{Fsync: "on", SynchronousCommit: "on", StandbyNames: "*"},
			driver.Survives{Restart: true, PowerCut: true, Failover: true}},
		{serverState{Fsync: "on", SynchronousCommit: "local", StandbyNames: "*"},
			driver.Survives{Restart: true, PowerCut: true}},
		{serverState{Fsync: "on", SynchronousCommit: "on", StandbyNames: "*", ClientMinMessages: "error"},
			driver.Survives{Restart: true, PowerCut: true}},
		{serverState{Fsync: "on", SynchronousCommit: "off", StandbyNames: "*"}, driver.Survives{Restart: true}},
		{serverState{Fsync: "off", SynchronousCommit: "on"}, driver.Survives{Restart: true}},
	} {
		if got := c.s.faultsSurvived(); got != c.want {
			t.Errorf("%+v: %+v", c.s, got)
		}
	}
	if i := mustOpen(t, freshURL(t, sharedServer(t))).Info(); i.Tier != driver.TierSettings ||
		i.Survives.PowerCut || i.TokenRegression == "" {
		t.Errorf("with fsync off: %+v", i)
	}
}

// TestOperator: if an operator deletes or edits the row of a held lock, the holder loses the lock. It learns that
// at its next renewal, and never overwrites the row. Tokens rise even so.
func TestOperator(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	for what, text := range map[string]string{
		"deleted": `delete from %s where name = 'm'`,
		"emptied": `update %s set data = convert_to((convert_from(data, 'UTF8')::jsonb - 'claims' - 'kind' - 'limit' || '{"idle": 1}')::text, 'UTF8') where name = 'm'`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			url := freshURL(t, s)
			st := mustOpen(t, url)
			g := acquire(t, st, mutexClaim("m", time.Minute))
			_, opts := parseURL(t, url)
			p, err := opts.resolveLocation()
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // within a second of the grant, a token of a deleted row may come again
			execSQL(t, s, fmt.Sprintf(text, p.locksTable))
			if l := lossOf(renew(t, st, g).Err); l != driver.LossGone {
				t.Errorf("the holder is told %q", l)
			}
			next := acquire(t, st, mutexClaim("m", time.Minute))
			if next.Token <= g.Token {
				t.Errorf("token %d after %d", next.Token, g.Token)
			}
			checkError(t, st.Release(t.Context(), g.Claim, ""), driver.ErrLost)
			if r := renew(t, st, next); r.Err != nil {
				t.Errorf("the next holder: %v", r.Err)
			}
			execSQL(t, s, `update `+p.locksTable+` set data = 'nonsense'`)
			checkError(t, renew(t, st, next).Err, driver.ErrCorrupt, "nonsense")
		})
	}
}

// TestClocks: the server's clock is an hour off ours, and the clients' clocks are an hour apart. No claim is
// granted early or late: a process that tries once, and has not watched before, replaces a dead holder within a
// second after its TTL, and not before.
func TestClocks(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			s, err := pgtest.StartAt(ahead)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Stop)
			const ttl = 3 * time.Second
			for _, layout := range []string{"", "shedlock"} {
				t.Run("layout "+layout, func(t *testing.T) {
					t.Parallel()
					url := s.URL("test") + "?sslmode=disable&create=true&layout=" + layout
					comes := func(clock time.Duration, g driver.Grant,
						after time.Duration) (driver.Grant, time.Duration, error) {
						t.Helper()
						config, opts := parseURL(t, url)
						opts.Clock = shiftedClock(clock)
						time.Sleep(after - driver.SystemClock.Since(g.Since))
						st, err := openConfig(t.Context(), config, opts)
						if err != nil {
							t.Fatal(err)
						}
						defer st.Close()
						next, err := st.Acquire(t.Context(), mutexClaim(g.Name, time.Minute))
						return next, driver.SystemClock.Since(g.Since), err
					}
					dead := mustOpen(t, url)
					early, once := acquire(t, dead, mutexClaim("early", ttl)), acquire(t, dead, mutexClaim("once", ttl))
					dead.Close()
					if off := time.Until(time.UnixMicro(once.Token)) - ahead; off.Abs() > time.Minute {
						t.Errorf("tokens are not made from the server's clock: off by %v", off)
					}
					if _, at, err := comes(ahead, early, ttl-500*time.Millisecond); err == nil && at < ttl {
						t.Errorf("let in after %v of a TTL of %v", at, ttl)
					}
					if next, at, err := comes(-ahead, once, ttl+time.Second); err != nil || next.Token <= once.Token {
						t.Errorf("%v after the start of a TTL of %v: token %d after %d, %v", at, ttl, next.Token,
							once.Token, err)
					}
				})
			}
		})
	}
}

// TestBehindPgBouncer: behind a PgBouncer in transaction mode the store keeps its promises, with only two
// connections to the server, and leaves nothing behind in them.
func TestBehindPgBouncer(t *testing.T) {
	s := startServer(t)
	b, err := s.Bouncer("transaction", 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Stop)
	url := freshURL(t, b)
	conform(t, newHarness(t, url), drivertest.Options{Effort: 0.3})
	st := mustOpen(t, url)
	acquire(t, st, mutexClaim("m", time.Minute))
	if n, err := b.QueryValue(`select count(*) from pg_prepared_statements`); err != nil || n != "0" {
		t.Errorf("%s statements stay prepared %v", n, err)
	}
	if n, err := s.QueryValue(`select count(*) from pg_locks where locktype = 'advisory'`); err != nil || n != "0" {
		t.Errorf("%s advisory locks stay behind %v", n, err)
	}
}

package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/linktest"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
)

func mutex(name string, ttl time.Duration) driver.Claim {
	return driver.Claim{Name: name, ID: strings.ToLower(rand.Text()), Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: ttl, Owner: "test"}
}

func opened(t testing.TB, raw string) driver.Store {
	t.Helper()
	s, err := driver.Open(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// apart is a client's clock that is off by d.
func apart(d time.Duration) driver.Clock {
	return driver.Clock{
		Monotonic: func() time.Duration { return driver.SystemClock.Monotonic() + d },
		Real:      func() time.Duration { return driver.SystemClock.Real() + d },
	}
}

func acquire(t testing.TB, s driver.Store, c driver.Claim) driver.Grant {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	g, err := s.Acquire(ctx, c)
	if err != nil {
		t.Fatalf("acquire %s: %v", c.Name, err)
	}
	return g
}

func renewal(t testing.TB, s driver.Store, g driver.Grant) driver.Renewal {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var r driver.Renewal
	s.Renew(ctx, []driver.Grant{g}, func(_ int, a driver.Renewal) { r = a })
	return r
}

func lost(err error) driver.Loss {
	var l *driver.LossError
	if errors.As(err, &l) {
		return l.Loss
	}
	return ""
}

func exec(t testing.TB, s *pgtest.Server, text string) {
	t.Helper()
	if err := s.Exec(text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// is fails unless the error is one of the driver's and says these words.
func is(t testing.TB, err, target error, words ...string) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got %v, want %v", err, target)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// TestTables: a missing table is named, and made when asked; one that is not Holdfast's, or of another version, is left as it
// is; and many may make them at once.
func TestTables(t *testing.T) {
	t.Parallel()
	s := server(t)
	url := s.URL("test") + "?sslmode=disable&schema=made&table=Odd%20%22name"
	open := func(url string) error {
		st, err := driver.Open(t.Context(), url)
		if err == nil {
			err = st.Close()
		}
		return err
	}
	is(t, open(url), driver.ErrInvalid, "create=true", `"made"."Odd ""name"`)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for _, url := range []string{url, fmt.Sprint(url, i)} { // the same table, and others in the same schema
				if err := open(url + "&create=true"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if err := open(url); err != nil {
		t.Fatal(err)
	}
	exec(t, s, `create table made.other (name text, data bytea)`)
	is(t, open(s.URL("test")+"?sslmode=disable&schema=made&table=other&create=true"), driver.ErrInvalid, "made", "left as it is")
	exec(t, s, `comment on table made.other is 'Holdfast locks, version 2'`)
	is(t, open(s.URL("test")+"?sslmode=disable&schema=made&table=other&create=true"), driver.ErrInvalid, "version 2", "version 1")
	is(t, open(s.URL("test")+"?sslmode=disable&schema=made&table=other&layout=shedlock"), driver.ErrInvalid, "lock_until")
	is(t, open("postgres://test@"+s.Addr+"/nowhere?sslmode=disable"), driver.ErrInvalid, "nowhere")

	st := opened(t, url)
	g := acquire(t, st, mutex("m", time.Minute))
	exec(t, s, `drop table made."Odd ""name"`)
	_, err := st.Acquire(t.Context(), mutex("n", time.Minute))
	is(t, err, driver.ErrInvalid, "create=true")
	if r := renewal(t, st, g); r.Err == nil || lost(r.Err) != "" {
		t.Errorf("a renewal in a table that is gone: %v", r.Err)
	}
}

// TestPermissions: what a user lacks is named, at once when the store is opened and later when it is taken away.
func TestPermissions(t *testing.T) {
	t.Parallel()
	s := server(t)
	exec(t, s, `create role clerk login; create schema office`)
	clerk := s.URL("clerk") + "?sslmode=disable&schema=office"
	_, err := driver.Open(t.Context(), clerk+"&create=true")
	is(t, err, driver.ErrDenied, "office")
	opened(t, s.URL("test")+"?sslmode=disable&schema=office&create=true")
	_, err = driver.Open(t.Context(), clerk)
	is(t, err, driver.ErrDenied, "USAGE")
	exec(t, s, `grant usage on schema office to clerk; grant select, insert on office.holdfast to clerk`)
	_, err = driver.Open(t.Context(), clerk)
	is(t, err, driver.ErrDenied, `GRANT UPDATE, DELETE ON "office"."holdfast" TO "clerk"`)
	exec(t, s, `grant update, delete on office.holdfast to clerk`)
	st := opened(t, clerk)
	g := acquire(t, st, mutex("m", time.Minute))
	exec(t, s, `revoke update on office.holdfast from clerk`)
	is(t, renewal(t, st, g).Err, driver.ErrDenied, "UPDATE")
	is(t, st.Release(t.Context(), g.Claim, g.Ref), driver.ErrDenied, "UPDATE")
	exec(t, s, `grant update on office.holdfast to clerk`)
	if r := renewal(t, st, g); r.Err != nil {
		t.Errorf("after the permission came back: %v", r.Err)
	}
}

// TestPassword: a user who is not there and a wrong password are told at once, in words that say what to do and do not tell the
// password; so is a password that an operator changes in mid-hold, to whom needs a new connection.
func TestPassword(t *testing.T) {
	t.Parallel()
	s := server(t)
	exec(t, s, `create role cashier login password 'r1ght'`)
	exec(t, s, `grant create on database postgres to cashier`)
	exec(t, s, `do $$ begin execute format('copy (values (''host all cashier 127.0.0.1/32 scram-sha-256''), (''host all all 127.0.0.1/32 trust'')) to %L',
		current_setting('hba_file')); end $$`)
	exec(t, s, `select pg_reload_conf()`)
	const place = "?sslmode=disable&create=true&schema=till"
	var err error
	for until := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		var st driver.Store
		if st, err = driver.Open(t.Context(), s.URL("cashier:wr0ng")+place); err == nil {
			st.Close() // the server has not read its rules yet
		}
	}
	denied := func(err error, user string) {
		t.Helper()
		is(t, err, driver.ErrDenied, user, "check the user and the password")
		if strings.Contains(err.Error(), "wr0ng") || strings.Contains(err.Error(), "r1ght") {
			t.Errorf("it tells the password: %v", err)
		}
	}
	denied(err, "cashier")
	_, err = driver.Open(t.Context(), s.URL("nobody:wr0ng")+place)
	denied(err, "nobody")
	st := opened(t, s.URL("cashier:r1ght")+place)
	g := acquire(t, st, mutex("m", time.Minute))
	exec(t, s, `alter role cashier password 'an0ther'; select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = 'cashier'`)
	for range 10 { // the first may meet a connection that is dead already
		if err = renewal(t, st, g).Err; errors.Is(err, driver.ErrDenied) {
			break
		}
	}
	denied(err, "cashier")
	exec(t, s, `alter role cashier password 'r1ght'`)
	if r := renewal(t, st, g); r.Err != nil {
		t.Errorf("with the old password again: %v", r.Err)
	}
}

// TestPool: a store works on the user's own pool and leaves it open; when the program has used the pool up, the error says
// so, and a grant lives on once there is a connection again.
func TestPool(t *testing.T) {
	t.Parallel()
	s := server(t)
	config, opts := parse(t, freshURL(t, s))
	config.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	opts.Timeout = 200 * time.Millisecond
	st, err := New(t.Context(), pool, opts)
	if err != nil {
		t.Fatal(err)
	}
	g := acquire(t, st, mutex("m", time.Minute))
	var taken []*pgxpool.Conn
	for range 2 {
		c, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, c)
	}
	if _, err := st.Acquire(t.Context(), mutex("n", time.Second)); err == nil || driver.Final(err) || !strings.Contains(err.Error(), "no free connection in the pool of 2") {
		t.Errorf("with the pool used up: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := st.Acquire(ctx, mutex("n", time.Second)); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 5*time.Second {
		t.Errorf("with the pool used up, after %v: %v", time.Since(start), err)
	}
	for _, c := range taken {
		c.Release()
	}
	if r := renewal(t, st, g); r.Err != nil {
		t.Errorf("with a free connection again: %v", r.Err)
	}
	st.Close()
	if err := pool.Ping(t.Context()); err != nil {
		t.Errorf("the user's pool, after the store was closed: %v", err)
	}
}

// TestReadOnly: a server that takes no writes is named as such; a holder lives on if it takes them again in time. On a
// standby locks can be looked at.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	url := freshURL(t, s)
	st := opened(t, url)
	g := acquire(t, st, mutex("m", time.Minute))
	standby, err := s.Standby()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Stop)
	exec(t, s, `alter system set default_transaction_read_only = on`)
	exec(t, s, `select pg_reload_conf()`)
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err = st.Acquire(t.Context(), mutex("n"+rand.Text(), time.Minute)); err != nil || time.Now().After(until) {
			break
		}
	}
	is(t, err, driver.ErrDenied, "takes no writes")
	if r := renewal(t, st, g); r.Err == nil || lost(r.Err) != "" {
		t.Errorf("the renewal on a read-only server: %v", r.Err)
	}
	exec(t, s, `alter system reset default_transaction_read_only`)
	exec(t, s, `select pg_reload_conf()`)
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if r := renewal(t, st, g); r.Err == nil {
			break
		} else if time.Now().After(until) {
			t.Fatalf("the renewal afterwards: %v", r.Err)
		}
	}
	config, opts := parse(t, strings.Replace(url, s.Addr, standby.Addr, 1))
	opts.Create = false
	follower, err := openConfig(t.Context(), config, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer follower.Close()
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		l, err := follower.Inspect(t.Context(), "m")
		if err == nil && len(l.Holders) == 1 && l.Holders[0].Token == g.Token {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("on the standby: %+v %v", l, err)
		}
	}
	_, err = follower.Acquire(t.Context(), mutex("m", time.Minute))
	is(t, err, driver.ErrHeld)
	_, err = follower.Acquire(t.Context(), mutex("o", time.Minute))
	is(t, err, driver.ErrDenied, "standby")
}

// TestFailover: with a synchronous standby that takes over nothing is forgotten: the holder renews, nobody else comes in, and
// tokens rise. The URL names both servers. The old primary is killed, or goes on as a server that takes no writes.
func TestFailover(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"killed", "read-only"} {
		t.Run(how, func(t *testing.T) { failover(t, how == "killed") })
	}
}

func failover(t *testing.T, kill bool) {
	t.Parallel()
	s := startServer(t)
	standby, err := s.Standby()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Stop)
	exec(t, s, `alter system set synchronous_standby_names = '*'`)
	exec(t, s, `select pg_reload_conf()`)
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if state, err := s.Ask(`select sync_state from pg_stat_replication`); err == nil && state == "sync" {
			break
		} else if time.Now().After(until) {
			t.Fatalf("the standby is %q %v", state, err)
		}
	}
	both := "postgres://test@" + s.Addr + "," + standby.Addr + "/postgres?sslmode=disable&create=true&target_session_attrs=read-write&timeout=500ms"
	st := opened(t, both)
	held := acquire(t, st, mutex("held", 20*time.Second))
	freed := acquire(t, st, mutex("freed", 20*time.Second))
	if err := st.Release(t.Context(), freed.Claim, ""); err != nil {
		t.Fatal(err)
	}
	if kill {
		s.Kill()
	} else {
		exec(t, s, `alter system reset synchronous_standby_names`)
		exec(t, s, `alter system set default_transaction_read_only = on`)
		exec(t, s, `select pg_reload_conf()`)
	}
	exec(t, standby, `select pg_promote()`)
	acquire(t, st, mutex("new", 20*time.Second)) // bears with the change
	for until := time.Now().Add(15 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		r := renewal(t, st, held)
		if r.Err == nil {
			break
		}
		if lost(r.Err) != "" || time.Now().After(until) {
			t.Fatalf("after the failover: %v", r.Err)
		}
	}
	other := opened(t, both)
	_, err = other.Acquire(t.Context(), mutex("held", time.Minute))
	is(t, err, driver.ErrHeld)
	if g := acquire(t, other, mutex("freed", time.Minute)); g.Token <= freed.Token {
		t.Errorf("token %d after %d", g.Token, freed.Token)
	}
}

// TestSurvives: what is promised follows from the server's settings.
func TestSurvives(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s    situation
		want driver.Survives
	}{
		{situation{Fsync: "on", Commit: "on"}, driver.Survives{Restart: true, PowerCut: true}},
		{situation{Fsync: "on", Commit: "on", Standbys: "*"}, driver.Survives{Restart: true, PowerCut: true, Failover: true}},
		{situation{Fsync: "on", Commit: "local", Standbys: "*"}, driver.Survives{Restart: true, PowerCut: true}},
		{situation{Fsync: "on", Commit: "off", Standbys: "*"}, driver.Survives{Restart: true}},
		{situation{Fsync: "off", Commit: "on"}, driver.Survives{Restart: true}},
	} {
		if got := c.s.survives(); got != c.want {
			t.Errorf("%+v: %+v", c.s, got)
		}
	}
	if i := opened(t, freshURL(t, server(t))).Info(); i.Tier != driver.TierSettings || i.Survives.PowerCut || i.TokensFall == "" {
		t.Errorf("with fsync off: %+v", i)
	}
}

// TestListenerKilled: whoever waits hears of a release also after its listening connection was ended, many times over, and
// does not depend on looking from time to time.
func TestListenerKilled(t *testing.T) {
	t.Parallel()
	s := server(t)
	url := freshURL(t, s, "application_name=killed_listener")
	holder, waiter := opened(t, url), opened(t, url)
	var worst time.Duration
	for i := range 5 {
		g := acquire(t, holder, mutex("m", time.Minute))
		c := mutex("m", time.Minute)
		c.Wait = true
		released := make(chan time.Time, 1)
		go func() {
			defer close(released)
			listening := func() bool {
				n, err := s.Ask(`select count(*) from pg_locks l join pg_stat_activity a using (pid)
					where a.application_name = 'killed_listener' and l.locktype = 'advisory' and l.mode = 'ShareLock' and l.granted`)
				return err == nil && n != "0"
			}
			for range 2 {
				for !listening() && t.Context().Err() == nil {
					time.Sleep(5 * time.Millisecond)
				}
				if i > 0 {
					_ = s.Exec(`select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'killed_listener' and query not like 'with%' and wait_event = 'ClientRead' and pid in
						(select pid from pg_locks where locktype = 'advisory' and mode = 'ShareLock')`)
				}
			}
			for !listening() && t.Context().Err() == nil {
				time.Sleep(5 * time.Millisecond)
			}
			time.Sleep(50 * time.Millisecond) // the look that follows is over
			released <- time.Now()
			if err := holder.Release(t.Context(), g.Claim, ""); err != nil {
				t.Error(err)
			}
		}()
		next := acquire(t, waiter, c)
		worst = max(worst, time.Since(<-released))
		<-released // the release has returned, too
		if err := waiter.Release(t.Context(), next.Claim, ""); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("let in %v after the release at most", worst)
	if worst > 500*time.Millisecond {
		t.Errorf("let in %v after the release: by looking, and not by being told", worst)
	}
}

// TestWaitAfterLoss: who waits hears of a change that came while the listening connection was down.
func TestWaitAfterLoss(t *testing.T) {
	t.Parallel()
	s := server(t)
	config, opts := parse(t, freshURL(t, s, "application_name=wait_after_loss"))
	gate := make(chan struct{})
	close(gate)
	var mu sync.Mutex
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		mu.Lock()
		g := gate
		mu.Unlock()
		<-g
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	table, err := newTable(t.Context(), pool, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	row, err := table.Swap(t.Context(), record.Row{Name: "m", Data: []byte("1")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	told := make(chan error, 1)
	go func() {
		for err := error(nil); err == nil; {
			if err = table.Wait(ctx, row.Name, row.Version); err == nil {
				if now, lerr := table.Load(ctx, row.Name); lerr != nil || now.Version != row.Version {
					told <- lerr
					return
				}
			}
		}
		told <- ctx.Err()
	}()
	const listening = `pid in (select l.pid from pg_locks l join pg_stat_activity a using (pid)
		where a.application_name = 'wait_after_loss' and l.locktype = 'advisory' and l.mode = 'ShareLock' and l.granted)`
	for n := "0"; n == "0"; time.Sleep(5 * time.Millisecond) {
		if n, err = s.Ask(`select count(*) from pg_stat_activity where ` + listening); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(50 * time.Millisecond) // it has looked
	mu.Lock()
	gate = make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	mu.Unlock()
	defer open()
	exec(t, s, `select pg_terminate_backend(pid, 5000) from pg_stat_activity where `+listening)
	time.Sleep(100 * time.Millisecond)
	exec(t, s, `update `+table.place.locks+` set data = '2'`) // as a writer does that sees nobody waiting
	open()
	if err := <-told; err != nil {
		t.Errorf("not told: %v", err)
	}
}

// TestOperator: a row that an operator deletes or edits in mid-hold is a loss, which the holder is told at its next renewal,
// and is never written over. Tokens rise all the same.
func TestOperator(t *testing.T) {
	t.Parallel()
	s := server(t)
	for what, text := range map[string]string{
		"deleted": `delete from %s where name = 'm'`,
		"emptied": `update %s set data = convert_to((convert_from(data, 'UTF8')::jsonb - 'claims' - 'kind' - 'limit' || '{"idle": 1}')::text, 'UTF8') where name = 'm'`,
	} {
		t.Run(what, func(t *testing.T) {
			url := freshURL(t, s)
			st := opened(t, url)
			g := acquire(t, st, mutex("m", time.Minute))
			_, opts := parse(t, url)
			p, err := opts.place()
			if err != nil {
				t.Fatal(err)
			}
			exec(t, s, fmt.Sprintf(text, p.locks))
			if l := lost(renewal(t, st, g).Err); l != driver.LossGone {
				t.Errorf("the holder is told %q", l)
			}
			next := acquire(t, st, mutex("m", time.Minute))
			if next.Token <= g.Token {
				t.Errorf("token %d after %d", next.Token, g.Token)
			}
			is(t, st.Release(t.Context(), g.Claim, ""), driver.ErrLost)
			if r := renewal(t, st, next); r.Err != nil {
				t.Errorf("the next holder: %v", r.Err)
			}
			exec(t, s, `update `+p.locks+` set data = 'nonsense'`)
			is(t, renewal(t, st, next).Err, driver.ErrCorrupt, "nonsense")
		})
	}
}

// TestClocks: on a server whose clock is an hour off ours, and with clients whose clocks are an hour apart, nobody is let in early
// or late: a dead holder is replaced within its TTL and a second by a process that tries once, without having watched, and not
// before.
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
				url := s.URL("test") + "?sslmode=disable&create=true&layout=" + layout
				dead := opened(t, url)
				g := acquire(t, dead, mutex("m", ttl))
				if off := time.Until(time.UnixMicro(g.Token)) - ahead; off.Abs() > time.Minute {
					t.Errorf("tokens are not made from the server's clock: off by %v", off)
				}
				dead.Close()
				clock := driver.SystemClock
				for once := range 2 {
					wait := ttl - 500*time.Millisecond
					if once == 1 {
						wait = ttl + time.Second
					}
					time.Sleep(wait - clock.Since(g.Since))
					config, opts := parse(t, url)
					opts.Clock = apart(ahead * time.Duration(1-2*once))
					cron, err := openConfig(t.Context(), config, opts)
					if err != nil {
						t.Fatal(err)
					}
					defer cron.Close()
					next, err := cron.Acquire(t.Context(), mutex("m", ttl))
					at := clock.Since(g.Since)
					switch {
					case err == nil && at < ttl:
						t.Errorf("layout %q: let in after %v of a TTL of %v", layout, at, ttl)
					case once == 1 && err != nil:
						t.Errorf("layout %q: refused %v after the start of a TTL of %v: %v", layout, at, ttl, err)
					case err == nil && next.Token <= g.Token:
						t.Errorf("layout %q: token %d after %d", layout, next.Token, g.Token)
					}
				}
			}
		})
	}
}

// TestLostReplies: whether a reply is lost after a take, a renewal or a release, the call finds out what became of it.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	n := 30
	if *prove {
		n = 1000
	}
	s := server(t)
	for _, layout := range []string{"", "shedlock"} {
		config, opts := parse(t, freshURL(t, s, "layout="+layout))
		link, err := linktest.NewLink(s.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(link.Close)
		config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) { return net.Dial("tcp", link.Addr) }
		st, err := openConfig(t.Context(), config, opts)
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		last := int64(0)
		renewed := 0
		for range n {
			c := mutex("m", time.Minute)
			link.LoseReplies(1)
			g := acquire(t, st, c)
			if g.Token <= last {
				t.Fatalf("token %d after %d", g.Token, last)
			}
			last = g.Token
			link.LoseReplies(1)
			r := renewal(t, st, g)
			if lost(r.Err) != "" {
				t.Fatalf("a renewal whose reply was lost: %v", r.Err)
			}
			if r.Err != nil {
				r = renewal(t, st, g)
				renewed++
			}
			if r.Err != nil {
				t.Fatalf("the renewal after it: %v", r.Err)
			}
			link.LoseReplies(1)
			if err := st.Release(t.Context(), c, ""); err != nil {
				t.Fatalf("a release whose reply was lost: %v", err)
			}
			if l, err := st.Inspect(t.Context(), "m"); err != nil || len(l.Holders) > 0 {
				t.Fatalf("after the release: %+v %v", l, err)
			}
		}
		link.LoseReplies(0)
		t.Logf("layout %q: %d takes, renewals and releases settled, %d of the renewals by asking again", layout, n, renewed)
	}
}

// TestCancel: claims that are given up at random points, and cleaned up, leave nothing behind a second later.
func TestCancel(t *testing.T) {
	t.Parallel()
	n := int64(500)
	if *prove {
		n = 10000
	}
	s := server(t)
	for _, layout := range []string{"", "shedlock"} {
		st := opened(t, freshURL(t, s, "layout="+layout))
		var claims, cancels, after atomic.Int64
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for cancels.Load() < n && !t.Failed() {
					claims.Add(1)
					c := mutex(fmt.Sprint("m", i%4), time.Minute)
					c.Wait = true
					c.Fair = layout == "" && mathrand.N(2) == 0
					ctx, cancel := context.WithTimeout(t.Context(), mathrand.N(3*time.Millisecond))
					_, err := st.Acquire(ctx, c)
					cancel()
					if err != nil {
						cancels.Add(1)
						if !errors.Is(err, context.DeadlineExceeded) {
							t.Error(err)
						}
						if stands(t, st, c) {
							after.Add(1)
						}
					}
					if rerr := st.Release(t.Context(), c, ""); rerr != nil && (err == nil || !errors.Is(rerr, driver.ErrLost)) {
						t.Errorf("release: %v (acquire: %v)", rerr, err)
					}
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Second)
		for l, err := range st.List(t.Context(), "") {
			t.Errorf("an orphan: %+v %v", l, err)
		}
		t.Logf("layout %q: %d claims, %d were cancelled, %d of them after the effect; no orphan a second later", layout, claims.Load(), cancels.Load(), after.Load())
		if after.Load() == 0 || *prove && after.Load() < cancels.Load()/5 {
			t.Errorf("only %d of %d cancels fell after the effect: the test proves little", after.Load(), cancels.Load())
		}
	}
}

// stands tells whether a claim stands, granted or in line.
func stands(t *testing.T, s driver.Store, c driver.Claim) bool {
	t.Helper()
	l, err := s.Inspect(t.Context(), c.Name)
	if err != nil {
		t.Error(err)
	}
	return slices.ContainsFunc(append(l.Holders, l.Waiters...), func(s driver.Standing) bool { return s.Ref == c.ID })
}

// TestCancelKeepsConnection: a caller that gives up while the server is at work returns at once, its connection goes on, and
// the next statement uses it.
func TestCancelKeepsConnection(t *testing.T) {
	t.Parallel()
	s := server(t)
	config, opts := parse(t, freshURL(t, s))
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	opts.Timeout = time.Minute
	st, err := New(t.Context(), pool, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	before := pool.Stat().NewConnsCount()
	blocker, err := pgx.Connect(t.Context(), s.URL("test")+"?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer blocker.Close(context.Background())
	for i := range 10 {
		err := pgx.BeginFunc(t.Context(), blocker, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "lock table "+mustPlace(t, opts).locks+" in access exclusive mode"); err != nil {
				return err
			}
			var all sync.WaitGroup
			for range 3 { // one has the connection, the others wait for it
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
					defer cancel()
					start := time.Now()
					if _, err := st.Inspect(ctx, fmt.Sprint("m", i)); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 10*time.Second {
						t.Errorf("after %v: %v", time.Since(start), err)
					}
				})
			}
			all.Wait()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		acquire(t, st, mutex(fmt.Sprint("m", i), time.Minute))
	}
	if n := pool.Stat().NewConnsCount() - before; n > 0 {
		t.Errorf("%d connections were lost", n)
	}
}

// TestPooler: behind a PgBouncer that gives a connection to each transaction the store keeps its promises, with as few as two
// connections to the server and nothing left behind in them.
func TestPooler(t *testing.T) {
	s := startServer(t)
	b, err := s.Bouncer("transaction", 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Stop)
	url := freshURL(t, b)
	conform(t, (&links{t: t, url: url}).harness(), drivertest.Options{Effort: 0.3})
	st := opened(t, url)
	acquire(t, st, mutex("m", time.Minute))
	if n, err := b.Ask(`select count(*) from pg_prepared_statements`); err != nil || n != "0" {
		t.Errorf("%s statements stay prepared %v", n, err)
	}
	if n, err := s.Ask(`select count(*) from pg_locks where locktype = 'advisory'`); err != nil || n != "0" {
		t.Errorf("%s advisory locks stay behind %v", n, err)
	}
}

// TestFence: the resource takes a token again and a larger one, refuses a smaller one, and what the refused transaction wrote
// is undone; two transactions that come at once are ordered by their tokens.
func TestFence(t *testing.T) {
	t.Parallel()
	s := server(t)
	config, opts := parse(t, freshURL(t, s))
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := Migrate(t.Context(), pool, opts); err != nil {
		t.Fatal(err)
	}
	exec(t, s, `create table stock (item text, by bigint)`)
	write := func(token int64) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `insert into stock values ('shoe', $1)`, token); err != nil {
				return err
			}
			return Fence(t.Context(), tx, opts, "shoe", token)
		})
	}
	for _, token := range []int64{5, 5, 9, 1 << 52} {
		if err := write(token); err != nil {
			t.Errorf("token %d: %v", token, err)
		}
	}
	for _, token := range []int64{1, 9, 1<<52 - 1} {
		is(t, write(token), driver.ErrLost, "shoe")
	}
	is(t, write(0), driver.ErrInvalid)
	if n, err := s.Ask(`select string_agg(by::text, ' ' order by by) from stock`); err != nil || n != "5 5 9 4503599627370496" {
		t.Errorf("written: %s %v", n, err)
	}
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			if err := write(1<<52 + int64(i)); err != nil && !errors.Is(err, driver.ErrLost) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n, err := s.Ask(`select token = (select max(by) from stock) from ` + mustPlace(t, opts).fence); err != nil || n != "t" {
		t.Errorf("the fence's token is that of the last write: %s %v", n, err)
	}
}

func mustPlace(t testing.TB, o *Options) *place {
	p, err := o.place()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

package postgres

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/canceltest"
	"github.com/holdfast-go/holdfast/internal/linktest"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// TestListenerKilled: whoever waits hears of a release also after its listening connection was ended, many times over, and
// does not depend on looking from time to time.
func TestListenerKilled(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	url := freshURL(t, s, "application_name=killed_listener")
	holder, waiter := mustOpen(t, url), mustOpen(t, url)
	var machine pace.Pace
	defer machine.Watch()()
	var worst time.Duration // beyond what the machine was late, at each of the steps
	for i := range 5 {
		g := acquire(t, holder, mutexClaim("m", time.Minute))
		c := mutexClaim("m", time.Minute)
		c.Wait = true
		released := make(chan time.Time, 1)
		go func() {
			defer close(released)
			listening := func() bool { return isListening(t, s, "killed_listener") }
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
		at := <-released
		worst = max(worst, time.Since(at)-10*machine.Worst(at))
		<-released // the release has returned, too
		release(t, waiter, next.Claim)
	}
	t.Logf("let in %v after the release at most", worst)
	if worst > 500*time.Millisecond {
		t.Errorf("let in %v after the release: by looking, and not by being told", worst)
	}
}

// TestWaiterLearnsOfMissedChange: who waits hears of a change that came while the listening connection was down.
func TestWaiterLearnsOfMissedChange(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	config, opts := parseURL(t, freshURL(t, s, "application_name=wait_after_loss"))
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
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
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
		if n, err = s.QueryValue(`select count(*) from pg_stat_activity where ` + listening); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(50 * time.Millisecond) // it has looked
	mu.Lock()
	gate = make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	mu.Unlock()
	defer open()
	execSQL(t, s, `select pg_terminate_backend(pid, 5000) from pg_stat_activity where `+listening)
	time.Sleep(100 * time.Millisecond)
	execSQL(t, s, `update `+table.location.locksTable+` set data = '2'`) // as a writer does that sees nobody waiting
	open()
	if err := <-told; err != nil {
		t.Errorf("not told: %v", err)
	}
}

// TestLostReplies: whether a reply is lost after a take, a renewal or a release, the call finds out what became of it.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	n := 30
	if *prove {
		n = 1000
	}
	s := sharedServer(t)
	for _, layout := range []string{"", "shedlock"} {
		config, opts := parseURL(t, freshURL(t, s, "layout="+layout))
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
			c := mutexClaim("m", time.Minute)
			link.LoseReplies(1)
			g := acquire(t, st, c)
			if g.Token <= last {
				t.Fatalf("token %d after %d", g.Token, last)
			}
			last = g.Token
			link.LoseReplies(1)
			r := renew(t, st, g)
			if lossOf(r.Err) != "" {
				t.Fatalf("a renewal whose reply was lost: %v", r.Err)
			}
			if r.Err != nil {
				r = renew(t, st, g)
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
	s := sharedServer(t)
	for _, layout := range []string{"", "shedlock"} {
		st := mustOpen(t, freshURL(t, s, "layout="+layout))
		canceltest.Run(t, slices.Repeat([]driver.Store{st}, 8), n, 3*time.Millisecond, func(worker int) driver.Claim {
			c := mutexClaim(fmt.Sprint("m", worker%4), time.Minute)
			c.Wait = true
			c.Fair = layout == "" && mathrand.N(2) == 0
			return c
		}, *prove)
	}
}

// TestCancelKeepsConnection: a caller that gives up while the server is at work returns at once, its connection goes on, and
// the next statement uses it.
func TestCancelKeepsConnection(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	config, opts := parseURL(t, freshURL(t, s))
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
			if _, err := tx.Exec(t.Context(), "lock table "+mustLocate(t, opts).locksTable+" in access exclusive mode"); err != nil {
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
		acquire(t, st, mutexClaim(fmt.Sprint("m", i), time.Minute))
	}
	if n := pool.Stat().NewConnsCount() - before; n > 0 {
		t.Errorf("%d connections were lost", n)
	}
}

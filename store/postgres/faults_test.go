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

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/canceltest"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestListenerKilled: a waiter learns of a release even if its listening connection was killed before, several
// times. It does not depend on polling.
func TestListenerKilled(t *testing.T) {
	t.Parallel()
	t.Run("plain", func(t *testing.T) { testListenerKilled(t, false, "killed_listener") })
	t.Run("fair", func(t *testing.T) { testListenerKilled(t, true, "killed_fair_listener") })
}

func testListenerKilled(t *testing.T, fair bool, application string) {
	s := sharedServer(t)
	url := freshURL(t, s, "application_name="+application)
	holder, waiter := mustOpen(t, url), mustOpen(t, url)
	server := watchServer(t, s)
	var worst time.Duration // without the delays of the machine and the server
	for i := range 5 {
		g := acquire(t, holder, mutexClaim("m", time.Minute))
		var next driver.Grant
		var granted time.Time
		returned := startWaiter(t, s, application, func() (err error) {
			c := waitingClaim(mutexClaim("m", time.Minute))
			c.Fair = fair
			next, err = waiter.Acquire(t.Context(), c)
			granted = time.Now()
			return err
		})
		for range min(i, 1) * 2 {
			execSQL(t, s, `select pg_terminate_backend(pid, 5000) from pg_stat_activity where `+listeningSQL(application)+`
				and query not like 'with%' and wait_event = 'ClientRead'`)
			eventually(t, "a new listener", func() bool { return isListening(t, s, application) })
		}
		time.Sleep(50 * time.Millisecond) // the read that follows is done
		released := time.Now()
		release(t, holder, g.Claim)
		if err := <-returned; err != nil {
			t.Fatal(err)
		}
		worst = max(worst, granted.Sub(released)-10*server.Worst(released))
		release(t, waiter, next.Claim)
	}
	t.Logf("let in %v after the release at most", worst)
	if worst > 500*time.Millisecond {
		t.Errorf("let in %v after the release: by looking, and not by being told", worst)
	}
}

// TestWaiterLearnsOfMissedChange: a waiter learns of a change that happened while its listening connection was
// down.
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
	pool := newPool(t, config)
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
	returned := startWaiter(t, s, "wait_after_loss", func() error {
		for ctx.Err() == nil {
			if err := storetest.WaitForChange(ctx, table, row.Name, row.Version); err != nil {
				return err
			}
			if now, err := table.Load(ctx, row.Name); err != nil || now.Version != row.Version {
				return err
			}
		}
		return ctx.Err()
	})
	time.Sleep(50 * time.Millisecond) // it has read the row
	mu.Lock()
	gate = make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	mu.Unlock()
	defer open()
	execSQL(t, s, `select pg_terminate_backend(pid, 5000) from pg_stat_activity where `+listeningSQL("wait_after_loss"))
	time.Sleep(100 * time.Millisecond)
	execSQL(t, s, `update `+table.location.locksTable+` set data = '2'`) // like a writer that sees no waiter
	open()
	if err := <-returned; err != nil {
		t.Errorf("not notified: %v", err)
	}
}

// TestLostReplies: a take, a renewal or a release whose reply is lost finds out what became of it.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	n := 30
	if *prove {
		n = 1000
	}
	s := sharedServer(t)
	for _, layout := range []string{"", "shedlock"} {
		config, opts := parseURL(t, freshURL(t, s, "layout="+layout))
		link, err := servertest.NewLink(s.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(link.Close)
		config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn,
			error) {
			return net.Dial("tcp", link.Addr)
		}
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
		t.Logf("layout %q: %d takes, renewals and releases settled, %d of the renewals by asking again", layout, n,
			renewed)
	}
}

// TestCancel: claims that are canceled at random moments, and released, leave nothing behind a second later.
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
			c := waitingClaim(mutexClaim(fmt.Sprint("m", worker%4), time.Minute))
			c.Fair = layout == "" && mathrand.N(2) == 0
			return c
		}, *prove)
	}
}

// TestCancelKeepsConnection: a caller whose context ends while the server works returns at once. Its connection is
// kept, and the next statement uses it.
func TestCancelKeepsConnection(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	config, opts := parseURL(t, freshURL(t, s))
	config.MaxConns = 1
	opts.Timeout = time.Minute
	st, pool := openOnPool(t, config, opts)
	before := pool.Stat().NewConnsCount()
	for i := range 10 {
		lockTableDuring(t, s, opts, func() {
			var all sync.WaitGroup
			for range 3 { // one has the connection, the others wait for it
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
					defer cancel()
					start := time.Now()
					if _, err := st.Inspect(ctx, fmt.Sprint("m", i)); !errors.Is(err, context.DeadlineExceeded) ||
						time.Since(start) > 10*time.Second {
						t.Errorf("after %v: %v", time.Since(start), err)
					}
				})
			}
			all.Wait()
		})
		acquire(t, st, mutexClaim(fmt.Sprint("m", i), time.Minute))
	}
	if n := pool.Stat().NewConnsCount() - before; n > 0 {
		t.Errorf("%d connections were lost", n)
	}
}

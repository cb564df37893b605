package postgres

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
)

// startSynced starts a server, and a standby that its commits wait for. The link to the server can be reset.
func startSynced(t *testing.T) (primary, standby *pgtest.Server, link *servertest.Link) {
	t.Helper()
	primary = startServer(t, "wal_sender_timeout=0", "fsync=on")
	standby, err := primary.Standby("wal_receiver_timeout=0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Stop)
	link, err = servertest.NewLink(primary.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Close)
	execSQL(t, primary, `alter system set synchronous_standby_names = '*'`)
	execSQL(t, primary, `select pg_reload_conf()`)
	eventually(t, "the synchronous standby", func() bool {
		state, err := primary.QueryValue(`select sync_state from pg_stat_replication`)
		return err == nil && state == "sync"
	})
	return primary, standby, link
}

// stopReceiver stops the process by which a standby receives, so that commits wait for it. The standby receives
// nothing more.
func stopReceiver(t *testing.T, standby *pgtest.Server) (end func()) {
	t.Helper()
	text, err := standby.QueryValue(`select pid from pg_stat_wal_receiver`)
	pid, perr := strconv.Atoi(text)
	if err != nil || perr != nil {
		t.Fatal(err, perr)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	end = func() { _ = syscall.Kill(pid, syscall.SIGKILL) }
	t.Cleanup(end)
	return end
}

// waitingCommits counts the commits that wait for the standby.
func waitingCommits(s *pgtest.Server) int {
	text, err := s.QueryValue(`select count(*) from pg_stat_activity where wait_event = 'SyncRep'`)
	n, perr := strconv.Atoi(text)
	if err != nil || perr != nil {
		return 0
	}
	return n
}

// cancelCommits cancels all commits that wait for the standby, like an operator.
func cancelCommits(s *pgtest.Server) error {
	return s.Exec(`select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'`)
}

// TestGrantWithoutStandby: a grant that the synchronous standby does not have is never reported, whatever ended
// the commit's wait for the standby, because after a failover another client gets the lock. The same is true of a
// renewal. That the row is visible on the primary proves nothing.
func TestGrantWithoutStandby(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*pgtest.Server, *servertest.Link) error{
		"reset": func(_ *pgtest.Server, link *servertest.Link) error { link.Reset(); return nil },
		"crash": func(primary *pgtest.Server, _ *servertest.Link) error {
			primary.Kill()
			return primary.StartAgain()
		},
		"cancel": func(primary *pgtest.Server, _ *servertest.Link) error { return cancelCommits(primary) },
	} {
		t.Run(name, func(t *testing.T) { grantWithoutStandby(t, fault) })
	}
}

func grantWithoutStandby(t *testing.T, fault func(*pgtest.Server, *servertest.Link) error) {
	t.Parallel()
	primary, standby, link := startSynced(t)
	both := "postgres://test@" + link.Addr + "," + standby.Addr + "/postgres?sslmode=disable&create=true&timeout=2s"
	urls := []string{both, both + "&layout=shedlock"}
	type outcome struct {
		grant driver.Grant
		err   error
	}
	var holders, others []driver.Store
	var held []driver.Grant
	for _, url := range urls {
		st := mustOpen(t, url)
		if i := st.Info(); !i.Survives.Failover {
			t.Fatalf("promised: %+v", i)
		}
		holders, others = append(holders, st), append(others, mustOpen(t, url))
		held = append(held, acquire(t, st, mutexClaim("held", time.Minute)))
	}
	end := stopReceiver(t, standby)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var claims, renewals sync.WaitGroup
	first, renewed := make([]outcome, len(urls)), make([]error, len(urls))
	for i, st := range holders {
		claims.Go(func() { first[i].grant, first[i].err = st.Acquire(ctx, mutexClaim("m", time.Minute)) })
	}
	eventually(t, "two commits that wait", func() bool { return waitingCommits(primary) == len(urls) })
	if err := fault(primary, link); err != nil {
		t.Fatal(err)
	}
	for i, st := range holders {
		renewals.Go(func() { renewed[i] = renew(t, st, held[i]).Err })
	}
	go func() {
		renewals.Wait()
		time.AfterFunc(2*time.Second, cancel) // the claims have been tried again by then
	}()
	for ctx.Err() == nil { // also those of repeated requests
		if err := cancelCommits(primary); err != nil {
			t.Error(err)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	claims.Wait()
	primary.Kill()
	end()
	eventually(t, "the standby's promotion", func() bool { return standby.Exec(`select pg_promote()`) == nil })
	for i, st := range others {
		if err := renewed[i]; err == nil || lossOf(err) != "" {
			t.Errorf("%s: a renewal that no standby has: %v", urls[i], err)
		}
		c := waitingClaim(mutexClaim("m", time.Minute))
		second := acquire(t, st, c)
		if g := first[i].grant; first[i].err == nil {
			t.Errorf("%s: two believers for %v: %d and %d",
				urls[i], g.GrantedTTL-driver.Margin(g.GrantedTTL)-driver.SystemClock.Since(g.Since), g.Token, second.Token)
		}
		_, err := st.Acquire(t.Context(), mutexClaim("held", time.Minute))
		checkError(t, err, driver.ErrHeld)
	}
}

// TestCommitKeepsWaiting: when the client's connection breaks, its commit continues to wait for the standby.
func TestCommitKeepsWaiting(t *testing.T) {
	t.Parallel()
	primary, standby, link := startSynced(t)
	st := mustOpen(t, strings.Replace(primary.URL("test"), primary.Addr, link.Addr,
		1)+"?sslmode=disable&create=true&timeout=2s")
	stopReceiver(t, standby)
	came := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { <-came }()
	defer cancel()
	go func() {
		defer close(came)
		_, _ = st.Acquire(ctx, mutexClaim("m", time.Minute))
	}()
	var pid string
	waits := `select coalesce(max(pid), 0) from pg_stat_activity where wait_event = 'SyncRep'`
	eventually(t, "a commit that waits", func() bool {
		var err error
		pid, err = primary.QueryValue(waits)
		return err == nil && pid != "0"
	})
	link.Reset()
	eventually(t, "another try, which waits for the first", func() bool {
		n, err := primary.QueryValue(`select count(*) from pg_stat_activity where application_name = 'holdfast' and wait_event_type = 'Lock'`)
		return err == nil && n != "0"
	})
	if n, err := primary.QueryValue(`select count(*) from pg_stat_activity where wait_event = 'SyncRep' and pid = ` +
		pid); err != nil || n != "1" {
		t.Errorf("the commit does not wait any more: %s %v", n, err)
	}
}

// TestStaleStandby: if several servers are named, the data of a standby are not used: they may be old. A holder
// that the standby does not know renews and releases on the primary.
func TestStaleStandby(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{"", "shedlock"} {
		t.Run("layout "+layout, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			st := mustOpen(t, s.URL("test")+"?sslmode=disable&create=true&layout="+layout)
			early := acquire(t, st, mutexClaim("early", time.Minute))
			standby, err := s.Standby("recovery_min_apply_delay=1h") // so that it is old for the whole test
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(standby.Stop)
			config, opts := parseURL(t, "postgres://test@"+standby.Addr+","+s.Addr+
				"/postgres?sslmode=disable&target_session_attrs=any&layout="+layout)
			var dials atomic.Int32
			config.ConnConfig.DialFunc = func(_ context.Context, network, _ string) (net.Conn, error) {
				if dials.Add(1)%2 == 1 { // one after the other, like a name that resolves to both
					return net.Dial(network, standby.Addr)
				}
				return net.Dial(network, s.Addr)
			}
			pool := newPool(t, config)
			either, err := New(t.Context(), pool, opts)
			for err != nil && !driverutil.IsFinal(err) { // it may have reached the standby
				either, err = New(t.Context(), pool, opts)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer either.Close()
			held := acquire(t, st, mutexClaim("held", time.Minute))
			for range 4 {
				pool.Reset()
				if l, err := either.Inspect(t.Context(), "held"); err == nil && len(l.Holders) != 1 {
					t.Errorf("an old look at a lock that is held: %+v", l)
				}
				if err := renewUntilKnown(t, either, held); err != nil {
					t.Errorf("a renewal: %v", err)
				}
				for l, err := range either.List(t.Context(), "") {
					if err == nil && l.Name == "early" && len(l.Holders) == 0 {
						t.Errorf("an old list: %+v", l)
					}
				}
			}
			for _, g := range []driver.Grant{held, early} {
				pool.Reset()
				if err := either.Release(t.Context(), g.Claim, ""); err != nil {
					t.Errorf("a release: %v", err)
				}
				if l, err := st.Inspect(t.Context(), g.Name); err != nil || len(l.Holders) > 0 {
					t.Errorf("after the release: %+v %v", l, err)
				}
			}
		})
	}
}

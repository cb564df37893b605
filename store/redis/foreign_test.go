package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// TestFairClaimBehindForeignHolder: the first in line behind a foreign holder, which tells nothing when it leaves,
// looks as often as a claim outside of the line does; those behind it do not.
func TestFairClaimBehindForeignHolder(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr)
	sendCommand(t, server, "SET", "m", "somebody")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	granted := make(chan error, 3)
	for range 3 {
		go func() {
			g, err := s.Acquire(ctx, fairClaim(longTTL))
			if err == nil {
				err = s.Release(ctx, g.Claim, "")
			}
			granted <- err
		}()
	}
	if err := redistest.Until(t.Context(), func() bool { return queueLength(t, server) == 3 }); err != nil {
		t.Fatal(err)
	}
	sendCommand(t, server, "CONFIG", "RESETSTAT")
	start := time.Now()
	if err := redistest.Until(t.Context(),
		func() bool { _, looks, _ := commandCalls(t, server); return looks >= 40 }); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < time.Second { // 75 ms apart at a mean
		t.Errorf("waiting clients read the lock 40 times in %v", took)
	}
	expectInTime(t, "40 looks", start, 5*time.Second)
	sendCommand(t, server, "DEL", "m")
	for range 3 {
		if err := <-granted; err != nil {
			t.Error(err)
		}
	}
}

// TestEmptyForeignValue: a foreign client's key with an empty value is a lock that is held, also for the claim whose turn
// it is, which keeps its place, and the request to release that was made of it.
func TestEmptyForeignValue(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	for _, fair := range []bool{false, true} {
		name := fmt.Sprint("m", fair)
		claim := func() driver.Claim {
			c := waiting(mutex(name, longTTL))
			c.Fair = fair
			return c
		}
		last := acquire(t, s, claim())
		first, second := claim(), claim()
		enterQueue(t, s, first)
		enterQueue(t, s, second)
		if err := s.Break(t.Context(), name, first.ID, driver.Break{Mode: driver.BreakRequestRelease}); err != nil {
			t.Fatal(err)
		}
		sendCommand(t, server, "SET", name, "")
		for i, c := range []driver.Claim{first, second, first} {
			_, r := enterQueue(t, s, c)
			if r == nil || r.code != replyWaiting || r.place != int64(1+i%2) || !heldByForeign(r) {
				t.Errorf("fair %v: look %d: %+v", fair, i, r)
			}
		}
		var held *driver.HeldError
		newcomer := claim()
		newcomer.Wait = false
		if _, err := s.Acquire(t.Context(), newcomer); !errors.As(err, &held) || held.Waiting != 2 {
			t.Errorf("fair %v: a newcomer: %v", fair, err)
		}
		if value := sendCommand(t, server, "GET", name); value != "" {
			t.Errorf("fair %v: the lock is %q", fair, value)
		}
		sendCommand(t, server, "DEL", name)
		g, r := enterQueue(t, s, first)
		if r != nil || g.Token <= last.Token {
			t.Fatalf("fair %v: %+v, token %d after %d", fair, r, g.Token, last.Token)
		}
		if r := renew(t, s, g); r.Err != nil || !r.ReleaseRequested {
			t.Errorf("fair %v: %+v", fair, r)
		}
		release(t, s, first)
		release(t, s, second)
	}
}

// TestWaiterOnFullServer: a server that is out of memory does not refuse a hand-over to a plain claim.
func TestWaiterOnFullServer(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	holder, next := acquire(t, s, mutex("m", longTTL)), waiting(mutex("m", longTTL))
	enterQueue(t, s, next)
	sendCommand(t, server, "CONFIG", "SET", "maxmemory", "1")
	release(t, s, holder.Claim)
	if g, r := enterQueue(t, s, next); r != nil || g.Token <= holder.Token {
		t.Errorf("%+v, token %d after %d", r, g.Token, holder.Token)
	}
	sendCommand(t, server, "CONFIG", "SET", "maxmemory", "0")
}

// TestListForeignLocks: a lock that only a foreign client holds is listed where a prefix or a template tells its key
// from others.
func TestListForeignLocks(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for options, keys := range map[string][2]string{"?": {"", ""}, "?prefix=app[1]:": {"app[1]:", ""},
		"?template=app:*:lock": {"app:", ":lock"}} {
		sendCommand(t, server, "FLUSHALL")
		s := openForTest(t, "redis://"+server.Addr+options)
		key := func(name string) string { return keys[0] + name + keys[1] }
		acquire(t, s, mutex("job-ours", longTTL))
		fair := mutex("job-fair", longTTL)
		fair.Fair = true
		acquire(t, s, fair)
		sendCommand(t, server, "SET", key("job-theirs"), "somebody")
		sendCommand(t, server, "HSET", key("job-hash"), "somebody:1", "1")
		sendCommand(t, server, "SET", key("other"), "somebody")
		sendCommand(t, server, "SET", "elsewhere", "a value")
		var names []string
		for l, err := range s.List(t.Context(), "job-") {
			if err != nil {
				t.Fatal(err)
			}
			if foreign := l.Name == "job-theirs" || l.Name == "job-hash"; len(l.Holders) != 1 ||
				l.Holders[0].Foreign != foreign {
				t.Errorf("%s: %+v", options, l)
			}
			names = append(names, l.Name)
		}
		slices.Sort(names)
		want := []string{"job-fair", "job-hash", "job-ours", "job-theirs"}
		if options == "?" { // any key may be a lock's
			want = []string{"job-fair", "job-ours"}
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s: listed are %q, want %q", options, names, want)
		}
	}
}

// TestOpenWhileServerStarts: a store is opened though its server is just being started: nobody listens yet, or the
// first links are reset. Where that lasts it is told.
func TestOpenWhileServerStarts(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	via, err := servertest.NewLink(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(via.Close)
	g := mustStart(t)(redistest.Independent(3))
	a := g.Addrs()
	var resets atomic.Int64
	via.SetFaults(func() (time.Duration, bool) { return 0, resets.Add(-1) >= 0 })
	for _, raw := range []string{"redis://" + via.Addr, "redis+cluster://" + via.Addr} {
		resets.Store(3)
		s, err := openStore(t.Context(), raw)
		if err != nil {
			t.Errorf("%s: opening it while links are reset: %v", raw, err)
			continue
		}
		s.Close()
	}
	var refuse atomic.Int64
	dial := func(o *rueidis.ClientOption) {
		o.DialFn = func(addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			if refuse.Add(-1) >= 0 {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
			}
			return net.Dial("tcp", addr)
		}
	}
	for _, raw := range []string{"redis://" + server.Addr, "redlock://" + a[0] + "?addrs=" + a[1] + "," + a[2]} {
		_, p, err := parseRawURL(raw)
		if err != nil {
			t.Fatal(err)
		}
		dial(&p.client)
		refuse.Store(4)
		var s driver.Store
		if strings.HasPrefix(raw, "redlock") {
			s, err = openRedlock(t.Context(), p)
		} else {
			s, err = openClient(t.Context(), p.client, &p.opts)
		}
		if err != nil || refuse.Load() > 0 {
			t.Errorf("%s: opening it while nobody listens yet: %v", raw, err)
			continue
		}
		acquire(t, s, waiting(mutex(fmt.Sprint("m", raw), longTTL)))
		s.Close()
	}
	port, err := servertest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, err := openStore(t.Context(), "redis://127.0.0.1:"+port); !errors.Is(err, syscall.ECONNREFUSED) ||
		driverutil.IsFinal(err) {
		t.Errorf("where nobody listens: %v", err)
	}
	expectInTime(t, "to say that nobody listens", start, 2*refusedTimeout)
}

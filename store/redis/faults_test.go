package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// Short names for helpers that the tests use often.
var (
	mutex   = storetest.Mutex
	waiting = storetest.Waiting
	acquire = storetest.Acquire
	renew   = storetest.Renew
	release = storetest.Release
	loss    = storetest.LossOf
	conform = storetest.Conform
)

func sendCommand(t *testing.T, s *redistest.Server, words ...string) string {
	t.Helper()
	a, err := s.Do(words...)
	if err != nil {
		t.Fatalf("%v: %v", words, err)
	}
	return a
}

// TestFlushedServer: SCRIPT FLUSH has no visible effect, not even on a batch of renewals. After FLUSHALL the holder
// learns that its claim is gone, and the next token is larger.
func TestFlushedServer(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr)
	var gs []driver.Grant
	for i := range 100 {
		gs = append(gs, acquire(t, s, mutex(fmt.Sprint("lock", i), 30*time.Second)))
	}
	sem := mutex("semaphore", 30*time.Second)
	sem.Kind, sem.Limit, sem.Weight = driver.KindSemaphore, 5, 2
	gs = append(gs, acquire(t, s, sem))
	sendCommand(t, server, "SCRIPT", "FLUSH")
	s.Renew(t.Context(), gs, func(i int, r driver.Renewal) {
		if r.Err != nil {
			t.Errorf("grant %d after SCRIPT FLUSH: %v", i, r.Err)
		}
	})
	sendCommand(t, server, "SCRIPT", "FLUSH")
	acquire(t, s, mutex("another", 30*time.Second))
	sendCommand(t, server, "FLUSHALL")
	for _, g := range []driver.Grant{gs[0], gs[100]} {
		if l := loss(renew(t, s, g).Err); l != driver.LossGone {
			t.Errorf("after FLUSHALL the holder learns %q", l)
		}
		c := g.Claim
		c.ID = strings.ToLower(rand.Text())
		if next := acquire(t, s, c); next.Token <= g.Token {
			t.Errorf("token %d after %d", next.Token, g.Token)
		}
		if err := s.Release(t.Context(), g.Claim, g.Ref); !errors.Is(err, driver.ErrLost) {
			t.Errorf("the release of a flushed claim: %v", err)
		}
	}
}

// TestForeignHolders: any value under a lock's key counts as held, and only a forced break removes it. A forced break
// keeps what no lock client makes.
func TestForeignHolders(t *testing.T) {
	t.Parallel()
	for _, layout := range []Layout{LayoutPlain, LayoutRedisson} {
		t.Run(string(layout), func(t *testing.T) { testForeignHolders(t, layout) })
	}
}

func testForeignHolders(t *testing.T, layout Layout) {
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr+"?layout="+string(layout))
	for kind, words := range map[string][]string{
		"string": {"SET", "k", "somebody"}, "empty": {"SET", "k", ""}, "number": {"SET", "k", "1"}, "hash": {"HSET",
			"k", "a", "1"},
		"list": {"LPUSH", "k", "a"}, "set": {"SADD", "k", "a"}, "zset": {"ZADD", "k", "1", "a"}, "stream": {"XADD", "k",
			"*", "a", "1"},
	} {
		words[1] = kind
		sendCommand(t, server, words...)
		before := sendCommand(t, server, "DUMP", kind)
		sem := mutex(kind, longTTL)
		sem.Kind, sem.Limit = driver.KindSemaphore, 5
		fair := mutex(kind, longTTL)
		fair.Fair = true
		claims := []driver.Claim{mutex(kind, longTTL), fair, sem}
		if layout == LayoutRedisson {
			claims = claims[:1]
		}
		for _, c := range claims {
			if _, err := s.Acquire(t.Context(), c); !errors.Is(err, driver.ErrHeld) {
				t.Errorf("%s: %v", kind, err)
			}
			if err := s.Release(t.Context(), c, ""); !errors.Is(err, driver.ErrLost) {
				t.Errorf("%s: release: %v", kind, err)
			}
		}
		if sendCommand(t, server, "DUMP", kind) != before {
			t.Errorf("%s: it was changed", kind)
		}
		l, err := s.Inspect(t.Context(), kind)
		if err != nil || len(l.Holders) != 1 || !l.Holders[0].Foreign {
			t.Fatalf("%s: %+v %v", kind, l, err)
		}
		ref := l.Holders[0].Ref
		if err := s.Break(t.Context(), kind, ref, driver.Break{Mode: driver.BreakGraceful}); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("%s: a graceful break: %v", kind, err)
		}
		if err := s.Break(t.Context(), kind, "f.0000", driver.Break{Mode: driver.BreakForce}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: breaking another: %v", kind, err)
		}
		err = s.Break(t.Context(), kind, ref, driver.Break{Mode: driver.BreakForce})
		if slices.Contains([]string{"list", "set", "zset", "stream"}, kind) {
			if !errors.Is(err, driver.ErrUnsupported) || sendCommand(t, server, "DUMP", kind) != before {
				t.Errorf("%s: breaking it: %v", kind, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: breaking it: %v", kind, err)
		}
		acquire(t, s, mutex(kind, longTTL))
	}
	// When a foreign client releases the lock, a waiting claim is granted, in the queue and outside of it.
	for _, fair := range []bool{false, true} {
		if fair && layout == LayoutRedisson {
			continue
		}
		sendCommand(t, server, "SET", "leaves", "somebody")
		pace := watchServer(t, server)
		left := make(chan time.Time, 1)
		go func() {
			_ = redistest.Until(t.Context(), func() bool { // until the claim waits
				l, err := s.Inspect(t.Context(), "leaves")
				stats, serr := server.Do("INFO", "stats")
				return err == nil && len(l.Waiters) > 0 || !fair && serr == nil &&
					!strings.Contains(stats, "pubsub_channels:0")
			})
			_, _ = server.Do("DEL", "leaves")
			left <- time.Now()
		}()
		c := waiting(mutex("leaves", 10*time.Minute))
		c.Fair = fair
		g := acquire(t, s, c)
		expectInTimeOf(t, pace, fmt.Sprintf("fair %v: to be granted", fair), <-left, 2*time.Second)
		if err := s.Release(t.Context(), g.Claim, ""); err != nil {
			t.Error(err)
		}
	}
}

// TestErrorsOfRefusals: the error for a request that the server refuses says what to do, is ErrDenied if waiting does
// not help, and contains no password.
func TestErrorsOfRefusals(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for _, rules := range []string{"boss on >hunter2 ~* &* +@all", "noscript on >hunter2 ~* &* +@all -evalsha",
		"nokeys on >hunter2 ~other* &* +@all",
		"nochannel on >hunter2 ~* resetchannels +@all", "notime on >hunter2 ~* &* +@all -time",
		"redissonkeys on >hunter2 ~lock* ~holdfast* resetchannels &* +@all", "redissonchannel on >hunter2 ~* resetchannels &holdfast* +@all", "default off"} {
		sendCommand(t, server, append([]string{"ACL", "SETUSER"}, strings.Fields(rules)...)...)
	}
	url := func(user, password string) string { return "redis://" + user + ":" + password + "@" + server.Addr }
	for user, says := range map[string]string{"boss": "", "noscript": "+evalsha", "nokeys": "~holdfast*",
		"nochannel": "&holdfast*", "notime": "+time",
		"redissonkeys": "~redisson_lock_token*", "redissonchannel": "&redisson_lock__channel*"} {
		raw := url(user, "hunter2")
		if strings.HasPrefix(user, "redisson") {
			raw += "?layout=redisson"
		}
		s, err := openStore(t.Context(), raw)
		if err != nil {
			t.Fatal(err)
		}
		c := mutex("lock-"+user, longTTL)
		_, err = s.Acquire(t.Context(), c)
		if err == nil {
			if user == "nochannel" { // only a hand-over sends a notice
				enterQueue(t, openForTest(t, url("boss", "hunter2")).(*store), waiting(mutex(c.Name, longTTL)))
			}
			err = s.Release(t.Context(), c, "")
		}
		switch {
		case says == "" && err != nil:
			t.Errorf("%s: %v", user, err)
		case says != "" && (!errors.Is(err, driver.ErrDenied) || !strings.Contains(err.Error(), says)):
			t.Errorf("%s: %v, want ErrDenied that says %s", user, err, says)
		}
		if strings.Contains(s.Info().Store+fmt.Sprint(err), "hunter2") {
			t.Errorf("%s: the error contains a secret", user)
		}
		s.Close()
	}
	for _, raw := range []string{url("boss", "hunter3"), url("nobody", "hunter2"), "redis://" + server.Addr} {
		s, err := openStore(t.Context(), raw)
		if err == nil { // a client without credentials may connect, and is refused later
			_, err = s.Acquire(t.Context(), mutex("x", longTTL))
			s.Close()
		}
		if !errors.Is(err, driver.ErrDenied) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("wrong credentials: %v", err)
		}
	}
}

// TestDeniedHalfway: a claim whose script is denied a command in the middle leaves nothing that excludes other claims.
func TestDeniedHalfway(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for layout, without := range map[Layout]string{LayoutPlain: "-time", LayoutRedisson: "-pexpire"} {
		sendCommand(t, server, "ACL", "SETUSER", "worker", "reset", "on", ">hunter2", "~*", "&*", "+@all", without)
		raw := "@" + server.Addr + "?layout=" + string(layout)
		name := "lock-" + string(layout)
		_, err := openForTest(t, "redis://worker:hunter2"+raw).Acquire(t.Context(), mutex(name, 30*time.Second))
		expectError(t, without, err, driver.ErrDenied, "permission")
		if _, err := openForTest(t, "redis://"+raw).Acquire(t.Context(), mutex(name, longTTL)); err != nil {
			t.Errorf("after a claim without the permission for %s: %v", without[1:], err)
		}
	}
}

// TestServerStates: the error says if a server is a replica, full, or busy. Locks that are held are still renewed and
// released if the server allows that.
func TestServerStates(t *testing.T) {
	t.Parallel()
	primary := startServer(t)
	replica := startServer(t, "--replicaof", "127.0.0.1 "+primary.Port)
	waitUntilFollowing(t, replica)
	if _, err := openForTest(t, "redis://"+replica.Addr).Acquire(t.Context(), mutex("r", longTTL)); !errors.Is(err,
		driver.ErrDenied) || !strings.Contains(err.Error(), "replica") {
		t.Errorf("a replica: %v", err)
	}

	s := openForTest(t, "redis://"+primary.Addr)
	g := acquire(t, s, mutex("full", longTTL))
	sendCommand(t, primary, "CONFIG", "SET", "maxmemory", "1")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := s.Acquire(ctx, mutex("more", 5*time.Second)); err == nil ||
		!strings.Contains(err.Error(), "maxmemory") || errors.Is(err, driver.ErrDenied) {
		t.Errorf("a full server: %v", err)
	}
	if r := renew(t, s, g); r.Err != nil {
		t.Errorf("renewing on a full server: %v", r.Err)
	}
	if err := s.Release(t.Context(), g.Claim, ""); err != nil {
		t.Errorf("releasing on a full server: %v", err)
	}
	sendCommand(t, primary, "CONFIG", "SET", "maxmemory", "0")

	sendCommand(t, primary, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	sendCommand(t, primary, "CONFIG", "SET", "maxmemory", "100mb")
	if found := examine(t, s); !slices.Contains(found, "redis-eviction") || !slices.Contains(found, "redis-appendonly") {
		t.Errorf("found: %q", found)
	}
	sendCommand(t, primary, "CONFIG", "SET", "min-replicas-to-write", "5")
	if _, err := s.Acquire(t.Context(), mutex("lonely", 5*time.Second)); err == nil ||
		!strings.Contains(err.Error(), "min-replicas") {
		t.Errorf("too few replicas: %v", err)
	}
	sendCommand(t, primary, "CONFIG", "SET", "min-replicas-to-write", "0")

	// A script of another client keeps the server busy, and ends later.
	sendCommand(t, primary, "CONFIG", "SET", "busy-reply-threshold", "50")
	go func() { _, _ = primary.Do("EVAL", "while true do end", "0") }()
	keepBusy(t, primary)
	time.AfterFunc(500*time.Millisecond, func() { _, _ = primary.Do("SCRIPT", "KILL") })
	acquire(t, s, mutex("busy", longTTL))
}

// keepBusy runs a script that keeps a server busy, and returns once it does.
func keepBusy(t *testing.T, server *redistest.Server) {
	t.Helper()
	if err := redistest.Until(t.Context(), func() bool {
		_, err := server.Do("PING")
		return err != nil && strings.Contains(err.Error(), "BUSY")
	}); err != nil {
		t.Fatal("the server is not busy: ", err)
	}
}

// TestDamagedRecord: a record of another type is ErrCorrupt, and is not changed. If a record is evicted, its holder
// loses the lock, and the token rises.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr)
	sendCommand(t, server, "SET", "holdfast:{damaged}", "x")
	if _, err := s.Acquire(t.Context(), mutex("damaged", longTTL)); !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("a record that is no hash: %v", err)
	}
	if sendCommand(t, server, "GET", "holdfast:{damaged}") != "x" {
		t.Error("it was changed")
	}
	sendCommand(t, server, "HSET", "holdfast:{rubbish}", "token", "rubbish")
	sem := mutex("garbage", 20*time.Second)
	sem.Kind, sem.Limit = driver.KindSemaphore, 5
	semaphore := acquire(t, s, sem)
	sendCommand(t, server, "HSET", "holdfast.c:{garbage}", sem.ID, "{garbage")
	start := time.Now()
	_, err := s.Acquire(t.Context(), mutex("rubbish", 20*time.Second))
	expectError(t, "a token that is no number", err, driver.ErrCorrupt)
	expectError(t, "a renewal of a claim that cannot be read", renew(t, s, semaphore).Err, driver.ErrCorrupt)
	expectError(t, "its release", s.Release(t.Context(), sem, ""), driver.ErrCorrupt)
	if took := time.Since(start); took > driver.UnreachableTimeout(sem.TTL) {
		t.Errorf("the error came after %v, as if the condition could pass", took)
	}
	g := acquire(t, s, mutex("evicted", 5*time.Second))
	sendCommand(t, server, "DEL", "holdfast:{evicted}")
	if l := loss(renew(t, s, g).Err); l != driver.LossGone {
		t.Errorf("a holder whose record is gone learns %q", l)
	}
	if next := acquire(t, s, waiting(mutex("evicted", longTTL))); next.Token <= g.Token {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
	for _, name := range []string{"holdfast:{x}", "holdfast.l:{x}", "holdfast::{x}y", "holdfast:/{1}x"} {
		if _, err := s.Acquire(t.Context(), mutex(name, longTTL)); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLostReplies: a script whose reply is lost is repeated, and takes effect once.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for _, fair := range []bool{false, true} {
		via := &servertest.Net{}
		t.Cleanup(via.Close)
		st, err := openThroughLink(t, "redis://"+server.Addr, via)
		if err != nil {
			t.Fatal(err)
		}
		acquire(t, st, mutex(fmt.Sprint("warm", fair), longTTL))
		lose := func() { via.Each(func(k *servertest.Link) { k.LoseReplies(1) }) }
		for i := range 5 {
			c := mutex(fmt.Sprint("lost", fair, i), longTTL)
			c.Fair = fair
			lose()
			g := acquire(t, st, c)
			lose()
			if r := renew(t, st, g); loss(r.Err) != "" {
				t.Errorf("a renewal whose reply was lost: %v", r.Err)
			}
			if r := renew(t, st, g); r.Err != nil {
				t.Errorf("the renewal after: %v", r.Err)
			}
			lose()
			if err := st.Release(t.Context(), c, ""); err != nil {
				t.Errorf("a release whose reply was lost: %v", err)
			}
			if err := st.Release(t.Context(), c, ""); !errors.Is(err, driver.ErrLost) {
				t.Errorf("the release after: %v", err)
			}
		}
	}
}

func openThroughLink(t *testing.T, raw string, via *servertest.Net) (driver.Store, error) {
	dial := func(o *rueidis.ClientOption) {
		dialVia(via)(o)
		o.Dialer.Timeout, o.ConnWriteTimeout = linkTimeout, linkTimeout
	}
	s, err := openViaURL(raw)(t.Context(), dial, &Options{})
	if err == nil {
		t.Cleanup(func() { s.Close() })
	}
	return s, err
}

// TestStoppedServer: if a server is stopped for less than a TTL, nobody loses a lock, and calls end with their
// contexts.
func TestStoppedServer(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr)
	g := acquire(t, s, mutex("m", time.Minute))
	server.Signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // its request was sent by then
	start := time.Now()
	_, err := s.Acquire(ctx, mutex("other", time.Minute))
	cancel()
	if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, driver.ErrUncertain) ||
		took > linkTimeout*2/3 {
		t.Errorf("after %v: %v", took, err)
	}
	time.AfterFunc(500*time.Millisecond, func() { server.Signal(syscall.SIGCONT) })
	for until := time.Now().Add(20 * time.Second); ; {
		r := renew(t, s, g)
		if r.Err == nil {
			break
		}
		if loss(r.Err) != "" || time.Now().After(until) {
			t.Fatalf("the renewal: %v", r.Err)
		}
	}
}

// TestFailover: when the primary is killed, the store uses the new one. Locks that the new one does not have are
// reported as lost, and tokens rise.
func TestFailover(t *testing.T) {
	t.Parallel()
	g := mustStart(t)(redistest.Replicated(t.Context()))
	a := g.SentinelAddrs()
	s := openForTest(t, "redis+sentinel://"+a[0]+"/"+redistest.MasterName+"?addrs="+a[1]+","+a[2]+"&replicas=1",
		withReplicaTimeout(10*time.Second))
	kept := acquire(t, s, mutex("kept", 30*time.Second))
	released := acquire(t, s, mutex("released", 30*time.Second))
	release(t, s, released.Claim)
	for _, r := range g.Servers[1:] { // the replicas are cut off before the last grant
		sendCommand(t, r, "REPLICAOF", "127.0.0.1", "1")
	}
	for _, r := range g.Servers[1:] {
		sendCommand(t, r, "REPLICAOF", "127.0.0.1", g.Servers[0].Port)
	}
	if err := g.DetectFailuresFast(); err != nil {
		t.Fatal(err)
	}
	g.Servers[0].Kill()
	start := time.Now()
	var next driver.Grant
	err := redistest.Until(t.Context(), func() bool {
		var err error
		next, err = s.Acquire(t.Context(), mutex("released", 30*time.Second))
		return err == nil
	})
	if err != nil {
		t.Fatal("no failover: ", err)
	}
	if next.Token <= released.Token {
		t.Errorf("token %d after %d", next.Token, released.Token)
	}
	r := renew(t, s, kept)
	t.Logf("served again %v after the kill; the renewal of a grant that one replica had: %v",
		time.Since(start).Round(time.Millisecond), r.Err)
	if r.Err != nil && loss(r.Err) == "" {
		t.Errorf("the renewal is neither valid nor lost: %v", r.Err)
	}
}

// TestClusterNodeHangs: while one node of a Cluster hangs, leases on the other nodes are renewed.
func TestClusterNodeHangs(t *testing.T) {
	t.Parallel()
	g := mustStart(t)(redistest.Cluster(t.Context()))
	s := openForTest(t, "redis+cluster://"+g.Servers[0].Addr+"?timeout=30s")
	var gs []driver.Grant
	hung := map[int]bool{}
	for i := range 20 {
		c := mutex(fmt.Sprint("m", i), time.Minute)
		if i%2 == 1 {
			c.Kind, c.Limit = driver.KindSemaphore, 3
		}
		gs = append(gs, acquire(t, s, c))
		if _, err := g.Servers[2].Do("EXISTS", c.Name); err == nil {
			hung[i] = true
		}
	}
	if len(hung) == 0 || len(hung) == len(gs) {
		t.Fatalf("%d of %d locks are on the last node", len(hung), len(gs))
	}
	g.Servers[2].Signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s.Renew(ctx, gs, func(i int, r driver.Renewal) {
		if hung[i] != (r.Err != nil) || loss(r.Err) != "" {
			t.Errorf("%s, on the node that hangs: %v: %v", gs[i].Name, hung[i], r.Err)
		}
	})
}

// TestNoOverlapWhileLinkIsCut: while the link silently drops everything, the holder stops trusting its lease before the
// server grants the lock again.
func TestNoOverlapWhileLinkIsCut(t *testing.T) {
	t.Parallel()
	rounds := 8
	if *prove {
		rounds = 200
	}
	server := startServer(t)
	other := openForTest(t, "redis://"+server.Addr)
	var mu sync.Mutex
	var worst time.Duration
	var wg sync.WaitGroup
	for i := range rounds {
		wg.Go(func() {
			via := &servertest.Net{}
			defer via.Close()
			s, err := openViaURL("redis://"+server.Addr)(t.Context(), dialVia(via), &Options{})
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			g, err := s.Acquire(t.Context(), mutex(fmt.Sprint("m", i), 3*time.Second))
			if err != nil {
				t.Error(err)
				return
			}
			until := g.Since.Add(g.GrantedTTL - driver.Margin(g.GrantedTTL))
			if i%2 == 1 { // every second holder renews once before the cut
				s.Renew(t.Context(), []driver.Grant{g},
					func(_ int, r driver.Renewal) { until = r.Since.Add(r.GrantedTTL - driver.Margin(r.GrantedTTL)) })
			}
			if i%4 < 2 {
				via.Cut()
			} else {
				via.Each((*servertest.Link).CutReplies)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			s.Renew(ctx, []driver.Grant{g}, func(_ int, r driver.Renewal) {
				if r.Err == nil {
					t.Error("renewed through a cut link")
				} else if loss(r.Err) != "" {
					t.Error("reported as lost without a reply: ", r.Err)
				}
			})
			cancel()
			next, err := other.Acquire(t.Context(), waiting(mutex(g.Name, longTTL)))
			if err != nil {
				t.Error(err)
				return
			}
			granted := other.Info().Clock.Now()
			overlap := until.Monotonic - granted.Monotonic
			mu.Lock()
			worst = max(worst, overlap)
			mu.Unlock()
			if overlap > 0 || next.Token <= g.Token {
				t.Errorf("overlap %v, token %d after %d", overlap, next.Token, g.Token)
			}
		})
		if i%16 == 15 {
			wg.Wait()
		}
	}
	wg.Wait()
	t.Logf("two holders in %d cuts: for %v at most", rounds, max(worst, 0))
}

// TestRedlockFaults: a Redlock works while a minority of its servers is away, even when it is opened, and says so when
// a majority is.
func TestRedlockFaults(t *testing.T) {
	t.Parallel()
	g := mustStart(t)(redistest.Independent(5))
	a := g.Addrs()
	raw := "redlock://" + a[0] + "?addrs=" + strings.Join(a[1:], ",")
	g.Servers[4].Kill()
	s := openForTest(t, raw)
	one := acquire(t, s, waiting(mutex("m", 20*time.Second)))
	// A server that replies too late does not count, also later: its claim has another token. With one such server,
	// and two away, there is no majority.
	lacksClaim := func(r *redistest.Server) bool {
		return sendCommand(t, r, "HGET", "holdfast:{m}", "token") != strconv.FormatInt(one.Token, 10)
	}
	for slices.ContainsFunc(g.Servers[:4], lacksClaim) {
		if err := s.Release(t.Context(), one.Claim, ""); err != nil {
			t.Fatal(err)
		}
		one = acquire(t, s, waiting(mutex("m", 20*time.Second)))
	}
	g.Servers[0].Signal(syscall.SIGSTOP)
	if r := renewUntilSure(t, s, one); r.Err != nil {
		t.Errorf("a renewal with 2 of 5 away: %v", r.Err)
	}
	if err := s.Release(t.Context(), one.Claim, ""); err != nil {
		t.Error(err)
	}
	two := acquire(t, s, waiting(mutex("m", 20*time.Second))) // a server is started before its release
	g.Servers[0].Signal(syscall.SIGCONT)
	if err := g.Servers[4].Restart(); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context(), two.Claim, ""); err != nil {
		t.Error(err)
	}
	g.Servers[1].Kill() // so that the next majority is another one
	g.Servers[2].Kill()
	three := acquire(t, s, waiting(mutex("m", 10*time.Second)))
	if !(one.Token < two.Token && two.Token < three.Token) {
		t.Errorf("tokens %d, %d, %d", one.Token, two.Token, three.Token)
	}
	g.Servers[3].Kill()
	if r := renew(t, s, three); r.Err == nil || loss(r.Err) != "" {
		t.Errorf("a renewal without a majority: %v", r.Err)
	}
	if _, err := s.Acquire(t.Context(), mutex("n", time.Second)); err == nil ||
		!strings.Contains(err.Error(), "servers") {
		t.Errorf("a claim without a majority: %v", err)
	}
}

// renewUntilSure renews a grant until the outcome is known. A server of a Redlock has little time to reply, so that a
// slow machine may leave it unknown.
func renewUntilSure(t *testing.T, s driver.Store, g driver.Grant) (r driver.Renewal) {
	t.Helper()
	for until := time.Now().Add(g.GrantedTTL / 2); ; {
		if r = renew(t, s, g); !errors.Is(r.Err, driver.ErrUncertain) || time.Now().After(until) {
			return r
		}
	}
}

// TestLateRequestOfRefusedClaim: a request of a claim that was refused does not make the claim when it arrives late.
func TestLateRequestOfRefusedClaim(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	via, err := servertest.NewLink(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(via.Close)
	other, s := openForTest(t, "redis://"+server.Addr), openForTest(t, "redis://"+via.Addr)
	for kind, step := range map[driver.Kind]*script{driver.KindMutex: plainScripts.acquire,
		driver.KindSemaphore: plainScripts.acquireQueued} {
		held, refused := mutex("m", 30*time.Second), mutex("m", 30*time.Second)
		held.Kind, refused.Kind = kind, kind
		acquire(t, other, held)
		kept := via.DelayNext(step.sha())
		if _, err := s.Acquire(t.Context(), refused); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%s: behind a holder: %v", kind, err)
		}
		if err := other.Release(t.Context(), held, ""); err != nil {
			t.Error(err)
		}
		if err := (<-kept).Deliver(); err != nil {
			t.Fatal(err)
		}
		if n := sendCommand(t, server, "EXISTS", "m"); n != ":0" {
			t.Errorf("%s: the claim exists after it was refused", kind)
			sendCommand(t, server, "DEL", "m")
		}
	}
}

// startLateRequest makes a waiting claim be granted by the second of three servers first, and then by a majority. One
// request to the second server, of the given script, is held back on the way.
func startLateRequest(t *testing.T,
	st *script) (g *redistest.Group, s driver.Store, held driver.Grant, late servertest.DelayedRequest) {
	t.Helper()
	g = mustStart(t)(redistest.Independent(3))
	a := g.Addrs()
	via, err := servertest.NewLink(a[1])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(via.Close)
	s = openForTest(t, "redlock://"+a[0]+"?addrs="+via.Addr+","+a[2])
	sendCommand(t, g.Servers[1], "SCRIPT", "LOAD", st.text()) // so that the request that is held back runs when it arrives
	sendCommand(t, g.Servers[0], "SET", "m", "another")
	sendCommand(t, g.Servers[2], "SET", "m", "another")
	kept := via.DelayNext(st.sha())
	freed := make(chan error, 1)
	go func() {
		late = <-kept
		_, err := g.Servers[0].Do("DEL", "m")
		freed <- err
	}()
	held = acquire(t, s, waiting(mutex("m", 10*time.Minute)))
	if err := <-freed; err != nil {
		t.Fatal(err)
	}
	return g, s, held, late
}

// TestRedlockLateRelease: when a round without a majority is given back, that request takes nothing from the round that
// won, however late it arrives.
func TestRedlockLateRelease(t *testing.T) {
	t.Parallel()
	g, _, held, late := startLateRequest(t, plainScripts.releaseQueued)
	if err := late.Deliver(); err != nil {
		t.Fatal(err)
	}
	sendCommand(t, g.Servers[2], "DEL", "m")
	a := g.Addrs()
	other, err := openForTest(t, "redlock://"+a[0]+"?addrs="+a[1]+","+a[2]).Acquire(t.Context(),
		mutex("m", 10*time.Minute))
	if !errors.Is(err, driver.ErrHeld) {
		t.Errorf("two claims hold it, with tokens %d and %d: %v", held.Token, other.Token, err)
	}
}

// TestRedlockLateAcquire: a request of a failed round does not make the claim again when it arrives after the release.
func TestRedlockLateAcquire(t *testing.T) {
	t.Parallel()
	g, s, held, late := startLateRequest(t, plainScripts.acquire)
	if err := s.Release(t.Context(), held.Claim, ""); err != nil {
		t.Fatal(err)
	}
	if err := redistest.Until(t.Context(),
		func() bool { return sendCommand(t, g.Servers[1], "EXISTS", "m") == ":0" }); err != nil {
		t.Fatal("the release does not come: ", err)
	}
	if err := late.Deliver(); err != nil {
		t.Fatal(err)
	}
	if n := sendCommand(t, g.Servers[1], "EXISTS", "m"); n != ":0" {
		t.Errorf("after its release a server has the claim for %s ms", sendCommand(t, g.Servers[1], "PTTL", "m"))
	}
}

// TestRedlockDenied: a minority of servers that denies access counts as away, as while passwords are changed on one
// server after the other. A claim that a majority denies is denied, and is removed from the servers that granted it.
func TestRedlockDenied(t *testing.T) {
	t.Parallel()
	g := mustStart(t)(redistest.Independent(3))
	a := g.Addrs()
	for _, server := range g.Servers {
		sendCommand(t, server, "ACL", "SETUSER", "worker", "reset", "on", ">hunter2", "~*", "&*", "+@all")
	}
	s := openForTest(t, "redlock://worker:hunter2@"+a[0]+"?addrs="+strings.Join(a[1:], ","))
	sendCommand(t, g.Servers[2], "ACL", "SETUSER", "worker", "-evalsha")
	for i := range 20 {
		held := acquire(t, s, waiting(mutex(fmt.Sprint("m", i), longTTL)))
		if r := renewUntilSure(t, s, held); r.Err != nil {
			t.Error(r.Err)
		}
		release(t, s, held.Claim)
	}
	sendCommand(t, g.Servers[1], "ACL", "SETUSER", "worker", "-evalsha")
	c := waiting(mutex("n", 10*time.Minute))
	_, err := s.Acquire(t.Context(), c)
	expectError(t, "two of three", err, driver.ErrDenied, "+evalsha")
	if err := redistest.Until(t.Context(),
		func() bool { return sendCommand(t, g.Servers[0], "EXISTS", c.Name) == ":0" }); err != nil {
		t.Error("the claim is still on the server that granted it")
	}
}

// TestRedlockSlowBesideDenied: if one of three servers denies access while another one is slow, the request is repeated
// until a majority has replied. Two servers that deny access end it.
func TestRedlockSlowBesideDenied(t *testing.T) {
	t.Parallel()
	a := mustStart(t)(redistest.Independent(3)).Addrs()
	s := openForTest(t, "redlock://"+a[0]+"?addrs="+strings.Join(a[1:], ",")).(*redlockStore)
	rounds := []replyCounts{
		{replies: 1, refusals: 1, refusal: driver.ErrDenied, err: driver.ErrDenied},
		{replies: 2, refusals: 1, refusal: driver.ErrDenied, err: driver.ErrDenied},
		{replies: 1, refusals: 2, refusal: driver.ErrDenied, err: driver.ErrDenied},
	}
	next := func() (replyCounts, error) {
		round := rounds[0]
		rounds = rounds[1:]
		return round, nil
	}
	if _, _, err := s.retryUntilMajority(t.Context(), longTTL, next); err != nil || len(rounds) != 1 {
		t.Errorf("one server denies access: %v, and %d rounds are left", err, len(rounds))
	}
	if _, _, err := s.retryUntilMajority(t.Context(), longTTL, next); !errors.Is(err, driver.ErrDenied) {
		t.Errorf("two servers deny access: %v", err)
	}
}

// TestClusterBusyAtFirst: a Cluster that is busy when it is first asked for sharded channels is asked again.
func TestClusterBusyAtFirst(t *testing.T) {
	t.Parallel()
	g := mustStart(t)(redistest.Cluster(t.Context()))
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{g.Servers[0].Addr},
		ConnWriteTimeout: linkTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s, err := newStore(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var scripts sync.WaitGroup
	for _, server := range g.Servers {
		sendCommand(t, server, "CONFIG", "SET", "busy-reply-threshold", "1")
		scripts.Go(func() { _, _ = server.Do("EVAL", "while true do end", "0") })
	}
	for _, server := range g.Servers {
		keepBusy(t, server)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := s.Acquire(ctx, mutex("m", 10*time.Second)); err == nil {
		t.Error("granted by a server that is busy")
	}
	for _, server := range g.Servers {
		sendCommand(t, server, "SCRIPT", "KILL")
	}
	scripts.Wait()
	release(t, s, acquire(t, s, mutex("m", 10*time.Second)).Claim)
	if !s.sharded.Load() {
		t.Error("it notifies on channels of the whole Cluster, to which no other client listens")
	}
}

package redis

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// openClientForTest is a whole client of a store.
func openClientForTest(t *testing.T, raw string) *holdfast.Client {
	t.Helper()
	return openClientWith(t, raw, nil)
}

// openClientWith is one with options. It is made again if the link took longer than a client gives it.
func openClientWith(t *testing.T, raw string, opts *holdfast.Options) *holdfast.Client {
	t.Helper()
	var c *holdfast.Client
	var err error
	if late := redistest.Until(t.Context(), func() bool {
		c, err = holdfast.Open(t.Context(), raw, opts)
		return err == nil || driverutil.IsFinal(err)
	}); late != nil || err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// lockEventually takes a lock, however long a failover may keep it from that.
func lockEventually(t *testing.T, c *holdfast.Client, name string, ttl time.Duration) *holdfast.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		l, err := c.Mutex(name, &holdfast.LockOptions{TTL: ttl}).Lock(ctx)
		if err == nil {
			return l
		}
		if ctx.Err() != nil || driverutil.IsFinal(err) {
			t.Fatalf("lock %s: %v", name, err)
		}
	}
}

// expectLoss waits until a lease has ended, and checks why: its holder was told by the store, before the end of the
// TTL, unless it was meant to end by its own clock.
func expectLoss(t *testing.T, l *holdfast.Lease, ttl time.Duration, wants ...driver.LossCause) {
	t.Helper()
	start := time.Now()
	select {
	case <-l.Context().Done():
	case <-time.After(ttl + 20*time.Second):
		t.Fatalf("%s: the holder is told nothing", l.Name())
	}
	cause := loss(context.Cause(l.Context()))
	t.Logf("%s: told after %v: %s", l.Name(), time.Since(start).Round(time.Millisecond), cause)
	if !slices.Contains(wants, cause) {
		t.Errorf("%s: the holder is told %v, want %q", l.Name(), context.Cause(l.Context()), wants)
	}
}

// expectHeld checks that a lease is renewed for as long as d.
func expectHeld(t *testing.T, l *holdfast.Lease, d time.Duration) {
	t.Helper()
	select {
	case <-l.Context().Done():
		t.Errorf("%s: lost: %v", l.Name(), context.Cause(l.Context()))
	case <-time.After(d):
	}
}

// waitForRenewal waits until a lease is renewed.
func waitForRenewal(t *testing.T, l *holdfast.Lease) {
	t.Helper()
	left := l.Remaining()
	if err := redistest.Until(t.Context(), func() bool {
		before := left
		left = l.Remaining()
		return left > before || left <= 0
	}); err != nil || left <= 0 {
		t.Fatalf("%s: not renewed: %v", l.Name(), l.Err())
	}
}

// expectLargerToken takes a lock again and checks its token.
func expectLargerToken(t *testing.T, c *holdfast.Client, before *holdfast.Lease, ttl time.Duration) *holdfast.Lease {
	t.Helper()
	next := lockEventually(t, c, before.Name(), ttl)
	if next.Token() <= before.Token() {
		t.Errorf("%s: token %d after %d", next.Name(), next.Token(), before.Token())
	}
	return next
}

// longTTL is that of leases which are to outlive what a slow machine makes of a short while.
const longTTL = 30 * time.Second

// TestServerLosesAllData: a server that is restarted empty, or emptied by FLUSHALL, has forgotten a lock: its holder is
// told by the next renewal, and not by its own clock; the next token is larger. SCRIPT FLUSH loses nothing.
func TestServerLosesAllData(t *testing.T) {
	t.Parallel()
	const ttl = 9 * time.Second
	server := startServer(t)
	via, err := servertest.NewLink(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(via.Close)
	holder, other := openClientForTest(t, "redis://"+via.Addr), openClientForTest(t, "redis://"+server.Addr)

	l := lockEventually(t, holder, "scripts", ttl)
	sendCommand(t, server, "SCRIPT", "FLUSH")
	waitForRenewal(t, l)
	if err := l.Release(); err != nil {
		t.Errorf("unlocking after SCRIPT FLUSH: %v", err)
	}

	l = lockEventually(t, holder, "flushed", ttl)
	sendCommand(t, server, "FLUSHALL")
	expectLoss(t, l, ttl, driver.LossGone)
	expectLargerToken(t, other, l, ttl)

	l = lockEventually(t, holder, "restarted", longTTL) // a server takes a while to start
	server.Kill()
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	expectLoss(t, l, longTTL, driver.LossGone)
	expectLargerToken(t, other, l, ttl)

	l = lockEventually(t, holder, "taken", ttl)
	via.Cut() // no renewal comes before the other
	sendCommand(t, server, "FLUSHALL")
	next := expectLargerToken(t, other, l, longTTL)
	via.Heal()
	expectLoss(t, l, ttl, driver.LossTaken)
	expectHeld(t, next, 0)
}

// TestFailoverForgetsGrant: a failover to a replica that had not heard of a grant makes two holders, as Redis is: how
// long both believe is counted. The first is told by its next renewal, and the token of the second is larger. Where a
// grant must have reached a replica, it is not given.
func TestFailoverForgetsGrant(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute // longer than a failover on a busy machine
	g := mustStart(t)(redistest.Replicated(t.Context()))
	a := g.SentinelAddrs()
	raw := "redis+sentinel://" + a[0] + "/" + redistest.MasterName + "?addrs=" + a[1] + "," + a[2]
	holder, other := openClientForTest(t, raw), openClientForTest(t, raw)
	lockEventually(t, other, "other", longTTL)
	acquire(t, openForTest(t, raw+"&replicas=1", withReplicaTimeout(linkTimeout)), mutex("careful", longTTL))
	careful := openForTest(t, raw+"&replicas=1")

	for _, r := range g.Servers[1:] {
		r.Signal(syscall.SIGSTOP)
	}
	sendCommand(t, g.Servers[0], "CLIENT", "KILL", "TYPE", "replica")
	c := mutex("careful2", 10*time.Minute)
	start := time.Now()
	_, err := careful.Acquire(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "replicas") {
		t.Errorf("a grant that no replica has: %v", err)
	}
	if errors.Is(err, driver.ErrUncertain) && machine.Worst(start) > 500*time.Millisecond {
		// it has a second to give it back
		release(t, careful, c)
	}
	if l, err := careful.Inspect(t.Context(), c.Name); err != nil || len(l.Holders) > 0 {
		t.Errorf("it was not given back: %+v %v", l, err)
	}
	l := lockEventually(t, holder, "forgotten", ttl)
	if err := g.DetectFailuresFast(); err != nil {
		t.Fatal(err)
	}
	g.Servers[0].Kill()
	for _, r := range g.Servers[1:] {
		r.Signal(syscall.SIGCONT)
	}
	next := expectLargerToken(t, other, l, longTTL)
	granted := time.Now()
	expectLoss(t, l, ttl, driver.LossGone, driver.LossTaken)
	t.Logf("failover that lost a grant: two holders for %v; tokens %d, then %d",
		time.Since(granted).Round(time.Millisecond), l.Token(), next.Token())
	expectHeld(t, next, time.Second)
}

// TestReplicasConfirmGrant: that a grant has reached its replicas is not said of one which the server that has taken
// over never had; and what is asked about it does not have its record end before it says.
func TestReplicasConfirmGrant(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	startServer(t, "--replicaof", "127.0.0.1 "+server.Port)
	if err := redistest.Until(t.Context(), func() bool {
		info, err := server.Do("INFO", "replication")
		return err == nil && strings.Contains(info, "state=online")
	}); err != nil {
		t.Fatal(err)
	}
	s := openForTest(t, "redis://"+server.Addr+"?replicas=1", withReplicaTimeout(linkTimeout)).(*store)
	plain, fair, sem := mutex("plain", 20*time.Second), mutex("fair", 20*time.Second), mutex("semaphore",
		20*time.Second)
	fair.Fair = true
	sem.Kind, sem.Limit = driver.KindSemaphore, 5
	var gs []driver.Grant
	for _, c := range []driver.Claim{plain, fair, sem} {
		gs = append(gs, acquire(t, s, c))
		record := sideKey("", c.Name)
		ends, err := strconv.ParseInt(sendCommand(t, server, "PEXPIRETIME", record)[1:], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		kept, err := strconv.ParseInt(sendCommand(t, server, "HGET", record, "kept"), 10, 64)
		if early := kept/1000 - ends; err != nil || early > 1 {
			t.Errorf("%s: its record ends %d ms before it says: %v", c.Name, early, err)
		}
	}
	sendCommand(t, server, "FLUSHALL")
	for _, g := range gs {
		if err := s.waitForReplicas(t.Context(), &g); err == nil {
			t.Errorf("%s: it is said to have reached the replicas, and stands nowhere", g.Name)
		}
	}
}

// TestReplicaWaitEndsWithContext: a claim whose grant waits for replicas ends with its context, and does not wait for
// as long as its server hangs.
func TestReplicaWaitEndsWithContext(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	// blocked does something when a grant waits for replicas, of which there is none.
	blocked := func(then func()) (at <-chan time.Time) {
		done := make(chan time.Time, 1)
		go func() {
			_ = redistest.Until(t.Context(), func() bool {
				info, err := server.Do("INFO", "clients")
				return err == nil && strings.Contains(info, "blocked_clients:1")
			})
			then()
			done <- time.Now()
		}()
		return done
	}
	url := "redis://" + server.Addr + "?replicas=1"
	ctx, cancel := context.WithCancel(t.Context())
	ended := blocked(cancel)
	_, err := openForTest(t, url, withReplicaTimeout(time.Minute)).Acquire(ctx, mutex("given up", 20*time.Second))
	if late := time.Since(<-ended); !errors.Is(err, context.Canceled) || late > 20*time.Second {
		t.Errorf("%v after its context has ended: %v", late, err)
	}
	if err := redistest.Until(t.Context(),
		func() bool {
			return strings.Contains(sendCommand(t, server, "INFO", "clients"),
				"blocked_clients:0")
		}); err != nil {
		t.Fatal("the server goes on waiting for replicas: ", err)
	}
	hung := blocked(func() { server.Signal(syscall.SIGSTOP) })
	watchdog := time.AfterFunc(time.Minute, func() { server.Signal(syscall.SIGCONT) })
	_, err = openForTest(t, url, withReplicaTimeout(4*time.Second)).Acquire(t.Context(), mutex("hangs", 20*time.Second))
	watchdog.Stop()
	server.Signal(syscall.SIGCONT)
	if took := time.Since(<-hung); !errors.Is(err, driver.ErrUncertain) || errors.Is(err, context.DeadlineExceeded) ||
		took > 30*time.Second {
		t.Errorf("the server hangs: after %v: %v", took, err)
	}
}

// waitForReplication waits until all replicas have locks.
func waitForReplication(t *testing.T, g *redistest.Group, names ...string) {
	t.Helper()
	for _, r := range g.Servers[1:] {
		if err := redistest.Until(t.Context(), func() bool {
			return sendCommand(t, r, append([]string{"EXISTS"}, names...)...) == ":"+strconv.Itoa(len(names))
		}); err != nil {
			t.Fatalf("a replica does not have %v: %v", names, err)
		}
	}
}

// TestHungPrimary: Sentinels replace a primary that hangs. Who waits for an answer of it then is served by the new one,
// and is not told that the client is closed; unless it is.
func TestHungPrimary(t *testing.T) {
	t.Parallel()
	g := mustStart(t)(redistest.Replicated(t.Context()))
	a := g.SentinelAddrs()
	s := openForTest(t, "redis+sentinel://"+a[0]+"/"+redistest.MasterName+"?addrs="+a[1]+","+a[2]+"&timeout=30s")
	held := acquire(t, s, mutex("held", 30*time.Second))
	given := acquire(t, s, mutex("given", 30*time.Second))
	users, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: a,
		Sentinel:     rueidis.SentinelOption{MasterSet: redistest.MasterName},
		DisableRetry: true, ConnWriteTimeout: linkTimeout})
	if err != nil {
		t.Fatal(err)
	}
	other, err := New(t.Context(), users, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	acquire(t, other, mutex("other", 10*time.Second))
	waitForReplication(t, g, "held", "given")
	if err := g.DetectFailuresFast(); err != nil {
		t.Fatal(err)
	}
	g.Servers[0].Signal(syscall.SIGSTOP)
	var calls sync.WaitGroup
	calls.Go(func() {
		if err := s.Release(t.Context(), given.Claim, given.Ref); err != nil {
			t.Errorf("a release under way: %v", err)
		}
	})
	calls.Go(func() {
		if r := renew(t, s, held); errors.Is(r.Err, driver.ErrClosed) {
			t.Errorf("a renewal under way: %v", r.Err)
		}
	})
	for name, s := range map[string]driver.Store{"one": s, "two": other} {
		calls.Go(func() {
			if _, err := s.Acquire(t.Context(), waiting(mutex(name, 30*time.Second))); err != nil {
				t.Errorf("a claim under way: %v", err)
			}
		})
	}
	calls.Wait()
	g.Servers[0].Signal(syscall.SIGCONT)
	users.Close()
	if _, err := other.Acquire(t.Context(), mutex("late", longTTL)); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("by a client that its user has closed: %v", err)
	}
}

// TestOldPrimaryReturns: when the primary is killed right after a grant, the holder keeps the lock or is told. The old
// primary that comes back is a primary of its own until the Sentinels stop it: clients that came by them do not follow
// it there, and one that was pointed at it is told when that ends.
func TestOldPrimaryReturns(t *testing.T) {
	t.Parallel()
	const ttl = 15 * time.Second
	g := mustStart(t)(redistest.Replicated(t.Context()))
	a := g.SentinelAddrs()
	raw := "redis+sentinel://" + a[0] + "/" + redistest.MasterName + "?addrs=" + a[1] + "," + a[2]
	holder, other := openClientForTest(t, raw), openClientForTest(t, raw)
	kept := lockEventually(t, holder, "kept", ttl)
	waitForReplication(t, g, "kept")
	if err := g.DetectFailuresFast(); err != nil {
		t.Fatal(err)
	}
	last := lockEventually(t, holder, "last", ttl)
	g.Servers[0].Kill() // right after the acknowledgement

	// Whoever comes next is served by the new primary, and tokens rise there.
	served := lockEventually(t, other, "new", 30*time.Second)
	t.Logf("the holder of the last grant before the kill: %v", last.Err())

	old := g.Servers[0]
	if err := old.Restart(); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	stray := openClientForTest(t, "redis://"+old.Addr)
	twice, strays := 0, 0
	var lost *holdfast.Lease
	err := redistest.Until(t.Context(), func() bool {
		if l, err := stray.Mutex("new", &holdfast.LockOptions{TTL: ttl}).TryLock(t.Context()); err == nil {
			lost = l
			strays++
			if served.Valid() {
				twice++
			}
		}
		info, err := old.Do("INFO", "replication")
		time.Sleep(200 * time.Millisecond)
		return err == nil && strings.Contains(info, "role:slave")
	})
	if err != nil {
		t.Fatal("the old primary is not stopped: ", err)
	}
	t.Logf("split brain for %v: %d grants by the old primary, %d of them beside the holder of the new one",
		time.Since(back).Round(100*time.Millisecond), strays, twice)
	if lost != nil {
		select {
		case <-lost.Context().Done():
			t.Logf("the holder at the old primary is told: %v", context.Cause(lost.Context()))
		case <-time.After(ttl + 20*time.Second):
			t.Error("the holder at the old primary is told nothing")
		}
	}
	expectHeld(t, served, 0)
	if kept.Err() != nil && loss(kept.Err()) == "" {
		t.Errorf("unclear: %v", kept.Err())
	}
	t.Logf("what a replica had been told of: %v", kept.Err())
}

// TestServerClockSteps: the server's clock is stepped while a lock is held. Forward: the server ends the lock early,
// its holder is told by the next renewal, and the next token is larger. Back: the lock stays with its holder, tokens
// rise all the same, and after a renewal a holder that dies is replaced within its TTL.
func TestServerClockSteps(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	clock := startClock(t)
	server, err := clock.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	via, err := servertest.NewLink(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(via.Close)
	holder, other := openClientForTest(t, "redis://"+via.Addr), openClientForTest(t, "redis://"+server.Addr)
	step := func(ahead time.Duration) {
		t.Helper()
		if err := clock.Step(ahead); err != nil {
			t.Fatal(err)
		}
	}

	l := lockEventually(t, holder, "forward", ttl)
	via.Cut() // no renewal comes before the other
	step(50 * time.Second)
	next := expectLargerToken(t, other, l, ttl)
	granted := time.Now()
	via.Heal()
	expectLoss(t, l, ttl, driver.LossTaken)
	t.Logf("+50 s: two holders for %v", time.Since(granted).Round(time.Millisecond))
	waitForRenewal(t, next)
	if err := next.Release(); err != nil {
		t.Error(err)
	}

	sem := holder.Semaphore("shared", 2, &holdfast.LockOptions{TTL: ttl})
	s, err := sem.Acquire(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	step(100 * time.Second)
	expectLoss(t, s, ttl, driver.LossGone)

	l = lockEventually(t, holder, "back", ttl)
	s, err = holder.Semaphore("sharedback", 2, &holdfast.LockOptions{TTL: ttl}).Acquire(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	step(70 * time.Second)
	expectHeld(t, l, ttl)
	expectHeld(t, s, 0)
	if _, err := other.Mutex("back", nil).TryLock(t.Context()); !errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("-30 s: another gets in: %v", err)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	next = expectLargerToken(t, other, l, ttl)
	if err := next.Release(); err != nil {
		t.Error(err)
	}

	dead := openClientForTest(t, "redis://"+server.Addr)
	l = lockEventually(t, dead, "dead", ttl)
	step(40 * time.Second)
	waitForRenewal(t, l)
	if _, err := l.Detach(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	expectLargerToken(t, other, l, ttl)
	if took := time.Since(start); took > ttl+20*time.Second {
		t.Errorf("-30 s: a dead holder was replaced after %v", took)
	}
}

// waitUntilFollowing waits until a replica has the data of its primary.
func waitUntilFollowing(t *testing.T, replica *redistest.Server) {
	t.Helper()
	if err := redistest.Until(t.Context(), func() bool {
		info, err := replica.Do("INFO", "replication")
		return err == nil && strings.Contains(info, "master_link_status:up")
	}); err != nil {
		t.Fatal("the replica does not follow: ", err)
	}
}

// TestServerNameMoves: a server's name that comes to mean another one, as the old primary's does after a failover in a
// cloud, is looked up again when the old one takes no writes any more, though it keeps its connections open. Who makes a
// claim meanwhile waits for that.
func TestServerNameMoves(t *testing.T) {
	t.Parallel()
	first := startServer(t)
	second := startServer(t, "--replicaof", "127.0.0.1 "+first.Port)
	via, err := servertest.NewLink(first.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer via.Close()
	s := openForTest(t, "redis://"+via.Addr)
	g := acquire(t, s, mutex("held", time.Minute))
	if err := redistest.Until(t.Context(),
		func() bool { return sendCommand(t, second, "GET", "held") == g.ID }); err != nil {
		t.Fatal("the replica has not heard of the lock: ", err)
	}
	sendCommand(t, second, "REPLICAOF", "NO", "ONE")
	sendCommand(t, first, "REPLICAOF", "127.0.0.1", second.Port)
	waitUntilFollowing(t, first)
	if r := renew(t, s, g); r.Err == nil || driverutil.IsFinal(r.Err) ||
		!strings.Contains(r.Err.Error(), "read-only replica for now") {
		t.Errorf("renewing at the old primary: %v", r.Err)
	}
	time.AfterFunc(300*time.Millisecond, func() { via.RedirectNew(second.Addr) })
	acquire(t, s, mutex("new", time.Minute))
	if err := redistest.Until(t.Context(), func() bool { return renew(t, s, g).Err == nil }); err != nil {
		t.Fatalf("renewing at the new primary: %v", renew(t, s, g).Err)
	}
}

// TestNewPrimaryHasOtherClock: the server that takes over has another clock than the one before. Tokens rise where the
// record came along. Where it did not, they rise if the new clock is ahead, and fall if it is behind, as Info says.
func TestNewPrimaryHasOtherClock(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{5 * time.Minute, -5 * time.Minute} {
		clock := startClock(t)
		first := startServer(t)
		second, err := clock.Start("--replicaof", "127.0.0.1 "+first.Port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(second.Stop)
		via, err := servertest.NewLink(first.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(via.Close)
		s := openForTest(t, "redis://"+via.Addr)
		claim := func(name string, ttl time.Duration) driver.Grant { return acquire(t, s, waiting(mutex(name, ttl))) }
		waitUntilFollowing(t, second)
		kept := claim("kept", 2*time.Minute)
		if err := redistest.Until(t.Context(), func() bool {
			n, err := second.Do("EXISTS", "holdfast:{kept}")
			return err == nil && n == ":1"
		}); err != nil {
			t.Fatal(err)
		}
		sendCommand(t, second, "REPLICAOF", "127.0.0.1", "1") // it hears no more
		forgotten := claim("forgotten", 2*time.Minute)
		if err := clock.Step(ahead); err != nil {
			t.Fatal(err)
		}
		sendCommand(t, second, "REPLICAOF", "NO", "ONE")
		first.Kill()
		via.Redirect(second.Addr)

		var r driver.Renewal
		if err := redistest.Until(t.Context(), func() bool {
			r = renew(t, s, kept)
			return r.Err == nil || loss(r.Err) != ""
		}); err != nil {
			t.Fatal(r.Err)
		}
		if lost := loss(r.Err) == driver.LossGone; lost != (ahead > 0) {
			t.Errorf("%v: what came along is renewed as %v", ahead, r.Err)
		}
		if l := loss(renew(t, s, forgotten).Err); l != driver.LossGone {
			t.Errorf("%v: what did not come along is %q", ahead, l)
		}
		if err := s.Release(t.Context(), kept.Claim, ""); err != nil && !errors.Is(err, driver.ErrLost) {
			t.Error(err)
		}
		if again := claim("kept", time.Second); again.Token <= kept.Token {
			t.Errorf("%v: token %d after %d, though the record came along", ahead, again.Token, kept.Token)
		}
		again := claim("forgotten", time.Second)
		t.Logf("%v: without its record the next token is %v later", ahead,
			time.Duration(again.Token-forgotten.Token)*time.Microsecond)
		if fell := again.Token <= forgotten.Token; fell != (ahead < 0) || s.Info().TokenRegression == "" {
			t.Errorf("%v: token %d after %d; Info says they fall %q", ahead, again.Token, forgotten.Token,
				s.Info().TokenRegression)
		}
	}
}

func startClock(t *testing.T) *redistest.Clock {
	t.Helper()
	c, err := redistest.NewClock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestRedlockServerForgets: a server of a Redlock that restarts empty, or whose clock is stepped, gives its voice away
// a second time: two holders are counted, the first is told by its next renewal, and tokens rise all the same.
func TestRedlockServerForgets(t *testing.T) {
	t.Parallel()
	const ttl = 20 * time.Second // in which servers start again
	for _, how := range []string{"restart", "step"} {
		clock := startClock(t)
		var g redistest.Group
		for range 3 {
			s, err := clock.Start()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Stop)
			g.Servers = append(g.Servers, s)
		}
		a := g.Addrs()
		raw := "redlock://" + a[0] + "?addrs=" + strings.Join(a[1:], ",")
		holder, other := openClientForTest(t, raw), openClientForTest(t, raw)
		g.Servers[2].Signal(syscall.SIGSTOP)
		l := lockEventually(t, holder, "m", ttl) // on the first two
		g.Servers[2].Kill()
		if err := g.Servers[2].Restart(); err != nil { // and nothing of it comes late to the third
			t.Fatal(err)
		}
		if how == "restart" {
			g.Servers[1].Kill()
			if err := g.Servers[1].Restart(); err != nil {
				t.Fatal(err)
			}
		} else if err := clock.Step(50 * time.Second); err != nil {
			t.Fatal(err)
		}
		next := expectLargerToken(t, other, l, ttl)
		granted := time.Now()
		expectLoss(t, l, ttl, driver.LossGone, driver.LossTaken)
		t.Logf("%s: two holders for %v; tokens %d, then %d", how, time.Since(granted).Round(time.Millisecond),
			l.Token(), next.Token())
	}
}

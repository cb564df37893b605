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

// openClientForTest opens a client, without options.
func openClientForTest(t *testing.T, raw string) *holdfast.Client {
	t.Helper()
	return openClientWith(t, raw, nil)
}

// openClientWith opens a client. It tries again if the connection took longer than the client allows.
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

// lockEventually acquires a lock. It tries again while a failover prevents that.
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

// expectLoss waits until a lease has ended, and checks the cause. The store must report the loss before the TTL ends,
// except in tests that expect the lease to end by its own clock.
func expectLoss(t *testing.T, l *holdfast.Lease, ttl time.Duration, wants ...driver.LossCause) {
	t.Helper()
	start := time.Now()
	select {
	case <-l.Context().Done():
	case <-time.After(ttl + 20*time.Second):
		t.Fatalf("%s: the holder does not learn of the loss", l.Name())
	}
	cause := loss(context.Cause(l.Context()))
	t.Logf("%s: the holder learned of the loss after %v: %s", l.Name(), time.Since(start).Round(time.Millisecond), cause)
	if !slices.Contains(wants, cause) {
		t.Errorf("%s: the holder learns %v, want %q", l.Name(), context.Cause(l.Context()), wants)
	}
}

// expectHeld checks that a lease is not lost for d.
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

// expectLargerToken acquires a lock again and checks that its token is larger.
func expectLargerToken(t *testing.T, c *holdfast.Client, before *holdfast.Lease, ttl time.Duration) *holdfast.Lease {
	t.Helper()
	next := lockEventually(t, c, before.Name(), ttl)
	if next.Token() <= before.Token() {
		t.Errorf("%s: token %d after %d", next.Name(), next.Token(), before.Token())
	}
	return next
}

// longTTL is the TTL of leases that must outlive a delay of a few seconds on a slow machine.
const longTTL = 30 * time.Second

// TestServerLosesAllData: a server that is restarted empty, or emptied by FLUSHALL, has forgotten a lock. Its holder
// learns that by the next renewal, before its own clock ends the lease, and the next token is larger. SCRIPT FLUSH
// loses no lock.
func TestServerLosesAllData(t *testing.T) {
	t.Parallel()
	const ttl = 15 * time.Second // a holder has two thirds of it to learn of a loss
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
		t.Errorf("a release after SCRIPT FLUSH: %v", err)
	}

	l = lockEventually(t, holder, "flushed", ttl)
	sendCommand(t, server, "FLUSHALL")
	expectLoss(t, l, ttl, driver.LossGone)
	expectLargerToken(t, other, l, ttl)

	l = lockEventually(t, holder, "restarted", longTTL) // a server may take seconds to start
	server.Kill()
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	expectLoss(t, l, longTTL, driver.LossGone)
	expectLargerToken(t, other, l, ttl)

	l = lockEventually(t, holder, "taken", ttl)
	via.Cut() // so that the other client comes before the next renewal
	sendCommand(t, server, "FLUSHALL")
	next := expectLargerToken(t, other, l, longTTL)
	via.Heal()
	expectLoss(t, l, ttl, driver.LossTaken)
	expectHeld(t, next, 0)
}

// TestFailoverForgetsGrant: after a failover to a replica that did not receive a grant, the lock has two holders, which
// Redis cannot prevent. The test measures for how long. The first holder learns of it by its next renewal, and the
// token of the second is larger. If a grant must have reached a replica, it is not given.
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
	primary, start := watchServer(t, g.Servers[0]), time.Now()
	_, err := careful.Acquire(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "replicas") {
		t.Errorf("a grant that no replica has: %v", err)
	}
	if errors.Is(err, driver.ErrUncertain) && max(machine.Worst(start), primary.Worst(start)) > 500*time.Millisecond {
		// on a slow machine or server: the release of the grant has a second
		release(t, careful, c)
	}
	if l, err := careful.Inspect(t.Context(), c.Name); err != nil || len(l.Holders) > 0 {
		t.Errorf("it was not released: %+v %v", l, err)
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

// TestReplicasConfirmGrant: waitForReplicas fails if the server does not have the grant, as after a failover to one
// that never had it. And its renewal of the grant does not make the record expire before the time that the record says.
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
			t.Errorf("%s: its record expires %d ms before the time in it: %v", c.Name, early, err)
		}
	}
	sendCommand(t, server, "FLUSHALL")
	for _, g := range gs {
		if err := s.waitForReplicas(t.Context(), &g); err == nil {
			t.Errorf("%s: the replicas confirm a grant that no server has", g.Name)
		}
	}
}

// TestReplicaWaitEndsWithContext: an Acquire that waits for replicas returns when its context ends, and returns even if
// its server hangs.
func TestReplicaWaitEndsWithContext(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	// blocked calls then once a grant waits for replicas, of which there are none.
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
	_, err = openForTest(t, url, withReplicaTimeout(10*time.Second)).Acquire(t.Context(), mutex("hangs", longTTL))
	watchdog.Stop()
	server.Signal(syscall.SIGCONT)
	if took := time.Since(<-hung); !errors.Is(err, driver.ErrUncertain) || errors.Is(err, context.DeadlineExceeded) ||
		took > 50*time.Second {
		t.Errorf("the server hangs: after %v: %v", took, err)
	}
}

// waitForReplication waits until all replicas have these locks.
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

// TestHungPrimary: Sentinels replace a primary that hangs. Calls that wait for its reply are served by the new primary.
// They do not return that the client is closed, unless the user has closed it.
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
	acquire(t, other, mutex("other", longTTL))
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
		t.Errorf("a claim by a closed client: %v", err)
	}
}

// TestOldPrimaryReturns: if the primary is killed right after a grant, the holder keeps the lock or learns that it lost
// it. The old primary that returns accepts writes until the Sentinels make it a replica. Clients that found it through
// the Sentinels do not use it meanwhile, and a client that was opened on it directly learns that it lost its lock when
// that ends.
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

	// The next claim is granted by the new primary, with a larger token.
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
		t.Fatal("the old primary does not become a replica: ", err)
	}
	t.Logf("split brain for %v: %d grants by the old primary, %d of them next to the holder of the new one",
		time.Since(back).Round(100*time.Millisecond), strays, twice)
	if lost != nil {
		select {
		case <-lost.Context().Done():
			t.Logf("the holder on the old primary learns: %v", context.Cause(lost.Context()))
		case <-time.After(ttl + 20*time.Second):
			t.Error("the holder on the old primary does not learn of its loss")
		}
	}
	expectHeld(t, served, 0)
	if kept.Err() != nil && loss(kept.Err()) == "" {
		t.Errorf("the holder does not learn whether it has the lock: %v", kept.Err())
	}
	t.Logf("the lock that a replica had: %v", kept.Err())
}

// TestServerClockSteps: the server's clock is stepped while a lock is held. Forward: the server expires the lock early,
// its holder learns that by the next renewal, and the next token is larger. Back: the holder keeps the lock, tokens
// still rise, and once the lock was renewed, a holder that dies is replaced within its TTL.
func TestServerClockSteps(t *testing.T) {
	t.Parallel()
	const ttl = 12 * time.Second // a holder has two thirds of it to learn of a loss
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
	via.Cut() // so that the other client comes before the next renewal
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
		t.Errorf("-30 s: a second claim is granted: %v", err)
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

// TestServerNameMoves: after a failover in a cloud, the name of a server may mean another one, while the old primary
// keeps its connections and refuses writes as a replica. The store then connects by the name again, and a claim that is
// made meanwhile waits for that.
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
		t.Fatal("the replica does not have the lock: ", err)
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

// TestNewPrimaryHasOtherClock: a failover leads to a server with another clock. Tokens rise if the record was
// replicated. If it was not, they rise if the new clock is ahead, and fall if it is behind, as Info says.
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
		sendCommand(t, second, "REPLICAOF", "127.0.0.1", "1") // it receives nothing more
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
			t.Errorf("%v: the renewal of a replicated lock: %v", ahead, r.Err)
		}
		if l := loss(renew(t, s, forgotten).Err); l != driver.LossGone {
			t.Errorf("%v: the renewal of a lock that was not replicated: %q", ahead, l)
		}
		if err := s.Release(t.Context(), kept.Claim, ""); err != nil && !errors.Is(err, driver.ErrLost) {
			t.Error(err)
		}
		if again := claim("kept", longTTL); again.Token <= kept.Token {
			t.Errorf("%v: token %d after %d, though the record was replicated", ahead, again.Token, kept.Token)
		}
		again := claim("forgotten", longTTL)
		t.Logf("%v: without its record the next token is %v later", ahead,
			time.Duration(again.Token-forgotten.Token)*time.Microsecond)
		if fell := again.Token <= forgotten.Token; fell != (ahead < 0) || s.Info().TokenRegression == "" {
			t.Errorf("%v: token %d after %d; Info says that tokens fall %q", ahead, again.Token, forgotten.Token,
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

// TestRedlockServerForgets: a server of a Redlock that restarts empty, or whose clock is stepped, can grant the lock a
// second time. The test measures for how long there are two holders. The first learns of it by its next renewal, and
// tokens still rise.
func TestRedlockServerForgets(t *testing.T) {
	t.Parallel()
	const ttl = 20 * time.Second // long enough for servers to restart
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
		l := lockEventually(t, holder, "m", ttl) // the first two servers grant it
		g.Servers[2].Kill()
		if err := g.Servers[2].Restart(); err != nil { // so that no late request reaches the third
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

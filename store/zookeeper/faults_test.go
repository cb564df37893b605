package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// TestSessionBounds: a TTL beyond what the servers grant is refused and says so, and one below it is raised, and
// shown.
func TestSessionBounds(t *testing.T) {
	t.Parallel()
	c := startEnsemble(t, zktest.Options{Members: 1, MinTTL: 10 * time.Second, MaxTTL: 20 * time.Second})
	s := rig.Peer(t, c)
	claim := mutexClaim(t.Name())
	claim.TTL = time.Minute
	began := time.Now()
	_, err := s.Acquire(t.Context(), claim)
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "20s") ||
		sessiontest.IsLate(began) {
		t.Errorf("more than the servers grant: %v after %v", err, time.Since(began))
	}
	claim = mutexClaim(t.Name())
	claim.TTL = 9 * time.Second
	if p := s.Explain(claim); p.TTL != claim.TTL || !strings.HasPrefix(p.Keys[0], "/"+t.Name()+"/_c_") {
		t.Errorf("explained as %+v", p)
	}
	g, err := s.Acquire(t.Context(), claim)
	if err != nil || g.GrantedTTL != 10*time.Second {
		t.Errorf("less than the servers grant: %v, %v", g.GrantedTTL, err)
	}
	if p := s.Explain(claim); p.TTL != 10*time.Second {
		t.Errorf("explained as %+v", p)
	}
	mustSucceed(t, s.Release(t.Context(), claim, ""))
}

// TestDenied: nodes are made for their creator alone; another user learns at once what is missing, without a
// password.
func TestDenied(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	const secret = "s3cret-of-ann"
	at := "@" + strings.Join(c.Endpoints(), ",") + "?namespace=denied"
	ann, err := holdfast.Open(t.Context(), "zookeeper://ann:"+secret+at, &holdfast.Options{TTL: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer ann.Close()
	l := mustLock(t, ann, t.Name())
	cli := newAdmin(t, c)
	mustSucceed(t, cli.AddAuth("digest", []byte("ann:"+secret)))
	acl, _, err := cli.GetACL("/denied/" + t.Name())
	if err != nil || len(acl) != 1 || acl[0].Scheme != "digest" || !strings.HasPrefix(acl[0].ID, "ann:") {
		t.Errorf("the ACL is %+v, %v", acl, err)
	}
	for _, user := range []string{"bob:" + secret, "ann:other-" + secret} {
		other, err := holdfast.Open(t.Context(), "zookeeper://"+user+at, &holdfast.Options{TTL: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		began := time.Now()
		_, err = other.Mutex(t.Name(), nil).Lock(t.Context())
		if !errors.Is(err, holdfast.ErrDenied) || sessiontest.IsLate(began) {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if text := fmt.Sprintf("%v %+v %s", err, err, other.Info().Store); strings.Contains(text, secret) {
			t.Errorf("a secret shows: %s", text)
		}
	}
	mustSucceed(t, l.Release())
}

// TestACLRefused: an ACL that the servers do not take, that of the creator where nobody has logged in, is reported at
// once.
func TestACLRefused(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	for _, layout := range []string{"curator", "plain", "curator-semaphore"} {
		client, err := holdfast.Open(t.Context(), "zookeeper://"+c.Endpoints()[0]+"?acl=creator&layout="+layout, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		began := time.Now()
		if layout == "curator-semaphore" {
			_, err = client.Semaphore(t.Name()+layout, 2, nil).Acquire(t.Context(), 1)
		} else {
			_, err = client.Mutex(t.Name()+layout, nil).Lock(t.Context())
		}
		if !errors.Is(err, holdfast.ErrDenied) || !strings.Contains(err.Error(), "acl=creator") ||
			sessiontest.IsLate(began) {
			t.Errorf("%s: %v after %v", layout, err, time.Since(began))
		}
	}
}

// TestUnreachableServer: without a server, the error says which one was tried, and why it could not be used.
func TestUnreachableServer(t *testing.T) {
	t.Parallel()
	client, err := holdfast.Open(t.Context(), "zookeeper://127.0.0.1:1", &holdfast.Options{TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	began := time.Now()
	_, err = client.Mutex(t.Name(), nil).Lock(t.Context())
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") || time.Since(began) > 30*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// TestTooManyConnections: a client that gets no connection, because the server has as many from this host as it
// takes, learns what that may be, and that nothing was sent.
func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	c := startEnsemble(t, zktest.Options{Members: 1, Lines: []string{"maxClientCnxns=1"}})
	l := mustLock(t, newClient(t, rig.Peer(t, c), 30*time.Second), t.Name())
	_, err := newClient(t, rig.Peer(t, c), 6*time.Second).Mutex(t.Name()+"/other", nil).Lock(t.Context())
	if err == nil || errors.Is(err, holdfast.ErrUncertain) || !strings.Contains(err.Error(), "maxClientCnxns") {
		t.Error(err)
	}
	mustSucceed(t, l.Release())
}

// TestListUnreadable: a lock whose nodes another user keeps from us is listed with its name and an error, and
// those behind it are listed, too.
func TestListUnreadable(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	cli := newAdmin(t, c)
	folder := "/" + t.Name()
	for _, path := range []string{folder, folder + "/a", folder + "/b"} {
		_, err := cli.Create(path, nil, 0, gozk.WorldACL(gozk.PermAll))
		mustSucceed(t, err)
	}
	open := func(user string) *holdfast.Client {
		client, err := holdfast.Open(t.Context(), "zookeeper://"+user+c.Endpoints()[0],
			&holdfast.Options{TTL: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		return client
	}
	ann, other := open("ann:secret@"), open("")
	hers, ours := mustLock(t, ann, t.Name()+"/a"), mustLock(t, other, t.Name()+"/b")
	found := map[string]error{}
	for lock, err := range other.List(t.Context(), t.Name()+"/") {
		found[lock.Name] = err
	}
	if err, ok := found[t.Name()+"/b"]; !ok || err != nil || len(found) != 2 ||
		!errors.Is(found[t.Name()+"/a"], holdfast.ErrDenied) {
		t.Errorf("%v", found)
	}
	mustSucceed(t, hers.Release())
	mustSucceed(t, ours.Release())
}

// TestWalkReportsProgress: a listing that goes through many nodes that are no locks says of each that the servers
// have answered.
func TestWalkReportsProgress(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	cli := newAdmin(t, c)
	path := "/" + t.Name()
	for range 20 {
		_, err := cli.Create(path, nil, 0, gozk.WorldACL(gozk.PermAll))
		mustSucceed(t, err)
		path += "/x"
	}
	said := 0
	for snapshot, err := range rig.Peer(t, c).nodeStore.Walk(t.Context(), t.Name()) {
		mustSucceed(t, err)
		said++
		if len(snapshot.Nodes) > 0 {
			t.Errorf("there is a lock: %+v", snapshot)
		}
	}
	if said < 20 {
		t.Errorf("20 nodes were walked, and nothing was said but %d times", said)
	}
}

// followerOf returns a member that is not the leader.
func followerOf(c *zktest.Ensemble, leader *servertest.Server) *servertest.Server {
	return c.Members[(slices.Index(c.Members, leader)+1)%len(c.Members)]
}

// TestKeepAliveOfIsolatedServer: a server that was cut off from the others goes on answering reads and pings for a
// while, be it a follower or the leader. A keep-alive by it is not confirmed, also where servers refuse requests by
// themselves and the user may change nothing below the root. Here they notice after 10 s that they are alone.
func TestKeepAliveOfIsolatedServer(t *testing.T) {
	t.Parallel()
	c := startEnsemble(t, zktest.Options{Lines: []string{"syncLimit=20"},
		Args: []string{"-Dzookeeper.enableEagerACLCheck=true"}})
	ctx := t.Context()
	_, err := newAdmin(t, c).SetACL("/", gozk.WorldACL(gozk.PermRead), -1)
	mustSucceed(t, err)
	for _, who := range []string{"follower", "leader"} {
		leader, err := c.Leader(ctx)
		if err != nil {
			t.Fatal(err)
		}
		alone := leader
		if who == "follower" {
			alone = followerOf(c, leader)
		}
		p := rig.Peer(t, c, alone)
		ses, err := p.nodeStore.OpenSession(ctx, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.nodeStore.KeepAlive(ctx, ses.ID)
		mustSucceed(t, err)
		conn, err := p.nodeStore.sessionConn(ses.ID)
		mustSucceed(t, err)
		c.Isolate(alone)
		time.Sleep(50 * time.Millisecond)
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		if err := conn.Do(short, zk.Exists("/")); err != nil {
			t.Errorf("the %s has noticed before the keep-alive was tried: %v", who, err)
		}
		refused := zk.Delete("/no-such-node", zk.AnyVersion)
		if err := conn.Do(short, refused); err != nil || refused.Err != zk.CodeNoAuth {
			t.Errorf("the %s has refused nothing by itself: %v, %v", who, refused.Err, err)
		}
		cancel()
		short, cancel = context.WithTimeout(ctx, 1500*time.Millisecond)
		if _, err := p.nodeStore.KeepAlive(short, ses.ID); err == nil {
			t.Errorf("a keep-alive was confirmed by a %s without the others", who)
		}
		cancel()
		c.Join()
		mustSucceed(t, c.Ready(ctx))
	}
}

// TestNames: a name of any characters is a lock, and comes back from the list; the path is the name where it can be.
func TestNames(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	s := rig.Peer(t, c)
	paths := map[string]string{}
	for name, path := range map[string]string{
		"plain/a.b-c":                "/plain/a.b-c",
		"zookeeper":                  "/%7Aookeeper",
		"zookeeper/quota":            "/%7Aookeeper/quota",
		"names/./..//":               "/names/%2E/%2E./%00/%00",
		"/names":                     "/%00/names",
		"names/50%":                  "/names/50%25",
		"names/ü🔒\u0001\u0085\uE000": "/names/ü%F0%9F%94%92%01%C2%85%EE%80%80",
		"names/x-lock-0000000007":    "/names/x-lock%2D0000000007",
		"names/y__lock__0000000007":  "/names/y__lock_%5F0000000007",
		"names/_c_1-lock--000000007": "/names/_c_1-lock--000000007",
	} {
		if got := s.nodeStore.pathOf(name); got != path {
			t.Errorf("%q is at %s, want %s", name, got, path)
		}
		if other, twice := paths[path]; twice {
			t.Errorf("%q and %q share %s", name, other, path)
		}
		paths[path] = name
		claim := mutexClaim(name)
		if _, err := s.Acquire(t.Context(), claim); err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		if _, err := s.Acquire(t.Context(), mutexClaim(name)); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%q, held: %v", name, err)
		}
		found := false
		for l, err := range s.List(t.Context(), name) {
			mustSucceed(t, err)
			found = found || l.Name == name && len(l.Holders) == 1
		}
		if !found {
			t.Errorf("%q is not listed", name)
		}
		mustSucceed(t, s.Release(t.Context(), claim, ""))
	}
}

// TestForeignHolders: what is no claim is ignored, what is one of a foreign client is waited for; an operator sees
// whose it is, can't mark it, and can remove it by force.
func TestForeignHolders(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	s, cli := rig.Peer(t, c), newAdmin(t, c)
	lock := "/" + t.Name()
	for _, junk := range []string{"", "/config", "/lock-", "/x-lock-12", "/deeper", "/deeper/_c_x-lock-0000000001"} {
		_, err := cli.Create(lock+junk, nil, 0, gozk.WorldACL(gozk.PermAll))
		mustSucceed(t, err)
	}
	claim := mutexClaim(t.Name())
	_, err := s.Acquire(t.Context(), claim)
	mustSucceed(t, err)
	mustSucceed(t, s.Release(t.Context(), claim, ""))
	for _, name := range []string{"/_c_6f1d8e2a-5b1c-4a51-9d53-5d0c7a0a3a11-lock-", "/lock-",
		"/0123456789abcdef0123456789abcdef__lock__", "/0123456789abcdef0123456789abcdef__rlock__"} {
		_, err := cli.Create(lock+name, []byte("10.0.0.1"), gozk.FlagEphemeral|gozk.FlagSequence,
			gozk.WorldACL(gozk.PermAll))
		mustSucceed(t, err)
		if _, err := s.Acquire(t.Context(), mutexClaim(t.Name())); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("a try next to %s: %v", name, err)
		}
		l, err := s.Inspect(t.Context(), t.Name())
		if err != nil || len(l.Holders) != 1 || !l.Holders[0].Foreign || l.Holders[0].Token == 0 ||
			len(l.Waiters) != 0 {
			t.Fatalf("%+v, %v", l, err)
		}
		if err := s.Break(t.Context(), t.Name(), l.Holders[0].Ref, driver.Break{Mode: driver.BreakGraceful}); !errors.Is(err,
			driver.ErrUnsupported) {
			t.Errorf("marking a foreign holder: %v", err)
		}
		wait := mutexClaim(t.Name())
		wait.Wait = true
		done := make(chan error, 1)
		go func() { _, err := s.Acquire(t.Context(), wait); done <- err }()
		sessiontest.AwaitWaiter(t, s, t.Name())
		mustSucceed(t, s.Break(t.Context(), t.Name(), l.Holders[0].Ref, driver.Break{Mode: driver.BreakForce}))
		mustSucceed(t, <-done)
		mustSucceed(t, s.Release(t.Context(), wait, ""))
	}
}

// TestDowngrade: a writer of Curator's that becomes a reader keeps its place, by the number that the two nodes share.
func TestDowngrade(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	s, cli := rig.Peer(t, c), newAdmin(t, c)
	lock := "/" + t.Name()
	_, err := cli.Create(lock, nil, 0, gozk.WorldACL(gozk.PermAll))
	mustSucceed(t, err)
	const id = "/_c_6f1d8e2a-5b1c-4a51-9d53-5d0c7a0a3a11-"
	writer, err := cli.Create(lock+id+"__WRIT__", nil, gozk.FlagEphemeral|gozk.FlagSequence,
		gozk.WorldACL(gozk.PermAll))
	mustSucceed(t, err)
	claim := mutexClaim(t.Name())
	claim.Kind, claim.Limit, claim.Weight, claim.Wait = driver.KindRW, driver.RWLimit, driver.RWLimit, true
	done := make(chan error, 1)
	go func() { _, err := s.Acquire(t.Context(), claim); done <- err }()
	for {
		if l, err := s.Inspect(t.Context(), t.Name()); err != nil || len(l.Waiters) == 1 {
			mustSucceed(t, err)
			break
		}
	}
	reader, err := cli.Create(lock+id+"__READ__"+writer[len(writer)-10:], nil, gozk.FlagEphemeral,
		gozk.WorldACL(gozk.PermAll))
	mustSucceed(t, err)
	mustSucceed(t, cli.Delete(writer, -1))
	select {
	case err := <-done:
		t.Fatalf("a writer came in next to a reader: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	share := mutexClaim(t.Name() + "/other")
	share.Kind, share.Limit = driver.KindRW, driver.RWLimit
	other, err := cli.Create("/"+t.Name()+"/other", nil, 0, gozk.WorldACL(gozk.PermAll))
	mustSucceed(t, err)
	_, err = cli.Create(other+id+"__READ__", nil, gozk.FlagEphemeral|gozk.FlagSequence, gozk.WorldACL(gozk.PermAll))
	mustSucceed(t, err)
	if _, err := s.Acquire(t.Context(), share); err != nil {
		t.Errorf("a reader next to a foreign reader: %v", err)
	}
	mustSucceed(t, cli.Delete(reader, -1))
	mustSucceed(t, <-done)
}

// TestParentRemoved: an operator who removes a lock's node with all nodes below it ends holder and waiter,
// which are notified; and the next claim gets the lock.
func TestParentRemoved(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	const ttl = 3 * time.Minute // so that a renewal would notice after a minute
	holder, waiter := rig.Peer(t, c), rig.Peer(t, c)
	a, b := newClient(t, holder, ttl), newClient(t, waiter, ttl)
	l := mustLock(t, a, t.Name())
	waits := make(chan error, 1)
	go func() { _, err := b.Mutex(t.Name(), nil).Lock(t.Context()); waits <- err }()
	cli := newAdmin(t, c)
	var children []string
	for len(children) < 2 {
		var err error
		children, _, err = cli.Children("/" + t.Name())
		mustSucceed(t, err)
	}
	waitUntilWatching(t, holder.nodeStore)
	waitUntilWatching(t, waiter.nodeStore)
	began := time.Now()
	var steps []any
	for _, key := range children {
		steps = append(steps, &gozk.DeleteRequest{Path: "/" + t.Name() + "/" + key, Version: -1})
	}
	_, err := cli.Multi(append(steps, &gozk.DeleteRequest{Path: "/" + t.Name(), Version: -1})...)
	mustSucceed(t, err)
	if err := <-waits; !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("the waiter learns: %v", err)
	}
	select {
	case <-l.Context().Done():
	case <-time.After(ttl / 6):
		t.Fatal("the holder is not notified")
	}
	t.Logf("both were notified within %v, under a TTL of %v", time.Since(began).Round(time.Millisecond), ttl)
	next := mustLock(t, a, t.Name())
	if next.Token() <= l.Token() {
		t.Errorf("token %d came after %d", next.Token(), l.Token())
	}
	mustSucceed(t, next.Release())
}

// TestContainerRemoved: servers that remove idle containers while we use them do no harm, and tokens rise, although
// the numbers begin at 0 again.
func TestContainerRemoved(t *testing.T) {
	t.Parallel()
	c := startEnsemble(t, zktest.Options{Members: 1,
		Args: []string{"-Dznode.container.checkIntervalMs=20", "-Dznode.container.maxPerMinute=100000"}})
	client := newClient(t, rig.Peer(t, c), 10*time.Second)
	cli := newAdmin(t, c)
	var last int64
	again := 0
	for began := time.Now(); time.Since(began) < 3*time.Second || again < 2 && time.Since(began) < 2*time.Minute; {
		l := mustLock(t, client, t.Name())
		if l.Token() <= last {
			t.Errorf("token %d came after %d", l.Token(), last)
		}
		last = l.Token()
		if children, _, err := cli.Children("/" + t.Name()); err == nil && len(children) == 1 &&
			strings.HasSuffix(children[0], "-0000000000") {
			again++
		}
		mustSucceed(t, l.Release())
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("the container was made %d times", again)
	if again < 2 {
		t.Error("it was never removed")
	}
}

// TestOldSession: a node of an earlier session that still exists is not taken for one's own, though it has the
// claim's id.
func TestOldSession(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	p := rig.Peer(t, c)
	ctx := t.Context()
	old, err := p.nodeStore.OpenSession(ctx, 20*time.Second)
	mustSucceed(t, err)
	now, err := p.nodeStore.OpenSession(ctx, 25*time.Second)
	mustSucceed(t, err)
	note := sequence.Payload{ID: mutexClaim("").ID, Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: old.TTL}
	_, err = p.nodeStore.Add(ctx, t.Name(), old, 0, note, sequence.AddAlways)
	mustSucceed(t, err)
	snapshot, err := p.nodeStore.Add(ctx, t.Name(), now, 0, note, sequence.AddAlways)
	if err != nil || len(snapshot.Nodes) != 2 || snapshot.Nodes[0].Session != old.ID ||
		snapshot.Nodes[1].Session != now.ID {
		t.Errorf("%+v, %v", snapshot.Nodes, err)
	}
	mustSucceed(t, p.nodeStore.EndSession(ctx, old.ID))
	mustSucceed(t, p.nodeStore.EndSession(ctx, now.ID))
	if _, err := p.nodeStore.KeepAlive(ctx, old.ID); !errors.Is(err, sequence.ErrSessionExpired) {
		t.Errorf("a session that was ended: %v", err)
	}
}

// TestRevoked: a client of Curator's can request a release.
func TestRevoked(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	asked := make(chan struct{}, 8)
	p := rig.Peer(t, c)
	client, err := holdfast.New(p, &holdfast.Options{TTL: time.Minute, OnEvent: func(e holdfast.Event) {
		if e.Kind == holdfast.EventReleaseRequested {
			asked <- struct{}{}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	l := mustLock(t, client, t.Name())
	cli := newAdmin(t, c)
	children, _, err := cli.Children("/" + t.Name())
	if err != nil || len(children) != 1 {
		t.Fatal(children, err)
	}
	waitUntilWatching(t, p.nodeStore)
	_, err = cli.Set("/"+t.Name()+"/"+children[0], []byte("__REVOKE__"), -1)
	mustSucceed(t, err)
	select {
	case <-asked:
	case <-time.After(time.Minute):
		t.Error("the holder was not notified")
	}
	if !l.Valid() {
		t.Error("to be asked is not to lose")
	}
	mustSucceed(t, l.Release())
}

// TestNumberOverflow: when the counter of a lock's children is at its end, where numbers repeat, nobody gets in
// next to a holder, and the order stays that of arrival.
func TestNumberOverflow(t *testing.T) {
	t.Parallel()
	c := startEnsemble(t, zktest.Options{Members: 1})
	cli := newAdmin(t, c)
	_, err := cli.Create("/"+t.Name(), nil, 0, gozk.WorldACL(gozk.PermAll))
	mustSucceed(t, err)
	server := c.Members[0]
	server.Terminate()
	run := javaProgram(t, "Plant")
	if out, err := exec.Command(run[0],
		append(run[1:], server.Dir, "/"+t.Name(), strconv.Itoa(math.MaxInt32-3))...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	mustSucceed(t, server.Start())
	mustSucceed(t, c.Ready(t.Context()))
	cli = newAdmin(t, c)

	var inside, most, in atomic.Int64
	var mu sync.Mutex // guards the next two
	var last int64
	twice := 0
	var all sync.WaitGroup
	var peers []*peer
	for range 4 {
		peers = append(peers, rig.Peer(t, c))
	}
	for w := range 16 {
		all.Go(func() {
			for range 8 {
				claim := mutexClaim(t.Name())
				claim.Wait = true
				g, err := peers[w%4].Acquire(t.Context(), claim)
				if err != nil {
					t.Error(err)
					return
				}
				most.Store(max(most.Load(), inside.Add(1)))
				// nobody renews: a holder that is so late is not inside any more
				late := time.AfterFunc(claim.TTL/2, func() { inside.Add(-1) })
				in.Add(1)
				mu.Lock()
				if g.Token <= last {
					t.Errorf("token %d came after %d", g.Token, last)
				}
				last = g.Token
				mu.Unlock()
				children, _, err := cli.Children("/" + t.Name())
				for err == gozk.ErrConnectionClosed || err == gozk.ErrNoServer {
					children, _, err = cli.Children("/" + t.Name())
				}
				mustSucceed(t, err)
				mu.Lock()
				seen := map[string]bool{}
				for _, key := range children {
					number := key[strings.LastIndex(key, "lock-"):]
					if seen[number] {
						twice++
					}
					seen[number] = true
				}
				mu.Unlock()
				inTime := late.Stop()
				if inTime {
					inside.Add(-1)
				}
				if err := peers[w%4].Release(t.Context(), claim, ""); err != nil && (inTime ||
					!errors.Is(err, driver.ErrLost)) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d grants at the end of the counter, %d at a time at most; %d times a number existed twice",
		in.Load(), most.Load(), twice)
	if most.Load() != 1 || twice == 0 {
		t.Error("not as promised, or not at the end of the counter")
	}
}

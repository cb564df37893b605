package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestDelayedAdd: an add of unknown outcome is withdrawn, or its claim is moved to another lease and that lease ends.
// The add cannot take effect later; other adds of the session can.
func TestDelayedAdd(t *testing.T) {
	t.Parallel()
	s, cli, _ := benchStore(t)
	ctx := t.Context()
	ses, err := s.nodes.OpenSession(ctx, 30*time.Second)
	fails(t, err)
	note := sequence.Payload{ID: "late", Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: ses.TTL}
	// The request is built before the withdrawal, and is sent after it, as if it had been delayed.
	key, gate := s.nodes.lockDir(t.Name())+claimKey(ses.ID, 0), s.nodes.gateKey(ses.ID)
	late := cli.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0),
		clientv3.Compare(clientv3.ModRevision(gate), "=", 0)).
		Then(clientv3.OpPut(key, "{}", clientv3.WithLease(parseLease(ses.ID))))
	existed, err := s.nodes.Withdraw(ctx, t.Name(), ses, 0, "late")
	if err != nil || existed {
		t.Errorf("%v, %v", existed, err)
	}
	if r, err := late.Commit(); err != nil || r.Succeeded {
		t.Errorf("the late add took effect: %v", err)
	}
	note.ID = "next"
	snapshot, err := s.nodes.Add(ctx, t.Name(), ses, 1, note, sequence.AddAlways)
	if err != nil || len(snapshot.Nodes) != 1 || snapshot.Nodes[0].ID != "next" {
		t.Errorf("%+v, %v", snapshot, err)
	}
	other, _, _ := benchStore(t) // another process needs no knowledge of the gate, which concerns only its session
	if l, err := other.Inspect(ctx, t.Name()); err != nil || len(l.Holders) != 1 {
		t.Errorf("%+v, %v", l, err)
	}
	key = s.nodes.lockDir(t.Name()) + snapshot.Nodes[0].Key
	late = cli.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0),
		clientv3.Compare(clientv3.ModRevision(gate), "=", s.nodes.gateRevision(ses.ID))).
		Then(clientv3.OpPut(key, "{}", clientv3.WithLease(parseLease(ses.ID))))
	to, err := s.nodes.OpenSession(ctx, 30*time.Second)
	fails(t, err)
	if n, ok, err := s.nodes.Move(ctx, t.Name(), snapshot.Nodes[0], to, note); err != nil || !ok ||
		n.Token != snapshot.Nodes[0].Token {
		t.Errorf("%+v, %v, %v", n, ok, err)
	}
	fails(t, s.nodes.EndSession(ctx, to.ID))
	if r, err := late.Commit(); err != nil || r.Succeeded {
		t.Errorf("the late add of a claim that was moved took effect: %v", err)
	}
	fails(t, s.nodes.EndSession(ctx, ses.ID))
	if r, err := cli.Get(ctx, gate); err != nil || r.Count != 0 {
		t.Errorf("the gate of an ended session is left: %d, %v", r.Count, err)
	}
}

// TestLateRemoval: a removal that comes when another claim has the key removes nothing, also within a batch.
func TestLateRemoval(t *testing.T) {
	t.Parallel()
	s, _, _ := benchStore(t)
	ctx, name := t.Context(), t.Name()
	ses, err := s.nodes.OpenSession(ctx, 30*time.Second)
	fails(t, err)
	add := func(id string) sequence.Node {
		note := sequence.Payload{ID: id, Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: ses.TTL}
		snapshot, err := s.nodes.Add(ctx, name, ses, 1, note, sequence.AddAlways)
		if err != nil || len(snapshot.Nodes) != 1 || snapshot.Nodes[0].ID != id {
			t.Fatalf("%+v, %v", snapshot, err)
		}
		return snapshot.Nodes[0]
	}
	was := add("was")
	was.Version = 0
	remove := func(want bool) {
		t.Helper()
		if existed, _, err := s.nodes.Remove(ctx, name, was, sequence.Then{}); err != nil || existed != want {
			t.Errorf("%v, %v", existed, err)
		}
	}
	remove(true)
	now := add("now")
	if now.Key != was.Key {
		t.Fatalf("the keys are %s and %s", was.Key, now.Key)
	}
	remove(false)
	if existed, _, err := s.nodes.Remove(ctx, name, was, sequence.Then{Next: now.Key}); err != nil || existed {
		t.Errorf("%v, %v", existed, err)
	}
	var all sync.WaitGroup
	for range 4 * maxInFlight {
		all.Go(func() { remove(false) })
	}
	all.Wait()
	if snapshot, err := s.nodes.List(ctx, name, true); err != nil || len(snapshot.Nodes) != 1 ||
		snapshot.Nodes[0].Token != now.Token {
		t.Errorf("%+v, %v", snapshot, err)
	}
	fails(t, s.nodes.EndSession(ctx, ses.ID))
}

// TestNestedNames: a claim on a/b is not a claim on a, even for a client that has seen both.
func TestNestedNames(t *testing.T) {
	t.Parallel()
	s, _, _ := benchStore(t)
	for _, name := range []string{t.Name() + "/b/c", t.Name() + "/b", t.Name()} {
		if _, err := s.Acquire(t.Context(), mutexClaim(name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if l, err := s.Inspect(t.Context(), name); err != nil || len(l.Holders) != 1 || len(l.Waiters) != 0 {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
	for _, name := range []string{t.Name(), t.Name() + "/b", t.Name() + "/b/c"} {
		l, err := s.Inspect(t.Context(), name)
		if err != nil || len(l.Holders) != 1 {
			t.Fatalf("%s: %+v, %v", name, l, err)
		}
		fails(t, s.Break(t.Context(), name, l.Holders[0].Ref, driver.Break{Mode: driver.BreakForce}))
	}
}

// TestRevokedLease: if an operator revokes the lease of a holder, the holder loses its lock and learns of it at once. A
// waiter whose lease is revoked enters the queue again at once, under another lease.
func TestRevokedLease(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	a, b := rig.Peer(t, c), rig.Peer(t, c)
	const ttl = 3 * time.Minute // so that a renewal would show it only after a minute
	holder := newClient(t, a, ttl)
	waiter := newClient(t, b, ttl)
	l := lease(t, holder, t.Name())
	waits := make(chan error, 1)
	go func() {
		next, err := waiter.Mutex(t.Name(), nil).Lock(t.Context())
		if err == nil {
			err = next.Release()
		}
		waits <- err
	}()
	cli := newAdmin(t, c)
	readLeases := func(but clientv3.LeaseID) (leases []clientv3.LeaseID) {
		for len(leases) != 2 || leases[1] == but {
			r, err := cli.Get(t.Context(), t.Name()+"/", clientv3.WithPrefix(),
				clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
			fails(t, err)
			leases = nil
			for _, kv := range r.Kvs {
				leases = append(leases, clientv3.LeaseID(kv.Lease))
			}
		}
		return leases
	}
	leases := readLeases(0)
	startWatches(t, a.store, 1)
	startWatches(t, b.store, 2) // the waiter watches the holder's key too
	began := time.Now()
	_, err := cli.Revoke(t.Context(), leases[1])
	fails(t, err)
	readLeases(leases[1])
	t.Logf("the waiter is in the queue again after %v, with a TTL of %v", time.Since(began).Round(time.Millisecond), ttl)
	_, err = cli.Revoke(t.Context(), leases[0])
	fails(t, err)
	select {
	case <-l.Context().Done():
	case <-time.After(ttl / 6):
		t.Fatal("the holder does not learn of its loss")
	}
	var loss *holdfast.LossError
	if err := context.Cause(l.Context()); !errors.As(err, &loss) || loss.Cause != holdfast.LossSessionExpired {
		t.Errorf("the holder learns: %v", err)
	}
	fails(t, <-waits)
	t.Logf("all of it took %v", time.Since(began).Round(time.Millisecond))
	if took := time.Since(began); took > ttl/6 {
		t.Errorf("that took %v", took)
	}
	fails(t, lease(t, holder, t.Name()).Release())
}

// TestCompaction: a compaction disturbs neither holders nor waiters. No other test runs at the same time, since some
// read the history of the cluster that all tests share.
func TestCompaction(t *testing.T) {
	c := rig.Shared(t)
	first := rig.Peer(t, c)
	a, b := newClient(t, first, 30*time.Second), newClient(t, rig.Peer(t, c), 30*time.Second)
	l := lease(t, a, t.Name())
	in := make(chan error, 1)
	go func() {
		next, err := b.Mutex(t.Name(), nil).Lock(t.Context())
		if err == nil {
			err = next.Release()
		}
		in <- err
	}()
	sessiontest.AwaitWaiter(t, first, t.Name())
	startWatches(t, first.store, 1)
	cli := newAdmin(t, c)
	r, err := cli.Put(t.Context(), t.Name()+"-other", "x")
	fails(t, err)
	_, err = cli.Compact(t.Context(), r.Header.Revision, clientv3.WithCompactPhysical())
	fails(t, err)
	time.Sleep(200 * time.Millisecond)
	if !l.Valid() {
		t.Error("lost by a compaction")
	}
	fails(t, l.Release())
	fails(t, <-in)
}

// TestWatchCancelled: if the server cancels all watches of a client, a waiter is granted the lock because it polls, and
// a holder learns of a break by its next renewal.
func TestWatchCancelled(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	p := rig.Peer(t, c)
	holder, waiter := newClient(t, rig.Peer(t, c), 30*time.Second), newClient(t, p, 10*time.Second)
	first := lease(t, holder, t.Name()+"/first")
	broken := lease(t, waiter, t.Name()+"/broken")
	in := make(chan error, 1)
	go func() {
		l, err := waiter.Mutex(t.Name()+"/first", nil).Lock(t.Context())
		if err == nil {
			err = l.Release()
		}
		in <- err
	}()
	h := p.nodes.hub
	canceled := 0
	for end := time.Now().Add(time.Minute); canceled < 3 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		canceled = 0
		h.mu.Lock()
		for id, w := range h.watches {
			if w.knownUpTo == 0 { // the server has canceled it
				canceled++
			} else { // the reply is the same as when the server cancels it for its own reasons
				h.queueRequest(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}})
			}
		}
		h.mu.Unlock()
	}
	if canceled < 3 { // of the key that it waits for, its own key, and the key of the other lock
		t.Fatalf("the server has canceled %d watches", canceled)
	}
	began := time.Now()
	fails(t, first.Release())
	fails(t, <-in)
	t.Logf("granted after %v", time.Since(began).Round(time.Millisecond))
	s := rig.Peer(t, c)
	l, err := s.Inspect(t.Context(), t.Name()+"/broken")
	if err != nil || len(l.Holders) != 1 {
		t.Fatal(l, err)
	}
	fails(t, s.Break(t.Context(), t.Name()+"/broken", l.Holders[0].Ref, driver.Break{Mode: driver.BreakGraceful}))
	select {
	case <-broken.Context().Done():
		var loss *holdfast.LossError
		if err := context.Cause(broken.Context()); !errors.As(err, &loss) || loss.Cause != holdfast.LossBroken {
			t.Errorf("the holder was notified of %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("a broken holder was not notified")
	}
}

// TestRestoredSnapshot: a cluster that is set back to an older state draws smaller tokens than before. Only a resource
// that remembers the largest token can refuse them.
func TestRestoredSnapshot(t *testing.T) {
	t.Parallel()
	c := startCluster(t, etcdtest.Options{Members: 1})
	client := newClient(t, rig.Peer(t, c), 10*time.Second)
	cycle := func(client *holdfast.Client) int64 {
		l := lease(t, client, t.Name())
		defer l.Release()
		return l.Token()
	}
	saved := cycle(client)
	m := c.Members[0]
	m.Terminate()
	snapshot := t.TempDir()
	fails(t, os.CopyFS(snapshot, os.DirFS(m.Dir)))
	fails(t, m.Start())
	fails(t, c.Ready(t.Context()))
	var largest int64 // token that the resource has seen
	for range 20 {
		token := cycle(client)
		if token <= largest || token <= saved {
			t.Errorf("token %d came after %d", token, largest)
		}
		largest = token
	}
	m.Terminate()
	fails(t, os.RemoveAll(m.Dir))
	fails(t, os.CopyFS(m.Dir, os.DirFS(snapshot)))
	fails(t, m.Start())
	fails(t, c.Ready(t.Context()))
	if token := cycle(newClient(t, rig.Peer(t, c), 10*time.Second)); token > largest {
		t.Errorf("token %d came after %d, although the cluster was set back: this test proves nothing", token, largest)
	}
	if client.Info().TokenRegression == "" {
		t.Error("tokens can fall, and Info does not say so")
	}
}

// TestMinTTL: a cluster with the usual election timeout of a second grants no lease of less than two seconds. The grant
// has the real TTL.
func TestMinTTL(t *testing.T) {
	t.Parallel()
	c := startCluster(t, etcdtest.Options{Members: 1,
		Args: []string{"--heartbeat-interval", "100", "--election-timeout", "1000"}})
	s := rig.Peer(t, c)
	cl := mutexClaim(t.Name())
	cl.TTL = s.Info().MinTTL
	g, err := s.Acquire(t.Context(), cl)
	if err != nil || cl.TTL != time.Second || g.GrantedTTL != 2*time.Second {
		t.Errorf("a TTL of %v was asked for, and %v granted: %v", cl.TTL, g.GrantedTTL, err)
	}
	if p := s.Explain(cl); len(p.Keys) != 1 ||
		!strings.HasPrefix(g.Name+"/"+g.Ref, strings.TrimSuffix(p.Keys[0], "LEASE")) || p.TTL != time.Second {
		t.Errorf("explained as %+v, but the key is %s", p, g.Ref)
	}
}

// TestUnequalMembers: a member with a longer election timeout than the others replies that it grants a longer TTL than
// the leader keeps. The store trusts only what the leader keeps.
func TestUnequalMembers(t *testing.T) {
	t.Parallel()
	c := startCluster(t, etcdtest.Options{})
	leader, err := c.Leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slow := c.Members[0]
	if slow == leader {
		slow = c.Members[1]
	}
	slow.Terminate()
	slow.Args = append(slow.Args, "--heartbeat-interval", "100", "--election-timeout", "10000")
	fails(t, slow.Start())
	fails(t, c.Ready(t.Context()))
	p := rig.Peer(t, c, slow)
	const ttl = 3 * time.Second
	for what, grant := range map[string]func() (time.Duration, error){
		"a session": func() (time.Duration, error) {
			s, err := p.nodes.OpenSession(t.Context(), ttl)
			return s.TTL,
				err
		},
		"a lease": func() (time.Duration, error) {
			l, err := NewLease(t.Context(), p.cli, ttl, nil)
			return l.TTL(), err
		},
	} {
		if got, err := grant(); err != nil || got != ttl {
			t.Errorf("%s of %v is granted for %v: %v", what, ttl, got, err)
		}
	}
}

// TestNoSpace: a cluster without space in its quota refuses a claim at once, and says why. A lock that is held is still
// renewed and released.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	c := startCluster(t, etcdtest.Options{Members: 1, Args: []string{"--quota-backend-bytes", "2097152"}})
	client := newClient(t, rig.Peer(t, c), 30*time.Second)
	held := lease(t, client, t.Name()+"/held")
	cli := newAdmin(t, c)
	for i := range 100 {
		if _, err := cli.Put(t.Context(), fmt.Sprint("fill/", i), strings.Repeat("x", 100<<10)); errors.Is(err,
			rpctypes.ErrNoSpace) {
			break
		}
	}
	began := time.Now()
	_, err := client.Mutex(t.Name()+"/other", nil).Lock(t.Context())
	if !errors.Is(err, holdfast.ErrDenied) || !strings.Contains(err.Error(), "database space exceeded; make room") {
		t.Errorf("a lock on a full cluster: %v", err)
	}
	if sessiontest.IsLate(began) {
		t.Errorf("the error came after %v", time.Since(began))
	}
	sessiontest.AwaitRenewal(t, held)
	fails(t, held.Release())
}

// TestCorrupt: a cluster that accepts no writes because its members' data differ says so at once, and what to look at.
func TestCorrupt(t *testing.T) {
	t.Parallel()
	c := startCluster(t, etcdtest.Options{Members: 1})
	client := newClient(t, rig.Peer(t, c), 30*time.Second)
	fails(t, lease(t, client, t.Name()).Release())
	alarm := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_CORRUPT}
	_, err := pb.NewMaintenanceClient(newAdmin(t, c).ActiveConnection()).Alarm(t.Context(), alarm)
	fails(t, err)
	began := time.Now()
	_, err = client.Mutex(t.Name(), nil).Lock(t.Context())
	if !errors.Is(err, holdfast.ErrDenied) || !strings.Contains(err.Error(), "alarm list") ||
		sessiontest.IsLate(began) {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// TestAuth: a user without permissions learns that at once. A holder that loses its permissions loses the lock, and
// learns it in time. No error contains a password.
func TestAuth(t *testing.T) {
	t.Parallel()
	c := startCluster(t, etcdtest.Options{Members: 1})
	cli := newAdmin(t, c)
	ctx := t.Context()
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const secret = "s3cret-of-ann"
	_, err := cli.UserAdd(ctx, "root", "root")
	do(err)
	_, err = cli.UserGrantRole(ctx, "root", "root")
	do(err)
	_, err = cli.UserAdd(ctx, "ann", secret)
	do(err)
	_, err = cli.RoleAdd(ctx, "locks")
	do(err)
	_, err = cli.RoleGrantPermission(ctx, "locks", "locks/", clientv3.GetPrefixRangeEnd("locks/"),
		clientv3.PermissionType(clientv3.PermReadWrite))
	do(err)
	_, err = cli.UserGrantRole(ctx, "ann", "locks")
	do(err)
	_, err = cli.AuthEnable(ctx)
	do(err)
	shows := func(err error) {
		t.Helper()
		if strings.Contains(fmt.Sprintf("%v %+v", err, err), secret) {
			t.Errorf("the error contains a secret: %v", err)
		}
	}
	at := "@" + c.Members[0].Endpoint
	ann, err := holdfast.Open(ctx, "etcd://ann:"+secret+at+"?prefix=locks/", &holdfast.Options{TTL: 15 * time.Second})
	do(err)
	defer ann.Close()
	if strings.Contains(ann.Info().Store, secret) {
		t.Errorf("Info contains a secret: %s", ann.Info().Store)
	}
	l := lease(t, ann, "mine")

	outside, err := holdfast.Open(ctx, "etcd://ann:"+secret+at, nil)
	do(err)
	defer outside.Close()
	began := time.Now()
	_, err = outside.Mutex("not-mine", nil).Lock(ctx)
	shows(err)
	if !errors.Is(err, holdfast.ErrDenied) || !strings.Contains(err.Error(), "the whole range") ||
		sessiontest.IsLate(began) {
		t.Errorf("outside of the granted prefix: %v after %v", err, time.Since(began))
	}
	wrong, err := holdfast.Open(ctx, "etcd://ann:wrong-"+secret+at, nil)
	if err == nil {
		_, err = wrong.Mutex("any", nil).Lock(ctx)
		defer wrong.Close()
	}
	shows(err)
	if !errors.Is(err, holdfast.ErrDenied) {
		t.Errorf("with a wrong password: %v", err)
	}

	root, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Username: "root", Password: "root",
		DialTimeout: time.Minute})
	do(err)
	defer root.Close()
	_, err = root.UserRevokeRole(ctx, "ann", "locks")
	do(err)
	select {
	case <-l.Context().Done():
		shows(context.Cause(l.Context()))
		if cause := context.Cause(l.Context()); !errors.Is(cause, holdfast.ErrDenied) {
			t.Errorf("permissions lost while holding: %v", cause)
		}
	case <-time.After(time.Minute):
		t.Error("the permissions are gone, and the holder still trusts its lease")
	}
}

// TestTLS: the store works with the right certificate authority, and reports a wrong one at once.
func TestTLS(t *testing.T) {
	t.Parallel()
	rig.TLS(t, func(cert, key string) *etcdtest.Cluster {
		return startCluster(t, etcdtest.Options{Members: 1, Cert: cert, Key: key})
	})
}

// TestWalkReportsProgress: a listing that goes through many keys that belong to no lock reports after each page that
// the cluster has answered.
func TestWalkReportsProgress(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	cli := newAdmin(t, c)
	for i := range 30 {
		var puts []clientv3.Op
		for k := range 100 {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("%s/%d/%d", t.Name(), i, k), "no lock"))
		}
		_, err := cli.Txn(t.Context()).Then(puts...).Commit()
		fails(t, err)
	}
	pages := 0
	for snapshot, err := range rig.Peer(t, c).nodes.Walk(t.Context(), t.Name()) {
		fails(t, err)
		pages++
		if len(snapshot.Nodes) > 0 {
			t.Errorf("there is a lock: %+v", snapshot)
		}
	}
	if pages < 2 {
		t.Errorf("a listing of 3000 keys reported only %d times that the cluster has answered", pages)
	}
}

// TestLease: the keys of a lease that the user keeps alive exist while it is kept alive, end when it is revoked, and
// its Keep returns when it is lost.
func TestLease(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	p := rig.Peer(t, c)
	cli := newAdmin(t, c)
	ctx := t.Context()
	const ttl = 9 * time.Second
	l, err := NewLease(ctx, p.cli, ttl, nil)
	if err != nil {
		t.Fatal(err)
	}
	created, err := l.Put(ctx, t.Name(), "here")
	if err != nil || created == 0 {
		t.Fatal(created, err)
	}
	stands := func() bool {
		r, err := cli.Get(ctx, t.Name())
		fails(t, err)
		return r.Count == 1 && r.Kvs[0].CreateRevision == created
	}
	keep, stop := context.WithCancel(ctx)
	kept := make(chan error, 1)
	go func() { kept <- l.Keep(keep) }()
	time.Sleep(ttl + 2*time.Second)
	if !stands() || l.Remaining() == 0 {
		t.Errorf("a lease that is kept alive has expired: %v left", l.Remaining())
	}
	go func() { kept <- l.Keep(keep) }() // a second call of Keep does no harm
	gone := make(chan time.Time, 1)
	changes := cli.Watch(ctx, t.Name(), clientv3.WithRev(created+1))
	go func() {
		for r := range changes {
			if len(r.Events) > 0 {
				gone <- time.Now()
				return
			}
		}
	}()
	p.Cut()
	var believed time.Time // the last time the lease was valid, read before the check
	for now := time.Now(); l.Remaining() > 0; now = time.Now() {
		believed = now
		time.Sleep(time.Millisecond)
	}
	for range 2 {
		err := <-kept
		if loss, ok := errors.AsType[*holdfast.LossError](err); !ok || loss.Cause != holdfast.LossUnreachable {
			t.Errorf("cut off, Keep returns %v", err)
		}
	}
	if early := believed.Sub(<-gone); early > 0 {
		t.Errorf("the key was gone %v before its keeper stopped trusting the lease", early)
	}
	p.Heal()
	stop()

	l, err = NewLease(ctx, p.cli, 30*time.Second, nil)
	if err != nil {
		t.Fatal(err)
	}
	if created, err = l.Put(ctx, t.Name()+"/2", "x"); err != nil {
		t.Fatal(err)
	}
	fails(t, l.Revoke(ctx))
	if r, err := cli.Get(ctx, t.Name()+"/2"); err != nil || r.Count != 0 || l.Remaining() != 0 {
		t.Errorf("after Revoke %d keys exist, with %v left, %v", r.Count, l.Remaining(), err)
	}
	for what, err := range map[string]error{"Revoke": l.Revoke(ctx), "KeepAlive": l.KeepAlive(ctx)} {
		loss, ok := errors.AsType[*holdfast.LossError](err)
		if !ok || !errors.Is(err, driver.ErrLost) || loss.Cause != holdfast.LossSessionExpired {
			t.Errorf("%s after Revoke: %v", what, err)
		}
	}
	if _, err := l.Put(ctx, t.Name()+"/2", "x"); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Put after Revoke: %v", err)
	}
	if _, err := NewLease(ctx, p.cli, time.Millisecond, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a lease of a millisecond: %v", err)
	}
}

// TestChangeAmong: a weight is changed only if the other claims are as they were and no claim was added, which the
// server compares.
func TestChangeAmong(t *testing.T) {
	t.Parallel()
	s, _, _ := benchStore(t)
	ctx, name := t.Context(), t.Name()
	ses, err := s.nodes.OpenSession(ctx, 30*time.Second)
	fails(t, err)
	note := sequence.Payload{ID: "a", Kind: driver.KindRW, Limit: driver.RWLimit, Weight: 1, TTL: ses.TTL}
	add := func(number int64, id string) sequence.Snapshot {
		n := note
		n.ID = id
		snapshot, err := s.nodes.Add(ctx, name, ses, number, n, sequence.AddAlways)
		fails(t, err)
		return snapshot
	}
	alone := add(0, "a")
	both := add(1, "b")
	heavy := note
	heavy.Weight = heavy.Limit
	change := func(snapshot sequence.Snapshot, want bool, what string) {
		t.Helper()
		among := sequence.Among{Nodes: snapshot.Nodes, Revision: snapshot.Revision}
		if _, ok, err := s.nodes.Change(ctx, name, snapshot.Nodes[0], heavy, among); ok != want ||
			err != nil {
			t.Errorf("%s: changed: %v, %v", what, ok, err)
		}
	}
	change(alone, false, "next to one that has come since")
	other := note
	other.ID, other.ReleaseRequested = "b", true
	if _, ok, err := s.nodes.Change(ctx, name, both.Nodes[1], other, sequence.Among{}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	change(both, false, "next to one that has changed since")
	snapshot, err := s.nodes.List(ctx, name, true)
	fails(t, err)
	if _, _, err := s.nodes.Remove(ctx, name, snapshot.Nodes[1], sequence.Then{}); err != nil {
		t.Fatal(err)
	}
	change(snapshot, false, "when one has gone since")
	snapshot, err = s.nodes.List(ctx, name, true)
	fails(t, err)
	change(snapshot, true, "undisturbed")
	if snapshot, err = s.nodes.List(ctx, name, true); err != nil || len(snapshot.Nodes) != 1 ||
		snapshot.Nodes[0].Weight != heavy.Limit || snapshot.Nodes[0].Token != alone.Nodes[0].Token {
		t.Errorf("%+v, %v", snapshot, err)
	}
	fails(t, s.nodes.EndSession(ctx, ses.ID))
}

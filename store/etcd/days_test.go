package etcd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func start(t *testing.T, o etcdtest.Options) *etcdtest.Cluster {
	t.Helper()
	c, err := etcdtest.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func admin(t *testing.T, c *etcdtest.Cluster) *clientv3.Client {
	t.Helper()
	cli, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Close() })
	return cli
}

func lease(t *testing.T, client *holdfast.Client, name string) *holdfast.Lease {
	t.Helper()
	l, err := client.Mutex(name, nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func newClient(t *testing.T, s driver.Store, ttl time.Duration) *holdfast.Client {
	t.Helper()
	client, err := holdfast.New(s, &holdfast.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// TestLateAdd: an add of unknown outcome that is withdrawn, or whose claim is moved to another lease and over, cannot take
// effect later, and other adds of the session can.
func TestLateAdd(t *testing.T) {
	t.Parallel()
	s, cli, _ := benchStore(t)
	ctx := t.Context()
	ses, err := s.tree.Open(ctx, 30*time.Second)
	fails(t, err)
	note := sequence.Note{ID: "late", Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: ses.TTL}
	// As it would be sent before the withdrawal, and arrive after.
	key, gate := s.tree.dir(t.Name())+keyOf(ses.ID, 0), s.tree.gate(ses.ID)
	late := cli.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0), clientv3.Compare(clientv3.ModRevision(gate), "=", 0)).
		Then(clientv3.OpPut(key, "{}", clientv3.WithLease(unhex(ses.ID))))
	stood, err := s.tree.Withdraw(ctx, t.Name(), ses, 0, "late")
	if err != nil || stood {
		t.Errorf("%v, %v", stood, err)
	}
	if r, err := late.Commit(); err != nil || r.Succeeded {
		t.Errorf("the late add took effect: %v", err)
	}
	note.ID = "next"
	look, err := s.tree.Add(ctx, t.Name(), ses, 1, note, sequence.Always)
	if err != nil || len(look.Nodes) != 1 || look.Nodes[0].ID != "next" {
		t.Errorf("%+v, %v", look, err)
	}
	other, _, _ := benchStore(t) // another process's view of the gate does not matter: it is the session's own
	if l, err := other.Inspect(ctx, t.Name()); err != nil || len(l.Holders) != 1 {
		t.Errorf("%+v, %v", l, err)
	}
	key = s.tree.dir(t.Name()) + look.Nodes[0].Key
	late = cli.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0), clientv3.Compare(clientv3.ModRevision(gate), "=", s.tree.gateOf(ses.ID))).
		Then(clientv3.OpPut(key, "{}", clientv3.WithLease(unhex(ses.ID))))
	to, err := s.tree.Open(ctx, 30*time.Second)
	fails(t, err)
	if n, ok, err := s.tree.Move(ctx, t.Name(), look.Nodes[0], to, note); err != nil || !ok || n.Token != look.Nodes[0].Token {
		t.Errorf("%+v, %v, %v", n, ok, err)
	}
	fails(t, s.tree.End(ctx, to.ID))
	if r, err := late.Commit(); err != nil || r.Succeeded {
		t.Errorf("the late add of a claim that was moved took effect: %v", err)
	}
	fails(t, s.tree.End(ctx, ses.ID))
	if r, err := cli.Get(ctx, gate); err != nil || r.Count != 0 {
		t.Errorf("the gate of a session that is over is left: %d, %v", r.Count, err)
	}
}

// TestNested: a claim on a/b is none on a, also to a client that has seen both.
func TestNested(t *testing.T) {
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
		fails(t, s.Break(t.Context(), name, l.Holders[0].Ref, driver.BreakForce))
	}
}

// TestRevoked: an operator who revokes the lease ends holders and waiters, at once, each with that cause; and the client
// goes on under another lease.
func TestRevoked(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	a, b := mustOpen(t, c), mustOpen(t, c)
	holder := newClient(t, a, 20*time.Second)
	waiter := newClient(t, b, 20*time.Second)
	l := lease(t, holder, t.Name())
	waits := make(chan error, 1)
	go func() { _, err := waiter.Mutex(t.Name(), nil).Lock(t.Context()); waits <- err }()
	cli := admin(t, c)
	var leases []clientv3.LeaseID // the waiter's first: else it is let in
	for len(leases) < 2 {
		r, err := cli.Get(t.Context(), t.Name()+"/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend))
		fails(t, err)
		leases = nil
		for _, kv := range r.Kvs {
			leases = append(leases, clientv3.LeaseID(kv.Lease))
		}
	}
	time.Sleep(150 * time.Millisecond) // by now both watch their own keys
	began := time.Now()
	for _, id := range leases {
		_, err := cli.Revoke(t.Context(), id)
		fails(t, err)
	}
	if err := <-waits; !errors.Is(err, holdfast.ErrLost) || !strings.Contains(err.Error(), string(driver.LossSession)) {
		t.Errorf("the waiter is told: %v", err)
	}
	select {
	case <-l.Context().Done():
	case <-time.After(5 * time.Second):
		t.Fatal("the holder is not told")
	}
	var loss *holdfast.LossError
	if err := context.Cause(l.Context()); !errors.As(err, &loss) || loss.Loss != driver.LossSession {
		t.Errorf("the holder is told: %v", err)
	}
	t.Logf("both were told within %v, under a TTL of 20 s", time.Since(began).Round(time.Millisecond))
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("that took %v", took)
	}
	fails(t, lease(t, holder, t.Name()).Unlock())
}

var (
	leaders     = flag.Int("leaders", 3, "how many leaders are killed or stopped")
	leaderEvery = flag.Duration("leader-every", 2500*time.Millisecond, "how long each time until the next; half of that the server is away")
)

// TestLeaderKilled: with the leader killed or stopped again and again a holder keeps its lock, and others get theirs.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	c := start(t, etcdtest.Options{})
	client := newClient(t, mustOpen(t, c), 10*time.Second)
	kept := lease(t, client, t.Name()+"/kept")
	var cycles atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if l, err := client.Mutex(t.Name()+"/other", nil).Lock(ctx); err == nil {
				_ = l.Unlock()
				cycles.Add(1)
			}
		}
	}()
	for i := range *leaders {
		before := cycles.Load()
		leader, err := c.Leader(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			leader.Kill()
			time.Sleep(*leaderEvery / 2)
			fails(t, leader.Start())
		} else {
			leader.Stop()
			time.Sleep(*leaderEvery / 2)
			leader.Continue()
		}
		time.Sleep(*leaderEvery / 2)
		for end := time.Now().Add(30 * time.Second); cycles.Load() == before; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("nobody else got a lock for 30 s, when leader %d had gone and come back", i+1)
			}
		}
	}
	cancel()
	<-done
	if !kept.Valid() || kept.Context().Err() != nil {
		t.Errorf("the lock was lost: %v", context.Cause(kept.Context()))
	}
	fails(t, kept.Unlock())
	t.Logf("%d other cycles while %d leaders were killed or stopped, one every %v", cycles.Load(), *leaders, *leaderEvery)
}

// TestAllKilled: when all servers are killed and come back within the TTL, holders keep their locks and tokens rise.
func TestAllKilled(t *testing.T) {
	t.Parallel()
	c := start(t, etcdtest.Options{})
	client := newClient(t, mustOpen(t, c), 15*time.Second)
	l := lease(t, client, t.Name())
	for _, m := range c.Members {
		m.Kill()
	}
	for _, m := range c.Members {
		fails(t, m.Start())
	}
	fails(t, etcdtest.Ready(t.Context(), admin(t, c)))
	time.Sleep(6 * time.Second) // a renewal has come and gone
	if !l.Valid() {
		t.Errorf("lost: %v", context.Cause(l.Context()))
	}
	token := l.Token()
	fails(t, l.Unlock())
	next := lease(t, client, t.Name())
	if next.Token() <= token {
		t.Errorf("token %d came after %d", next.Token(), token)
	}
	fails(t, next.Unlock())
}

// TestCompaction: a compaction disturbs neither holders nor waiters.
func TestCompaction(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	a, b := newClient(t, mustOpen(t, c), 10*time.Second), newClient(t, mustOpen(t, c), 10*time.Second)
	l := lease(t, a, t.Name())
	in := make(chan error, 1)
	go func() {
		next, err := b.Mutex(t.Name(), nil).Lock(t.Context())
		if err == nil {
			err = next.Unlock()
		}
		in <- err
	}()
	time.Sleep(300 * time.Millisecond)
	cli := admin(t, c)
	r, err := cli.Put(t.Context(), t.Name()+"-other", "x")
	fails(t, err)
	_, err = cli.Compact(t.Context(), r.Header.Revision, clientv3.WithCompactPhysical())
	fails(t, err)
	time.Sleep(200 * time.Millisecond)
	if !l.Valid() {
		t.Error("lost by a compaction")
	}
	fails(t, l.Unlock())
	fails(t, <-in)
}

// TestWatchCancelled: when the server cancels all of a client's watches, a waiter is let in by its polls, and a break is
// told by the next renewal.
func TestWatchCancelled(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	p := mustOpen(t, c)
	holder, waiter := newClient(t, mustOpen(t, c), 10*time.Second), newClient(t, p, 3*time.Second)
	first := lease(t, holder, t.Name()+"/first")
	broken := lease(t, waiter, t.Name()+"/broken")
	in := make(chan error, 1)
	go func() {
		l, err := waiter.Mutex(t.Name()+"/first", nil).Lock(t.Context())
		if err == nil {
			err = l.Unlock()
		}
		in <- err
	}()
	h := p.tree.hub
	cancelled := 0
	for end := time.Now().Add(10 * time.Second); cancelled < 3 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		cancelled = 0
		h.mu.Lock()
		for id, w := range h.watches {
			if w.again { // the server has said so
				cancelled++
			} else { // as the server may do for reasons of its own: what it says is the same
				h.push(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}})
			}
		}
		h.mu.Unlock()
	}
	if cancelled < 3 { // what the waiter waits for, its own key, and that of the other lock
		t.Fatalf("the server has cancelled %d watches", cancelled)
	}
	began := time.Now()
	fails(t, first.Unlock())
	fails(t, <-in)
	t.Logf("let in after %v", time.Since(began).Round(time.Millisecond))
	s := mustOpen(t, c)
	l, err := s.Inspect(t.Context(), t.Name()+"/broken")
	if err != nil || len(l.Holders) != 1 {
		t.Fatal(l, err)
	}
	fails(t, s.Break(t.Context(), t.Name()+"/broken", l.Holders[0].Ref, driver.BreakMark))
	select {
	case <-broken.Context().Done():
		if err := context.Cause(broken.Context()); !strings.Contains(err.Error(), string(driver.LossBroken)) {
			t.Errorf("the holder is told: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("a broken holder was not told")
	}
}

// TestRestored: when the cluster is set back to an older state it gives smaller tokens than before. A resource that keeps
// the largest refuses them; nothing else can.
func TestRestored(t *testing.T) {
	t.Parallel()
	c := start(t, etcdtest.Options{Members: 1})
	client := newClient(t, mustOpen(t, c), 2*time.Second)
	cycle := func(client *holdfast.Client) int64 {
		l := lease(t, client, t.Name())
		defer l.Unlock()
		return l.Token()
	}
	saved := cycle(client)
	m := c.Members[0]
	m.Terminate()
	snapshot := t.TempDir()
	fails(t, os.CopyFS(snapshot, os.DirFS(m.Data)))
	fails(t, m.Start())
	fails(t, etcdtest.Ready(t.Context(), admin(t, c)))
	var largest int64 // what the resource has seen
	for range 5 {
		token := cycle(client)
		if token <= largest || token <= saved {
			t.Errorf("token %d came after %d", token, largest)
		}
		largest = token
	}
	m.Terminate()
	fails(t, os.RemoveAll(m.Data))
	fails(t, os.CopyFS(m.Data, os.DirFS(snapshot)))
	fails(t, m.Start())
	fails(t, etcdtest.Ready(t.Context(), admin(t, c)))
	if token := cycle(newClient(t, mustOpen(t, c), 2*time.Second)); token > largest {
		t.Errorf("token %d came after %d, though the cluster was set back: this test shows nothing", token, largest)
	}
	if client.Info().TokensFall == "" {
		t.Error("tokens can fall, and the store does not say so")
	}
}

// TestLeastTTL: a cluster with the usual election timeout of a second gives no lease of less than two. The grant says so.
func TestLeastTTL(t *testing.T) {
	t.Parallel()
	c := start(t, etcdtest.Options{Members: 1, Args: []string{"--heartbeat-interval", "100", "--election-timeout", "1000"}})
	s := mustOpen(t, c)
	cl := mutexClaim(t.Name())
	cl.TTL = s.Info().MinTTL
	g, err := s.Acquire(t.Context(), cl)
	if err != nil || cl.TTL != time.Second || g.TTL != 2*time.Second {
		t.Errorf("a TTL of %v was asked for, and %v granted: %v", cl.TTL, g.TTL, err)
	}
	if p := s.Explain(cl); len(p.Keys) != 1 || !strings.HasPrefix(g.Name+"/"+g.Ref, strings.TrimSuffix(p.Keys[0], "LEASE")) || p.TTL != time.Second {
		t.Errorf("explained as %+v, and %s stands", p, g.Ref)
	}
}

// TestHalfDead: a client whose first endpoints are dead works with the others.
func TestHalfDead(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	url := "etcd://127.0.0.1:1,127.0.0.1:2," + c.Members[0].Endpoint
	client, err := holdfast.Open(t.Context(), url, &holdfast.Options{TTL: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	began := time.Now()
	fails(t, lease(t, client, t.Name()).Unlock())
	t.Logf("locked and unlocked in %v", time.Since(began))
}

// TestNoSpace: a cluster whose quota is used up refuses at once, says why, and lets go of what is held.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	c := start(t, etcdtest.Options{Members: 1, Args: []string{"--quota-backend-bytes", "2097152"}})
	client := newClient(t, mustOpen(t, c), 10*time.Second)
	held := lease(t, client, t.Name()+"/held")
	cli := admin(t, c)
	for i := range 100 {
		if _, err := cli.Put(t.Context(), fmt.Sprint("fill/", i), strings.Repeat("x", 100<<10)); err != nil {
			break
		}
	}
	began := time.Now()
	_, err := client.Mutex(t.Name()+"/other", nil).Lock(t.Context())
	if !errors.Is(err, holdfast.ErrDenied) || !strings.Contains(err.Error(), "database space exceeded") {
		t.Errorf("a lock on a full cluster: %v", err)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("that took %v to say", took)
	}
	time.Sleep(4 * time.Second)
	if !held.Valid() {
		t.Error("a lock was lost for want of space")
	}
	fails(t, held.Unlock())
}

// TestAuth: a user without rights is told at once; one who loses them in mid-hold loses the lock, and is told in time; and
// no password shows.
func TestAuth(t *testing.T) {
	t.Parallel()
	c := start(t, etcdtest.Options{Members: 1})
	cli := admin(t, c)
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
	_, err = cli.RoleGrantPermission(ctx, "locks", "locks/", clientv3.GetPrefixRangeEnd("locks/"), clientv3.PermissionType(clientv3.PermReadWrite))
	do(err)
	_, err = cli.UserGrantRole(ctx, "ann", "locks")
	do(err)
	_, err = cli.AuthEnable(ctx)
	do(err)
	shows := func(err error) {
		t.Helper()
		if strings.Contains(fmt.Sprintf("%v %+v", err, err), secret) {
			t.Errorf("a secret shows: %v", err)
		}
	}
	at := "@" + c.Members[0].Endpoint
	ann, err := holdfast.Open(ctx, "etcd://ann:"+secret+at+"?prefix=locks/", &holdfast.Options{TTL: 3 * time.Second})
	do(err)
	defer ann.Close()
	if strings.Contains(ann.Info().Store, secret) {
		t.Errorf("a secret shows: %s", ann.Info().Store)
	}
	l := lease(t, ann, "mine")

	outside, err := holdfast.Open(ctx, "etcd://ann:"+secret+at, nil)
	do(err)
	defer outside.Close()
	began := time.Now()
	_, err = outside.Mutex("not-mine", nil).Lock(ctx)
	shows(err)
	if !errors.Is(err, holdfast.ErrDenied) || time.Since(began) > 2*time.Second {
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

	root, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Username: "root", Password: "root", DialTimeout: 2 * time.Second})
	do(err)
	defer root.Close()
	_, err = root.UserRevokeRole(ctx, "ann", "locks")
	do(err)
	select {
	case <-l.Context().Done():
		shows(context.Cause(l.Context()))
		t.Logf("rights lost in mid-hold: %v", context.Cause(l.Context()))
	case <-time.After(5 * time.Second):
		t.Error("the rights are gone, and the holder believes still")
	}
}

// TestTLS: with the right authority the store works, and with the wrong one it says so at once.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, bad := certificate(t, filepath.Join(dir, "good")), certificate(t, filepath.Join(dir, "bad"))
	c := start(t, etcdtest.Options{Members: 1, TLS: &struct{ CA, Cert, Key string }{good + ".pem", good + ".pem", good + "-key.pem"}})
	try := func(ca string) error {
		client, err := holdfast.Open(t.Context(), "etcd://"+c.Members[0].Endpoint+"?ca="+ca, &holdfast.Options{TTL: 5 * time.Second})
		if err != nil {
			return err
		}
		defer client.Close()
		l, err := client.Mutex(t.Name(), nil).Lock(t.Context())
		if err != nil {
			return err
		}
		return l.Unlock()
	}
	var err error
	for range 20 { // until the server is there
		if err = try(good + ".pem"); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	fails(t, err)
	began := time.Now()
	err = try(bad + ".pem")
	t.Logf("a wrong authority: %v after %v", err, time.Since(began).Round(time.Millisecond))
	if !errors.Is(err, holdfast.ErrDenied) || time.Since(began) > 5*time.Second {
		t.Errorf("a wrong authority: %v after %v", err, time.Since(began))
	}
}

// certificate writes a self-signed certificate for the loopback interface, and its key.
func certificate(t *testing.T, path string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: path}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{path + ".pem": {Type: "CERTIFICATE", Bytes: der}, path + "-key.pem": {Type: "EC PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// TestLease: a lease in the user's own hands keeps its keys while it is kept alive, ends them when it is revoked, and tells
// when it is lost.
func TestLease(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	p := mustOpen(t, c)
	cli := admin(t, c)
	ctx := t.Context()
	l, err := p.NewLease(ctx, time.Second)
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
	time.Sleep(2500 * time.Millisecond)
	if !stands() || l.Left() == 0 {
		t.Errorf("a lease that is kept is over: %v left", l.Left())
	}
	go func() { kept <- l.Keep(keep) }() // a second keeper does no harm
	p.link.Cut()
	for range 2 {
		if err := <-kept; !errors.Is(err, driver.ErrLost) {
			t.Errorf("cut off, Keep says %v", err)
		}
	}
	if !stands() {
		t.Error("the key went before its keeper was told")
	}
	p.link.Heal()
	stop()

	l, err = p.NewLease(ctx, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if created, err = l.Put(ctx, t.Name()+"/2", "x"); err != nil {
		t.Fatal(err)
	}
	fails(t, l.Revoke(ctx))
	if r, err := cli.Get(ctx, t.Name()+"/2"); err != nil || r.Count != 0 || l.Left() != 0 {
		t.Errorf("revoked, and %d keys stand, with %v left, %v", r.Count, l.Left(), err)
	}
	for what, err := range map[string]error{"Revoke": l.Revoke(ctx), "KeepAlive": l.KeepAlive(ctx)} {
		if !errors.Is(err, driver.ErrLost) {
			t.Errorf("%s after Revoke: %v", what, err)
		}
	}
	if _, err := l.Put(ctx, t.Name()+"/2", "x"); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Put after Revoke: %v", err)
	}
	if _, err := p.NewLease(ctx, time.Millisecond); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a lease of a millisecond: %v", err)
	}
}

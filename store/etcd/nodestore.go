package etcd

import (
	"context"
	"crypto/tls"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/sequence"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// nodeStore is etcd as a sequence.NodeStore. A session is a lease, the order follows the create revisions, and every
// step is one transaction.
type nodeStore struct {
	sequence.Unsupported

	cli         *clientv3.Client
	kv          clientv3.KV
	leases      pb.LeaseClient
	prefix      string
	tls         *tls.Config // of the client, as far as it is known
	admission   driverutil.Admission
	info        driver.Info
	clocks      *memberClocks
	hub         *watchHub
	batcher     *driverutil.Batcher[*write]
	life        *driverutil.Lifetime
	closeClient func() error // nil if the client is the caller's

	mu            sync.Mutex
	gateRevisions map[string]int64 // by session: the last known revision of its gate
	lastClock     int64            // the largest that Now has returned
	nodeCache     map[string]sequence.Node
	ownSessions   map[string]bool // the sessions that this client renews
	newest        reading
}

// newNodeStore makes the store of one etcd client. It sends no request.
func newNodeStore(cli *clientv3.Client, o Options) *nodeStore {
	t := &nodeStore{
		cli: cli, kv: clientv3.NewKV(cli), leases: pb.NewLeaseClient(cli.ActiveConnection()), prefix: o.Prefix, tls: o.TLS,
		gateRevisions: map[string]int64{}, nodeCache: map[string]sequence.Node{}, ownSessions: map[string]bool{},
		life: driverutil.NewLifetime(), clocks: newMemberClocks(o.TLS, o.files),
	}
	t.admission.Clock, t.admission.Sources = o.Clock, o.secrets
	t.hub = newWatchHub(t, pb.NewWatchClient(cli.ActiveConnection()))
	t.batcher = t.newBatcher()
	t.info = driver.Info{
		Store: describeCluster(cli, o.Prefix), Clock: o.Clock, Tier: driver.TierFenceSafe,
		Survives:        driver.Survives{Restart: true, PowerCut: true, Failover: true},
		TokenRegression: "the cluster is restored from a snapshot without --bump-revision, or replaced by another one",
		Abilities:       driver.Abilities{Ledger: true},
	}
	return t
}

func (t *nodeStore) Info() driver.Info { return t.info }

// List is one range read, always in full.
func (t *nodeStore) List(ctx context.Context, name string, _ bool) (sequence.Snapshot, error) {
	from, to := t.lockRange(name)
	reading := t.lastReading()
	r, err := t.kv.Get(ctx, from, clientv3.WithRange(to))
	if err != nil {
		return sequence.Snapshot{}, t.explainError(err)
	}
	t.noteRevision(reading, r.Header.Revision)
	return t.newSnapshot(name, r.Kvs, r.Header.Revision), nil
}

// Read is one read-only transaction.
func (t *nodeStore) Read(ctx context.Context, at []sequence.NodeRef) ([]sequence.Node, error) {
	ops := make([]clientv3.Op, len(at))
	for i, p := range at {
		ops[i] = clientv3.OpGet(t.lockDir(p.Name) + p.Key)
	}
	reading := t.lastReading()
	r, err := t.kv.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, t.explainError(err)
	}
	t.noteRevision(reading, r.Header.Revision)
	nodes := make([]sequence.Node, len(at))
	for i, p := range at {
		if kvs := r.Responses[i].GetResponseRange().Kvs; len(kvs) > 0 {
			nodes[i], _ = parseNode(kvs[0], len(t.lockDir(p.Name)))
		}
	}
	return nodes, nil
}

// Watch subscribes from now on, never from a past revision: the server would delay such a subscription by up to a tenth
// of a second. Events before the subscription are not lost, because the hub compares revisions when it begins.
func (t *nodeStore) Watch(name, key string, revision int64, changed func()) sequence.Subscription {
	return t.hub.add(&watch{lock: name, key: key, knownUpTo: revision, changed: changed})
}

// ConfirmWatches asks the stream of the watches how far it has come, and compares that with the revision of a
// linearizable read: the member that serves the stream may be behind the others, or stopped.
func (t *nodeStore) ConfirmWatches(ctx context.Context, session string) error {
	reading := t.lastReading()
	r, err := t.kv.Get(ctx, t.gateKey(session), clientv3.WithCountOnly())
	if err == nil {
		t.noteRevision(reading, r.Header.Revision)
		err = t.hub.confirm(ctx, r.Header.Revision)
	}
	return t.explainError(err)
}

// Close ends the watches, and the client if the store opened it.
func (t *nodeStore) Close() error {
	t.life.End()
	t.life.Wait()
	t.clocks.transport.CloseIdleConnections()
	if t.closeClient != nil {
		return t.closeClient()
	}
	return nil
}

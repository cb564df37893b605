package etcd

import (
	"context"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/sequence"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// tree is etcd as a sequence.Tree. Sessions are leases, order is the create revision, and every step is one transaction.
type tree struct {
	cli    *clientv3.Client
	kv     clientv3.KV
	leases pb.LeaseClient
	prefix string
	info   driver.Info
	hub    *hub
	lane   *driverutil.Batcher[*write]
	life   context.Context
	end    context.CancelFunc
	work   sync.WaitGroup
	closer func() error // of the client, if it is ours

	mu     sync.Mutex
	gates  map[string]int64 // by session: the revision of its gate
	clock  int64            // the largest that Now has given
	known  map[string]sequence.Node
	kept   map[string]bool // the sessions that this client renews
	newest reading
}

func newTree(cli *clientv3.Client, o Options) *tree {
	t := &tree{cli: cli, kv: clientv3.NewKV(cli), leases: pb.NewLeaseClient(cli.ActiveConnection()), prefix: o.Prefix, gates: map[string]int64{}, known: map[string]sequence.Node{}, kept: map[string]bool{}}
	t.life, t.end = context.WithCancel(context.Background())
	t.hub = newHub(t.life, pb.NewWatchClient(cli.ActiveConnection()), t.login)
	t.lane = t.newLane()
	t.info = driver.Info{
		Store: where(cli, o.Prefix), Clock: o.Clock, Tier: driver.TierFenceSafe,
		Survives:        driver.Survives{Restart: true, PowerCut: true, Failover: true},
		TokenRegression: "the cluster is restored from a snapshot without --bump-revision, or replaced by another one",
	}
	return t
}

func (t *tree) Info() driver.Info { return t.info }

// List is one range read, always in full.
func (t *tree) List(ctx context.Context, name string, _ bool) (sequence.Snapshot, error) {
	from, to := t.span(name)
	before := t.reading()
	r, err := t.kv.Get(ctx, from, clientv3.WithRange(to))
	if err != nil {
		return sequence.Snapshot{}, t.fault(err)
	}
	t.saw(before, r.Header.Revision)
	return t.look(name, r.Kvs, r.Header.Revision), nil
}

// Read is one read-only transaction.
func (t *tree) Read(ctx context.Context, at []sequence.NodeRef) ([]sequence.Node, error) {
	ops := make([]clientv3.Op, len(at))
	for i, p := range at {
		ops[i] = clientv3.OpGet(t.dir(p.Name) + p.Key)
	}
	before := t.reading()
	r, err := t.kv.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, t.fault(err)
	}
	t.saw(before, r.Header.Revision)
	nodes := make([]sequence.Node, len(at))
	for i, p := range at {
		if kvs := r.Responses[i].GetResponseRange().Kvs; len(kvs) > 0 {
			nodes[i], _ = node(kvs[0], len(t.dir(p.Name)))
		}
	}
	return nodes, nil
}

// Watch subscribes from now on, never from a past revision: the server would put that subscription off for up to a tenth of
// a second.
func (t *tree) Watch(name, key string, revision int64, changed func()) func() {
	w := &watch{key: t.dir(name) + key, seen: revision, changed: changed}
	if key == sequence.WatchRemovals || key == sequence.WatchChanges {
		w.key, w.end = t.span(name)
		w.goneOnly = key == sequence.WatchRemovals
	}
	return t.hub.watch(w)
}

// Close ends the watches, and the client if it is ours.
func (t *tree) Close() error {
	t.mu.Lock()
	t.end()
	t.mu.Unlock()
	t.hub.wait()
	t.work.Wait()
	if t.closer != nil {
		return t.closer()
	}
	return nil
}

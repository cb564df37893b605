package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
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
	writes *writes
	life   context.Context
	end    context.CancelFunc
	closer func() error // of the client, if it is ours

	mu    sync.Mutex
	gates map[string]int64 // by session: the revision of its gate
	clock int64            // the largest that Now has given
	known map[string]sequence.Node
}

func newTree(cli *clientv3.Client, o Options) *tree {
	t := &tree{cli: cli, kv: clientv3.NewKV(cli), leases: pb.NewLeaseClient(cli.ActiveConnection()), prefix: o.Prefix, gates: map[string]int64{}, known: map[string]sequence.Node{}}
	t.life, t.end = context.WithCancel(context.Background())
	t.hub = newHub(t.life, pb.NewWatchClient(cli.ActiveConnection()))
	t.writes = &writes{kv: t.kv, life: t.life, lanes: map[string]*lane{}}
	t.info = driver.Info{
		Store: where(cli, o.Prefix), Clock: o.Clock, Tier: driver.TierFenceSafe,
		Survives:   driver.Survives{Restart: true, PowerCut: true, Failover: true},
		TokensFall: "the cluster is restored from a snapshot without --bump-revision, or replaced by another one",
	}
	return t
}

func (t *tree) Info() driver.Info { return t.info }

// Open grants a lease. etcd counts in whole seconds, and gives more than was asked where its own least TTL is larger.
func (t *tree) Open(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	r, err := t.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: int64((ttl + time.Second - 1) / time.Second)})
	if err != nil {
		return sequence.Session{}, t.fault(err)
	}
	got := time.Duration(r.TTL) * time.Second
	if got < ttl {
		return sequence.Session{}, fmt.Errorf("%w: a TTL of %v was asked for, and the cluster grants %v", driver.ErrInvalid, ttl, got)
	}
	return sequence.Session{ID: hex(clientv3.LeaseID(r.ID)), TTL: got}, nil
}

// Beat is one keep-alive on a stream of its own. A member that has no leader refuses it at once, and a leader answers
// only when it has made sure that it still is.
func (t *tree) Beat(ctx context.Context, session string) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	stream, err := t.leases.LeaseKeepAlive(ctx)
	if err != nil {
		return t.fault(err)
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(unhex(session))}); err != nil {
		_, err = stream.Recv() // says why
		return t.fault(err)
	}
	r, err := stream.Recv()
	if err != nil {
		return t.fault(err)
	}
	_ = stream.CloseSend()
	if r.TTL <= 0 {
		return sequence.ErrSessionOver
	}
	return nil
}

// End revokes a lease.
func (t *tree) End(ctx context.Context, session string) error {
	t.mu.Lock()
	delete(t.gates, session)
	t.mu.Unlock()
	_, err := t.leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(unhex(session))})
	return t.fault(err)
}

func (t *tree) gateOf(session string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gates[session]
}

func (t *tree) setGate(session string, revision int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.gates) >= 1024 { // of sessions long gone: forgetting one costs its session a repetition
		clear(t.gates)
	}
	t.gates[session] = revision
}

// Add is one transaction, repeated only if the session's gate has changed, or if the claim stands from an earlier call. What
// is to be told then goes along from the first only where a guard may fail: members carry all of a transaction to each other.
func (t *tree) Add(ctx context.Context, name string, s sequence.Session, number int64, note sequence.Note, guard sequence.Guard) (sequence.Look, error) {
	value, err := json.Marshal(note)
	if err != nil {
		return sequence.Look{}, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	key, gate := t.dir(name)+keyOf(s.ID, number), t.gate(s.ID)
	from, to := t.span(name)
	for brief := guard < 0; ; brief = false {
		known := t.gateOf(s.ID)
		when := []clientv3.Cmp{
			clientv3.Compare(clientv3.CreateRevision(key), "=", 0),
			clientv3.Compare(clientv3.ModRevision(gate), "=", known),
		}
		switch {
		case guard == sequence.Alone:
			when = append(when, clientv3.Compare(clientv3.CreateRevision(from).WithRange(to), "=", 0))
		case guard > 0:
			when = append(when, clientv3.Compare(clientv3.CreateRevision(from).WithRange(to), "<", int64(guard)+1))
		}
		add := write{lock: name, adds: true, patient: guard == sequence.Behind, when: when,
			then: []clientv3.Op{t.all(name), clientv3.OpPut(key, string(value), clientv3.WithLease(unhex(s.ID)))}}
		if !brief {
			add.otherwise = []clientv3.Op{t.all(name), clientv3.OpGet(gate, clientv3.WithKeysOnly())}
		}
		r, err := t.writes.do(ctx, s.ID, &add)
		switch {
		case err != nil:
			return sequence.Look{}, t.fault(err)
		case r.Succeeded: // what was just put need not be read
			look := t.look(name, r.Responses[0].GetResponseRange().Kvs, r.Header.Revision)
			n := sequence.Node{Key: keyOf(s.ID, number), Token: look.Revision, Version: look.Revision, Session: s.ID, Note: note}
			t.know(key, n)
			look.Nodes = append(look.Nodes, n)
			return look, nil
		case brief:
			continue
		}
		var now int64
		if kvs := r.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
			now = kvs[0].ModRevision
		}
		if now == known {
			return t.look(name, r.Responses[0].GetResponseRange().Kvs, r.Header.Revision), nil
		}
		t.setGate(s.ID, now)
	}
}

// Withdraw deletes the key and changes the gate in one step. Every add that was sent before compares with the gate as it
// was, so none of them can take effect any more.
func (t *tree) Withdraw(ctx context.Context, name string, s sequence.Session, number int64, _ string) (bool, error) {
	r, err := t.kv.Txn(ctx).Then(clientv3.OpDelete(t.dir(name)+keyOf(s.ID, number)),
		clientv3.OpPut(t.gate(s.ID), "", clientv3.WithLease(unhex(s.ID)))).Commit()
	if err != nil {
		return false, t.fault(err)
	}
	t.setGate(s.ID, r.Header.Revision)
	return r.Responses[0].GetResponseDeleteRange().Deleted > 0, nil
}

// List is one range read, always in full.
func (t *tree) List(ctx context.Context, name string, _ bool) (sequence.Look, error) {
	from, to := t.span(name)
	r, err := t.kv.Get(ctx, from, clientv3.WithRange(to))
	if err != nil {
		return sequence.Look{}, t.fault(err)
	}
	return t.look(name, r.Kvs, r.Header.Revision), nil
}

// Read is one read-only transaction.
func (t *tree) Read(ctx context.Context, at []sequence.Place) ([]sequence.Node, error) {
	ops := make([]clientv3.Op, len(at))
	for i, p := range at {
		ops[i] = clientv3.OpGet(t.dir(p.Name) + p.Key)
	}
	r, err := t.kv.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, t.fault(err)
	}
	nodes := make([]sequence.Node, len(at))
	for i, p := range at {
		if kvs := r.Responses[i].GetResponseRange().Kvs; len(kvs) > 0 {
			nodes[i], _ = node(kvs[0], len(t.dir(p.Name)))
		}
	}
	return nodes, nil
}

// Change puts a key again, under the lease that it has.
func (t *tree) Change(ctx context.Context, name string, n sequence.Node, note sequence.Note) (sequence.Node, bool, error) {
	return t.put(ctx, name, n, note, clientv3.WithIgnoreLease())
}

// Move puts a key again, under another lease, and changes the gate of the one before, as Withdraw does. Its create revision
// stays.
func (t *tree) Move(ctx context.Context, name string, n sequence.Node, to sequence.Session, note sequence.Note) (sequence.Node, bool, error) {
	from := n.Session
	n.Session = to.ID
	now, ok, err := t.put(ctx, name, n, note, clientv3.WithLease(unhex(to.ID)), clientv3.OpPut(t.gate(from), "", clientv3.WithLease(unhex(from))))
	if ok {
		t.setGate(from, now.Version)
	}
	return now, ok, err
}

// ChangeAmong compares the others in the same transaction. What goes is missed by its key, and what comes has a create
// revision that is larger.
func (t *tree) ChangeAmong(ctx context.Context, name string, n sequence.Node, note sequence.Note, among []sequence.Node, revision int64) (sequence.Node, bool, error) {
	from, to := t.span(name)
	when := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(from).WithRange(to), "<", revision+1)}
	for _, o := range among {
		when = append(when, clientv3.Compare(clientv3.ModRevision(t.dir(name)+o.Key), "=", o.Version))
	}
	return t.putIf(ctx, name, n, note, when, clientv3.WithIgnoreLease())
}

func (t *tree) put(ctx context.Context, name string, n sequence.Node, note sequence.Note, lease clientv3.OpOption, more ...clientv3.Op) (sequence.Node, bool, error) {
	return t.putIf(ctx, name, n, note, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(t.dir(name)+n.Key), "=", n.Version)}, lease, more...)
}

func (t *tree) putIf(ctx context.Context, name string, n sequence.Node, note sequence.Note, when []clientv3.Cmp, lease clientv3.OpOption, more ...clientv3.Op) (sequence.Node, bool, error) {
	value, err := json.Marshal(note)
	if err != nil {
		return n, false, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	key := t.dir(name) + n.Key
	r, err := t.kv.Txn(ctx).If(when...).Then(append(more, clientv3.OpPut(key, string(value), lease))...).Commit()
	if err != nil {
		return n, false, t.fault(err)
	}
	n.Version, n.Note = r.Header.Revision, note
	return n, r.Succeeded, nil
}

// Remove compares only where it must: keys of ours never come again, those of a foreign client may.
func (t *tree) Remove(ctx context.Context, name string, n sequence.Node, look bool) (bool, sequence.Look, error) {
	key := t.dir(name) + n.Key
	remove := write{lock: name, then: []clientv3.Op{clientv3.OpDelete(key)}}
	if n.Foreign || n.Version != 0 {
		remove.when = append(remove.when, clientv3.Compare(clientv3.CreateRevision(key), "=", n.Token))
	}
	if n.Version != 0 {
		remove.when = append(remove.when, clientv3.Compare(clientv3.ModRevision(key), "=", n.Version))
	}
	if look {
		remove.then = append(remove.then, t.all(name))
	}
	return t.remove(ctx, n, &remove)
}

// RemoveFor reads one key along, instead of the whole line on all members.
func (t *tree) RemoveFor(ctx context.Context, name string, n sequence.Node, next string) (bool, sequence.Look, error) {
	dir := t.dir(name)
	return t.remove(ctx, n, &write{lock: name, then: []clientv3.Op{clientv3.OpDelete(dir + n.Key), clientv3.OpGet(dir + next)}})
}

func (t *tree) remove(ctx context.Context, n sequence.Node, w *write) (bool, sequence.Look, error) {
	session, _, _ := strings.Cut(n.Key, ".")
	r, err := t.writes.do(ctx, session, w)
	if err != nil || !r.Succeeded || r.Responses[0].GetResponseDeleteRange().Deleted == 0 {
		return false, sequence.Look{}, t.fault(err)
	}
	if len(w.then) == 1 {
		return true, sequence.Look{}, nil
	}
	return true, t.look(w.lock, r.Responses[1].GetResponseRange().Kvs, r.Header.Revision), nil
}

// Watch subscribes from now on, never from a past revision: the server would put that subscription off for up to a tenth of
// a second.
func (t *tree) Watch(name, key string, revision int64, changed func()) func() {
	w := &watch{key: t.dir(name) + key, seen: revision, changed: changed}
	if key == sequence.AnyGone || key == sequence.AnyChange {
		w.key, w.end = t.span(name)
		w.goneOnly = key == sequence.AnyGone
	}
	return t.hub.watch(w)
}

// page is how many keys are read at a time.
const page = 1000

// Walk reads all keys with the prefix before it yields, since the claims of one lock need not be neighbours.
func (t *tree) Walk(ctx context.Context, prefix string) iter.Seq2[sequence.Look, error] {
	return func(yield func(sequence.Look, error) bool) {
		found := map[string][]*mvccpb.KeyValue{}
		ours := map[string]bool{}
		from := t.prefix + prefix
		end := clientv3.GetPrefixRangeEnd(from)
		if from == "" {
			from, end = "\x01", "\x00" // to the end
		}
		var revision int64
		for more := true; more; {
			r, err := t.kv.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page))
			if err != nil {
				yield(sequence.Look{}, t.fault(err))
				return
			}
			for _, kv := range r.Kvs {
				key := string(kv.Key)
				dir := strings.LastIndexByte(key, '/') + 1
				if dir-1 < len(t.prefix)+max(1, len(prefix)) || strings.ContainsRune(key, 0) {
					continue
				}
				if n, ok := node(kv, dir); ok {
					name := key[len(t.prefix) : dir-1]
					found[name] = append(found[name], kv)
					ours[name] = ours[name] || !n.Foreign
				}
			}
			revision = r.Header.Revision
			if more = r.More; more {
				from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
			}
		}
		for _, name := range slices.Sorted(maps.Keys(ours)) {
			if ours[name] && !yield(t.look(name, found[name], revision), nil) {
				return
			}
		}
	}
}

// Close ends the watches, and the client if it is ours.
func (t *tree) Close() error {
	t.end()
	t.hub.wait()
	t.writes.work.Wait()
	if t.closer != nil {
		return t.closer()
	}
	return nil
}

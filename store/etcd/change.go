package etcd

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Change puts a key again, under the lease that it has.
func (t *tree) Change(ctx context.Context, name string, n sequence.Node, note sequence.Payload) (sequence.Node, bool, error) {
	return t.put(ctx, name, n, note, clientv3.WithIgnoreLease())
}

// Move puts a key again, under another lease, and changes the gate of the one before, as Withdraw does. Its create revision
// stays.
func (t *tree) Move(ctx context.Context, name string, n sequence.Node, to sequence.Session, note sequence.Payload) (sequence.Node, bool, error) {
	from := n.Session
	n.Session = to.ID
	t.release(to.ID) // nobody renews it
	now, ok, err := t.put(ctx, name, n, note, clientv3.WithLease(unhex(to.ID)), clientv3.OpPut(t.gate(from), "", clientv3.WithLease(unhex(from))))
	if ok {
		t.setGate(from, now.Version)
	}
	return now, ok, err
}

// ChangeAmong compares the others in the same transaction. What goes is missed by its key, and what comes has a create
// revision that is larger.
func (t *tree) ChangeAmong(ctx context.Context, name string, n sequence.Node, note sequence.Payload, among []sequence.Node, revision int64) (sequence.Node, bool, error) {
	from, to := t.span(name)
	when := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(from).WithRange(to), "<", revision+1)}
	for _, o := range among {
		when = append(when, clientv3.Compare(clientv3.ModRevision(t.dir(name)+o.Key), "=", o.Version))
	}
	return t.putIf(ctx, name, n, note, when, clientv3.WithIgnoreLease())
}

func (t *tree) put(ctx context.Context, name string, n sequence.Node, note sequence.Payload, lease clientv3.OpOption, more ...clientv3.Op) (sequence.Node, bool, error) {
	return t.putIf(ctx, name, n, note, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(t.dir(name)+n.Key), "=", n.Version)}, lease, more...)
}

func (t *tree) putIf(ctx context.Context, name string, n sequence.Node, note sequence.Payload, when []clientv3.Cmp, lease clientv3.OpOption, more ...clientv3.Op) (sequence.Node, bool, error) {
	value, err := json.Marshal(note)
	if err != nil {
		return n, false, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	key := t.dir(name) + n.Key
	r, err := t.kv.Txn(ctx).If(when...).Then(append(more, clientv3.OpPut(key, string(value), lease))...).Commit()
	if err != nil {
		return n, false, t.fault(err)
	}
	n.Version, n.Payload = r.Header.Revision, note
	return n, r.Succeeded, nil
}

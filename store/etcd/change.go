package etcd

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Change puts the key again, under the lease that it has. Its create revision, which is the token, does not change; its
// mod revision is its version.
//
// It compares the others in the same transaction. If one of them has gone, its comparison fails, since the mod
// revision of a missing key is 0; a key that has come since has a larger create revision. A comparison with a range
// is true if it is true for every key in it, and an empty range compares as a missing key.
func (t *nodeStore) Change(
	ctx context.Context, name string, n sequence.Node, payload sequence.Payload, among sequence.Among,
) (sequence.Node, bool, error) {
	if len(among.Nodes) == 0 {
		return t.putNode(ctx, name, n, payload, clientv3.WithIgnoreLease())
	}
	from, to := t.lockRange(name)
	conditions := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(from).WithRange(to), "<", among.Revision+1)}
	for _, o := range among.Nodes {
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(t.lockDir(name)+o.Key), "=", o.Version))
	}
	return t.putNodeIf(ctx, name, n, payload, conditions, clientv3.WithIgnoreLease())
}

// Move puts the key again, under another lease, and changes the gate of the session before, as Withdraw does. The
// create revision, which is the token, does not change.
func (t *nodeStore) Move(
	ctx context.Context, name string, n sequence.Node, to sequence.Session, payload sequence.Payload,
) (sequence.Node, bool, error) {
	// The gate of the old session changes in the same transaction, so a delayed add of this node fails.
	from := n.Session
	n.Session = to.ID
	t.untrackSession(to.ID) // nobody renews it
	changeGate := clientv3.OpPut(t.gateKey(from), "", clientv3.WithLease(parseLease(from)))
	now, ok, err := t.putNode(ctx, name, n, payload, clientv3.WithLease(parseLease(to.ID)), changeGate)
	if ok {
		t.setGateRevision(from, now.Version)
	}
	return now, ok, err
}

// putNode replaces a node at its version.
func (t *nodeStore) putNode(
	ctx context.Context, name string, n sequence.Node, payload sequence.Payload, lease clientv3.OpOption,
	more ...clientv3.Op,
) (sequence.Node, bool, error) {
	unchanged := clientv3.Compare(clientv3.ModRevision(t.lockDir(name)+n.Key), "=", n.Version)
	return t.putNodeIf(ctx, name, n, payload, []clientv3.Cmp{unchanged}, lease, more...)
}

// putNodeIf replaces a node if all conditions are true. The version that it returns is the revision of the transaction.
func (t *nodeStore) putNodeIf(
	ctx context.Context, name string, n sequence.Node, payload sequence.Payload, conditions []clientv3.Cmp,
	lease clientv3.OpOption, more ...clientv3.Op,
) (sequence.Node, bool, error) {
	value, err := json.Marshal(payload)
	if err != nil {
		return n, false, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	key := t.lockDir(name) + n.Key
	r, err := t.commit(ctx, conditions, append(more, clientv3.OpPut(key, string(value), lease)), nil)
	if err != nil {
		return n, false, t.explainError(err)
	}
	// A put gives the key the revision of its transaction.
	n.Version, n.Payload = r.Header.Revision, payload
	return n, r.Succeeded, nil
}

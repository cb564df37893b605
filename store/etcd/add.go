package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Add is one transaction. It is repeated only if the session's gate has changed, or if the claim exists from an earlier
// call.
//
// A reply can be lost, and the request may then still be on its way to the leader. A second add of the same claim does
// no harm, because the key of a claim is known before it is sent, unlike the name of a sequential node in ZooKeeper.
// What has to be prevented is an add that takes effect after its claim was withdrawn. For that there is the gate.
//
// The reads for the else branch are sent along only where a condition may fail, or in the repetition: etcd's members
// send all of a transaction to each other.
func (t *nodeStore) Add(
	ctx context.Context, name string, s sequence.Session, number int64, payload sequence.Payload,
	condition sequence.AddCondition,
) (sequence.Snapshot, error) {
	value, err := json.Marshal(payload)
	if err != nil {
		return sequence.Snapshot{}, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	if payload.Detached {
		t.untrackSession(s.ID) // nobody renews it
	}
	key, gate := t.lockDir(name)+claimKey(s.ID, number), t.gateKey(s.ID)
	from, to := t.lockRange(name)
	for withoutElse := condition < 0; ; withoutElse = false {
		// The comparison with the create revision 0 makes the add idempotent: the key does not exist yet. The one
		// with the gate makes it fail if the claim was withdrawn meanwhile.
		known := t.gateRevision(s.ID)
		conditions := []clientv3.Cmp{
			clientv3.Compare(clientv3.CreateRevision(key), "=", 0),
			clientv3.Compare(clientv3.ModRevision(gate), "=", known),
		}
		switch {
		case condition == sequence.AddIfAlone:
			conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(from).WithRange(to), "=", 0))
		case condition > 0:
			noNewer := clientv3.Compare(clientv3.CreateRevision(from).WithRange(to), "<", int64(condition)+1)
			conditions = append(conditions, noNewer)
		}
		// The lock is read before the put, in the same transaction: the claim is granted by what was there when it
		// came, with no moment in between. The operations of a transaction have one revision (etcd's "API" page), so
		// the claim's own key need not be read.
		add := write{lock: name, addsClaim: true, mayDelay: condition == sequence.AddBatched, conditions: conditions,
			then: []clientv3.Op{t.readLock(name),
				clientv3.OpPut(key, string(value), clientv3.WithLease(parseLease(s.ID)))}}
		if !withoutElse {
			add.otherwise = []clientv3.Op{t.readLock(name), clientv3.OpGet(gate, clientv3.WithKeysOnly())}
		}
		r, err := t.commitWrite(ctx, &add)
		switch {
		case errors.Is(err, errOpen): // if it was added, the lock shows it
			return t.List(ctx, name, true)
		case err != nil:
			return sequence.Snapshot{}, t.explainError(err)
		case r.Succeeded: // the new key was not read, but is known
			snapshot := t.newSnapshot(name, r.Responses[0].GetResponseRange().Kvs, r.Header.Revision)
			n := sequence.Node{
				Key: claimKey(s.ID, number), Token: snapshot.Revision, Version: snapshot.Revision, Session: s.ID, Payload: payload,
			}
			if len(snapshot.Nodes) > 0 { // else nobody may ever list the lock
				t.rememberNode(key, n)
			}
			snapshot.Nodes = append(snapshot.Nodes, n)
			return snapshot, nil
		case withoutElse:
			continue
		}
		var now int64
		if kvs := r.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
			now = kvs[0].ModRevision
		}
		// The condition was false, or the key exists from an earlier call. Either way the snapshot says so.
		if now == known {
			return t.newSnapshot(name, r.Responses[0].GetResponseRange().Kvs, r.Header.Revision), nil
		}
		t.setGateRevision(s.ID, now)
	}
}

// Withdraw deletes the key and changes the gate in one step. Every add that was sent before compares the gate with its
// earlier revision, so none of them can take effect any more.
func (t *nodeStore) Withdraw(
	ctx context.Context, name string, s sequence.Session, number int64, _ string,
) (bool, error) {
	key := t.lockDir(name) + claimKey(s.ID, number)
	changeGate := clientv3.OpPut(t.gateKey(s.ID), "", clientv3.WithLease(parseLease(s.ID)))
	r, err := t.kv.Txn(ctx).Then(clientv3.OpDelete(key), changeGate).Commit()
	if errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) { // a full cluster writes no gate, but can delete the key
		_, _ = t.kv.Delete(ctx, key)
	}
	if err != nil {
		return false, t.explainError(err)
	}
	t.setGateRevision(s.ID, r.Header.Revision)
	return r.Responses[0].GetResponseDeleteRange().Deleted > 0, nil
}

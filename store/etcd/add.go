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

// Add is one transaction, repeated only if the session's gate has changed, or if the claim stands from an earlier call. What
// is to be told then goes along from the first only where a guard may fail: members carry all of a transaction to each other.
func (t *tree) Add(ctx context.Context, name string, s sequence.Session, number int64, note sequence.Payload, guard sequence.AddCondition) (sequence.Snapshot, error) {
	value, err := json.Marshal(note)
	if err != nil {
		return sequence.Snapshot{}, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	if note.Detached {
		t.release(s.ID) // nobody renews it
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
		case guard == sequence.AddIfAlone:
			when = append(when, clientv3.Compare(clientv3.CreateRevision(from).WithRange(to), "=", 0))
		case guard > 0:
			when = append(when, clientv3.Compare(clientv3.CreateRevision(from).WithRange(to), "<", int64(guard)+1))
		}
		add := write{lock: name, adds: true, patient: guard == sequence.AddBatched, when: when,
			then: []clientv3.Op{t.all(name), clientv3.OpPut(key, string(value), clientv3.WithLease(unhex(s.ID)))}}
		if !brief {
			add.otherwise = []clientv3.Op{t.all(name), clientv3.OpGet(gate, clientv3.WithKeysOnly())}
		}
		r, err := t.write(ctx, &add)
		switch {
		case err != nil:
			return sequence.Snapshot{}, t.fault(err)
		case r.Succeeded: // what was just put need not be read
			look := t.look(name, r.Responses[0].GetResponseRange().Kvs, r.Header.Revision)
			n := sequence.Node{Key: keyOf(s.ID, number), Token: look.Revision, Version: look.Revision, Session: s.ID, Payload: note}
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
	key := t.dir(name) + keyOf(s.ID, number)
	r, err := t.kv.Txn(ctx).Then(clientv3.OpDelete(key), clientv3.OpPut(t.gate(s.ID), "", clientv3.WithLease(unhex(s.ID)))).Commit()
	if errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) { // a full cluster takes no gate; what stands need not wait for that
		_, _ = t.kv.Delete(ctx, key)
	}
	if err != nil {
		return false, t.fault(err)
	}
	t.setGate(s.ID, r.Header.Revision)
	return r.Responses[0].GetResponseDeleteRange().Deleted > 0, nil
}

// Remove compares only where it must: keys of ours never come again, those of a foreign client may.
func (t *tree) Remove(ctx context.Context, name string, n sequence.Node, look bool) (bool, sequence.Snapshot, error) {
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
	return t.remove(ctx, &remove)
}

// BreakNode is one transaction, behind a lease for the note: so the note ends by itself, and none is left where nothing stood.
func (t *tree) BreakNode(ctx context.Context, name string, n sequence.Node) (bool, error) {
	lease, err := t.grant(ctx, sequence.BreakNoteTime(n.TTL))
	if err != nil {
		return false, err
	}
	key := t.dir(name) + n.Key
	r, err := t.kv.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", n.Token)).
		Then(clientv3.OpDelete(key), clientv3.OpPut(t.note(n.ID), name, clientv3.WithLease(unhex(lease.ID)))).Commit()
	if err == nil && !r.Succeeded {
		_ = t.EndSession(ctx, lease.ID) // else its TTL ends it
		return false, nil
	}
	return err == nil, t.fault(err)
}

// WasBroken is one read.
func (t *tree) WasBroken(ctx context.Context, _ string, n sequence.Node) (bool, error) {
	r, err := t.kv.Get(ctx, t.note(n.ID), clientv3.WithCountOnly())
	if err != nil {
		return false, t.fault(err)
	}
	return r.Count > 0, nil
}

// RemoveAndReadNext reads one key along, instead of the whole line on all members.
func (t *tree) RemoveAndReadNext(ctx context.Context, name string, n sequence.Node, next string) (bool, sequence.Snapshot, error) {
	dir := t.dir(name)
	return t.remove(ctx, &write{lock: name, then: []clientv3.Op{clientv3.OpDelete(dir + n.Key), clientv3.OpGet(dir + next)}})
}

func (t *tree) remove(ctx context.Context, w *write) (bool, sequence.Snapshot, error) {
	r, err := t.write(ctx, w)
	if err != nil || !r.Succeeded || r.Responses[0].GetResponseDeleteRange().Deleted == 0 {
		return false, sequence.Snapshot{}, t.fault(err)
	}
	if len(w.then) == 1 {
		return true, sequence.Snapshot{}, nil
	}
	return true, t.look(w.lock, r.Responses[1].GetResponseRange().Kvs, r.Header.Revision), nil
}

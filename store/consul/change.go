package consul

import (
	"context"
	"encoding/json"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/engine/sequence"
)

// Change replaces the value of the key, which stays bound to its session. Its create index, which is the token, does
// not change; its modify index is its version.
func (t *nodeStore) Change(
	ctx context.Context, name string, n sequence.Node, payload sequence.Payload,
) (sequence.Node, bool, error) {
	return t.changeNode(ctx, name, n, payload, func(key string, value []byte) []*api.TxnOp {
		return []*api.TxnOp{op(api.KVCAS, key, atIndex(n.Version), withValue(value))}
	})
}

// Move unlocks the key and locks it by the other session, in one transaction that also changes the gate of the session
// before, as Withdraw does. The create index, which is the token, does not change.
func (t *nodeStore) Move(
	ctx context.Context, name string, n sequence.Node, to sequence.Session, payload sequence.Payload,
) (sequence.Node, bool, error) {
	from := n.Session
	now, ok, err := t.changeNode(ctx, name, n, payload, func(key string, value []byte) []*api.TxnOp {
		return []*api.TxnOp{t.changeGate(from), checkIndex(key, n.Version), op(api.KVUnlock, key, bySession(from)),
			op(api.KVLock, key, bySession(to.ID), withValue(value))}
	})
	if ok {
		now.Session = to.ID
		t.setGateIndex(from, now.Version) // all of a transaction has one index
	}
	return now, ok, err
}

// changeNode commits the change of a node.
func (t *nodeStore) changeNode(
	ctx context.Context, name string, n sequence.Node, payload sequence.Payload,
	change func(key string, value []byte) []*api.TxnOp,
) (sequence.Node, bool, error) {
	value, err := formatPayload(payload)
	if err != nil {
		return n, false, err
	}
	key := t.lockDir(name) + n.Key
	pairs, ok, err := t.commit(ctx, change(key, value)...)
	if err != nil || !ok {
		return n, false, err
	}
	n.Version, n.Payload = int64(findPair(pairs, key).ModifyIndex), payload
	return n, true, nil
}

// Remove deletes the key if it exists. It compares only where it must: keys of claims are never made again after their
// removal. So a Remove that is repeated, or arrives late, deletes nothing that it should not.
func (t *nodeStore) Remove(
	ctx context.Context, name string, n sequence.Node, list bool,
) (bool, sequence.Snapshot, error) {
	dir := t.lockDir(name)
	key := dir + n.Key
	ops := []*api.TxnOp{op(api.KVGet, key), op(api.KVDelete, key)}
	if n.Version != 0 {
		ops[0] = checkIndex(key, n.Version)
	}
	if list {
		ops = append(ops, op(api.KVGetTree, dir))
	}
	pairs, ok, err := t.commit(ctx, ops...)
	if err != nil || !ok || !list {
		return ok, sequence.Snapshot{}, err
	}
	return true, newSnapshot(name, pairs[1:], len(dir)), nil // the first is what the key was
}

// breakNote is the value of a note that a claim was broken. It names the lock for people who look.
type breakNote struct {
	Lock   string `json:"lock"`
	Reason string `json:"reason,omitempty"`
}

// BreakNode is one transaction, after a session was made for the note, which is deleted with it. It cannot be bound to
// the session of the claim: the holder may end that, or let it expire, before it asks what became of its release.
func (t *nodeStore) BreakNode(ctx context.Context, name string, n sequence.Node, reason string) (bool, error) {
	key := t.lockDir(name) + n.Key
	return t.withBreakNote(ctx, name, n, reason, func(note *api.TxnOp) (bool, error) {
		_, ok, err := t.commit(ctx, op(api.KVGet, key), op(api.KVDelete, key), note)
		return ok, err
	})
}

// withBreakNote calls remove with the operation that leaves a note of a node, and removes what was made for the note if
// the node did not exist.
func (t *nodeStore) withBreakNote(
	ctx context.Context, name string, n sequence.Node, reason string, remove func(note *api.TxnOp) (bool, error),
) (bool, error) {
	note, err := json.Marshal(breakNote{name, reason})
	if err != nil {
		return false, err
	}
	session, err := t.OpenSession(ctx, min(sequence.BreakNoteTime(n.TTL), maxSessionTTL))
	if err != nil {
		return false, err
	}
	ok, err := remove(op(api.KVLock, t.breakNoteKey(n.ID), bySession(session.ID), withValue(note)))
	if err == nil && !ok {
		_ = t.EndSession(ctx, session.ID) // if it fails, the session expires
	}
	return ok, err
}

// ReadBreakNote is one read. A note whose value cannot be read is one, without a reason.
func (t *nodeStore) ReadBreakNote(ctx context.Context, _ string, n sequence.Node) (bool, string, error) {
	pairs, _, err := t.commit(ctx, op(api.KVGetOrEmpty, t.breakNoteKey(n.ID)))
	if err != nil || pairs[0].CreateIndex == 0 {
		return false, "", err
	}
	var note breakNote
	_ = json.Unmarshal(pairs[0].Value, &note)
	return true, note.Reason, nil
}

package consul

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/engine/sequence"
)

// Change replaces the value of the key, which stays bound to its session. Its create index, which is the token, does
// not change; its modify index is its version.
func (t *nodeStore) Change(
	ctx context.Context, name string, n sequence.Node, payload sequence.Payload, _ sequence.Among,
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
	t.noteVersion(key, n.Version)
	return n, true, nil
}

// Remove is one transaction, unless another client has changed the claim: see deleteClaim.
func (t *nodeStore) Remove(
	ctx context.Context, name string, n sequence.Node, then sequence.Then,
) (bool, sequence.Snapshot, error) {
	dir := t.lockDir(name)
	var more []*api.TxnOp
	if then.List {
		more = append(more, op(api.KVGetTree, dir))
	}
	pairs, existed, err := t.deleteClaim(ctx, dir+n.Key, n, more...)
	if err != nil || !existed || !then.List {
		return existed, sequence.Snapshot{}, err
	}
	return true, newSnapshot(name, pairs[1:], len(dir)), nil // the first is what the key was
}

// deleteClaim deletes a claim's key, and does more in the same step. Another claim may have the key by now. It has
// another create index, which is the token, but a transaction can compare only modify indexes. So the key is deleted at
// the version that this client knows; if nobody has changed the claim, that is its token. Where another client has
// changed it, the key is read, and is deleted at the version that was read with the token.
func (t *nodeStore) deleteClaim(
	ctx context.Context, key string, n sequence.Node, more ...*api.TxnOp,
) (pairs api.KVPairs, existed bool, err error) {
	for version := cmp.Or(n.Version, t.takeVersion(key), n.Token); ; {
		ops := append([]*api.TxnOp{checkIndex(key, version), op(api.KVDelete, key)}, more...)
		if pairs, existed, err = t.commit(ctx, ops...); err != nil || existed || n.Version != 0 {
			return pairs, existed, err
		}
		if pairs, _, err = t.commit(ctx, op(api.KVGetOrEmpty, key)); err != nil {
			return nil, false, err
		}
		now := findPair(pairs, key)
		if int64(now.CreateIndex) != n.Token {
			return nil, false, nil
		}
		if int64(now.ModifyIndex) == version {
			return nil, false, unchangedError(key)
		}
		version = int64(now.ModifyIndex)
	}
}

// unchangedError says that a claim is not removed at the very version that it has: another condition of the transaction
// is false, and would be again.
func unchangedError(key string) error {
	return fmt.Errorf("the servers of Consul refuse to remove the claim of the key %s, which nobody has changed", key)
}

// noteVersion remembers the version of a claim that this client has changed, so that its removal needs no read.
func (t *nodeStore) noteVersion(key string, version int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.versions) >= 1024 { // many are of claims that have gone
		clear(t.versions)
	}
	t.versions[key] = version
}

// takeVersion returns the version that was remembered, or 0, and forgets it.
func (t *nodeStore) takeVersion(key string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	version := t.versions[key]
	delete(t.versions, key)
	return version
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
		n.Version = 0 // at whatever version
		_, existed, err := t.deleteClaim(ctx, key, n, note)
		return existed, err
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

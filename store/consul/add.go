package consul

import (
	"context"
	"errors"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/engine/sequence"
)

// Add is one transaction. It is repeated only if the session's gate has changed, or if the claim exists from an earlier
// call. With a condition, a read comes first: a transaction cannot compare a lock as a whole.
//
// A reply can be lost, and the request may then still be on its way to the leader. A second add of the same claim does
// no harm, because the key of a claim is known before it is sent. What has to be prevented is an add that takes effect
// after its claim was withdrawn. For that there is the gate.
func (t *nodeStore) Add(
	ctx context.Context, name string, s sequence.Session, number int64, payload sequence.Payload,
	condition sequence.AddCondition,
) (sequence.Snapshot, error) {
	value, err := formatPayload(payload)
	if err != nil {
		return sequence.Snapshot{}, err
	}
	if condition >= 0 {
		seen, err := t.List(ctx, name, true)
		if err != nil || hasNewer(seen, condition) {
			return seen, err
		}
	}
	if !payload.Detached { // the session of a detached claim ends by itself
		t.noteOwnSession(s.ID)
	}
	dir, gate := t.lockDir(name), t.gateKey(s.ID)
	key := dir + claimKey(s.ID, number)
	for {
		known := t.gateIndex(s.ID)
		pairs, ok, err := t.commit(ctx, checkIndex(gate, known), checkIndex(key, 0),
			op(api.KVLock, key, bySession(s.ID), withValue(value)), op(api.KVGetTree, dir))
		if errors.Is(err, sequence.ErrSessionExpired) {
			t.forgetSession(s.ID)
		}
		if err != nil {
			return sequence.Snapshot{}, err
		}
		if ok {
			// The lock was read last. Before that, the new key was returned, and the gate if it exists.
			return newSnapshot(name, pairs[1+min(known, 1):], len(dir)), nil
		}
		pairs, _, err = t.commit(ctx, op(api.KVGetOrEmpty, gate), op(api.KVGetTree, dir))
		if err != nil {
			return sequence.Snapshot{}, err
		}
		if findPair(pairs[1:], key).CreateIndex > 0 { // it exists from an earlier call
			return newSnapshot(name, pairs[1:], len(dir)), nil
		}
		t.setGateIndex(s.ID, int64(findPair(pairs, gate).ModifyIndex))
	}
}

// hasNewer reports whether a claim has joined the lock since the revision that a condition names.
func hasNewer(seen sequence.Snapshot, condition sequence.AddCondition) bool {
	for _, n := range seen.Nodes {
		if n.Token > int64(condition) {
			return true
		}
	}
	return false
}

// Withdraw deletes the key and changes the gate in one step. Every add that was sent before checks the gate's earlier
// index, so none of them can take effect any more.
func (t *nodeStore) Withdraw(
	ctx context.Context, name string, s sequence.Session, number int64, _ string,
) (bool, error) {
	key := t.lockDir(name) + claimKey(s.ID, number)
	pairs, ok, err := t.commit(ctx, op(api.KVGetOrEmpty, key), t.changeGate(s.ID), op(api.KVDelete, key))
	if err != nil || !ok {
		return false, err
	}
	t.setGateIndex(s.ID, int64(findPair(pairs, t.gateKey(s.ID)).ModifyIndex))
	return findPair(pairs, key).CreateIndex > 0, nil
}

// gateIndex is the last known index of a session's gate; 0 if it has none yet.
func (t *nodeStore) gateIndex(session string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gates[session]
}

func (t *nodeStore) setGateIndex(session string, index int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.gates) >= 1024 { // most are of ended sessions; a live session whose entry is lost repeats one add
		clear(t.gates)
	}
	t.gates[session] = index
}

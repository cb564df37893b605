package consul

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// maxOps is how many operations Consul takes in one transaction.
const maxOps = 64

// op makes one operation of a transaction.
func op(verb api.KVOp, key string, more ...func(*api.KVTxnOp)) *api.TxnOp {
	o := &api.KVTxnOp{Verb: verb, Key: key}
	for _, set := range more {
		set(o)
	}
	return &api.TxnOp{KV: o}
}

func atIndex(index int64) func(*api.KVTxnOp)    { return func(o *api.KVTxnOp) { o.Index = uint64(index) } }
func bySession(id string) func(*api.KVTxnOp)    { return func(o *api.KVTxnOp) { o.Session = id } }
func withValue(value []byte) func(*api.KVTxnOp) { return func(o *api.KVTxnOp) { o.Value = value } }

// checkIndex checks that a key has an index; 0: that there is no such key.
func checkIndex(key string, index int64) *api.TxnOp {
	if index == 0 {
		return op(api.KVCheckNotExists, key)
	}
	return op(api.KVCheckIndex, key, atIndex(index))
}

// changeGate writes something new to a session's gate. Consul gives a key no new index if its value stays the same.
func (t *nodeStore) changeGate(session string) *api.TxnOp {
	return op(api.KVLock, t.gateKey(session), bySession(session), withValue([]byte(rand.Text())))
}

// The conditions of a transaction that was refused because one of them was false.
var refusedConditions = []string{"doesn't exist", "exists", "index check", "index is stale", "is already held",
	"lock isn't held", "current session"}

// lockDelayed is in the text of a refusal because of a lock-delay.
const lockDelayed = "lock delay"

// commit sends a transaction once. If a condition was false it returns false, and nothing was changed. Consul then says
// of each operation that failed why it did; a lack of permissions, or a session that has ended, is an error.
func (t *nodeStore) commit(ctx context.Context, ops ...*api.TxnOp) (api.KVPairs, bool, error) {
	if t.life.Err() != nil {
		return nil, false, driver.ErrClosed
	}
	// Consistent concerns reads alone, which the leader then answers only after a quorum has confirmed that it still
	// leads. Writes go through the quorum anyway.
	ok, reply, _, err := t.client.Txn().Txn(ops, (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
	if err != nil {
		return nil, false, t.explainError(err)
	}
	if !ok {
		return nil, false, t.explainRefusal(ops, reply.Errors)
	}
	pairs := make(api.KVPairs, len(reply.Results))
	for i, r := range reply.Results {
		pairs[i] = r.KV
	}
	// What the token may not read is left out. Then a lock would look free. A get-or-empty has a result in any case.
	for _, o := range ops {
		isItsKey := func(kv *api.KVPair) bool { return kv.Key == o.KV.Key }
		if o.KV.Verb == api.KVGetOrEmpty && !slices.ContainsFunc(pairs, isItsKey) {
			return nil, false, t.deniedError("the token may not read the key " + o.KV.Key)
		}
	}
	return pairs, true, nil
}

// readTree reads all keys that begin with a text. The key of that text itself shows whether they may be read.
func (t *nodeStore) readTree(ctx context.Context, start string) (api.KVPairs, error) {
	if start == "" { // no transaction reads all keys
		pairs, _, err := t.client.KV().List("", (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
		return pairs, t.explainError(err)
	}
	pairs, ok, err := t.commit(ctx, op(api.KVGetOrEmpty, start), op(api.KVGetTree, start))
	if err != nil || !ok {
		return nil, err
	}
	return pairs[1:], nil
}

// explainRefusal returns nil if nothing but conditions were false.
func (t *nodeStore) explainRefusal(ops []*api.TxnOp, errs api.TxnErrors) error {
	var conditions error
	for _, e := range errs {
		why := e.What
		if e.OpIndex < len(ops) { // the name of a lock, which is in its key, may be a text that is looked for here
			why = strings.ReplaceAll(why, strconv.Quote(ops[e.OpIndex].KV.Key), "")
		}
		switch {
		case strings.Contains(why, "invalid session"):
			return sequence.ErrSessionExpired
		case strings.Contains(why, "Permission denied"), strings.Contains(why, "lacks permission"):
			return t.deniedError(e.What)
		case strings.Contains(why, lockDelayed):
			conditions = errLockDelayed
		case strings.Contains(why, "unknown verb"), strings.Contains(why, "unknown KV verb"):
			return fmt.Errorf("%w: Consul %s: use version 1.14 or later", driver.ErrUnsupported, e.What)
		case !containsAny(why, refusedConditions):
			return fmt.Errorf("the servers of Consul say: %s", e.What)
		}
	}
	return conditions
}

func containsAny(text string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(text, p) {
			return true
		}
	}
	return false
}

// findPair returns the last pair with a key: a transaction that writes a key and reads it returns it twice.
func findPair(pairs api.KVPairs, key string) *api.KVPair {
	for i := len(pairs) - 1; i >= 0; i-- {
		if pairs[i].Key == key {
			return pairs[i]
		}
	}
	return &api.KVPair{Key: key}
}

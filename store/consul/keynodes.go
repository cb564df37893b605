package consul

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// keyNodes is a NodeStore on which a lock has one node or none: its key, as long as that is bound to a session.
//
// Consul counts how often a key was locked, but consul lock deletes the key after each use, and the count begins again.
// So a claim of ours has a ticket as well: a key next to the locks, which the step that locks the key deletes and makes
// again. Its create index is the token, and its value says what the claim is. The key has the same value, for people
// who look, but anybody may overwrite that, and the key stays locked. Foreign clients know nothing of tickets. A
// ticket counts only if its session is the key's.
type keyNodes struct {
	*nodeStore
	suffix string
}

// The flags by which Consul's clients know the key of a lock and that of a semaphore.
const (
	lockFlags      = api.LockFlagValue
	semaphoreFlags = api.SemaphoreFlagValue
)

// foreignKey is the key of a node without a ticket. The key of one of ours is its token. delayedKey is that of no node:
// it stands for the lock-delay that bars a key.
const (
	foreignKey = "foreign"
	delayedKey = "lock-delay"
	delayedRef = delayedKey + "@1"
)

// keyOf is the very key that Consul's own tools use for a name: see checkKeyName.
func (t keyNodes) keyOf(name string) string { return t.opts.Prefix + name + t.suffix }

// checkKeyName refuses a name whose key Consul's tools would write in another way, or could not use, since then the two
// would not exclude each other. They drop empty segments and resolve dots, and agents refuse what is not printable.
func checkKeyName(name string) error {
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return fmt.Errorf("%w: the name %q: in the layouts %s and %s it may have no slash at either end, no two "+
				"slashes in a row, and no segment of one or two dots alone", driver.ErrInvalid, name, LayoutLock, LayoutKey)
		}
	}
	isOdd := func(r rune) bool { return !unicode.IsPrint(r) }
	if !utf8.ValidString(name) || strings.ContainsFunc(name, isOdd) {
		return fmt.Errorf("%w: the name %q: in the layouts %s and %s it may have printable characters only",
			driver.ErrInvalid, name, LayoutLock, LayoutKey)
	}
	if strings.HasPrefix(name+"/", reservedFolder) {
		return fmt.Errorf("%w: the name %q: Holdfast keeps its own keys in the folder %s", driver.ErrInvalid, name,
			reservedFolder)
	}
	return nil
}

func (t keyNodes) ticketFolder() string { return t.opts.Prefix + reservedFolder + "tickets/" }

func (t keyNodes) ticketKey(name string) string { return t.ticketFolder() + encodeName(name) }

// lockKeys are the two keys of a lock, as they were read at one moment. A key that does not exist has no indexes.
type lockKeys struct{ key, ticket *api.KVPair }

// node returns what holds the lock.
func (k lockKeys) node() (sequence.Node, bool) {
	n := sequence.Node{Key: foreignKey, Foreign: true, Token: int64(k.key.ModifyIndex), Version: int64(k.key.ModifyIndex),
		Session: k.key.Session}
	if k.key.Flags == semaphoreFlags {
		var s struct{ Limit int64 }
		_ = json.Unmarshal(k.key.Value, &s)
		n.Kind, n.Limit, n.Weight, n.Owner = driver.KindSemaphore, max(s.Limit, 1), 1, "consul lock -n"
		n.KindConflictHint = "consul lock -n uses this name for a semaphore; delete its key if nobody uses it any more"
		return n, true
	}
	if k.key.Session == "" {
		return sequence.Node{}, false
	}
	if k.ticket.Session == k.key.Session {
		n.Key, n.Token = strconv.FormatUint(k.ticket.CreateIndex, 10), int64(k.ticket.CreateIndex)
		n.Payload, n.Foreign = parsePayload(k.ticket.Value)
	}
	return n, true
}

// snapshot shows the lock as a list of one node or none.
func (k lockKeys) snapshot(name string) sequence.Snapshot {
	l := sequence.Snapshot{Name: name, Revision: max(1, int64(k.key.ModifyIndex)), Full: true}
	if n, ok := k.node(); ok {
		l.Nodes = []sequence.Node{n}
	}
	return l
}

// read reads the keys of locks with one request.
func (t keyNodes) read(ctx context.Context, names ...string) ([]lockKeys, error) {
	var ops []*api.TxnOp
	for _, name := range names {
		ops = append(ops, op(api.KVGetOrEmpty, t.keyOf(name)), op(api.KVGetOrEmpty, t.ticketKey(name)))
	}
	pairs, _, err := t.commit(ctx, ops...)
	if err != nil {
		return nil, err
	}
	all := make([]lockKeys, len(names))
	for i, name := range names {
		all[i] = lockKeys{findPair(pairs, t.keyOf(name)), findPair(pairs, t.ticketKey(name))}
	}
	return all, nil
}

// readLock reads one lock.
func (t keyNodes) readLock(ctx context.Context, name string) (lockKeys, error) {
	all, err := t.read(ctx, name)
	if err != nil {
		return lockKeys{}, err
	}
	return all[0], nil
}

// Add locks the key if it is free, whatever the condition: a read, and a transaction under the condition that the key
// is as it was read. So of two claims of one session, too, only one gets the lock.
func (t keyNodes) Add(
	ctx context.Context, name string, s sequence.Session, _ int64, payload sequence.Payload, _ sequence.AddCondition,
) (sequence.Snapshot, error) {
	value, err := formatPayload(payload)
	if err != nil {
		return sequence.Snapshot{}, err
	}
	key, ticket, gate := t.keyOf(name), t.ticketKey(name), t.gateKey(s.ID)
	for {
		pairs, _, err := t.commit(ctx, op(api.KVGetOrEmpty, key), op(api.KVGetOrEmpty, ticket), op(api.KVGetOrEmpty, gate))
		if err != nil {
			return sequence.Snapshot{}, err
		}
		now := lockKeys{findPair(pairs, key), findPair(pairs, ticket)}
		if _, held := now.node(); held { // by this claim, perhaps: an earlier call may have had no reply
			return now.snapshot(name), nil
		}
		if k := now.key; k.CreateIndex > 0 && k.Flags != lockFlags && k.LockIndex == 0 {
			return sequence.Snapshot{}, fmt.Errorf("%w: the key %s exists, and was never a lock: its value would be overwritten",
				driver.ErrInvalid, key)
		}
		pairs, ok, err := t.commit(ctx, checkIndex(gate, int64(findPair(pairs, gate).ModifyIndex)),
			checkIndex(key, int64(now.key.ModifyIndex)), op(api.KVDelete, ticket),
			lockTicket(ticket, s.ID, value), t.lockKey(key, s.ID, value))
		switch {
		case errors.Is(err, errLockDelayed):
			return sequence.Snapshot{Name: name, Revision: 1, Full: true,
				Nodes: []sequence.Node{{Key: delayedKey, Token: 1, Version: 1, Foreign: true,
					Payload: sequence.Payload{Owner: "the lock-delay of a session that was invalidated"}}}}, nil
		case err != nil:
			return sequence.Snapshot{}, err
		case ok:
			now = lockKeys{findPair(pairs, key), findPair(pairs, ticket)}
			now.ticket.Value = value // the reply has no values
			return now.snapshot(name), nil
		}
	}
}

// lockKey locks the key of a lock.
func (t keyNodes) lockKey(key, session string, value []byte) *api.TxnOp {
	return op(api.KVLock, key, bySession(session), withValue(value), withFlags(lockFlags))
}

func lockTicket(ticket, session string, value []byte) *api.TxnOp {
	return op(api.KVLock, ticket, bySession(session), withValue(value))
}

func withFlags(flags uint64) func(*api.KVTxnOp) { return func(o *api.KVTxnOp) { o.Flags = flags } }

// Withdraw first bars every add that was sent before, and then removes what one of them has added.
func (t keyNodes) Withdraw(ctx context.Context, name string, s sequence.Session, _ int64, id string) (bool, error) {
	if _, _, err := t.commit(ctx, t.changeGate(s.ID)); err != nil {
		return false, err
	}
	now, err := t.readLock(ctx, name)
	if err != nil {
		return false, err
	}
	n, held := now.node()
	if !held || n.Foreign || n.ID != id || n.Session != s.ID {
		return false, nil
	}
	// At whatever version: another process may change the claim meanwhile, but only its own client removes it.
	return t.freeKey(ctx, name, sequence.Node{Key: n.Key, Token: n.Token})
}

// List is one read.
func (t keyNodes) List(ctx context.Context, name string, _ bool) (sequence.Snapshot, error) {
	now, err := t.readLock(ctx, name)
	if err != nil {
		return sequence.Snapshot{}, err
	}
	return now.snapshot(name), nil
}

// Read is one read for each 32 locks.
func (t keyNodes) Read(ctx context.Context, refs []sequence.NodeRef) (nodes []sequence.Node, err error) {
	for some := range slices.Chunk(refs, maxOps/2) {
		var names []string
		for _, r := range some {
			names = append(names, r.Name)
		}
		all, err := t.read(ctx, names...)
		if err != nil {
			return nil, err
		}
		for i, r := range some {
			n, _ := all[i].node()
			if n.Key != r.Key {
				n = sequence.Node{}
			}
			nodes = append(nodes, n)
		}
	}
	return nodes, nil
}

// Traits returns the traits of the claims, but a claim has no key of its own.
func (t keyNodes) Traits() sequence.Traits {
	traits := t.nodeStore.Traits()
	traits.ReusesNumbers = false
	return traits
}

// Change locks both keys again by the session that holds them, with another value. The key's modify index, which is the
// version, changes with that.
func (t keyNodes) Change(
	ctx context.Context, name string, n sequence.Node, payload sequence.Payload, _ sequence.Among,
) (sequence.Node, bool, error) {
	value, err := formatPayload(payload)
	if err != nil {
		return n, false, err
	}
	key := t.keyOf(name)
	pairs, ok, err := t.commit(ctx, checkIndex(key, n.Version), lockTicket(t.ticketKey(name), n.Session, value),
		t.lockKey(key, n.Session, value))
	if err != nil || !ok {
		return n, false, err
	}
	n.Version, n.Payload = int64(findPair(pairs, key).ModifyIndex), payload
	return n, true, nil
}

// Move unlocks both keys and locks them by the other session, in one step with a change of the gate. The create index
// of the ticket, which is the token, does not change.
func (t keyNodes) Move(
	ctx context.Context, name string, n sequence.Node, to sequence.Session, payload sequence.Payload,
) (sequence.Node, bool, error) {
	value, err := formatPayload(payload)
	if err != nil {
		return n, false, err
	}
	key, ticket := t.keyOf(name), t.ticketKey(name)
	pairs, ok, err := t.commit(ctx, t.changeGate(n.Session), checkIndex(key, n.Version),
		op(api.KVUnlock, ticket, bySession(n.Session)), lockTicket(ticket, to.ID, value),
		op(api.KVUnlock, key, bySession(n.Session), withFlags(lockFlags)), t.lockKey(key, to.ID, value))
	if err != nil || !ok {
		return n, false, err
	}
	n.Version, n.Session, n.Payload = int64(findPair(pairs, key).ModifyIndex), to.ID, payload
	return n, true, nil
}

// Remove frees the key: see freeKey.
func (t keyNodes) Remove(
	ctx context.Context, name string, n sequence.Node, _ sequence.Then,
) (bool, sequence.Snapshot, error) {
	existed, err := t.freeKey(ctx, name, n)
	return existed, sequence.Snapshot{}, err
}

// freeKey frees the key if n still holds it, and makes other changes in the same step. A key that this claim has made
// is deleted with its ticket. One that was there before stays, without a session, as the clients that made it expect.
func (t keyNodes) freeKey(ctx context.Context, name string, n sequence.Node, others ...*api.TxnOp) (bool, error) {
	key, ticket := t.keyOf(name), t.ticketKey(name)
	for refused := int64(0); ; {
		now, err := t.readLock(ctx, name)
		if err != nil {
			return false, err
		}
		held, ok := now.node()
		if !ok || held.Key != n.Key || held.Token != n.Token || n.Version != 0 && held.Version != n.Version {
			return false, nil
		}
		if held.KindConflictHint != "" { // no session has locked its key
			return false, fmt.Errorf("%w: %s", driver.ErrUnsupported, held.KindConflictHint)
		}
		if held.Version == refused {
			return false, unchangedError(key)
		}
		free := op(api.KVUnlock, key, bySession(held.Session), withValue(now.key.Value), withFlags(now.key.Flags))
		ops := []*api.TxnOp{checkIndex(key, held.Version)}
		if held.Key != foreignKey {
			free = op(api.KVUnlock, key, bySession(held.Session), withFlags(lockFlags))
			if now.key.CreateIndex == now.ticket.CreateIndex { // all that one transaction makes has one index
				free = op(api.KVDelete, key)
			}
			ops = append(ops, op(api.KVDelete, ticket))
		}
		if _, ok, err := t.commit(ctx, append(append(ops, free), others...)...); err != nil || ok {
			return ok, err
		}
		refused = held.Version
	}
}

// BreakNode frees the key and leaves a note.
func (t keyNodes) BreakNode(ctx context.Context, name string, n sequence.Node, reason string) (bool, error) {
	return t.withBreakNote(ctx, name, n, reason, func(note *api.TxnOp) (bool, error) {
		return t.freeKey(ctx, name, n, note)
	})
}

// Watch follows the key of the lock.
func (t keyNodes) Watch(name, key string, revision int64, changed func()) sequence.Subscription {
	places := &t.holderWatches // waiters follow the key by themselves: see awaitFree
	if key == sequence.WatchRemovals || key == sequence.WatchChanges {
		places = &t.waiterWatches
	}
	return places.start(func(ctx context.Context) { t.follow(ctx, t.lookAtKey(name, revision), changed) })
}

// lookAtKey returns a function that reads the key of a lock, and reports whether it has changed since the revision, or
// since the last call.
func (t keyNodes) lookAtKey(name string, last int64) lookFunc {
	return func(ctx context.Context, o *api.QueryOptions) (bool, uint64, error) {
		kv, meta, err := t.client.KV().Get(t.keyOf(name), o.WithContext(ctx))
		if err != nil {
			return false, 0, err
		}
		var now int64
		if kv != nil {
			now = int64(kv.ModifyIndex)
		}
		isNew := now != last
		last = now
		return isNew, meta.LastIndex, nil
	}
}

// Walk is two reads of all keys with the prefix. A key without a ticket is a lock if it has the flags of one: other
// keys may be locked for other reasons.
func (t keyNodes) Walk(ctx context.Context, prefix string) iter.Seq2[sequence.Snapshot, error] {
	return func(yield func(sequence.Snapshot, error) bool) {
		pairs, err := t.readTree(ctx, t.opts.Prefix+prefix)
		if err == nil {
			var tickets api.KVPairs
			tickets, err = t.readTree(ctx, t.ticketFolder()+encodePrefix(prefix))
			pairs = append(pairs, tickets...)
		}
		if err != nil {
			yield(sequence.Snapshot{}, err)
			return
		}
		found := map[string]*lockKeys{}
		at := func(name string) *lockKeys {
			found[name] = cmp.Or(found[name], &lockKeys{&api.KVPair{}, &api.KVPair{}})
			return found[name]
		}
		for _, kv := range pairs {
			if text, ok := strings.CutPrefix(kv.Key, t.ticketFolder()); ok {
				if name, ok := decodeName(text); ok {
					at(name).ticket = kv
				}
			} else if name, ok := strings.CutSuffix(kv.Key[len(t.opts.Prefix):], t.suffix); ok {
				if checkKeyName(name) == nil {
					at(name).key = kv
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			k := found[name]
			isLock := k.key.Flags == lockFlags || k.key.Flags == semaphoreFlags || k.ticket.Session == k.key.Session
			// The key NAME/.lock begins with NAME and a slash, although the name does not.
			if !isLock || !strings.HasPrefix(name, prefix) {
				continue
			}
			if l := k.snapshot(name); len(l.Nodes) > 0 && !yield(l, nil) {
				return
			}
		}
	}
}

package etcd

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/engine/sequence"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// reservedPrefix starts, after the user's prefix, the keys that are not claims. No lock's name contains a zero byte.
const reservedPrefix = "\x00holdfast/"

// lockDir starts the keys of a lock's claims.
func (t *nodeStore) lockDir(name string) string { return t.prefix + name + "/" }

// lockRange is the range of all keys that can be claims of a lock: after the slash comes a hexadecimal digit.
func (t *nodeStore) lockRange(name string) (from, to string) {
	return t.lockDir(name) + "0", t.lockDir(name) + "g"
}

// readLock reads all keys that can be claims of a lock.
func (t *nodeStore) readLock(name string) clientv3.Op {
	from, to := t.lockRange(name)
	return clientv3.OpGet(from, clientv3.WithRange(to))
}

// gateKey is the key of a session's gate. Every add compares the gate with its last known revision, and Withdraw
// changes it. So an add that is delayed until after a Withdraw fails. One key per session is enough: an add of another
// claim that fails as well is repeated with the new revision. A tombstone per claim would leave a key for each Acquire
// that was given up. The gate is bound to the session's lease and goes with it, as do the adds that it bars: a put
// under a lease that has expired fails.
func (t *nodeStore) gateKey(session string) string { return t.prefix + reservedPrefix + session }

// breakNoteKey is the key of the note that a claim was broken.
func (t *nodeStore) breakNoteKey(id string) string { return t.prefix + reservedPrefix + "broken/" + id }

// claimKey is a claim's key within its lock.
func claimKey(session string, number int64) string {
	if number == 0 {
		return session
	}
	return session + "." + strconv.FormatInt(number, 10)
}

// Traits has all of them. ReusesNumbers: until the history is compacted, which is never unless the
// servers are set up for it, each member keeps an entry in memory of each key that was deleted, and every read of a
// range and every comparison with one goes through all entries in it. So a lock whose claims all had keys of their own
// would get slower with each claim, and all that the cluster does with it.
func (t *nodeStore) Traits() sequence.Traits {
	return sequence.Traits{Moves: true, ComparesNodes: true, ReadsNext: true, LeavesNotes: true, ReportsTokens: true,
		ReusesNumbers: true}
}

// isClaimKey reports whether s has the form of a claim's key: a lease in lower-case hex, with or without a number.
func isClaimKey(s string) bool {
	lease, number, numbered := strings.Cut(s, ".")
	return len(lease) <= 16 && consistsOf(lease, "0123456789abcdef") && (!numbered || consistsOf(number, "0123456789"))
}

func consistsOf(s, chars string) bool { return s != "" && strings.Trim(s, chars) == "" }

// parseNode reads a key-value pair whose lock's directory is dir bytes long. It returns false for keys that are not
// claims. A claim always has a lease: a key without one would be held forever when its client dies, so it belongs to
// something else.
func parseNode(kv *mvccpb.KeyValue, dir int) (sequence.Node, bool) {
	if kv.Lease == 0 || len(kv.Key) <= dir || !isClaimKey(string(kv.Key[dir:])) {
		return sequence.Node{}, false
	}
	n := sequence.Node{
		Key: string(kv.Key[dir:]), Token: kv.CreateRevision, Version: kv.ModRevision,
		Session: formatLease(clientv3.LeaseID(kv.Lease)),
	}
	// A value that is not ours belongs to a foreign client. Its claim still counts, as an exclusive one.
	if json.Unmarshal(kv.Value, &n.Payload) != nil || n.ID == "" || n.Limit < 1 || n.Weight < 1 || n.Weight > n.Limit {
		n.Payload, n.Foreign = sequence.Payload{}, true
	}
	return n, true
}

// maxCachedNodes limits how many nodes are remembered as they were parsed, so that a long queue is not parsed again
// with every read of it.
const maxCachedNodes = 4096

func (t *nodeStore) rememberNode(key string, n sequence.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rememberNodeLocked(key, n)
}

func (t *nodeStore) rememberNodeLocked(key string, n sequence.Node) {
	// Simple, and good enough: the nodes of present locks come back with the next reads.
	if len(t.nodeCache) >= maxCachedNodes {
		clear(t.nodeCache)
	}
	t.nodeCache[key] = n
}

// newSnapshot makes a snapshot of one lock's keys, in order.
func (t *nodeStore) newSnapshot(name string, kvs []*mvccpb.KeyValue, revision int64) sequence.Snapshot {
	l := sequence.Snapshot{Name: name, Revision: revision, Full: true}
	dir := len(t.lockDir(name))
	l.Nodes = make([]sequence.Node, 0, len(kvs))
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, kv := range kvs {
		n, ok := t.nodeCache[string(kv.Key)]
		// The same key can also have been read as a claim of a lock with another name.
		if !ok || n.Version != kv.ModRevision || len(n.Key) != len(kv.Key)-dir {
			if n, ok = parseNode(kv, dir); !ok {
				continue
			}
			t.rememberNodeLocked(string(kv.Key), n)
		}
		l.Nodes = append(l.Nodes, n)
	}
	// etcd returns keys in the order of their names; claims are in the order of their creation.
	slices.SortFunc(l.Nodes, func(a, b sequence.Node) int { return cmp.Compare(a.Token, b.Token) })
	return l
}

// formatLease is the session ID of a lease: its ID in hex, as foreign clients write it.
func formatLease(lease clientv3.LeaseID) string { return strconv.FormatUint(uint64(lease), 16) }

// parseLease is the reverse of formatLease, and 0, which is no lease, for anything else.
func parseLease(session string) clientv3.LeaseID {
	id, _ := strconv.ParseUint(session, 16, 64) // 0 is no lease
	return clientv3.LeaseID(id)
}

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

// own starts, after the prefix, the keys that are no claims. No lock's name contains a zero byte.
const own = "\x00holdfast/"

// dir is where the claims of a lock stand.
func (t *tree) dir(name string) string { return t.prefix + name + "/" }

// span is the range of all keys that can be claims of a lock: those that go on with a hexadecimal digit.
func (t *tree) span(name string) (from, to string) { return t.dir(name) + "0", t.dir(name) + "g" }

func (t *tree) all(name string) clientv3.Op {
	from, to := t.span(name)
	return clientv3.OpGet(from, clientv3.WithRange(to))
}

// gate is the key that withdrawn adds of a session find changed.
func (t *tree) gate(session string) string { return t.prefix + own + session }

// note is the key that says that a claim was broken.
func (t *tree) note(id string) string { return t.prefix + own + "broken/" + id }

// keyOf is a claim's key below its lock's.
func keyOf(session string, number int64) string {
	if number == 0 {
		return session
	}
	return session + "." + strconv.FormatInt(number, 10)
}

// isKey reports whether s has the form of a claim's key: a lease in lower-case hex, and perhaps a number.
func isKey(s string) bool {
	lease, number, numbered := strings.Cut(s, ".")
	return len(lease) <= 16 && only(lease, "0123456789abcdef") && (!numbered || only(number, "0123456789"))
}

func only(s, chars string) bool { return s != "" && strings.Trim(s, chars) == "" }

// node understands a key, whose lock's directory is dir bytes long. It is false for what is no claim.
func node(kv *mvccpb.KeyValue, dir int) (sequence.Node, bool) {
	if kv.Lease == 0 || len(kv.Key) <= dir || !isKey(string(kv.Key[dir:])) {
		return sequence.Node{}, false
	}
	n := sequence.Node{
		Key: string(kv.Key[dir:]), Token: kv.CreateRevision, Version: kv.ModRevision, Session: hex(clientv3.LeaseID(kv.Lease)),
	}
	if json.Unmarshal(kv.Value, &n.Payload) != nil || n.ID == "" || n.Limit < 1 || n.Weight < 1 || n.Weight > n.Limit {
		n.Payload, n.Foreign = sequence.Payload{}, true
	}
	return n, true
}

// maxKnown bounds how many keys are remembered as they were understood, so that a line of many is not understood anew with
// every look at it.
const maxKnown = 4096

func (t *tree) know(key string, n sequence.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.knowLocked(key, n)
}

func (t *tree) knowLocked(key string, n sequence.Node) {
	if len(t.known) >= maxKnown {
		clear(t.known)
	}
	t.known[key] = n
}

// look is how the keys of one lock stand, in order.
func (t *tree) look(name string, kvs []*mvccpb.KeyValue, revision int64) sequence.Snapshot {
	l := sequence.Snapshot{Name: name, Revision: revision, Full: true}
	dir := len(t.dir(name))
	l.Nodes = make([]sequence.Node, 0, len(kvs))
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, kv := range kvs {
		n, ok := t.known[string(kv.Key)]
		if !ok || n.Version != kv.ModRevision || len(n.Key) != len(kv.Key)-dir { // it may be a claim of a lock further down
			if n, ok = node(kv, dir); !ok {
				continue
			}
			t.knowLocked(string(kv.Key), n)
		}
		l.Nodes = append(l.Nodes, n)
	}
	slices.SortFunc(l.Nodes, func(a, b sequence.Node) int { return cmp.Compare(a.Token, b.Token) })
	return l
}

func hex(lease clientv3.LeaseID) string { return strconv.FormatUint(uint64(lease), 16) }

func unhex(session string) clientv3.LeaseID {
	id, _ := strconv.ParseUint(session, 16, 64) // 0 is no lease
	return clientv3.LeaseID(id)
}

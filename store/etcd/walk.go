package etcd

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/engine/sequence"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// pageSize is how many keys are read with one request.
const pageSize = 1000

// isCertainLock reports whether a node certainly belongs to a lock: one of ours, or one whose key is the ID of its own
// lease, as etcd's lock clients name it. Other keys with a lease may have that form by chance.
func isCertainLock(n sequence.Node) bool { return !n.Foreign || n.Key == n.Session }

// Walk reads all keys with the prefix before it yields a lock, since the claims of one lock need not be adjacent.
func (t *nodeStore) Walk(ctx context.Context, prefix string) iter.Seq2[sequence.Snapshot, error] {
	return func(yield func(sequence.Snapshot, error) bool) {
		// All keys are kept until the end: those of the lock a/b can come between two keys of the lock a.
		found := map[string][]*mvccpb.KeyValue{}
		locks := map[string]bool{}
		from := t.prefix + prefix
		end := clientv3.GetPrefixRangeEnd(from)
		if from == "" {
			from, end = "\x01", "\x00" // all keys; an end of one zero byte means no end
		}
		var revision int64
		for more := true; more; {
			// Page by page, and each page at its own revision: to read all at the revision of the first would fail if
			// the cluster compacts meanwhile.
			r, err := t.kv.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(pageSize))
			if err != nil {
				yield(sequence.Snapshot{}, t.explainError(err))
				return
			}
			for _, kv := range r.Kvs {
				key := string(kv.Key)
				// A lock's name may contain slashes; the last one separates the claim's key.
				dir := strings.LastIndexByte(key, '/') + 1
				if dir-1 < len(t.prefix)+max(1, len(prefix)) || strings.ContainsRune(key, 0) {
					continue
				}
				if n, ok := parseNode(kv, dir); ok {
					name := key[len(t.prefix) : dir-1]
					found[name] = append(found[name], kv)
					locks[name] = locks[name] || isCertainLock(n)
				}
			}
			revision = r.Header.Revision
			if more = r.More; more {
				from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
				if !yield(sequence.Snapshot{}, nil) { // many keys may belong to no lock
					return
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(locks)) {
			if locks[name] && !yield(t.newSnapshot(name, found[name], revision), nil) {
				return
			}
		}
	}
}

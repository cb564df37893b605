package zookeeper

import (
	"context"
	"iter"
	"strings"

	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// Walk goes through the nodes below the namespace, level by level, as far as the prefix allows. A node on which
// only foreign clients have claims is a lock if there is a namespace: without one it may belong to anything.
//
// ZooKeeper keeps no list of what is locked, so each node costs a request, whether or not it is a lock. This is the
// price of using the paths of foreign clients. Only an operator's listing of locks calls Walk.
func (t *nodeStore) Walk(ctx context.Context, prefix string) iter.Seq2[sequence.Snapshot, error] {
	return func(yield func(sequence.Snapshot, error) bool) {
		w := treeWalk{t: t, ctx: ctx, prefix: prefix, yield: yield}
		w.start = folder{name: prefix[:strings.LastIndexByte(prefix, '/')+1], path: t.root}
		if w.start.name != "" {
			w.start.path = t.pathOf(strings.TrimSuffix(w.start.name, "/"))
		}
		for folders := []folder{w.start}; len(folders) > 0; {
			below, more := w.visitFolder(folders[0])
			if !more {
				return
			}
			folders = append(folders[1:], below...)
		}
	}
}

// treeWalk is one call of Walk.
type treeWalk struct {
	t      *nodeStore
	ctx    context.Context
	prefix string
	start  folder
	yield  func(sequence.Snapshot, error) bool
}

// folder is a node that may be a lock, and may have locks below it.
type folder struct {
	name string // with a slash at its end, or empty
	path string // empty for the root
}

// visitFolder lists a folder. It yields the lock that the folder is, if it is one, and returns the folders below it.
func (w *treeWalk) visitFolder(f folder) (below []folder, more bool) {
	path := f.path
	if path == "" {
		path = "/"
	}
	calls, c, err := w.t.read(w.ctx, f == w.start, func() []*zk.Call { return []*zk.Call{zk.GetChildren(path)} })
	if err == nil && !w.yield(sequence.Snapshot{}, nil) {
		// It says that the servers have answered: there may be many nodes that are no locks.
		return nil, false
	}
	var keys []string
	if err == nil {
		keys, _, err = calls[0].Children()
	}
	switch {
	case err == nil:
	case err == zk.CodeNoNode, err == zk.CodeNoAuth && f != w.start: // a part of the tree that we may not read
		return nil, true
	default:
		w.yield(sequence.Snapshot{}, w.t.explainError(err, path))
		return nil, false
	}
	isLock, below := w.sortChildren(f, keys)
	if name := strings.TrimSuffix(f.name, "/"); isLock && strings.HasPrefix(name, w.prefix) {
		return below, w.yieldLock(c, name, f.path, calls[0])
	}
	return below, true
}

// sortChildren reports whether a folder is a lock, and returns the folders below it that the prefix allows.
func (w *treeWalk) sortChildren(f folder, keys []string) (isLock bool, below []folder) {
	for _, key := range keys {
		if c, ok := parseKey(key); ok {
			isLock = isLock || !c.Foreign || w.t.root != "" && f.name != ""
			continue
		}
		element, ok := unescapeElement(key)
		if !ok || f.path == "" && key == "zookeeper" { // ZooKeeper's own
			continue
		}
		if name := f.name + element; strings.HasPrefix(name, w.prefix) || strings.HasPrefix(w.prefix, name+"/") {
			below = append(below, folder{name + "/", f.path + "/" + key})
		}
	}
	return isLock, below
}

// yieldLock yields a lock in full. If that lock alone cannot be read, it yields its name with the error, and the
// walk goes on.
func (w *treeWalk) yieldLock(c *zk.Conn, name, path string, listing *zk.Call) (more bool) {
	listed, err := w.t.decodeListing(w.ctx, c, name, path, listing)
	var full sequence.Snapshot
	if err == nil {
		full, err = w.t.readNodes(w.ctx, c, listed)
	}
	switch {
	case err == nil:
		return w.yield(full, nil)
	case driverutil.IsFinal(err):
		return w.yield(sequence.Snapshot{Name: name}, err)
	}
	w.yield(sequence.Snapshot{}, err)
	return false
}

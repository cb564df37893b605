package zookeeper

import (
	"context"
	"strings"

	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// Remove deletes a node. If its claim may have more nodes, all go in one step; if the node itself is gone, the others
// go. Otherwise what is left of a claim would keep others out until its session ends.
//
// A repeated Remove is harmless, because the name of a node has its claim's id, its session and a number: the same name
// does not come again for another claim.
func (t *nodeStore) Remove(
	ctx context.Context, name string, n sequence.Node, then sequence.Then,
) (bool, sequence.Snapshot, error) {
	next, ok := parseKey(then.Next)
	if ok && !t.mayHaveTwoNodes(n.Key) {
		return t.removeAndReadNext(ctx, name, n, next, then.Next)
	}
	list := then.List || then.Next != ""
	path := t.pathOf(name)
	for {
		keys, exists, err := t.keysToRemove(ctx, path, n)
		if err != nil {
			return false, sequence.Snapshot{}, err
		}
		if len(keys) == 0 {
			t.forgetNodes(path, n.Key)
			return false, sequence.Snapshot{}, nil
		}
		// Only the node itself has the version that the caller has seen. The other nodes of its claim go with it.
		version := zk.AnyVersion
		if exists {
			version = int32(n.Version - 1) // 0 in n means any
		}
		code, listing, err := t.deleteNodes(ctx, path, keys, version, list)
		// One of them was removed meanwhile, and so the transaction has removed none. It is made again of those that
		// are left, which become fewer each time.
		if err == nil && code == zk.CodeNoNode && len(keys) > 1 {
			continue
		}
		var removed bool
		if err == nil {
			removed, err = t.finishRemove(path, keys, code)
		}
		if err != nil || !removed || !exists || !list {
			return removed && exists, sequence.Snapshot{}, err
		}
		return true, t.decodeRemaining(ctx, name, path, listing), nil
	}
}

// keysToRemove returns the keys of the nodes that go with a node. The name of a node of ours never comes again.
// That of a foreign client may, so it is checked first that the node is still the same.
func (t *nodeStore) keysToRemove(
	ctx context.Context, path string, n sequence.Node,
) (keys []string, exists bool, err error) {
	if n.Foreign || t.mayHaveTwoNodes(n.Key) {
		return t.nodesOfClaim(ctx, path, n)
	}
	return []string{n.Key}, true, nil
}

// nodesOfClaim returns the keys of all nodes of n's claim, n's own first, if that exists.
func (t *nodeStore) nodesOfClaim(
	ctx context.Context, path string, n sequence.Node,
) (keys []string, exists bool, err error) {
	calls, _, err := t.read(ctx, true, func() []*zk.Call {
		return []*zk.Call{zk.Exists(path + "/" + n.Key), zk.GetChildren(path)}
	})
	if err != nil {
		return nil, false, t.explainError(err, path)
	}
	stat, err := calls[0].Stat()
	if err != nil && err != zk.CodeNoNode {
		return nil, false, t.explainError(err, path)
	}
	if exists = err == nil && stat.Czxid == n.Token; exists {
		keys = append(keys, n.Key)
	}
	children, _, err := calls[1].Children()
	if err != nil && err != zk.CodeNoNode {
		return nil, false, t.explainError(err, path)
	}
	own, ok := parseKey(n.Key)
	if n.Foreign || !ok {
		return keys, exists, nil
	}
	prefix := claimPrefix(claimKey{own.Session, own.ID})
	for _, key := range children {
		if strings.HasPrefix(key, prefix) && key != n.Key {
			keys = append(keys, key)
		}
	}
	return keys, exists, nil
}

// deleteNodes deletes nodes in one step, the first of them if it has a version, and lists those that remain if
// list is set. The code is CodeOK, or why the servers have not done it.
func (t *nodeStore) deleteNodes(
	ctx context.Context, path string, keys []string, version int32, list bool,
) (code zk.Code, listing *zk.Call, err error) {
	var steps []*zk.Call
	for _, key := range keys {
		steps = append(steps, zk.Delete(path+"/"+key, version))
		version = zk.AnyVersion
	}
	calls := steps
	if len(steps) > 1 {
		calls = []*zk.Call{zk.Multi(steps...)}
	}
	if list {
		listing = zk.GetChildren(path)
		calls = append(calls, listing)
	}
	if err := t.write(ctx, &zk.Write{Calls: calls, Alone: len(steps) > 1}); err != nil {
		return zk.CodeOK, nil, t.explainError(err, path)
	}
	if len(steps) == 1 {
		code, _ = calls[0].Err.(zk.Code)
		return code, listing, nil
	}
	results, err := calls[0].Results()
	if err != nil {
		return zk.CodeOK, nil, t.explainError(err, path)
	}
	_, code = zk.FailedStep(results)
	return code, listing, nil
}

// finishRemove takes in the outcome of a deletion, and reports whether it removed the nodes.
func (t *nodeStore) finishRemove(path string, keys []string, code zk.Code) (removed bool, err error) {
	switch code {
	case zk.CodeOK, zk.CodeNoNode:
		t.forgetNodes(path, keys...)
		return code == zk.CodeOK, nil
	case zk.CodeBadVersion:
		return false, nil
	}
	return false, t.explainError(code, path)
}

// decodeRemaining decodes the list that came with a removal. It saves the next waiter of this client a list of its own:
// the server answers the requests of one link in order, so the list shows the lock without the node. The engine does
// without it if it cannot be read.
func (t *nodeStore) decodeRemaining(ctx context.Context, name, path string, listing *zk.Call) sequence.Snapshot {
	c, err := t.anyConn(ctx)
	if err != nil {
		return sequence.Snapshot{}
	}
	remaining, err := t.decodeListing(ctx, c, name, path, listing)
	if err != nil {
		return sequence.Snapshot{}
	}
	return remaining.Snapshot
}

// MayHaveLeftovers reports whether a claim has, or may have, more nodes than one.
func (t *nodeStore) MayHaveLeftovers(key string) bool { return t.mayHaveTwoNodes(key) }

// removeAndReadNext removes a node and reads the next one, instead of the names of all: on a lock with many waiters,
// their names would be most of what this lock sends over the network.
func (t *nodeStore) removeAndReadNext(
	ctx context.Context, name string, n sequence.Node, nextNode claimNode, next string,
) (bool, sequence.Snapshot, error) {
	path := t.pathOf(name)
	remove, read := zk.Delete(path+"/"+n.Key, zk.AnyVersion), zk.GetData(path+"/"+next)
	if err := t.write(ctx, &zk.Write{Calls: []*zk.Call{remove, read}}); err != nil {
		return false, sequence.Snapshot{}, t.explainError(err, path)
	}
	switch remove.Err {
	case nil:
		t.uncacheNode(path + "/" + n.Key)
	case zk.CodeNoNode:
		t.uncacheNode(path + "/" + n.Key)
		return false, sequence.Snapshot{}, nil
	default:
		return false, sequence.Snapshot{}, t.explainError(remove.Err, path)
	}
	first, err := nextNode.decodeNode(read)
	if err != nil {
		return true, sequence.Snapshot{}, nil
	}
	t.cacheNode(path+"/"+next, first)
	return true, sequence.Snapshot{Name: name, Nodes: []sequence.Node{first}, Revision: read.Zxid, Full: true}, nil
}

package zookeeper

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// childrenSnapshot is a Snapshot made from the names of the children alone, and from what is cached of them. The names
// say whose claims they are, of what kind and weight, and in which order they came, and so whether a claim is granted.
// To read the nodes would cost a request for each of them, and ZooKeeper has no read of several at one moment.
type childrenSnapshot struct {
	sequence.Snapshot
	path     string
	children []claimNode // in the order of Nodes
	changed  int64       // the transaction that last added or removed a child
}

// decodeListing makes a snapshot from a list of children. It sends requests only where the numbers of the children do
// not tell their order: then they have the order of the transactions that created them, which must be read.
func (t *nodeStore) decodeListing(
	ctx context.Context, c *zk.Conn, name, path string, listing *zk.Call,
) (childrenSnapshot, error) {
	l := childrenSnapshot{Snapshot: sequence.Snapshot{Name: name, Revision: listing.Zxid}, path: path}
	keys, stat, err := listing.Children()
	if err == zk.CodeNoNode {
		return l, nil
	}
	if err != nil {
		return l, t.explainError(err, path)
	}
	// The list and this transaction are of one moment, so a later list with the same one has the same children.
	l.changed = stat.Pzxid
	all := parseKeys(keys)
	t.fillFromCache(path, all)
	// The usual case needs no more than the names.
	byNumber := areNumbersOrdered(all)
	if !byNumber {
		if all, err = t.readTokens(ctx, c, path, all); err != nil {
			return l, err
		}
	}
	sortByArrival(all, byNumber)
	l.children = mergeSecondNodes(all, t.layout.secondEnding != nil)
	l.Nodes = make([]sequence.Node, len(l.children))
	for i := range l.children {
		n := &l.children[i].Node
		switch {
		case n.KindConflictHint == "":
		case t.opts.Layout == LayoutCuratorReadWrite:
			n.KindConflictHint = "" // Curator's read-write lock sees all claims of this layout
		case t.opts.Layout == LayoutKazoo:
			n.Kind, n.KindConflictHint = "", kazooBlindReason // and none of this one
		}
		l.Nodes[i] = *n
	}
	return l, nil
}

// listBySession lists a lock by one session: the list shows the effect of all that the session has sent before.
func (t *nodeStore) listBySession(ctx context.Context, c *zk.Conn, name, path string) (childrenSnapshot, error) {
	children := zk.GetChildren(path)
	if err := readFresh(ctx, c, children); err != nil {
		return childrenSnapshot{}, t.explainError(err, path)
	}
	return t.decodeListing(ctx, c, name, path, children)
}

// readTokens asks which transactions created nodes, for those that are not cached. It leaves out those that were
// removed meanwhile: a claim that has left is ahead of nobody.
func (t *nodeStore) readTokens(ctx context.Context, c *zk.Conn, path string, all []claimNode) ([]claimNode, error) {
	var calls []*zk.Call
	var of []int
	for i := range all {
		if all[i].Token == 0 {
			calls = append(calls, zk.Exists(path+"/"+all[i].Key))
			of = append(of, i)
		}
	}
	if len(calls) == 0 {
		return all, nil
	}
	if err := c.Do(ctx, calls...); err != nil {
		return nil, t.explainError(err, path)
	}
	for k, call := range calls {
		stat, err := call.Stat()
		if err != nil && err != zk.CodeNoNode {
			return nil, t.explainError(err, path)
		}
		all[of[k]].Token = stat.Czxid
	}
	return slices.DeleteFunc(all, func(c claimNode) bool { return c.Token == 0 }), nil
}

// List lists the children by a server that may be behind: the list was true no longer ago than this client's own
// last request. In full, a [zk.Barrier] precedes it, and the nodes are read too.
//
// ZooKeeper promises no more for a plain read (Programmer's Guide, "Consistency Guarantees"): two clients need not see
// the same state at the same time. The engine asks for a list that is not in full only for a claim that waits and has
// its node. The claims ahead of it can only leave, so a list that is too old shows too many of them, and the claim
// waits for longer than it must.
func (t *nodeStore) List(ctx context.Context, name string, full bool) (sequence.Snapshot, error) {
	path := t.pathOf(name)
	calls, c, err := t.read(ctx, full, func() []*zk.Call { return []*zk.Call{zk.GetChildren(path)} })
	if err != nil {
		return sequence.Snapshot{}, t.explainError(err, path)
	}
	listed, err := t.decodeListing(ctx, c, name, path, calls[0])
	if err != nil || !full {
		return listed.Snapshot, err
	}
	return t.readNodes(ctx, c, listed)
}

// readNodes completes a snapshot with what the nodes say. They are read by the connection that has brought the list, so
// that no answer is older than the list; one that is newer shows a claim as it became, or that it has left.
func (t *nodeStore) readNodes(ctx context.Context, c *zk.Conn, l childrenSnapshot) (sequence.Snapshot, error) {
	l.Full = true
	if len(l.children) == 0 {
		return l.Snapshot, nil
	}
	calls := make([]*zk.Call, len(l.children))
	for i, n := range l.children {
		calls[i] = zk.GetData(l.path + "/" + n.Key)
	}
	if err := c.Do(ctx, calls...); err != nil {
		return sequence.Snapshot{}, t.explainError(err, l.path)
	}
	l.Nodes = l.Nodes[:0]
	for i, call := range calls {
		n, err := l.children[i].decodeNode(call)
		switch {
		case err == zk.CodeNoNode: // removed meanwhile
			continue
		case err != nil:
			return sequence.Snapshot{}, t.explainError(err, l.path)
		}
		t.cacheNode(l.path+"/"+n.Key, n)
		l.Nodes = append(l.Nodes, n)
	}
	return l.Snapshot, nil
}

// Read reads nodes with one request, behind a barrier. A claim of this client's that must have two nodes exists if
// both do: without one of them, the clients that look only for that one are not kept out any more.
func (t *nodeStore) Read(ctx context.Context, refs []sequence.NodeRef) ([]sequence.Node, error) {
	paths := make([]string, len(refs))
	for i, r := range refs {
		paths[i] = t.pathOf(r.Name) + "/" + r.Key
	}
	seconds := t.secondNodesOf(paths)
	calls, _, err := t.read(ctx, true, func() (calls []*zk.Call) {
		for _, path := range paths {
			calls = append(calls, zk.GetData(path))
		}
		for _, second := range seconds {
			if second != "" {
				calls = append(calls, zk.Exists(second))
			}
		}
		return calls
	})
	if err != nil {
		return nil, t.explainError(err, "/")
	}
	// All answers come from one server, in the order of the requests, but other clients' writes may come between them.
	reads, secondReads := calls[:len(refs)], calls[len(refs):]
	applySecondNodes(reads, seconds, secondReads)
	nodes := make([]sequence.Node, len(refs))
	for i, read := range reads {
		n, err := decodeRef(refs[i].Key, read)
		if err != nil {
			return nil, t.explainError(err, paths[i])
		}
		if n.Key != "" {
			nodes[i] = n
			t.cacheNode(paths[i], n)
		}
	}
	return nodes, nil
}

// decodeRef decodes a single node as it was read. It returns a zero Node if the node does not exist.
func decodeRef(key string, read *zk.Call) (sequence.Node, error) {
	c, ok := parseKey(key)
	switch {
	case read.Err == zk.CodeNoNode:
		return sequence.Node{}, nil
	case !ok:
		return sequence.Node{}, read.Err
	}
	return c.decodeNode(read)
}

// applySecondNodes makes the read of a claim fail with the error of the read of its second node.
func applySecondNodes(reads []*zk.Call, seconds []string, secondReads []*zk.Call) {
	for i, second := range seconds {
		if second == "" {
			continue
		}
		if reads[i].Err == nil && secondReads[0].Err != nil {
			reads[i].Err = secondReads[0].Err
		}
		secondReads = secondReads[1:]
	}
}

// decodeNode decodes a claim's node as it was read.
func (c *claimNode) decodeNode(read *zk.Call) (sequence.Node, error) {
	data, stat, err := read.Data()
	if err != nil {
		return sequence.Node{}, err
	}
	n := c.Node
	// Versions of data begin at 0, and a Version of 0 means any to the engine.
	n.Token, n.Version = stat.Czxid, int64(stat.Version)+1
	// A name proves nothing: anybody can create a node that looks like ours. Who owns a node is the servers' word.
	if n.Foreign || n.Session != sessionName(stat.Owner) {
		n.Foreign, n.Session = true, sessionName(stat.Owner)
		n.ID = ""
		return n, nil
	}
	var p sequence.Payload
	// Data that contradict the name are ignored: the other clients have judged the claim by its name.
	if json.Unmarshal(data, &p) == nil && p.ID == n.ID && p.Kind == n.Kind && p.Limit == n.Limit &&
		p.Weight == n.Weight {
		n.Payload = p
	} else {
		n.ReleaseRequested = n.ReleaseRequested || string(data) == curatorRevoke
	}
	return n, nil
}

// curatorRevoke is what Curator's clients write into the node of a holder to request its release ("Revoking" in the
// documentation of its InterProcessMutex). It replaces our payload, of which the name then says enough.
const curatorRevoke = "__REVOKE__"

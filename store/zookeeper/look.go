package zookeeper

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/holdfast-go/holdfast/engine/sequence"
)

// light is a look by the names of the children alone, and by what is remembered of them.
type light struct {
	sequence.Snapshot
	path     string
	children []child // as the Nodes
	changed  int64   // the transaction that last added or removed a child
}

// look makes a light look of a listing.
func (t *tree) look(ctx context.Context, c *conn, name, path string, listing *call) (light, error) {
	l := light{Snapshot: sequence.Snapshot{Name: name, Revision: listing.zxid}, path: path}
	if listing.err == codeNoNode {
		return l, nil
	}
	if listing.err != nil {
		return l, t.fault(listing.err, path)
	}
	all := claims(listing.rest.texts())
	l.changed = listing.rest.stat().pzxid
	if listing.rest.err != nil {
		return l, listing.rest.err
	}
	t.recall(path, all)
	byNumber := sound(all)
	if !byNumber {
		var err error
		if all, err = t.born(ctx, c, path, all); err != nil {
			return l, err
		}
	}
	arrange(all, byNumber)
	l.children = pair(all, t.layout.twin != nil)
	l.Nodes = make([]sequence.Node, len(l.children))
	for i := range l.children {
		if t.opts.Layout == LayoutCuratorReadWrite {
			l.children[i].KindConflictHint = "" // it sees all claims of ours
		}
		l.Nodes[i] = l.children[i].Node
	}
	return l, nil
}

// lookBy looks by one session: it sees what that has done before, whatever came of it.
func (t *tree) lookBy(ctx context.Context, c *conn, name, path string) (light, error) {
	first, children := syncCall(), readCall(opGetChildren, path, false)
	if err := c.do(ctx, first, children); err != nil {
		return light{}, t.fault(err, path)
	}
	if first.err != nil {
		return light{}, t.fault(first.err, path)
	}
	return t.look(ctx, c, name, path, children)
}

// born asks when nodes were made. Those that have gone meanwhile are left out.
func (t *tree) born(ctx context.Context, c *conn, path string, all []child) ([]child, error) {
	var calls []*call
	var of []int
	for i := range all {
		if all[i].Token == 0 {
			calls = append(calls, readCall(opExists, path+"/"+all[i].Key, false))
			of = append(of, i)
		}
	}
	if len(calls) == 0 {
		return all, nil
	}
	if err := c.do(ctx, calls...); err != nil {
		return nil, t.fault(err, path)
	}
	for k, a := range calls {
		switch a.err {
		case nil:
			all[of[k]].Token = a.rest.stat().czxid
		case codeNoNode:
		default:
			return nil, t.fault(a.err, path)
		}
	}
	return slices.DeleteFunc(all, func(c child) bool { return c.Token == 0 }), nil
}

// List lists the children, by a server that may lag: what it shows was so, no longer ago than this client's own last look
// or step. In full it is asked for behind a sync, and the nodes are read, too.
func (t *tree) List(ctx context.Context, name string, full bool) (sequence.Snapshot, error) {
	path := t.pathOf(name)
	calls, c, err := t.read(ctx, full, func() []*call { return []*call{readCall(opGetChildren, path, false)} })
	if err != nil {
		return sequence.Snapshot{}, t.fault(err, path)
	}
	look, err := t.look(ctx, c, name, path, calls[0])
	if err != nil || !full {
		return look.Snapshot, err
	}
	return t.complete(ctx, c, look)
}

// complete reads the nodes of a light look.
func (t *tree) complete(ctx context.Context, c *conn, l light) (sequence.Snapshot, error) {
	l.Full = true
	if len(l.children) == 0 {
		return l.Snapshot, nil
	}
	calls := make([]*call, len(l.children))
	for i, n := range l.children {
		calls[i] = readCall(opGetData, l.path+"/"+n.Key, false)
	}
	if err := c.do(ctx, calls...); err != nil {
		return sequence.Snapshot{}, t.fault(err, l.path)
	}
	l.Nodes = l.Nodes[:0]
	for i, a := range calls {
		switch a.err {
		case nil:
			n, err := l.children[i].node(&a.rest)
			if err != nil {
				return sequence.Snapshot{}, err
			}
			t.learn(l.path+"/"+n.Key, n)
			l.Nodes = append(l.Nodes, n)
		case codeNoNode:
		default:
			return sequence.Snapshot{}, t.fault(a.err, l.path)
		}
	}
	return l.Snapshot, nil
}

// Read reads nodes in one piece, behind a sync. A claim of this client's that must have two nodes stands if both do.
func (t *tree) Read(ctx context.Context, at []sequence.NodeRef) ([]sequence.Node, error) {
	paths := make([]string, len(at))
	for i, p := range at {
		paths[i] = t.pathOf(p.Name) + "/" + p.Key
	}
	twins := t.twinsOf(paths)
	calls, _, err := t.read(ctx, true, func() (calls []*call) {
		for _, path := range paths {
			calls = append(calls, readCall(opGetData, path, false))
		}
		for _, twin := range twins {
			if twin != "" {
				calls = append(calls, readCall(opExists, twin, false))
			}
		}
		return calls
	})
	if err != nil {
		return nil, t.fault(err, "/")
	}
	nodes := make([]sequence.Node, len(at))
	beside := calls[len(at):]
	calls = calls[:len(at)]
	for i, twin := range twins {
		if twin == "" {
			continue
		}
		if calls[i].err == nil && beside[0].err != nil {
			calls[i].err = beside[0].err
		}
		beside = beside[1:]
	}
	for i, a := range calls {
		switch a.err {
		case nil:
			if c, ok := parse(at[i].Key); ok {
				if nodes[i], err = c.node(&a.rest); err != nil {
					return nil, err
				}
				t.learn(paths[i], nodes[i])
			}
		case codeNoNode:
		default:
			return nil, t.fault(a.err, paths[i])
		}
	}
	return nodes, nil
}

// node understands a claim's node as it was read.
func (c *child) node(r *reader) (sequence.Node, error) {
	data := r.bytes()
	s := r.stat()
	if r.err != nil {
		return sequence.Node{}, r.err
	}
	n := c.Node
	n.Token, n.Version = s.czxid, int64(s.version)+1
	if n.Foreign || n.Session != sessionName(s.owner) {
		n.Foreign, n.Session = true, sessionName(s.owner)
		n.ID = ""
		return n, nil
	}
	var note sequence.Payload
	if json.Unmarshal(data, &note) == nil && note.ID == n.ID && note.Kind == n.Kind && note.Limit == n.Limit && note.Weight == n.Weight {
		n.Payload = note
	} else {
		n.ReleaseRequested = n.ReleaseRequested || string(data) == revoke
	}
	return n, nil
}

// revoke is what Curator's clients write into the node of a holder whom they ask to give up.
const revoke = "__REVOKE__"

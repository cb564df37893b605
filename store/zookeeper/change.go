package zookeeper

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// Change sets a node's data.
func (t *tree) Change(ctx context.Context, name string, n sequence.Node, note sequence.Note) (sequence.Node, bool, error) {
	data, err := json.Marshal(note)
	if err != nil {
		return n, false, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	path := t.pathOf(name) + "/" + n.Key
	set := setCall(path, data, int32(n.Version-1))
	if err := t.write(ctx, &write{calls: []*call{set}, alone: true}); err != nil {
		return n, false, t.fault(err, path)
	}
	switch set.err {
	case nil:
		n.Version, n.Note = int64(set.rest.stat().version)+1, note
		t.learn(path, n)
		return n, true, nil
	case codeBadVersion, codeNoNode:
		return n, false, nil
	}
	return n, false, t.fault(set.err, path)
}

// Remove deletes a node. The name of one of ours never comes again; a foreign client's may, so that is looked at first.
func (t *tree) Remove(ctx context.Context, name string, n sequence.Node, look bool) (bool, sequence.Look, error) {
	path := t.pathOf(name)
	keys := []string{n.Key}
	version := int32(n.Version - 1) // -1: any
	if n.Foreign || t.mayStandTwice(n.Key) {
		calls, c, err := t.read(ctx, true, func() []*call {
			return []*call{readCall(opExists, path+"/"+n.Key, false), readCall(opGetChildren, path, false)}
		})
		if err != nil {
			return false, sequence.Look{}, t.fault(err, path)
		}
		if calls[0].err == codeNoNode {
			return false, sequence.Look{}, nil
		}
		if calls[0].err != nil {
			return false, sequence.Look{}, t.fault(calls[0].err, path)
		}
		if calls[0].rest.stat().czxid != n.Token {
			return false, sequence.Look{}, nil
		}
		all, err := t.look(ctx, c, name, path, calls[1])
		if err != nil {
			return false, sequence.Look{}, err
		}
		for _, c := range all.children {
			if c.Key == n.Key && c.twin != "" {
				keys = append(keys, c.twin)
			}
		}
	}
	var calls []*call
	for _, key := range keys {
		calls = append(calls, deleteCall(path+"/"+key, version))
		version = -1
	}
	if look {
		calls = append(calls, readCall(opGetChildren, path, false))
	}
	if err := t.write(ctx, &write{calls: calls, alone: len(keys) > 1}); err != nil {
		return false, sequence.Look{}, t.fault(err, path)
	}
	for i, key := range keys {
		switch calls[i].err {
		case nil, codeNoNode:
			t.unlearn(path + "/" + key)
		case codeBadVersion:
			return false, sequence.Look{}, nil
		default:
			return false, sequence.Look{}, t.fault(calls[i].err, path)
		}
	}
	if c, ok := parse(n.Key); ok {
		t.standsNot(c.Session, c.ID)
	}
	stood := calls[0].err == nil
	if !look || !stood {
		return stood, sequence.Look{}, nil
	}
	c, err := t.anyConn(ctx)
	if err != nil {
		return true, sequence.Look{}, nil
	}
	left, err := t.look(ctx, c, name, path, calls[len(calls)-1])
	if err != nil {
		return true, sequence.Look{}, nil
	}
	return true, left.Look, nil
}

// RemoveFor reads one node along, instead of the names of all.
func (t *tree) RemoveFor(ctx context.Context, name string, n sequence.Node, next string) (bool, sequence.Look, error) {
	place, ok := parse(next)
	if !ok || t.mayStandTwice(n.Key) {
		return t.Remove(ctx, name, n, true)
	}
	path := t.pathOf(name)
	remove, read := deleteCall(path+"/"+n.Key, -1), readCall(opGetData, path+"/"+next, false)
	if err := t.write(ctx, &write{calls: []*call{remove, read}}); err != nil {
		return false, sequence.Look{}, t.fault(err, path)
	}
	switch remove.err {
	case nil, codeNoNode:
		t.unlearn(path + "/" + n.Key)
	default:
		return false, sequence.Look{}, t.fault(remove.err, path)
	}
	if remove.err != nil || read.err != nil {
		return remove.err == nil, sequence.Look{}, nil
	}
	left, err := place.node(&read.rest)
	if err != nil {
		return true, sequence.Look{}, nil
	}
	t.learn(path+"/"+next, left)
	return true, sequence.Look{Name: name, Nodes: []sequence.Node{left}, Revision: read.zxid, Full: true}, nil
}

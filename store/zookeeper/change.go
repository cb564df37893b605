package zookeeper

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// Change sets a node's data.
func (t *tree) Change(ctx context.Context, name string, n sequence.Node, note sequence.Payload) (sequence.Node, bool, error) {
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
		n.Version, n.Payload = int64(set.rest.stat().version)+1, note
		t.learn(path, n)
		return n, true, nil
	case codeBadVersion, codeNoNode:
		return n, false, nil
	}
	return n, false, t.fault(set.err, path)
}

// Remove deletes a node. The name of one of ours never comes again; a foreign client's may, so that is looked at first. Where a
// claim may have more nodes than one they go in one step; and where that one is gone, what is left of its claim goes.
func (t *tree) Remove(ctx context.Context, name string, n sequence.Node, look bool) (bool, sequence.Snapshot, error) {
	path := t.pathOf(name)
	for {
		keys, stands := []string{n.Key}, true
		if n.Foreign || t.mayStandTwice(n.Key) {
			var err error
			if keys, stands, err = t.nodesOf(ctx, path, n); err != nil {
				return false, sequence.Snapshot{}, err
			}
		}
		if len(keys) == 0 {
			t.removed(path, n.Key)
			return false, sequence.Snapshot{}, nil
		}
		version := int32(-1) // any
		if stands {
			version = int32(n.Version - 1)
		}
		why, listing, err := t.deleteAll(ctx, path, keys, version, look)
		switch {
		case err != nil:
			return false, sequence.Snapshot{}, err
		case why == codeNoNode && len(keys) > 1:
			continue // one of them has gone meanwhile
		case why == codeBadVersion:
			return false, sequence.Snapshot{}, nil
		case why != codeOK && why != codeNoNode:
			return false, sequence.Snapshot{}, t.fault(why, path)
		}
		t.removed(path, keys...)
		if !stands || why == codeNoNode || !look {
			return stands && why == codeOK, sequence.Snapshot{}, nil
		}
		c, err := t.anyConn(ctx)
		if err != nil {
			return true, sequence.Snapshot{}, nil
		}
		left, err := t.look(ctx, c, name, path, listing)
		if err != nil {
			return true, sequence.Snapshot{}, nil
		}
		return true, left.Snapshot, nil
	}
}

// nodesOf gives the keys of all nodes of n's claim, n's own first, if that stands.
func (t *tree) nodesOf(ctx context.Context, path string, n sequence.Node) (keys []string, stands bool, err error) {
	calls, _, err := t.read(ctx, true, func() []*call {
		return []*call{readCall(opExists, path+"/"+n.Key, false), readCall(opGetChildren, path, false)}
	})
	if err != nil {
		return nil, false, t.fault(err, path)
	}
	for _, c := range calls {
		if c.err != nil && c.err != codeNoNode {
			return nil, false, t.fault(c.err, path)
		}
	}
	if stands = calls[0].err == nil && calls[0].rest.stat().czxid == n.Token; stands {
		keys = append(keys, n.Key)
	}
	mine, ok := parse(n.Key)
	if n.Foreign || !ok || calls[1].err != nil {
		return keys, stands, nil
	}
	prefix := claimPrefix(mine.Session, mine.ID)
	for _, key := range calls[1].rest.texts() {
		if strings.HasPrefix(key, prefix) && key != n.Key {
			keys = append(keys, key)
		}
	}
	return keys, stands, calls[1].rest.err
}

// deleteAll deletes nodes in one step, the first of them if it stands at a version, and lists those that are left if look is set. why
// is codeOK, or what kept the servers from doing it.
func (t *tree) deleteAll(ctx context.Context, path string, keys []string, version int32, look bool) (why code, listing *call, err error) {
	var steps []*call
	for _, key := range keys {
		steps = append(steps, deleteCall(path+"/"+key, version))
		version = -1
	}
	calls := steps
	if len(steps) > 1 {
		calls = []*call{multiCall(steps...)}
	}
	if look {
		listing = readCall(opGetChildren, path, false)
		calls = append(calls, listing)
	}
	if err := t.write(ctx, &write{calls: calls, alone: len(steps) > 1}); err != nil {
		return codeOK, nil, t.fault(err, path)
	}
	if len(steps) == 1 {
		why, _ = calls[0].err.(code)
		return why, listing, nil
	}
	results, err := calls[0].results()
	if err != nil {
		return codeOK, nil, t.fault(err, path)
	}
	_, why = refused(results)
	return why, listing, nil
}

// removed takes nodes that do not stand any more out of the books.
func (t *tree) removed(path string, keys ...string) {
	for _, key := range keys {
		t.unlearn(path + "/" + key)
		if c, ok := parse(key); ok {
			t.standsNot(c.Session, c.ID)
		}
	}
}

// MayHaveLeftovers reports whether a claim has, or may have, more nodes than one.
func (t *tree) MayHaveLeftovers(key string) bool { return t.mayStandTwice(key) }

// RemoveAndReadNext reads one node along, instead of the names of all.
func (t *tree) RemoveAndReadNext(ctx context.Context, name string, n sequence.Node, next string) (bool, sequence.Snapshot, error) {
	place, ok := parse(next)
	if !ok || t.mayStandTwice(n.Key) {
		return t.Remove(ctx, name, n, true)
	}
	path := t.pathOf(name)
	remove, read := deleteCall(path+"/"+n.Key, -1), readCall(opGetData, path+"/"+next, false)
	if err := t.write(ctx, &write{calls: []*call{remove, read}}); err != nil {
		return false, sequence.Snapshot{}, t.fault(err, path)
	}
	switch remove.err {
	case nil, codeNoNode:
		t.unlearn(path + "/" + n.Key)
	default:
		return false, sequence.Snapshot{}, t.fault(remove.err, path)
	}
	if remove.err != nil || read.err != nil {
		return remove.err == nil, sequence.Snapshot{}, nil
	}
	left, err := place.node(&read.rest)
	if err != nil {
		return true, sequence.Snapshot{}, nil
	}
	t.learn(path+"/"+next, left)
	return true, sequence.Snapshot{Name: name, Nodes: []sequence.Node{left}, Revision: read.zxid, Full: true}, nil
}

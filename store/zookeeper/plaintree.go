package zookeeper

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// plainTree is a tree on which a lock has one node or none: the path of the lock itself.
//
// ZooKeeper deletes and sets by path and version, and both come again with the next holder. So a claim has a ticket as well,
// an ephemeral node with a name of its own that is made and removed in one step with the lock's node: a request that comes
// late finds no ticket, and does nothing. Foreign clients know nothing of tickets. After one of them has removed our node the
// ticket stands on, so before a removal it is looked whether the node is still the one that is meant. A ticket that somebody has
// removed is made again by who has looked at the node.
type plainTree struct{ *tree }

// foreignKey is the key of a node that is not ours. That of ours is the name of its ticket.
const foreignKey = "foreign"

func (t plainTree) pathOf(name string) string { return t.root + "/" + flat(name, t.root == "") }

// tickets begins the names of all tickets. They stand beside the locks, and whoever may make those may make them. No lock's path begins
// so: there a % begins two digits.
const tickets = "/%ticket-"

func (t plainTree) ticket(key string) string { return t.root + tickets + key }

func ticketKey(id, session string) string { return id + "-" + session }

// Add makes the node if none stands there, whatever the guard, and looks, in one piece. It is idempotent by what it sees.
func (t plainTree) Add(ctx context.Context, name string, s sequence.Session, _ int64, note sequence.Payload, _ sequence.AddCondition) (sequence.Snapshot, error) {
	c, err := t.session(s.ID)
	if err != nil {
		return sequence.Snapshot{}, err
	}
	data, err := json.Marshal(note)
	if err != nil {
		return sequence.Snapshot{}, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	path, ticket := t.pathOf(name), t.ticket(ticketKey(note.ID, s.ID))
	for {
		create := multiCall(createCall(opCreate, path, data, t.opts.ACL, modeEphemeral), createCall(opCreate, ticket, nil, t.opts.ACL, modeEphemeral))
		stands := readCall(opGetData, path, false)
		if err := c.do(ctx, create, stands); err != nil {
			return sequence.Snapshot{}, t.fault(err, path)
		}
		steps, err := create.results()
		if err != nil {
			return sequence.Snapshot{}, t.fault(err, path)
		}
		switch step, why := refused(steps); {
		case why == codeOK, step == 0 && why == codeNodeExists:
			return t.seen(name, path, stands)
		case why == codeNodeExists: // the ticket of an earlier call, whose node somebody has removed
			err = c.do(ctx, deleteCall(ticket, -1))
		case why == codeNoNode:
			err = t.parents(ctx, c, t.root)
		default:
			err = why
		}
		if err != nil {
			return sequence.Snapshot{}, t.fault(err, path)
		}
	}
}

// seen understands a lock's node as it was read.
func (t plainTree) seen(name, path string, read *call) (sequence.Snapshot, error) {
	l := sequence.Snapshot{Name: name, Revision: read.zxid, Full: true}
	switch read.err {
	case nil:
		n, err := plainNode(&read.rest)
		l.Nodes = []sequence.Node{n}
		return l, err
	case codeNoNode:
		return l, nil
	}
	return l, t.fault(read.err, path)
}

func plainNode(r *reader) (sequence.Node, error) {
	data, s := r.bytes(), r.stat()
	n := sequence.Node{Key: foreignKey, Foreign: true, Token: s.czxid, Version: int64(s.version) + 1, Session: sessionName(s.owner)}
	var note sequence.Payload
	if json.Unmarshal(data, &note) == nil && s.owner != 0 && isID(note.ID) && note.Kind == driver.KindMutex && note.Limit == 1 && note.Weight == 1 {
		n.Key, n.Foreign, n.Payload = ticketKey(note.ID, n.Session), false, note
	}
	return n, r.err
}

// Withdraw looks by the session that the add went by, behind it: what is not to be seen then will not come.
func (t plainTree) Withdraw(ctx context.Context, name string, s sequence.Session, _ int64, id string) (bool, error) {
	c, err := t.session(s.ID)
	if err != nil {
		return false, err
	}
	path := t.pathOf(name)
	behind, stands := syncCall(), readCall(opGetData, path, false)
	if err := c.do(ctx, behind, stands); err != nil {
		return false, t.fault(err, path)
	}
	if behind.err != nil {
		return false, t.fault(behind.err, path)
	}
	l, err := t.seen(name, path, stands)
	if err != nil {
		return false, err
	}
	n := sequence.Node{Key: ticketKey(id, s.ID)}
	if len(l.Nodes) > 0 && l.Nodes[0].Key == n.Key {
		n = l.Nodes[0]
	}
	stood, _, err := t.Remove(ctx, name, n, false)
	return stood, err
}

// List reads the node, behind a sync if in full.
func (t plainTree) List(ctx context.Context, name string, full bool) (sequence.Snapshot, error) {
	path := t.pathOf(name)
	calls, _, err := t.read(ctx, full, func() []*call { return []*call{readCall(opGetData, path, false)} })
	if err != nil {
		return sequence.Snapshot{}, t.fault(err, path)
	}
	return t.seen(name, path, calls[0])
}

// Read reads locks' nodes in one piece, behind a sync. A node of ours whose data somebody has overwritten is known by its
// session.
func (t plainTree) Read(ctx context.Context, at []sequence.NodeRef) ([]sequence.Node, error) {
	calls, _, err := t.read(ctx, true, func() []*call {
		calls := make([]*call, len(at))
		for i, p := range at {
			calls[i] = readCall(opGetData, t.pathOf(p.Name), false)
		}
		return calls
	})
	if err != nil {
		return nil, t.fault(err, "/")
	}
	nodes := make([]sequence.Node, len(at))
	for i, p := range at {
		l, err := t.seen(p.Name, t.pathOf(p.Name), calls[i])
		if err != nil {
			return nil, err
		}
		if len(l.Nodes) == 0 {
			continue
		}
		n := l.Nodes[0]
		if id, ok := strings.CutSuffix(p.Key, "-"+n.Session); n.Foreign && ok {
			n.Key, n.Foreign = p.Key, false
			n.Payload = sequence.Payload{ID: id, Kind: driver.KindMutex, Limit: 1, Weight: 1}
		}
		if n.Key == p.Key {
			nodes[i] = n
		}
	}
	return nodes, nil
}

// Change sets the node's data if the ticket stands.
func (t plainTree) Change(ctx context.Context, name string, n sequence.Node, note sequence.Payload) (sequence.Node, bool, error) {
	data, err := json.Marshal(note)
	if err != nil {
		return n, false, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	path := t.pathOf(name)
	for try := 0; ; try++ {
		steps, why, err := t.step(ctx, path, t.writeMulti, checkCall(t.ticket(n.Key), -1), setCall(path, data, int32(n.Version-1)))
		if why == noTicket && try == 0 {
			var there bool
			if there, err = t.reissue(ctx, path, n); err == nil && there {
				continue
			}
		}
		if err != nil || why != codeOK {
			return n, false, err
		}
		n.Version, n.Payload = int64(steps[1].stat.version)+1, note
		return n, true, nil
	}
}

// Remove deletes the node, and its ticket with it.
func (t plainTree) Remove(ctx context.Context, name string, n sequence.Node, _ bool) (bool, sequence.Snapshot, error) {
	stood, err := t.remove(ctx, t.pathOf(name), n, t.writeMulti)
	return stood, sequence.Snapshot{}, err
}

// remove deletes the ticket, and the node if it is there, and makes other changes in the step that deletes the node.
func (t plainTree) remove(ctx context.Context, path string, n sequence.Node, send func(context.Context, *call) error, others ...*call) (stood bool, err error) {
	there, err := t.standsAt(ctx, path, n)
	for try := 0; err == nil; try++ {
		var steps []*call
		if !n.Foreign {
			steps = append(steps, deleteCall(t.ticket(n.Key), -1))
		}
		if there {
			steps = append(append(steps, deleteCall(path, int32(n.Version-1))), others...) // -1: any
		}
		if len(steps) == 0 {
			return false, nil
		}
		var why code
		_, why, err = t.step(ctx, path, send, steps...)
		if why == noTicket && !n.Foreign && there && try == 0 {
			there, err = t.reissue(ctx, path, n)
			continue
		}
		return err == nil && why == codeOK && there, err
	}
	return false, err
}

// BreakNode is that of a tree, for the one node and its ticket. The note stands beside the lock.
func (t plainTree) BreakNode(ctx context.Context, name string, n sequence.Node) (bool, error) {
	return t.withNote(ctx, t.note(n), n.TTL, func(c *conn, note *call) (bool, error) {
		return t.remove(ctx, t.pathOf(name), n, func(ctx context.Context, multi *call) error { return c.do(ctx, multi) }, note)
	})
}

// WasBroken looks for the note.
func (t plainTree) WasBroken(ctx context.Context, _ string, n sequence.Node) (bool, error) {
	return t.noted(ctx, t.note(n))
}

func (t plainTree) note(n sequence.Node) string { return t.root + broken + n.Key + itsEnd }

// standsAt looks whether the node that stands at a path is still the one that is meant.
func (t plainTree) standsAt(ctx context.Context, path string, n sequence.Node) (bool, error) {
	calls, _, err := t.read(ctx, true, func() []*call { return []*call{readCall(opExists, path, false)} })
	if err == nil && calls[0].err != codeNoNode {
		err = calls[0].err
	}
	return err == nil && calls[0].err == nil && calls[0].rest.stat().czxid == n.Token, t.fault(err, path)
}

// reissue makes the ticket of a node again, if that still stands: with a session that goes on it would stand for ever.
func (t plainTree) reissue(ctx context.Context, path string, n sequence.Node) (there bool, err error) {
	if there, err = t.standsAt(ctx, path, n); err != nil || !there {
		return false, err
	}
	create := createCall(opCreate, t.ticket(n.Key), nil, t.opts.ACL, modeEphemeral)
	if err := t.write(ctx, &write{calls: []*call{create}, alone: true}); err != nil {
		return false, t.fault(err, path)
	}
	if create.err != nil && create.err != codeNodeExists {
		return false, t.fault(create.err, path)
	}
	return true, nil
}

// noTicket says that the first of the changes of a step was of a node that is not there.
const noTicket = codeNoNode

// writeMulti sends a multi by any session.
func (t plainTree) writeMulti(ctx context.Context, multi *call) error {
	return t.write(ctx, &write{calls: []*call{multi}, alone: true})
}

// step makes changes together. why is codeOK if they were made, noTicket or codeBadVersion if the nodes did not stand as they were seen.
func (t plainTree) step(ctx context.Context, path string, send func(context.Context, *call) error, changes ...*call) (steps []stepResult, why code, err error) {
	multi := multiCall(changes...)
	if err := send(ctx, multi); err != nil {
		return nil, codeOK, t.fault(err, path)
	}
	if steps, err = multi.results(); err != nil {
		return nil, codeOK, t.fault(err, path)
	}
	switch at, why := refused(steps); {
	case why == codeNoNode && at > 0: // the lock's own node has gone
		return nil, codeBadVersion, nil
	case why == codeOK, why == codeNoNode, why == codeBadVersion:
		return steps, why, nil
	default:
		return nil, codeOK, t.fault(why, path)
	}
}

// Watch watches the one node that there can be.
func (t plainTree) Watch(name, key string, revision int64, changed func()) func() {
	comes := key == sequence.WatchRemovals || key == sequence.WatchChanges
	return t.watch(&listener{t: t.tree, at: spotKey{onData, t.pathOf(name)}, returns: comes, seen: revision, changed: changed})
}

// Walk reads the nodes right below the namespace whose names fit. A foreign one is a lock if it is ephemeral, and there is a namespace.
func (t plainTree) Walk(ctx context.Context, prefix string) iter.Seq2[sequence.Snapshot, error] {
	return func(yield func(sequence.Snapshot, error) bool) {
		folder := t.root
		if folder == "" {
			folder = "/"
		}
		calls, _, err := t.read(ctx, true, func() []*call { return []*call{readCall(opGetChildren, folder, false)} })
		if err == nil && calls[0].err != codeNoNode {
			err = calls[0].err
		}
		if err != nil {
			yield(sequence.Snapshot{}, t.fault(err, folder))
			return
		}
		var names []string
		for _, element := range calls[0].rest.texts() {
			if name, ok := unescape(element); ok && name != "" && strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}
		for some := range slices.Chunk(names, sequence.MaxRead) {
			calls, _, err := t.read(ctx, false, func() []*call {
				calls := make([]*call, len(some))
				for i, name := range some {
					calls[i] = readCall(opGetData, t.pathOf(name), false)
				}
				return calls
			})
			if err != nil {
				yield(sequence.Snapshot{}, t.fault(err, folder))
				return
			}
			if !yield(sequence.Snapshot{}, nil) {
				return
			}
			for i, name := range some {
				if calls[i].err == codeNoAuth { // it is not ours to see
					continue
				}
				l, err := t.seen(name, t.pathOf(name), calls[i])
				if err == nil && (len(l.Nodes) == 0 || l.Nodes[0].Foreign && (t.root == "" || l.Nodes[0].Session == sessionName(0))) {
					continue
				}
				if !yield(l, err) {
					return
				}
			}
		}
	}
}

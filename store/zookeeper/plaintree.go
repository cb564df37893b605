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
// ticket stands on, so before a removal it is looked whether the node is still the one that is meant.
type plainTree struct{ *tree }

// foreignKey is the key of a node that is not ours. That of ours is the name of its ticket.
const foreignKey = "foreign"

func (t plainTree) pathOf(name string) string { return t.root + "/" + flat(name, t.root == "") }

// tickets is the node above all tickets, below the namespace. No lock's path has it: there a % begins two digits.
const tickets = "%tickets"

func (t plainTree) folder() string { return t.root + "/" + tickets }

func (t plainTree) ticket(key string) string { return t.folder() + "/" + key }

func ticketKey(id, session string) string { return id + "-" + session }

// Add makes the node if none stands there, whatever the guard, and looks, in one piece. It is idempotent by what it sees.
func (t plainTree) Add(ctx context.Context, name string, s sequence.Session, _ int64, note sequence.Note, _ sequence.Guard) (sequence.Look, error) {
	c, err := t.session(s.ID)
	if err != nil {
		return sequence.Look{}, err
	}
	data, err := json.Marshal(note)
	if err != nil {
		return sequence.Look{}, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	path, ticket := t.pathOf(name), t.ticket(ticketKey(note.ID, s.ID))
	for {
		create := multiCall(createCall(opCreate, path, data, t.opts.ACL, modeEphemeral), createCall(opCreate, ticket, nil, t.opts.ACL, modeEphemeral))
		stands := readCall(opGetData, path, false)
		if err := c.do(ctx, create, stands); err != nil {
			return sequence.Look{}, t.fault(err, path)
		}
		steps, err := create.results()
		if err != nil {
			return sequence.Look{}, t.fault(err, path)
		}
		switch step, why := refused(steps); {
		case why == codeOK, step == 0 && why == codeNodeExists:
			return t.seen(name, path, stands)
		case why == codeNodeExists: // the ticket of an earlier call, whose node somebody has removed
			err = c.do(ctx, deleteCall(ticket, -1))
		case why == codeNoNode:
			err = t.parents(ctx, c, t.folder())
		default:
			err = why
		}
		if err != nil {
			return sequence.Look{}, t.fault(err, path)
		}
	}
}

// seen understands a lock's node as it was read.
func (t plainTree) seen(name, path string, read *call) (sequence.Look, error) {
	l := sequence.Look{Name: name, Revision: read.zxid, Full: true}
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
	var note sequence.Note
	if json.Unmarshal(data, &note) == nil && s.owner != 0 && isID(note.ID) && note.Kind == driver.KindMutex && note.Limit == 1 && note.Weight == 1 {
		n.Key, n.Foreign, n.Note = ticketKey(note.ID, n.Session), false, note
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
func (t plainTree) List(ctx context.Context, name string, full bool) (sequence.Look, error) {
	path := t.pathOf(name)
	calls, _, err := t.read(ctx, full, func() []*call { return []*call{readCall(opGetData, path, false)} })
	if err != nil {
		return sequence.Look{}, t.fault(err, path)
	}
	return t.seen(name, path, calls[0])
}

// Read reads locks' nodes in one piece, behind a sync. A node of ours whose data somebody has overwritten is known by its
// session.
func (t plainTree) Read(ctx context.Context, at []sequence.Place) ([]sequence.Node, error) {
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
			n.Note = sequence.Note{ID: id, Kind: driver.KindMutex, Limit: 1, Weight: 1}
		}
		if n.Key == p.Key {
			nodes[i] = n
		}
	}
	return nodes, nil
}

// Change sets the node's data if the ticket stands.
func (t plainTree) Change(ctx context.Context, name string, n sequence.Node, note sequence.Note) (sequence.Node, bool, error) {
	data, err := json.Marshal(note)
	if err != nil {
		return n, false, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	path := t.pathOf(name)
	steps, ok, err := t.step(ctx, path, checkCall(t.ticket(n.Key), -1), setCall(path, data, int32(n.Version-1)))
	if ok {
		n.Version, n.Note = int64(steps[1].stat.version)+1, note
	}
	return n, ok, err
}

// Remove deletes the node, and its ticket with it.
func (t plainTree) Remove(ctx context.Context, name string, n sequence.Node, _ bool) (bool, sequence.Look, error) {
	path := t.pathOf(name)
	calls, _, err := t.read(ctx, true, func() []*call { return []*call{readCall(opExists, path, false)} })
	if err == nil && calls[0].err != codeNoNode {
		err = calls[0].err
	}
	if err != nil {
		return false, sequence.Look{}, t.fault(err, path)
	}
	there := calls[0].err == nil && calls[0].rest.stat().czxid == n.Token
	stood, err := t.remove(ctx, path, n, there)
	return stood, sequence.Look{}, err
}

// remove deletes the ticket, and the node if that was seen to be there.
func (t plainTree) remove(ctx context.Context, path string, n sequence.Node, there bool) (stood bool, err error) {
	var steps []*call
	if !n.Foreign {
		steps = append(steps, deleteCall(t.ticket(n.Key), -1))
	}
	if there {
		steps = append(steps, deleteCall(path, int32(n.Version-1))) // -1: any
	}
	if len(steps) == 0 {
		return false, nil
	}
	_, ok, err := t.step(ctx, path, steps...)
	return ok && there, err
}

// step makes changes together, and reports whether they were made: the nodes stood as they were seen.
func (t plainTree) step(ctx context.Context, path string, changes ...*call) ([]stepResult, bool, error) {
	multi := multiCall(changes...)
	if err := t.write(ctx, &write{calls: []*call{multi}, alone: true}); err != nil {
		return nil, false, t.fault(err, path)
	}
	steps, err := multi.results()
	if err != nil {
		return nil, false, t.fault(err, path)
	}
	switch _, why := refused(steps); why {
	case codeOK:
		return steps, true, nil
	case codeNoNode, codeBadVersion:
		return nil, false, nil
	default:
		return nil, false, t.fault(why, path)
	}
}

// Watch watches the one node that there can be.
func (t plainTree) Watch(name, key string, revision int64, changed func()) func() {
	comes := key == sequence.AnyGone || key == sequence.AnyChange
	return t.watch(&listener{t: t.tree, at: spotKey{onData, t.pathOf(name)}, returns: comes, seen: revision, changed: changed})
}

// Walk reads the nodes right below the namespace whose names fit.
func (t plainTree) Walk(ctx context.Context, prefix string) iter.Seq2[sequence.Look, error] {
	return func(yield func(sequence.Look, error) bool) {
		folder := t.root
		if folder == "" {
			folder = "/"
		}
		calls, _, err := t.read(ctx, true, func() []*call { return []*call{readCall(opGetChildren, folder, false)} })
		if err == nil && calls[0].err != codeNoNode {
			err = calls[0].err
		}
		if err != nil {
			yield(sequence.Look{}, t.fault(err, folder))
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
				yield(sequence.Look{}, t.fault(err, folder))
				return
			}
			if !yield(sequence.Look{}, nil) {
				return
			}
			for i, name := range some {
				if calls[i].err == codeNoAuth { // it is not ours to see
					continue
				}
				l, err := t.seen(name, t.pathOf(name), calls[i])
				if err == nil && (len(l.Nodes) == 0 || l.Nodes[0].Foreign) {
					continue
				}
				if !yield(l, err) {
					return
				}
			}
		}
	}
}

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
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// plainTree is a tree on which a lock has one node or none: the node at the path of the lock itself.
//
// ZooKeeper deletes and changes nodes by path and version, and both are the same again with the next holder. So a
// claim has a ticket as well, an ephemeral node with a name of its own, which is created and removed in one step
// with the lock's node: a request that arrives late finds no ticket, and does nothing. Foreign clients know
// nothing of tickets. If one of them removes our node, the ticket remains; so a removal first checks that the
// lock's node is still the same. If a ticket was removed, it is created again once the node was checked.
type plainTree struct{ *nodeStore }

// foreignKey is the key of a node that is not ours. The key of a node of ours is the name of its ticket.
const foreignKey = "foreign"

func (t plainTree) pathOf(name string) string { return t.root + "/" + flattenName(name, t.root == "") }

// ticketPrefix begins the names of all tickets. They are siblings of the locks, so that a client that may create
// those may create tickets. No lock's path begins so: in a lock's path two digits follow a %.
const ticketPrefix = "/%ticket-"

func (t plainTree) ticketPath(key string) string { return t.root + ticketPrefix + key }

func formatTicketKey(id, session string) string { return id + "-" + session }

// Add creates the node if none exists, whatever the condition, and reads it with the same request. It is
// idempotent: it returns the claim's node if that exists already.
func (t plainTree) Add(
	ctx context.Context, name string, s sequence.Session, _ int64, payload sequence.Payload, _ sequence.AddCondition,
) (sequence.Snapshot, error) {
	c, err := t.sessionConn(s.ID)
	if err != nil {
		return sequence.Snapshot{}, err
	}
	data, err := json.Marshal(payload)
	if err != nil {
		return sequence.Snapshot{}, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	path, ticket := t.pathOf(name), t.ticketPath(formatTicketKey(payload.ID, s.ID))
	for {
		create := zk.Multi(zk.CreateEphemeral(path, data, t.acl), zk.CreateEphemeral(ticket, nil, t.acl))
		read := zk.GetData(path)
		if err := c.Do(ctx, create, read); err != nil {
			return sequence.Snapshot{}, t.explainError(err, path)
		}
		results, err := create.Results()
		if err != nil {
			return sequence.Snapshot{}, t.explainError(err, path)
		}
		switch step, code := zk.FailedStep(results); {
		case code == zk.CodeOK, step == 0 && code == zk.CodeNodeExists:
			// In the second case the node may be this claim's own, from an earlier call whose reply was lost: the
			// engine finds the claim's id in the snapshot.
			return t.decodeSnapshot(name, path, read)
		case code == zk.CodeNodeExists: // the ticket of an earlier call, whose node was removed by somebody else
			err = c.Do(ctx, zk.Delete(ticket, zk.AnyVersion))
		case code == zk.CodeNoNode:
			err = t.createParents(ctx, c, t.root)
		default:
			err = code
		}
		if err != nil {
			return sequence.Snapshot{}, t.explainError(err, path)
		}
	}
}

// decodeSnapshot decodes a lock's node as it was read.
func (t plainTree) decodeSnapshot(name, path string, read *zk.Call) (sequence.Snapshot, error) {
	l := sequence.Snapshot{Name: name, Revision: read.Zxid, Full: true}
	n, err := decodePlainNode(read)
	switch err {
	case nil:
		l.Nodes = []sequence.Node{n}
		return l, nil
	case zk.CodeNoNode:
		return l, nil
	}
	return l, t.explainError(err, path)
}

// decodePlainNode reads a node of the layout with one node per lock. A node whose data are not ours belongs to
// another program.
func decodePlainNode(read *zk.Call) (sequence.Node, error) {
	data, stat, err := read.Data()
	if err != nil {
		return sequence.Node{}, err
	}
	n := sequence.Node{
		Key: foreignKey, Foreign: true, Session: sessionName(stat.Owner),
		Token: stat.Czxid, Version: int64(stat.Version) + 1,
	}
	// The path says nothing here, so the data must tell our node from a foreign one. A copy of our data in a node that
	// another session has created is taken for a claim of that session, which no client of ours renews or removes.
	var p sequence.Payload
	if json.Unmarshal(data, &p) == nil && stat.Owner != 0 && isClaimID(p.ID) &&
		p.Kind == driver.KindMutex && p.Limit == 1 && p.Weight == 1 {
		n.Key, n.Foreign, n.Payload = formatTicketKey(p.ID, n.Session), false, p
	}
	return n, nil
}

// Withdraw reads by the session that the add used, behind the add: what does not exist then will not come to exist. The
// ticket alone may exist, if somebody has removed the lock's node; Remove deletes it in that case as well.
func (t plainTree) Withdraw(ctx context.Context, name string, s sequence.Session, _ int64, id string) (bool, error) {
	c, err := t.sessionConn(s.ID)
	if err != nil {
		return false, err
	}
	path := t.pathOf(name)
	read := zk.GetData(path)
	if err := readFresh(ctx, c, read); err != nil {
		return false, t.explainError(err, path)
	}
	l, err := t.decodeSnapshot(name, path, read)
	if err != nil {
		return false, err
	}
	n := sequence.Node{Key: formatTicketKey(id, s.ID)}
	if len(l.Nodes) > 0 && l.Nodes[0].Key == n.Key {
		n = l.Nodes[0]
	}
	existed, _, err := t.Remove(ctx, name, n, sequence.Then{})
	return existed, err
}

// List reads the node, behind a barrier if in full.
func (t plainTree) List(ctx context.Context, name string, full bool) (sequence.Snapshot, error) {
	path := t.pathOf(name)
	calls, _, err := t.read(ctx, full, func() []*zk.Call { return []*zk.Call{zk.GetData(path)} })
	if err != nil {
		return sequence.Snapshot{}, t.explainError(err, path)
	}
	return t.decodeSnapshot(name, path, calls[0])
}

// Read reads locks' nodes with one request, behind a barrier. A node of ours whose data were overwritten is
// recognized by its session: another client may write into the node that it waits for, and the lock is still held.
func (t plainTree) Read(ctx context.Context, refs []sequence.NodeRef) ([]sequence.Node, error) {
	calls, _, err := t.read(ctx, true, func() []*zk.Call {
		calls := make([]*zk.Call, len(refs))
		for i, r := range refs {
			calls[i] = zk.GetData(t.pathOf(r.Name))
		}
		return calls
	})
	if err != nil {
		return nil, t.explainError(err, "/")
	}
	nodes := make([]sequence.Node, len(refs))
	for i, r := range refs {
		l, err := t.decodeSnapshot(r.Name, t.pathOf(r.Name), calls[i])
		if err != nil {
			return nil, err
		}
		if len(l.Nodes) == 0 {
			continue
		}
		n := l.Nodes[0]
		if id, ok := strings.CutSuffix(r.Key, "-"+n.Session); n.Foreign && ok {
			n.Key, n.Foreign = r.Key, false
			n.Payload = sequence.Payload{ID: id, Kind: driver.KindMutex, Limit: 1, Weight: 1}
		}
		if n.Key == r.Key {
			nodes[i] = n
		}
	}
	return nodes, nil
}

// Traits returns the tree's traits, but no claim waits in the store, so none is next.
func (t plainTree) Traits() sequence.Traits {
	return sequence.Traits{LeavesNotes: true, ReportsTokens: true}
}

// Change replaces the node's data if the ticket exists.
func (t plainTree) Change(
	ctx context.Context, name string, n sequence.Node, payload sequence.Payload, _ sequence.Among,
) (sequence.Node, bool, error) {
	data, err := json.Marshal(payload)
	if err != nil {
		return n, false, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	path := t.pathOf(name)
	// One repetition is enough: a ticket that is gone again was removed by somebody since, and the caller looks again.
	for try := 0; ; try++ {
		results, code, err := t.writeSteps(ctx, path, t.sendMulti,
			zk.Check(t.ticketPath(n.Key), zk.AnyVersion), zk.SetData(path, data, int32(n.Version-1)))
		if code == codeNoTicket && try == 0 {
			var exists bool
			if exists, err = t.recreateTicket(ctx, path, n); err == nil && exists {
				continue
			}
		}
		if err != nil || code != zk.CodeOK {
			return n, false, err
		}
		n.Version, n.Payload = int64(results[1].Stat.Version)+1, payload
		return n, true, nil
	}
}

// Remove deletes the node, and its ticket with it.
func (t plainTree) Remove(
	ctx context.Context, name string, n sequence.Node, _ sequence.Then,
) (bool, sequence.Snapshot, error) {
	existed, err := t.removeNode(ctx, t.pathOf(name), n, t.sendMulti)
	return existed, sequence.Snapshot{}, err
}

// sender sends a Multi.
type sender func(context.Context, *zk.Call) error

// removeNode deletes the ticket, and the node if it exists, and makes other changes in the step that deletes the
// node.
func (t plainTree) removeNode(
	ctx context.Context, path string, n sequence.Node, send sender, others ...*zk.Call,
) (existed bool, err error) {
	// Between this read and the write only the ticket protects another holder's node: it exists as long as n's
	// session, or until a removal of n.
	exists, err := t.nodeExists(ctx, path, n)
	for try := 0; err == nil; try++ {
		var steps []*zk.Call
		if !n.Foreign {
			steps = append(steps, zk.Delete(t.ticketPath(n.Key), zk.AnyVersion))
		}
		if exists {
			steps = append(append(steps, zk.Delete(path, int32(n.Version-1))), others...) // a Version of 0 means any
		}
		if len(steps) == 0 {
			return false, nil
		}
		var code zk.Code
		_, code, err = t.writeSteps(ctx, path, send, steps...)
		if code == codeNoTicket && !n.Foreign && exists && try == 0 {
			exists, err = t.recreateTicket(ctx, path, n)
			continue
		}
		return err == nil && code == zk.CodeOK && exists, err
	}
	return false, err
}

// BreakNode removes the node and its ticket, and leaves a note next to the lock.
func (t plainTree) BreakNode(ctx context.Context, name string, n sequence.Node, reason string) (bool, error) {
	note := zk.CreateEphemeral(t.notePath(n), []byte(reason), t.acl)
	return t.withNoteSession(ctx, t.pathOf(name), n.TTL, func(c *zk.Conn) (bool, error) {
		send := func(ctx context.Context, multi *zk.Call) error { return c.Do(ctx, multi) }
		return t.removeNode(ctx, t.pathOf(name), n, send, note)
	})
}

// ReadBreakNote reads the data of the note, which are the reason.
func (t plainTree) ReadBreakNote(ctx context.Context, _ string, n sequence.Node) (bool, string, error) {
	return t.readNote(ctx, t.notePath(n))
}

func (t plainTree) notePath(n sequence.Node) string { return t.root + notePrefix + n.Key + noteEnding }

// nodeExists reports whether the node at a path is still n.
func (t plainTree) nodeExists(ctx context.Context, path string, n sequence.Node) (bool, error) {
	calls, _, err := t.read(ctx, true, func() []*zk.Call { return []*zk.Call{zk.Exists(path)} })
	if err != nil {
		return false, t.explainError(err, path)
	}
	stat, err := calls[0].Stat()
	if err == zk.CodeNoNode {
		return false, nil
	}
	return err == nil && stat.Czxid == n.Token, t.explainError(err, path)
}

// recreateTicket creates the ticket of a node again if the node still exists: else it would remain as long as its
// session. The new ticket belongs to the session that creates it, which may be another one than the node's: it is only
// needed for the step that follows, and is created again for the next.
func (t plainTree) recreateTicket(ctx context.Context, path string, n sequence.Node) (exists bool, err error) {
	if exists, err = t.nodeExists(ctx, path, n); err != nil || !exists {
		return false, err
	}
	create := zk.CreateEphemeral(t.ticketPath(n.Key), nil, t.acl)
	if err := t.write(ctx, &zk.Write{Calls: []*zk.Call{create}, Alone: true}); err != nil {
		return false, t.explainError(err, path)
	}
	if create.Err != nil && create.Err != zk.CodeNodeExists {
		return false, t.explainError(create.Err, path)
	}
	return true, nil
}

// codeNoTicket is returned by writeSteps if the node of the first step, the ticket, does not exist.
const codeNoTicket = zk.CodeNoNode

// sendMulti sends a Multi by any session.
func (t plainTree) sendMulti(ctx context.Context, multi *zk.Call) error {
	return t.write(ctx, &zk.Write{Calls: []*zk.Call{multi}, Alone: true})
}

// writeSteps makes changes together. The code is CodeOK if they were made, codeNoTicket or CodeBadVersion if the
// nodes were not as they were last read.
func (t plainTree) writeSteps(
	ctx context.Context, path string, send sender, steps ...*zk.Call,
) (results []zk.Result, code zk.Code, err error) {
	multi := zk.Multi(steps...)
	if err := send(ctx, multi); err != nil {
		return nil, zk.CodeOK, t.explainError(err, path)
	}
	if results, err = multi.Results(); err != nil {
		return nil, zk.CodeOK, t.explainError(err, path)
	}
	// The ticket is the first step of each transaction, so the number of the step that failed tells which node it was.
	switch step, code := zk.FailedStep(results); {
	case code == zk.CodeNoNode && step > 0: // the lock's own node is gone
		return nil, zk.CodeBadVersion, nil
	case code == zk.CodeOK, code == zk.CodeNoNode, code == zk.CodeBadVersion:
		return results, code, nil
	default:
		return nil, zk.CodeOK, t.explainError(code, path)
	}
}

// Watch watches the one node that there can be. All waiters of a lock watch it, so each release wakes all of them: the
// herd that ZooKeeper's recipe avoids by a queue of nodes, which this layout cannot have.
func (t plainTree) Watch(name, key string, revision int64, changed func()) sequence.Subscription {
	recurs := key == sequence.WatchRemovals || key == sequence.WatchChanges
	return t.subscribe(zk.Watcher{Path: t.pathOf(name), Recurs: recurs, Since: revision}, changed,
		key[strings.LastIndexByte(key, '-')+1:])
}

// Walk reads the nodes directly below the namespace that have the prefix.
func (t plainTree) Walk(ctx context.Context, prefix string) iter.Seq2[sequence.Snapshot, error] {
	return func(yield func(sequence.Snapshot, error) bool) {
		folder := t.root
		if folder == "" {
			folder = "/"
		}
		names, err := t.listNames(ctx, folder, prefix)
		if err != nil {
			yield(sequence.Snapshot{}, t.explainError(err, folder))
			return
		}
		for some := range slices.Chunk(names, sequence.MaxRead) {
			calls, _, err := t.read(ctx, false, func() []*zk.Call {
				calls := make([]*zk.Call, len(some))
				for i, name := range some {
					calls[i] = zk.GetData(t.pathOf(name))
				}
				return calls
			})
			if err != nil {
				yield(sequence.Snapshot{}, t.explainError(err, folder))
				return
			}
			if !yield(sequence.Snapshot{}, nil) || !t.yieldLocks(some, calls, yield) {
				return
			}
		}
	}
}

// listNames returns the names of the children of a folder that have a prefix.
func (t plainTree) listNames(ctx context.Context, folder, prefix string) (names []string, err error) {
	calls, _, err := t.read(ctx, true, func() []*zk.Call { return []*zk.Call{zk.GetChildren(folder)} })
	if err != nil {
		return nil, err
	}
	elements, _, err := calls[0].Children()
	if err == zk.CodeNoNode {
		return nil, nil
	}
	for _, element := range elements {
		if name, ok := unescapeElement(element); ok && name != "" && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names, err
}

// yieldLocks yields the locks among nodes that were read. A node of a foreign client is a lock if it is ephemeral,
// and there is a namespace.
func (t plainTree) yieldLocks(names []string, reads []*zk.Call, yield func(sequence.Snapshot, error) bool) (more bool) {
	for i, name := range names {
		if reads[i].Err == zk.CodeNoAuth { // a node that we may not read
			continue
		}
		l, err := t.decodeSnapshot(name, t.pathOf(name), reads[i])
		if err == nil && !t.isLock(l) {
			continue
		}
		if !yield(l, err) {
			return false
		}
	}
	return true
}

// isLock reports whether a node is a lock. Any node on a lock's path holds the lock; but a listing must not take all
// nodes of a server for locks.
func (t plainTree) isLock(l sequence.Snapshot) bool {
	if len(l.Nodes) == 0 {
		return false
	}
	return !l.Nodes[0].Foreign || t.root != "" && l.Nodes[0].Session != sessionName(0)
}

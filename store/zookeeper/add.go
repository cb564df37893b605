package zookeeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// Add makes a node and looks, in one piece: the look shows all that came before the node.
func (t *tree) Add(ctx context.Context, name string, s sequence.Session, _ int64, note sequence.Payload, guard sequence.AddCondition) (sequence.Snapshot, error) {
	claim := driver.Claim{Kind: note.Kind, Limit: note.Limit, Weight: note.Weight}
	if t.info.Kinds != nil && !slices.Contains(t.info.Kinds, note.Kind) {
		return sequence.Snapshot{}, fmt.Errorf("%w: the layout %s has no %s", driver.ErrUnsupported, t.opts.Layout, note.Kind)
	}
	c, err := t.session(s.ID)
	if err != nil {
		return sequence.Snapshot{}, err
	}
	path, stem := t.pathOf(name), stem(s.ID, note)
	if _, _, ok := ours(stem); !ok {
		return sequence.Snapshot{}, fmt.Errorf("%w: the claim's id %q is not 26 characters of lower-case base32", driver.ErrInvalid, note.ID)
	}
	data, err := json.Marshal(note)
	if err != nil {
		return sequence.Snapshot{}, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	mine := func(n sequence.Node) bool { return n.ID == note.ID && n.Session == s.ID }
	if t.doubted(s.ID, note.ID) {
		look, err := t.lookBy(ctx, c, name, path)
		if err != nil {
			return sequence.Snapshot{}, err
		}
		if slices.ContainsFunc(look.Nodes, mine) {
			all, err := t.complete(ctx, c, look)
			if err != nil { // it is looked for again, and not added again
				return all, err
			}
			t.settle(s.ID, note.ID)
			if i := slices.IndexFunc(all.Nodes, mine); i >= 0 {
				t.learnMade(path+"/"+all.Nodes[i].Key, all.Nodes[i])
				for _, c := range look.children {
					if c.Key == all.Nodes[i].Key && c.twin != "" {
						t.learnTwin(path+"/"+c.Key, path+"/"+c.twin)
					}
				}
			}
			return all, nil
		}
		// One of the two nodes that a claim must have may stand, and would bar it.
		var keys []string
		for _, c := range look.children {
			keys = append(keys, c.Key)
		}
		if _, err := t.removeAll(ctx, c, path, keys, s.ID, note.ID); err != nil {
			return sequence.Snapshot{}, err
		}
		t.addAnew(s.ID, note.ID)
	}
	if guard >= 0 {
		look, err := t.lookBy(ctx, c, name, path)
		if err != nil || guard == sequence.AddIfAlone && len(look.Nodes) > 0 || guard > 0 && look.changed > int64(guard) {
			return look.Snapshot, err
		}
	}
	for {
		create := createCall(opCreate2, path+"/"+named(stem, t.layout.end(claim)), data, t.opts.ACL, modeSequential)
		if t.layout.twin != nil {
			twin := createCall(opCreate2, path+"/"+named(stem, t.layout.twin(claim)), data, t.opts.ACL, modeSequential)
			create = multiCall(create, twin)
		}
		children := readCall(opGetChildren, path, false)
		t.doubt(s.ID, note.ID)
		if err := c.write(ctx, &write{calls: []*call{create, children}, alone: create.op == opMulti, adds: path, patient: guard == sequence.AddBatched}); err != nil {
			return sequence.Snapshot{}, t.fault(err, path)
		}
		t.settle(s.ID, note.ID)
		made, err := made(create, path)
		if err == codeNoNode {
			if err := t.parents(ctx, c, path); err != nil {
				return sequence.Snapshot{}, err
			}
			continue
		}
		if err != nil {
			return sequence.Snapshot{}, t.fault(err, path)
		}
		if err := t.date(ctx, c, made); err != nil {
			t.doubt(s.ID, note.ID)
			if err == errGone || driver.IsFinal(err) { // a twin left alone bars its own claim; what is refused is not withdrawn
				t.undo(c, made)
			}
			return sequence.Snapshot{}, err
		}
		for _, m := range made {
			t.learnMade(m.path, sequence.Node{Key: m.path[len(path)+1:], Token: m.stat.czxid, Version: int64(m.stat.version) + 1, Session: s.ID, Payload: note})
		}
		if len(made) > 1 {
			t.learnTwin(made[0].path, made[1].path)
		}
		if children.err != nil { // it must not stay
			t.undo(c, made)
			return sequence.Snapshot{}, t.fault(children.err, path)
		}
		look, err := t.look(ctx, c, name, path, children)
		if i := slices.IndexFunc(look.Nodes, mine); err == nil && i >= 0 && look.Nodes[i].Token == 0 {
			err = errTwice
		}
		if err != nil {
			t.doubt(s.ID, note.ID)
			return sequence.Snapshot{}, err
		}
		return t.behind(ctx, c, look, note.ID)
	}
}

// made are the nodes that a create, or a multi of them, has made below a path.
func made(c *call, path string) (all []stepResult, err error) {
	if c.op == opMulti {
		if all, err = c.results(); err != nil {
			return nil, err
		}
	} else {
		if c.err != nil {
			return nil, c.err
		}
		m := stepResult{path: c.rest.text()}
		if len(c.rest.b) > 0 {
			m.stat = c.rest.stat()
		}
		if c.rest.err != nil {
			return nil, c.rest.err
		}
		all = []stepResult{m}
	}
	if _, why := refused(all); why != codeOK {
		return nil, why
	}
	for _, m := range all {
		if !strings.HasPrefix(m.path, path+"/") {
			return nil, errShort
		}
	}
	return all, nil
}

// errGone says that somebody has removed a node before it was known. The engine asks again, and the claim stands anew.
var errGone = errors.New("the claim's node was removed while it was being made")

// errTwice says that an earlier node of the claim stands before the one that was just made. The engine asks again, and is told how
// that stands.
var errTwice = errors.New("the claim stands already")

// date asks for the stats of nodes that a multi has made: servers answer that with their paths alone.
func (t *tree) date(ctx context.Context, c *conn, made []stepResult) error {
	if made[0].stat.czxid != 0 {
		return nil
	}
	calls := make([]*call, len(made))
	for i, m := range made {
		calls[i] = readCall(opExists, m.path, false)
	}
	if err := c.do(ctx, calls...); err != nil {
		return t.fault(err, made[0].path)
	}
	for i, a := range calls {
		switch a.err {
		case nil:
			made[i].stat = a.rest.stat()
		case codeNoNode:
			return errGone
		default:
			return t.fault(a.err, made[i].path)
		}
		if a.rest.err != nil {
			return a.rest.err
		}
	}
	return nil
}

// undo removes nodes that cannot be vouched for.
func (t *tree) undo(c *conn, made []stepResult) {
	ctx, cancel := context.WithTimeout(t.life, time.Second)
	defer cancel()
	for _, m := range made {
		_ = c.do(ctx, deleteCall(m.path, -1)) // else its session ends it
	}
}

// parents makes the nodes above a claim: containers, which the servers remove when they have been empty for a while. Those that
// may not be made may be there all the same, so the last one decides; if there is nothing to make it in, the one before that
// could not be made says why.
func (t *tree) parents(ctx context.Context, c *conn, path string) error {
	op, mode := int32(opCreateContainer), int32(modeContainer)
	for {
		var calls []*call
		var at []string
		for i := 1; i <= len(path); i++ {
			if i == len(path) || path[i] == '/' {
				calls, at = append(calls, createCall(op, path[:i], nil, t.opts.ACL, mode)), append(at, path[:i])
			}
		}
		if err := c.do(ctx, calls...); err != nil {
			return t.fault(err, path)
		}
		i := len(calls) - 1
		for i > 0 && calls[i].err == codeNoNode {
			i--
		}
		switch why := calls[i].err; {
		case why == nil || why == codeNodeExists || why == codeNoNode: // below it one was removed meanwhile, if any: it is tried again
			return nil
		case why == codeUnimplemented && op != opCreate:
			op, mode = opCreate, modePersistent
		default:
			return t.fault(why, at[i])
		}
	}
}

// behind sees to it that who has to wait can say for whom. If that one is just before it, it is watched by the same read. A
// node of this session that is not known any more has been removed meanwhile.
func (t *tree) behind(ctx context.Context, c *conn, look light, id string) (sequence.Snapshot, error) {
	i := slices.IndexFunc(look.Nodes, func(n sequence.Node) bool { return !n.Foreign && n.ID == id })
	if i < 1 || look.Nodes[0].Token != 0 || look.Nodes[0].Session == look.Nodes[i].Session {
		return look.Snapshot, nil
	}
	k := spotKey{onData, look.path + "/" + look.Nodes[0].Key}
	a := readCall(opGetData, k.path, i == 1)
	if i == 1 {
		c.expect(k)
		a = c.armCall(k)
	}
	if err := c.do(ctx, a); err != nil || a.err != nil {
		return look.Snapshot, nil // it stands all the same
	}
	if n, err := look.children[0].node(&a.rest); err == nil {
		look.Nodes[0] = n
		t.learn(k.path, n)
	}
	return look.Snapshot, nil
}

// The doubts are about adds whose answers were not heard.
func (t *tree) doubt(session, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.doubts[[2]string{session, id}] = true
}

func (t *tree) settle(session, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.doubts, [2]string{session, id})
}

// addAnew settles a doubt for good as long as the server carries out what came by a broken connection before what comes by the
// next. One that is very late with that has the claim stand twice; so its release looks for both nodes.
func (t *tree) addAnew(session, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.doubts, [2]string{session, id})
	t.anew[[2]string{session, id}] = true
}

// mayStandTwice reports whether a claim has, or may have, two nodes.
func (t *tree) mayStandTwice(key string) bool {
	if t.layout.twin != nil {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.anew) == 0 {
		return false
	}
	c, _ := parse(key)
	return t.anew[[2]string{c.Session, c.ID}]
}

// standsNot notes that a claim was removed.
func (t *tree) standsNot(session, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.anew, [2]string{session, id})
}

func (t *tree) doubted(session, id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.doubts[[2]string{session, id}]
}

// Withdraw removes what an add may have made. The sync and the listing go the way that the add went, after it: what they do
// not see will not come.
func (t *tree) Withdraw(ctx context.Context, name string, s sequence.Session, _ int64, id string) (bool, error) {
	c, err := t.session(s.ID)
	if err != nil {
		return false, err
	}
	path := t.pathOf(name)
	children := readCall(opGetChildren, path, false)
	behind := syncCall()
	if err := c.do(ctx, behind, children); err != nil {
		return false, t.fault(err, path)
	}
	switch {
	case behind.err != nil:
		return false, t.fault(behind.err, path)
	case children.err != nil && children.err != codeNoNode:
		return false, t.fault(children.err, path)
	}
	stood, err := t.removeAll(ctx, c, path, children.rest.texts(), s.ID, id)
	if err != nil {
		return false, err
	}
	t.settle(s.ID, id)
	t.standsNot(s.ID, id)
	return stood, nil
}

// removeAll removes those of a lock's nodes that are a claim's, whatever they end in.
func (t *tree) removeAll(ctx context.Context, c *conn, path string, keys []string, session, id string) (stood bool, err error) {
	prefix := claimPrefix(session, id)
	for _, key := range keys {
		if strings.HasPrefix(key, prefix) {
			t.unlearn(path + "/" + key)
			d := deleteCall(path+"/"+key, -1)
			if err := c.do(ctx, d); err != nil {
				return false, t.fault(err, path)
			}
			if d.err != nil && d.err != codeNoNode {
				return false, t.fault(d.err, path)
			}
			stood = stood || d.err == nil
		}
	}
	return stood, nil
}

package zookeeper

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// tree is ZooKeeper as a sequence.Tree. A lock is a container node, a claim an ephemeral sequential child of it, and a session a
// session with a connection of its own.
type tree struct {
	opts   Options
	layout layout
	root   string // the namespace as a path, empty for none
	info   driver.Info
	life   context.Context
	end    context.CancelFunc
	work   sync.WaitGroup

	mu          sync.Mutex
	sessions    map[string]*conn          // those of the engine that are not over
	lead        *conn                     // the one of them by which everything else is asked
	reader      *conn                     // one without claims, for when there is none
	ended       map[string]bool           // sessions of the engine that are over
	floor       int64                     // the last transaction that this client knows of
	doubts      map[[2]string]bool        // by session and claim: an add was sent and its answer not heard
	known       map[string]*sequence.Node // by path
	knownMost   int                       // how many of them there may be before others\' are forgotten
	micros      int64                     // the largest that Now has given
	lastTrouble error
}

func newTree(o Options) *tree {
	t := &tree{opts: o, layout: layouts[o.Layout], sessions: map[string]*conn{}, doubts: map[[2]string]bool{}, ended: map[string]bool{}, known: map[string]*sequence.Node{}}
	if o.Namespace != "" {
		t.root = t.pathOf(o.Namespace)
	}
	t.life, t.end = context.WithCancel(context.Background())
	t.info = driver.Info{
		Store: o.where(), Clock: o.Clock, Tier: driver.TierFenceSafe,
		Survives:   driver.Survives{Restart: true, PowerCut: true, Failover: true},
		TokensFall: "the ensemble is restored from a snapshot, wiped, or replaced by another one",
	}
	if t.layout.twin != nil || o.Layout == LayoutKazoo {
		t.info.Kinds = []driver.Kind{driver.KindMutex, driver.KindRW}
	}
	return t
}

func (t *tree) Info() driver.Info { return t.info }

// spawn runs f beside the caller, unless the tree is closed.
func (t *tree) spawn(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.life.Err() == nil {
		t.work.Go(f)
	}
}

func (t *tree) saw(zxid int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.floor = max(t.floor, zxid)
}

func sessionName(id int64) string { return fmt.Sprintf("%016x", uint64(id)) }

// Open begins a session on a connection of its own. What the server grants is what it keeps.
func (t *tree) Open(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	c := t.newConn(ttl, false)
	t.spawn(c.run)
	if _, err := c.up(ctx); err != nil {
		c.stop()
		return sequence.Session{}, t.fault(err, t.root)
	}
	c.mu.Lock()
	id, granted := c.id, c.granted
	c.mu.Unlock()
	if granted < ttl {
		t.leave(c)
		return sequence.Session{}, fmt.Errorf("%w: a TTL of %v was asked for, and the ZooKeeper servers grant %v; ask for less, or raise maxSessionTimeout there",
			driver.ErrInvalid, ttl, granted)
	}
	t.mu.Lock()
	t.sessions[sessionName(id)] = c
	if t.lead == nil {
		t.lead = c
	}
	t.mu.Unlock()
	// A follower tells the leader twice in a tick whom it has heard from. Half a tick is less than this and the margin
	// together, if a session is not set to the very least, which is two ticks.
	return sequence.Session{ID: sessionName(id), TTL: granted, Lag: granted / 15}, nil
}

// leave ends a session that nobody has used.
func (t *tree) leave(c *conn) {
	ctx, cancel := context.WithTimeout(t.life, time.Second)
	defer cancel()
	_ = c.do(ctx, &call{op: opClose})
	c.finish(sequence.ErrSessionOver)
}

// forgetSession takes a session that is over out of the books.
func (t *tree) forgetSession(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, o := range t.sessions {
		if o == c {
			delete(t.sessions, id)
			if len(t.ended) >= 1024 {
				clear(t.ended)
			}
			t.ended[id] = true
			for d := range t.doubts {
				if d[0] == id {
					delete(t.doubts, d)
				}
			}
		}
	}
	if t.reader == c {
		t.reader = nil
	}
	if t.lead == c {
		t.lead = nil
		for _, o := range t.sessions {
			t.lead = o
		}
	}
}

func (t *tree) session(id string) (*conn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.life.Err() != nil {
		return nil, driver.ErrClosed
	}
	c := t.sessions[id]
	if c == nil {
		return nil, sequence.ErrSessionOver
	}
	return c, nil
}

// isOver reports whether a session was this client's.
func (t *tree) isOver(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended[id]
}

// granted is the session time that the servers have granted for a TTL, or the TTL if they were not asked yet.
func (t *tree) granted(ttl time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.sessions {
		if c.asked == ttl {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.granted
		}
	}
	return ttl
}

// standing is a session that there is, or nil.
func (t *tree) standing() *conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lead != nil {
		return t.lead
	}
	return t.reader
}

// readerTTL is the session time of a connection that keeps no claims.
const readerTTL = 30 * time.Second

// anyConn is a session by which anything can be asked.
func (t *tree) anyConn(ctx context.Context) (*conn, error) {
	t.mu.Lock()
	if t.life.Err() != nil {
		t.mu.Unlock()
		return nil, driver.ErrClosed
	}
	switch {
	case t.lead != nil:
		defer t.mu.Unlock()
		return t.lead, nil
	case t.reader == nil:
		t.reader = t.newConn(readerTTL, true)
		t.work.Go(t.reader.run)
	}
	c := t.reader
	t.mu.Unlock()
	_, err := c.up(ctx)
	return c, err
}

// Beat is a write that is sure to be refused: of a node that is not there. The leader puts that to the quorum as it does any
// other. A read or a ping is answered by any server that once had a leader, and a sync by a leader that was deposed and has
// not heard of it.
func (t *tree) Beat(ctx context.Context, session string) error {
	c, err := t.session(session)
	if err == sequence.ErrSessionOver && !t.isOver(session) {
		return fmt.Errorf("%w: a ZooKeeper session is renewed by the client that opened it", driver.ErrUnsupported)
	}
	if err != nil {
		return err
	}
	calls, err := c.ask(ctx, func() []*call { return []*call{deleteCall("/holdfast-beat", -1)} })
	if err == nil {
		err = calls[0].err
	}
	if err == codeNoNode || err == codeNoAuth {
		return nil
	}
	return t.fault(err, "/")
}

// End closes a session; its nodes go with it.
func (t *tree) End(ctx context.Context, session string) error {
	c, err := t.session(session)
	if err != nil {
		return err
	}
	err = c.do(ctx, &call{op: opClose})
	c.finish(sequence.ErrSessionOver)
	return t.fault(err, "/")
}

// read asks by any session, and never gives an answer older than what this client has seen: when it
// has to be fresh, or the server lags behind that, a sync goes ahead.
func (t *tree) read(ctx context.Context, fresh bool, ask func() []*call) ([]*call, *conn, error) {
	for {
		c, err := t.anyConn(ctx)
		if err == sequence.ErrSessionOver && t.life.Err() == nil {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		t.mu.Lock()
		floor := t.floor
		t.mu.Unlock()
		calls, err := c.ask(ctx, func() []*call {
			if fresh {
				return append([]*call{syncCall()}, ask()...)
			}
			return ask()
		})
		switch {
		case err == sequence.ErrSessionOver && t.life.Err() == nil:
			continue // another session serves as well
		case err != nil:
			return nil, nil, err
		case fresh && calls[0].err != nil:
			return nil, nil, calls[0].err
		case fresh:
			return calls[1:], c, nil
		case calls[0].zxid >= floor:
			return calls, c, nil
		}
		fresh = true
	}
}

// Add makes a node and looks, in one piece: the look shows all that came before the node.
func (t *tree) Add(ctx context.Context, name string, s sequence.Session, _ int64, note sequence.Note, guard sequence.Guard) (sequence.Look, error) {
	claim := driver.Claim{Kind: note.Kind, Limit: note.Limit, Weight: note.Weight}
	if t.info.Kinds != nil && !slices.Contains(t.info.Kinds, note.Kind) {
		return sequence.Look{}, fmt.Errorf("%w: the layout %s has no %s", driver.ErrUnsupported, t.opts.Layout, note.Kind)
	}
	c, err := t.session(s.ID)
	if err != nil {
		return sequence.Look{}, err
	}
	path, stem := t.pathOf(name), stem(s.ID, note)
	if _, _, ok := ours(stem); !ok {
		return sequence.Look{}, fmt.Errorf("%w: the claim's id %q is not 26 characters of lower-case base32", driver.ErrInvalid, note.ID)
	}
	data, err := json.Marshal(note)
	if err != nil {
		return sequence.Look{}, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	if t.doubted(s.ID, note.ID) {
		look, err := t.lookBy(ctx, c, name, path)
		if err != nil {
			return sequence.Look{}, err
		}
		t.settle(s.ID, note.ID)
		if slices.ContainsFunc(look.Nodes, func(n sequence.Node) bool { return n.ID == note.ID && n.Session == s.ID }) {
			return t.complete(ctx, c, look)
		}
	}
	if guard != sequence.Always {
		look, err := t.lookBy(ctx, c, name, path)
		if err != nil || guard == sequence.Alone && len(look.Nodes) > 0 || guard > 0 && look.changed > int64(guard) {
			return look.Look, err
		}
	}
	for {
		create := []*call{createCall(opCreate2, path+"/"+named(stem, t.layout.end(claim)), data, t.opts.ACL, modeSequential)}
		if t.layout.twin != nil {
			twin := createCall(opCreate2, path+"/"+named(stem, t.layout.twin(claim)), data, t.opts.ACL, modeSequential)
			create[0] = multiCall(create[0], twin)
		}
		children := readCall(opGetChildren, path, false)
		t.doubt(s.ID, note.ID)
		if err := c.do(ctx, append(create, children)...); err != nil {
			return sequence.Look{}, t.fault(err, path)
		}
		made, err := made(create[0])
		if err == codeNoNode {
			if err := t.parents(ctx, c, path); err != nil {
				return sequence.Look{}, err
			}
			continue
		}
		t.settle(s.ID, note.ID)
		if err != nil {
			return sequence.Look{}, t.fault(err, path)
		}
		for _, m := range made {
			t.learn(m.path, sequence.Node{Key: m.path[len(path)+1:], Token: m.stat.czxid, Version: int64(m.stat.version) + 1, Session: s.ID, Note: note})
		}
		if children.err != nil { // it must not stay
			t.undo(c, made)
			return sequence.Look{}, t.fault(children.err, path)
		}
		look, err := t.look(ctx, c, name, path, children)
		if err != nil {
			t.doubt(s.ID, note.ID)
			return sequence.Look{}, err
		}
		return t.behind(ctx, c, look, note.ID)
	}
}

// made are the nodes that a create, or a multi of them, has made.
func made(c *call) ([]stepResult, error) {
	if c.op == opMulti {
		steps, err := c.results()
		for _, s := range steps {
			if s.code != codeOK {
				return nil, s.code
			}
		}
		return steps, err
	}
	if c.err != nil {
		return nil, c.err
	}
	path := c.rest.text()
	return []stepResult{{path: path, stat: c.rest.stat()}}, c.rest.err
}

// undo removes nodes whose lock cannot be read.
func (t *tree) undo(c *conn, made []stepResult) {
	ctx, cancel := context.WithTimeout(t.life, time.Second)
	defer cancel()
	for _, m := range made {
		_ = c.do(ctx, deleteCall(m.path, -1)) // else its session ends it
	}
}

// parents makes the nodes above a claim: containers, which the servers remove when they have been empty for a while.
func (t *tree) parents(ctx context.Context, c *conn, path string) error {
	op, mode := int32(opCreateContainer), int32(modeContainer)
	for {
		var calls []*call
		for i := 1; i <= len(path); i++ {
			if i == len(path) || path[i] == '/' {
				calls = append(calls, createCall(op, path[:i], nil, t.opts.ACL, mode))
			}
		}
		if err := c.do(ctx, calls...); err != nil {
			return t.fault(err, path)
		}
		last := calls[len(calls)-1].err
		switch {
		case last == nil || last == codeNodeExists || last == codeNoNode: // one was removed meanwhile: it is tried again
			return nil
		case last == codeUnimplemented && op != opCreate:
			op, mode = opCreate, modePersistent
		default:
			return t.fault(last, path)
		}
	}
}

// behind sees to it that who has to wait can say for whom. If that one is just before it, it is watched by the same read.
func (t *tree) behind(ctx context.Context, c *conn, look light, id string) (sequence.Look, error) {
	i := slices.IndexFunc(look.Nodes, func(n sequence.Node) bool { return !n.Foreign && n.ID == id })
	if i < 1 || look.Nodes[0].Token != 0 {
		return look.Look, nil
	}
	k := spotKey{onData, look.path + "/" + look.Nodes[0].Key}
	a := readCall(opGetData, k.path, i == 1)
	if i == 1 {
		c.expect(k)
		a = c.armCall(k)
	}
	if err := c.do(ctx, a); err != nil || a.err != nil {
		return look.Look, nil // it stands all the same
	}
	if n, err := look.children[0].node(&a.rest); err == nil {
		look.Nodes[0] = n
		t.learn(k.path, n)
	}
	return look.Look, nil
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
	stood := false
	prefix := "_c_" + id + "-" + s.ID + "-"
	for _, key := range children.rest.texts() {
		if strings.HasPrefix(key, prefix) {
			d := deleteCall(path+"/"+key, -1)
			if err := c.do(ctx, d); err != nil {
				return false, t.fault(err, path)
			}
			if d.err != nil && d.err != codeNoNode {
				return false, t.fault(d.err, path)
			}
			stood = stood || d.err == nil
			t.unlearn(path + "/" + key)
		}
	}
	t.settle(s.ID, id)
	return stood, nil
}

// light is a look by the names of the children alone, and by what is remembered of them.
type light struct {
	sequence.Look
	path     string
	children []child // as the Nodes
	changed  int64   // the transaction that last added or removed a child
}

// look makes a light look of a listing.
func (t *tree) look(ctx context.Context, c *conn, name, path string, listing *call) (light, error) {
	l := light{Look: sequence.Look{Name: name, Revision: listing.zxid}, path: path}
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
		l.Nodes[i] = l.children[i].Node
	}
	return l, nil
}

// recall fills in what is known of nodes.
func (t *tree) recall(path string, all []child) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range all {
		if n := t.known[path+"/"+all[i].Key]; n != nil {
			all[i].Node = *n
		}
	}
}

// maxKnown bounds what is remembered of other clients' nodes; those of this client's own claims are remembered while they
// stand.
const maxKnown = 4096

func (t *tree) learn(path string, n sequence.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.known) >= max(t.knownMost, maxKnown) {
		for p, o := range t.known {
			if t.sessions[o.Session] == nil {
				delete(t.known, p)
			}
		}
		t.knownMost = 2 * len(t.known)
	}
	t.known[path] = &n
}

func (t *tree) unlearn(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.known, path)
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

// List lists the children, by a server that may lag: what it shows was so, no longer ago than this client's own last look
// or step. In full it is asked for behind a sync, and the nodes are read, too.
func (t *tree) List(ctx context.Context, name string, full bool) (sequence.Look, error) {
	path := t.pathOf(name)
	calls, c, err := t.read(ctx, full, func() []*call { return []*call{readCall(opGetChildren, path, false)} })
	if err != nil {
		return sequence.Look{}, t.fault(err, path)
	}
	look, err := t.look(ctx, c, name, path, calls[0])
	if err != nil || !full {
		return look.Look, err
	}
	return t.complete(ctx, c, look)
}

// complete reads the nodes of a light look.
func (t *tree) complete(ctx context.Context, c *conn, l light) (sequence.Look, error) {
	l.Full = true
	if len(l.children) == 0 {
		return l.Look, nil
	}
	calls := make([]*call, len(l.children))
	for i, n := range l.children {
		calls[i] = readCall(opGetData, l.path+"/"+n.Key, false)
	}
	if err := c.do(ctx, calls...); err != nil {
		return sequence.Look{}, t.fault(err, l.path)
	}
	l.Nodes = l.Nodes[:0]
	for i, a := range calls {
		switch a.err {
		case nil:
			n, err := l.children[i].node(&a.rest)
			if err != nil {
				return sequence.Look{}, err
			}
			t.learn(l.path+"/"+n.Key, n)
			l.Nodes = append(l.Nodes, n)
		case codeNoNode:
		default:
			return sequence.Look{}, t.fault(a.err, l.path)
		}
	}
	return l.Look, nil
}

// Read reads nodes in one piece, behind a sync.
func (t *tree) Read(ctx context.Context, at []sequence.Place) ([]sequence.Node, error) {
	paths := make([]string, len(at))
	for i, p := range at {
		paths[i] = t.pathOf(p.Name) + "/" + p.Key
	}
	calls, _, err := t.read(ctx, true, func() []*call {
		calls := make([]*call, len(at))
		for i, path := range paths {
			calls[i] = readCall(opGetData, path, false)
		}
		return calls
	})
	if err != nil {
		return nil, t.fault(err, "/")
	}
	nodes := make([]sequence.Node, len(at))
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

// Change sets a node's data.
func (t *tree) Change(ctx context.Context, name string, n sequence.Node, note sequence.Note) (sequence.Node, bool, error) {
	data, err := json.Marshal(note)
	if err != nil {
		return n, false, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	path := t.pathOf(name) + "/" + n.Key
	set := setCall(path, data, int32(n.Version-1))
	if err := t.write(ctx, set); err != nil {
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

// write sends writes by any session, once.
func (t *tree) write(ctx context.Context, calls ...*call) error {
	for {
		c, err := t.anyConn(ctx)
		if err == nil {
			err = c.do(ctx, calls...)
		}
		// That session is not the node's: nothing was said of what this was about.
		if err == sequence.ErrSessionOver && t.life.Err() == nil {
			if calls[0].xid == 0 {
				continue // it was not even sent
			}
			return errBroken
		}
		return err
	}
}

// Remove deletes a node. The name of one of ours never comes again; a foreign client's may, so that is looked at first.
func (t *tree) Remove(ctx context.Context, name string, n sequence.Node, look bool) (bool, sequence.Look, error) {
	path := t.pathOf(name)
	keys := []string{n.Key}
	version := int32(n.Version - 1) // -1: any
	if n.Foreign || t.layout.twin != nil {
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
	if err := t.write(ctx, calls...); err != nil {
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
	var note sequence.Note
	if json.Unmarshal(data, &note) == nil && note.ID == n.ID && note.Kind == n.Kind && note.Limit == n.Limit && note.Weight == n.Weight {
		n.Note = note
	} else {
		n.Asked = n.Asked || string(data) == revoke
	}
	return n, nil
}

// revoke is what Curator's clients write into the node of a holder whom they ask to give up.
const revoke = "__REVOKE__"

// Walk goes through the nodes below the namespace, level by level, where the prefix can stand.
func (t *tree) Walk(ctx context.Context, prefix string) iter.Seq2[sequence.Look, error] {
	return func(yield func(sequence.Look, error) bool) {
		type place struct {
			name string // with a slash at its end, or empty
			path string
		}
		dir := prefix[:strings.LastIndexByte(prefix, '/')+1]
		from := place{dir, t.root}
		if dir != "" {
			from.path = t.pathOf(strings.TrimSuffix(dir, "/"))
		}
		for places := []place{from}; len(places) > 0; {
			at := places[0]
			places = places[1:]
			path := at.path
			if path == "" {
				path = "/"
			}
			calls, c, err := t.read(ctx, at == from, func() []*call { return []*call{readCall(opGetChildren, path, false)} })
			if err == nil && calls[0].err != nil {
				if calls[0].err == codeNoNode || calls[0].err == codeNoAuth && at != from { // it is not ours to see
					continue
				}
				err = calls[0].err
			}
			if err != nil {
				yield(sequence.Look{}, t.fault(err, path))
				return
			}
			listing := *calls[0]
			mine := false
			for _, key := range listing.rest.texts() {
				if c, ok := parse(key); ok {
					mine = mine || !c.Foreign
					continue
				}
				element, ok := unescape(key)
				if name := at.name + element; ok && (strings.HasPrefix(name, prefix) || strings.HasPrefix(prefix, name+"/")) && (at.path != "" || key != "zookeeper") {
					places = append(places, place{name + "/", at.path + "/" + key})
				}
			}
			if name := strings.TrimSuffix(at.name, "/"); mine && strings.HasPrefix(name, prefix) {
				look, err := t.look(ctx, c, name, at.path, calls[0])
				var full sequence.Look
				if err == nil {
					full, err = t.complete(ctx, c, look)
				}
				if err != nil {
					yield(sequence.Look{Name: name}, err)
					return
				}
				if !yield(full, nil) {
					return
				}
			}
		}
	}
}

// Close gives up the connections, and leaves the sessions to the servers: they end them when their time is over.
func (t *tree) Close() error {
	t.mu.Lock()
	reader := t.reader
	t.mu.Unlock()
	if reader != nil {
		if over, up := reader.state(); over == nil && up {
			t.leave(reader)
		}
	}
	t.mu.Lock()
	t.end()
	t.mu.Unlock()
	t.work.Wait()
	return nil
}

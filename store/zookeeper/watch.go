package zookeeper

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/engine/sequence"
)

// A watch of ZooKeeper fires once, and tells only that something has happened. A spot is one that is set, or to be set, at the
// server of a session: after a reconnect all of them are set again in one request, by which the server tells what was missed.

type spotKey struct {
	kind byte // see below
	path string
}

// The kinds of spots.
const (
	onData     = 'd' // a node's change or end
	onChildren = 'c' // a node's children
	onBirth    = 'b' // a node that is not there
)

type spot struct {
	armed     bool // the server will tell
	asked     bool // a request to arm it is under way
	since     int64
	listeners map[*listener]struct{}
}

// listener is one Watch of the engine's. Its fields but seen do not change.
type listener struct {
	t       *tree
	at      spotKey
	returns bool  // what it listens to may come again when it has gone
	each    bool  // it listens to the children's changes, too
	seen    int64 // the transaction up to which its owner has looked
	changed func()

	mu      sync.Mutex
	on      *conn
	stopped bool
	end     func() // of what looks for another session; may be nil
}

// Watch sets a watch by a read that tells what has happened before it. A watch that nobody needs any more is left to fire.
func (t *tree) Watch(name, key string, revision int64, changed func()) func() {
	path := t.pathOf(name)
	switch key {
	case sequence.WatchRemovals, sequence.WatchChanges:
		return t.watch(&listener{t: t, at: spotKey{onChildren, path}, returns: true, each: key == sequence.WatchChanges, seen: revision, changed: changed})
	}
	return t.watch(&listener{t: t, at: spotKey{onData, path + "/" + key}, seen: revision, changed: changed})
}

func (t *tree) watch(w *listener) (stop func()) {
	if c := t.standing(); c != nil {
		w.attach(c)
	} else {
		t.spawn(w.reattach)
	}
	return func() {
		w.mu.Lock()
		w.stopped = true
		c, end := w.on, w.end
		w.mu.Unlock()
		if end != nil {
			end()
		}
		if c != nil {
			c.unlisten(w)
		}
	}
}

// attach sets a watch on a session. If that is over already, gone sees to it.
func (w *listener) attach(c *conn) {
	w.mu.Lock()
	if w.stopped {
		w.mu.Unlock()
		return
	}
	w.on = c
	w.mu.Unlock()
	if !c.listen(w) {
		w.t.spawn(w.reattach)
		return
	}
	w.mu.Lock()
	stopped := w.stopped
	w.mu.Unlock()
	if stopped { // while it was set
		c.unlisten(w)
	}
}

// reattach sets a watch on whatever session there is now. It was broken, so its owner is told.
func (w *listener) reattach() {
	ctx, end := context.WithCancel(w.t.life)
	defer end()
	w.mu.Lock()
	w.end = end
	if w.stopped {
		end()
	}
	w.mu.Unlock()
	for fails := 0; ctx.Err() == nil; fails++ {
		c, err := w.t.anyConn(ctx)
		if err == nil {
			w.attach(c)
			w.changed()
			return
		}
		timer := time.NewTimer(rand.N(20 * time.Millisecond << min(fails, 6))) // the servers refuse us
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// gone moves the watches of a session that is over to another.
func (t *tree) gone(c *conn, spots map[spotKey]*spot) {
	t.forgetSession(c)
	moving := map[*listener]struct{}{}
	for _, s := range spots {
		for w := range s.listeners {
			moving[w] = struct{}{}
		}
	}
	for w := range moving {
		w.changed()
		t.spawn(w.reattach)
	}
}

// listen has w told of what happens at a spot; false if the session is over.
func (c *conn) listen(w *listener) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over != nil {
		return false
	}
	c.enterLocked(w.at, w)
	if s := c.spots[w.at]; s.armed && w.seen < s.since {
		c.armLocked(w.at, s)
	}
	return true
}

// enterLocked adds a listener to a spot, and arms that if it is not.
func (c *conn) enterLocked(k spotKey, w *listener) {
	s := c.spots[k]
	if s == nil {
		s = &spot{listeners: map[*listener]struct{}{}}
		c.spots[k] = s
	}
	s.listeners[w] = struct{}{}
	if !s.armed {
		c.armLocked(k, s)
	}
}

func (c *conn) unlisten(w *listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range w.spots(c) {
		if s := c.spots[k]; s != nil {
			delete(s.listeners, w)
			if len(s.listeners) == 0 && !s.armed && !s.asked {
				delete(c.spots, k)
			}
		}
	}
}

// spots are those that w listens at. Called with c.mu held.
func (w *listener) spots(c *conn) []spotKey {
	all := []spotKey{w.at, {onBirth, w.at.path}}
	if w.each {
		for k, s := range c.spots {
			if _, ok := s.listeners[w]; ok && k.kind == onData {
				all = append(all, k)
			}
		}
	}
	return all
}

// armLocked sends the read that sets a watch. Without a link it is sent when there is one.
func (c *conn) armLocked(k spotKey, s *spot) {
	if c.link == nil || s.asked {
		return
	}
	s.asked = true
	c.link.post(c.armCall(k))
}

// expect makes room for a watch that is set by the caller, with an armCall.
func (c *conn) expect(k spotKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spots[k] == nil {
		c.spots[k] = &spot{listeners: map[*listener]struct{}{}}
	}
	c.spots[k].asked = true
}

func (c *conn) armCall(k spotKey) *call {
	op := int32(opGetData)
	switch k.kind {
	case onChildren:
		op = opGetChildren
	case onBirth:
		op = opExists
	}
	a := readCall(op, k.path, true)
	a.done = func() { c.armed(k, a) }
	return a
}

// armed takes in the answer to an armCall.
func (c *conn) armed(k spotKey, a *call) {
	var tell []*listener
	c.mu.Lock()
	s := c.spots[k]
	if s == nil {
		c.mu.Unlock()
		return
	}
	s.asked = false
	switch a.err {
	case nil:
		r := a.rest
		var children []string
		switch k.kind {
		case onData:
			r.bytes()
		case onChildren:
			children = r.texts()
		}
		at := r.stat()
		s.armed, s.since = true, max(at.mzxid, at.pzxid)
		if k.kind == onData { // its own children are nothing to it
			s.since = at.mzxid
		}
		for w := range s.listeners {
			if w.seen < s.since || k.kind == onBirth {
				tell = append(tell, w)
			}
			if w.each && k.kind == onChildren {
				for _, name := range children {
					if isClaim(name) {
						c.enterLocked(spotKey{onData, k.path + "/" + name}, w)
					}
				}
			}
		}
		if k.kind == onBirth { // it is there after all
			c.againLocked(k, s)
		}
	case codeNoNode:
		if k.kind == onBirth {
			s.armed = true
			break
		}
		tell = s.all()
		c.againLocked(k, s)
	}
	c.mu.Unlock()
	for _, w := range tell {
		w.changed()
	}
}

// againLocked has the listeners of a spot that is no more wait for its node to come, or go on to what they wanted.
func (c *conn) againLocked(k spotKey, s *spot) {
	delete(c.spots, k)
	for w := range s.listeners {
		switch {
		case k.kind == onBirth:
			c.enterLocked(w.at, w)
		case w.returns && w.at == k:
			c.enterLocked(spotKey{onBirth, k.path}, w)
		}
	}
}

func (s *spot) all() (all []*listener) {
	for w := range s.listeners {
		all = append(all, w)
	}
	return all
}

// event tells those who listen at a path, and sets the watch again for those who go on.
func (c *conn) event(kind int, path string) {
	var tell []*listener
	c.mu.Lock()
	for _, at := range []byte{onData, onChildren, onBirth} {
		k := spotKey{at, path}
		s := c.spots[k]
		if s == nil || !s.armed {
			continue
		}
		fired := kind == eventDeleted && at != onBirth || kind == eventChanged && at == onData ||
			kind == eventChildren && at == onChildren || kind == eventCreated && at == onBirth
		if !fired {
			continue
		}
		s.armed = false
		tell = append(tell, s.all()...)
		switch {
		case len(s.listeners) == 0:
			delete(c.spots, k)
		case kind == eventDeleted, kind == eventCreated:
			c.againLocked(k, s)
		default:
			c.armLocked(k, s)
		}
	}
	c.mu.Unlock()
	for _, w := range tell {
		w.changed()
	}
}

// restLocked notes that a link has gone: what was to be armed on it is not.
func (c *conn) restLocked() {
	for _, s := range c.spots {
		s.asked = false
	}
}

// maxRewatch bounds the paths in one request, in bytes.
const maxRewatch = 100 << 10

// rewatchLocked gives the requests that set all watches again on a new link: those that stood, from the last transaction that
// was seen on, and those that never came to stand.
func (c *conn) rewatchLocked() (calls []*call) {
	var paths [3][]string // data, births, children
	size := 0
	flush := func() {
		if size == 0 {
			return
		}
		a := &call{op: opSetWatches, xid: xidSetWatches}
		a.body.long(c.zxid)
		for i := range paths {
			a.body.texts(paths[i])
			paths[i] = nil
		}
		size = 0
		calls = append(calls, a)
	}
	for k, s := range c.spots {
		switch {
		case len(s.listeners) == 0:
			delete(c.spots, k)
		case !s.armed:
			s.asked = true
			calls = append(calls, c.armCall(k))
		default:
			i := map[byte]int{onData: 0, onBirth: 1, onChildren: 2}[k.kind]
			paths[i] = append(paths[i], k.path)
			if size += len(k.path) + 4; size > maxRewatch {
				flush()
			}
		}
	}
	flush()
	return calls
}

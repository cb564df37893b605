package zk

import (
	"iter"
	"slices"
)

// A watch of ZooKeeper fires once, and says only that something has happened (Programmer's Guide, "ZooKeeper Watches").
// Between that and the read that sets it again, more may happen without an event. So each read that sets a watch is
// compared with what the watcher's owner knows, and the watcher is notified if the node is newer.
//
// A watchPoint is a watch that is set, or is to be set, at the server of a session. After a reconnect all of them are
// set again in one request, and the server then fires those that missed something. One gap is known: a node that was
// created and removed again during the disconnection is not reported to a watch for its creation. Nobody here relies
// on that, because for locks a node that has gone again means the same as one that never came.

// Watcher is notified of changes at a node. Its fields must not change while it is in use.
type Watcher struct {
	// Path is the node. Its data and its removal are watched; with Children, what children it has, and its removal.
	Path     string
	Children bool
	// Recurs makes the watcher wait for a node that does not exist, and go on when it comes or comes again.
	Recurs bool
	// WatchesChild, if set together with Children, chooses children whose data are watched too.
	WatchesChild func(name string) bool
	// Since is the transaction up to which the owner knows the node: a later change that happened before the watch
	// was set is reported.
	Since int64
	Owner Owner
}

// Owner has a watcher. Its methods must not block.
type Owner interface {
	// Changed is called whenever something may have happened. It may come without a cause.
	Changed()
	// Lost is called once when the session has ended: the watcher is on no session then.
	Lost()
}

type watchKind byte

const (
	watchesData watchKind = iota
	watchesCreation
	watchesChildren
	watchKinds // their number; they have the order of the lists in a request that sets watches again
)

type watchKey struct {
	kind watchKind
	path string
}

type watchPoint struct {
	armed     bool  // the server will notify us
	requested bool  // a request to arm it is under way
	notifying bool  // the watchers are being notified of what happened before it was armed
	since     int64 // the last change before it was armed
	watchers  []*Watcher
}

// watchPoints are the watch points of a session, by kind and path. For each claim that is held there is one.
type watchPoints [watchKinds]map[string]*watchPoint

func newWatchPoints() (all watchPoints) {
	for kind := range all {
		all[kind] = map[string]*watchPoint{}
	}
	return all
}

func (all *watchPoints) get(k watchKey) *watchPoint { return all[k.kind][k.path] }
func (all *watchPoints) remove(k watchKey)          { delete(all[k.kind], k.path) }

// getOrAdd adds a watch point if there is none.
func (all *watchPoints) getOrAdd(k watchKey) *watchPoint {
	p := all.get(k)
	if p == nil {
		p = &watchPoint{}
		all[k.kind][k.path] = p
	}
	return p
}

// each yields all watch points.
func (all *watchPoints) each() iter.Seq2[watchKey, *watchPoint] {
	return func(yield func(watchKey, *watchPoint) bool) {
		for kind := range all {
			for path, p := range all[kind] {
				if !yield(watchKey{watchKind(kind), path}, p) {
					return
				}
			}
		}
	}
}

func (w *Watcher) key() watchKey {
	if w.Children {
		return watchKey{watchesChildren, w.Path}
	}
	return watchKey{watchesData, w.Path}
}

// Watch starts notifying a watcher. It does no I/O that the caller waits for: the watch is set by a read, whose
// answer also shows what has happened before it. It returns false if the session has ended; Lost is not called
// then.
func (c *Conn) Watch(w *Watcher) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.endedBy != nil {
		return false
	}
	// The watch may be there already, for another watcher, which knew a later state of the node. This one has missed a
	// change then, and setting the watch once more notifies it.
	c.addWatcherLocked(w.key(), w)
	switch p := c.watchPoints.get(w.key()); {
	case !p.armed || w.Since >= p.since:
	case c.link == nil: // the next link sets it by a read
		p.armed = false
	default:
		c.armLocked(w.key(), p)
	}
	return true
}

// Unwatch stops notifying a watcher. The server's watch is left to fire: removing it would
// cost a request, and an event that nobody waits for costs less. It may be called twice.
func (c *Conn) Unwatch(w *Watcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.keysOfLocked(w) {
		if p := c.watchPoints.get(k); p != nil {
			p.watchers = slices.DeleteFunc(p.watchers, func(o *Watcher) bool { return o == w })
			if len(p.watchers) == 0 && !p.armed && !p.requested {
				c.watchPoints.remove(k)
			}
		}
	}
}

// IsWatching reports whether the server will notify any watcher. It is for tests.
func (c *Conn) IsWatching() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.watchPoints.each() {
		if p.armed && len(p.watchers) > 0 {
			return true
		}
	}
	return false
}

// IsArmed reports whether the watcher has been, or will be, notified of each change. For what happens while there is no
// link, that is when the watches have been set again.
func (c *Conn) IsArmed(w *Watcher) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.watchPoints.get(w.key())
	return p != nil && p.armed && !p.requested && !p.notifying && slices.Contains(p.watchers, w)
}

// GetDataAndWatch is GetData for a node that a watcher of this Conn is going to watch: it sets the watch with the
// same request.
func (c *Conn) GetDataAndWatch(path string) *Call {
	k := watchKey{watchesData, path}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchPoints.getOrAdd(k).requested = true
	return c.newArmCall(k)
}

// addWatcherLocked adds a watcher to a watch point, and arms that if it is not armed.
func (c *Conn) addWatcherLocked(k watchKey, w *Watcher) {
	p := c.watchPoints.getOrAdd(k)
	if !slices.Contains(p.watchers, w) {
		p.watchers = append(p.watchers, w)
	}
	if !p.armed {
		c.armLocked(k, p)
	}
}

// keysOfLocked returns where a watcher may be.
func (c *Conn) keysOfLocked(w *Watcher) []watchKey {
	all := []watchKey{w.key(), {watchesCreation, w.Path}}
	if w.WatchesChild != nil {
		for k, p := range c.watchPoints.each() {
			if k.kind == watchesData && slices.Contains(p.watchers, w) {
				all = append(all, k)
			}
		}
	}
	return all
}

// takeWatchersLocked removes all watch points, and returns their watchers.
func (c *Conn) takeWatchersLocked() map[*Watcher]struct{} {
	all := map[*Watcher]struct{}{}
	for _, p := range c.watchPoints.each() {
		for _, w := range p.watchers {
			all[w] = struct{}{}
		}
	}
	c.watchPoints = newWatchPoints()
	return all
}

// armLocked sends the read that sets a watch. Without a link, rewatchLocked sends it when there is one. One request is
// enough for any number of watchers: its answer is compared with what each of them knows.
func (c *Conn) armLocked(k watchKey, p *watchPoint) {
	if c.link == nil || p.requested {
		return
	}
	p.requested = true
	c.link.post(c.newArmCall(k))
}

// newArmCall makes the read that sets a watch on the server.
func (c *Conn) newArmCall(k watchKey) *Call {
	op := int32(OpGetData)
	switch k.kind {
	case watchesChildren:
		op = OpGetChildren
	case watchesCreation:
		op = OpExists
	}
	call := readCall(op, k.path, true)
	call.done = func() { c.handleArmed(k, call) }
	return call
}

// handleArmed takes in the answer to the read that sets a watch.
func (c *Conn) handleArmed(k watchKey, call *Call) {
	c.mu.Lock()
	p := c.watchPoints.get(k)
	if p == nil {
		c.mu.Unlock()
		return
	}
	p.requested = false
	var notify []*Watcher
	switch call.Err {
	case nil:
		notify = c.setArmedLocked(k, p, call)
	case CodeNoNode:
		if k.kind == watchesCreation { // a watch for a node that does not exist is set by this very answer
			p.armed = true
			break
		}
		notify = slices.Clone(p.watchers)
		c.moveWatchersLocked(k, p)
	}
	p.notifying = len(notify) > 0
	c.mu.Unlock()
	if len(notify) > 0 {
		notifyAll(notify)
		c.mu.Lock()
		defer c.mu.Unlock()
		p.notifying = false
	}
}

// setArmedLocked takes in the answer for a node that exists, and returns the watchers that have missed a change.
func (c *Conn) setArmedLocked(k watchKey, p *watchPoint, call *Call) (notify []*Watcher) {
	var children []string
	p.armed = true
	switch k.kind {
	case watchesData: // a change of the node's own children does not matter here
		_, stat, _ := call.Data()
		p.since = stat.Mzxid
	case watchesChildren:
		names, stat, _ := call.Children()
		children, p.since = names, max(stat.Mzxid, stat.Pzxid)
	case watchesCreation:
		stat, _ := call.Stat()
		p.since = max(stat.Mzxid, stat.Pzxid)
	}
	for _, w := range p.watchers {
		if w.Since < p.since || k.kind == watchesCreation {
			notify = append(notify, w)
		}
		for _, name := range children {
			if w.WatchesChild != nil && w.WatchesChild(name) {
				c.addWatcherLocked(watchKey{watchesData, k.path + "/" + name}, w)
			}
		}
	}
	if k.kind == watchesCreation { // the node has been created meanwhile
		c.moveWatchersLocked(k, p)
	}
	return notify
}

// moveWatchersLocked removes a watch point whose node has gone or come. Its watchers then wait for the node to
// come, or go on to what they want to watch.
func (c *Conn) moveWatchersLocked(k watchKey, p *watchPoint) {
	c.watchPoints.remove(k)
	for _, w := range p.watchers {
		switch {
		case k.kind == watchesCreation:
			c.addWatcherLocked(w.key(), w)
		case w.Recurs && w.key() == k:
			c.addWatcherLocked(watchKey{watchesCreation, k.path}, w)
		}
	}
}

func notifyAll(watchers []*Watcher) {
	for _, w := range watchers {
		w.Owner.Changed()
	}
}

// handleEvent notifies the watchers of a path, and sets the watch again for those that go on.
func (c *Conn) handleEvent(kind int, path string) {
	var notify []*Watcher
	c.mu.Lock()
	for watched := range watchKinds {
		k := watchKey{watched, path}
		p := c.watchPoints.get(k)
		if p == nil || !p.armed || !watched.firesAt(kind) {
			continue
		}
		p.armed = false
		notify = append(notify, p.watchers...)
		switch {
		case len(p.watchers) == 0:
			c.watchPoints.remove(k)
		case kind == eventDeleted, kind == eventCreated:
			c.moveWatchersLocked(k, p)
		default:
			c.armLocked(k, p)
		}
	}
	c.mu.Unlock()
	notifyAll(notify)
}

// firesAt reports whether an event uses up the watches of a kind.
func (k watchKind) firesAt(event int) bool {
	switch event {
	case eventDeleted:
		return k != watchesCreation
	case eventChanged:
		return k == watchesData
	case eventChildren:
		return k == watchesChildren
	case eventCreated:
		return k == watchesCreation
	}
	return false
}

// clearRequestedLocked notes that the link has gone: what was to be armed on it is not.
func (c *Conn) clearRequestedLocked() {
	for _, p := range c.watchPoints.each() {
		p.requested = false
	}
}

// maxRewatch limits the paths in one request that sets watches again, in bytes.
const maxRewatch = 100 << 10

// rewatchLocked returns the requests that set all watches again on a new link: those that were armed, from the
// last transaction seen on, and those that were never armed.
func (c *Conn) rewatchLocked() (calls []*Call) {
	// If some of the last link's requests had no answer, the watches in them may have missed what came since then.
	if c.rewatching == 0 {
		c.rewatchFrom = c.lastSeen
	}
	c.rewatching = 0
	var paths [watchKinds][]string
	size := 0
	flush := func() {
		if size == 0 {
			return
		}
		// The server compares lastSeen with each node, and fires at once where the node is newer: so an armed
		// watch loses nothing by a reconnect, and needs no read.
		call := &Call{op: OpSetWatches, xid: xidSetWatches}
		call.body.putLong(c.rewatchFrom)
		c.rewatching++
		call.done = func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if call.Err == nil {
				c.rewatching--
			}
		}
		for kind := range paths {
			call.body.putStrings(paths[kind])
			paths[kind] = nil
		}
		size = 0
		calls = append(calls, call)
	}
	for k, p := range c.watchPoints.each() {
		switch {
		case len(p.watchers) == 0:
			c.watchPoints.remove(k)
		case !p.armed:
			p.requested = true
			calls = append(calls, c.newArmCall(k))
		default:
			paths[k.kind] = append(paths[k.kind], k.path)
			if size += len(k.path) + 4; size > maxRewatch {
				flush()
			}
		}
	}
	flush()
	return calls
}

package zookeeper

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// subscription is one Watch of the engine. ZooKeeper's watches belong to a session, the engine's do not: a
// subscription moves to another session when the one that it is on has ended. It is never told what has changed,
// only that something may have: the engine reads again, so a notification too many costs a request and no more.
//
// No herd wakes when a mutex is released: the engine watches the one node that its claim waits for, as ZooKeeper's own
// recipe does (Recipes and Solutions, "Locks"). It watches the list of children for the first waiter of a semaphore,
// and for callers that observe the lock.
type subscription struct {
	t       *tree
	watcher zk.Watcher
	key     string   // of the claim whose node is watched; empty if that is not one node
	home    *zk.Conn // that of the claim's session if it is this client's

	mu      sync.Mutex
	conn    *zk.Conn
	stopped bool
	cancel  func() // of the search for another session; may be nil
}

// Watch sets a watch by a read, whose answer also shows what has happened since the revision. A watch that is not
// needed any more is left to fire.
func (t *tree) Watch(name, key string, revision int64, changed func()) sequence.Subscription {
	path := t.pathOf(name)
	switch key {
	case sequence.WatchRemovals:
		return t.subscribe(zk.Watcher{Path: path, Children: true, Recurs: true, Since: revision, Changed: changed}, "", "")
	case sequence.WatchChanges:
		return t.subscribe(zk.Watcher{
			Path: path, Children: true, WatchesChild: isClaimKey, Recurs: true, Since: revision, Changed: changed,
		}, "", "")
	}
	claim, _ := parseKey(key)
	return t.subscribe(zk.Watcher{Path: t.nodePath(name, key), Since: revision, Changed: changed}, key, claim.Session)
}

// subscribe notifies a watcher until it is stopped: on the session of the claim whose node is watched if that is ours,
// so that the answers of that session confirm the watch, and otherwise on any.
func (t *tree) subscribe(w zk.Watcher, key, session string) *subscription {
	s := &subscription{t: t, watcher: w, key: key}
	s.home, _ = t.sessionConn(session)
	// A watch is kept by the server for one session, and goes with it. The waiter's claim may be under another session,
	// which lives: so its wait goes on, and only the watch moves.
	s.watcher.Lost = s.leaveSession
	if c := cmp.Or(s.home, t.openConn()); c != nil {
		s.attach(c)
	} else {
		t.life.Go(s.attachToAny)
	}
	return s
}

// leaveSession is called when the session of the watch has ended.
func (s *subscription) leaveSession() {
	s.watcher.Changed()
	s.t.life.Go(s.attachToAny)
}

// IsLive reports whether the watch is set on the session of the claim. A claim that may have two nodes would need two
// watches, so its nodes are read.
func (s *subscription) IsLive() bool {
	s.mu.Lock()
	c := s.conn
	s.mu.Unlock()
	return c != nil && c == s.home && c.IsArmed(&s.watcher) && !s.t.mayHaveTwoNodes(s.key)
}

// ConfirmWatches sends a keep-alive over the session. Any write would do. Its answer comes from a server that has a
// quorum behind it, and that has carried out all earlier writes and sent their events first: the answers and events of
// one link have one order. If the link breaks and another one takes its place, the watches are set again on that before
// anything else is sent, and the server then sends an event for each node that has changed since the last answer.
func (t *tree) ConfirmWatches(ctx context.Context, session string) error {
	_, err := t.KeepAlive(ctx, session)
	return err
}

// Stop ends the subscription.
func (s *subscription) Stop() {
	s.mu.Lock()
	s.stopped = true
	c, cancel := s.conn, s.cancel
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	if c != nil {
		c.Unwatch(&s.watcher)
	}
}

// attach watches on a session.
func (s *subscription) attach(c *zk.Conn) {
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return
	}
	s.conn = c
	s.mu.Unlock()
	if !c.Watch(&s.watcher) {
		s.t.life.Go(s.attachToAny)
		return
	}
	// stop may have come between the two sections with mu held. It has then asked the connection to forget a watcher that
	// the connection did not know yet.
	s.mu.Lock()
	stopped := s.stopped
	s.mu.Unlock()
	if stopped {
		c.Unwatch(&s.watcher)
	}
}

// attachToAny watches on whatever session there is now. Something may have happened before, so the watcher is
// notified.
func (s *subscription) attachToAny() {
	ctx, cancel := context.WithCancel(s.t.life)
	defer cancel()
	s.mu.Lock()
	s.cancel = cancel
	if s.stopped {
		cancel()
	}
	s.mu.Unlock()
	for failures := 0; ctx.Err() == nil; failures++ {
		c, err := s.t.anyConn(ctx)
		if err == nil {
			s.attach(c)
			s.watcher.Changed()
			return
		}
		timer := time.NewTimer(rand.N(20 * time.Millisecond << min(failures, 6))) // the servers refuse us
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

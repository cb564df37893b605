package zookeeper

import (
	"cmp"
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// subscription is one Watch of the engine. ZooKeeper's watches belong to a session, the engine's do not: a
// subscription moves to another session when the one that it is on has ended. It is never told what has changed,
// only that something may have: the engine reads again, so a notification too many costs a request and no more.
// There is one for each claim that is held, and it has 112 bytes, which is one of the sizes in which Go allocates.
//
// No herd wakes when a mutex is released: the engine watches the one node that its claim waits for, as ZooKeeper's own
// recipe does (Recipes and Solutions, "Locks"). It watches the list of children for the first waiter of a semaphore,
// and for callers that observe the lock.
type subscription struct {
	t       *nodeStore
	watcher zk.Watcher
	changed func()
	home    *zk.Conn // of the session of the claim whose node is watched, if it is this client's

	mu      sync.Mutex
	conn    *zk.Conn
	stopped bool
	cancel  func() // of the search for another session; may be nil
}

// Watch sets a watch by a read, whose answer also shows what has happened since the revision. A watch that is not
// needed any more is left to fire.
func (t *nodeStore) Watch(name, key string, revision int64, changed func()) sequence.Subscription {
	path := t.pathOf(name)
	switch key {
	case sequence.WatchRemovals:
		return t.subscribe(zk.Watcher{Path: path, Children: true, Recurs: true, Since: revision}, changed, "")
	case sequence.WatchChanges:
		return t.subscribe(zk.Watcher{
			Path: path, Children: true, WatchesChild: isClaimKey, Recurs: true, Since: revision,
		}, changed, "")
	}
	claim, _ := parseKey(key)
	return t.subscribe(zk.Watcher{Path: t.nodePath(name, key), Since: revision}, changed, claim.Session)
}

// subscribe calls changed until it is stopped: on the session of the claim whose node is watched if that is ours,
// so that the answers of that session confirm the watch, and otherwise on any.
func (t *nodeStore) subscribe(w zk.Watcher, changed func(), session string) *subscription {
	s := &subscription{t: t, watcher: w, changed: changed}
	s.home, _ = t.sessionConn(session)
	s.watcher.Owner = s
	if c := cmp.Or(s.home, t.openConn()); c != nil {
		s.attach(c)
	} else {
		t.life.Go(s.attachToAny)
	}
	return s
}

// Changed is called by the connection when something may have happened.
func (s *subscription) Changed() { s.changed() }

// Lost is called by the connection when the session of the watch has ended. A watch is kept by the server for one
// session, and goes with it. The waiter's claim may be under another session, which lives: so its wait goes on, and
// only the watch moves.
func (s *subscription) Lost() {
	s.changed()
	s.t.life.Go(s.attachToAny)
}

// IsLive reports whether the watch is set on the session of the claim. A claim that may have two nodes would need two
// watches, so its nodes are read.
func (s *subscription) IsLive() bool {
	s.mu.Lock()
	c := s.conn
	s.mu.Unlock()
	key := s.watcher.Path[strings.LastIndexByte(s.watcher.Path, '/')+1:]
	return c != nil && c == s.home && c.IsArmed(&s.watcher) && !s.t.mayHaveTwoNodes(key)
}

// ConfirmWatches sends a keep-alive over the session. Any write would do. Its answer comes from a server that has a
// quorum behind it, and that has carried out all earlier writes and sent their events first: the answers and events of
// one link have one order. If the link breaks and another one takes its place, the watches are set again on that before
// anything else is sent, and the server then sends an event for each node that has changed since the last answer.
func (t *nodeStore) ConfirmWatches(ctx context.Context, session string) error {
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
	// stop may have come between the two sections with mu held. It has then asked the connection to forget a watcher
	// that the connection did not know yet.
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
			s.changed()
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

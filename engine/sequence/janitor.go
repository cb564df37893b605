package sequence

import (
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// watchDelay is how long a claim stands at least, and half of what it stands at most, before its node is watched: those that go
// at once cost no watch.
const watchDelay = 100 * time.Millisecond

// runJanitor looks after a session's claims: it reads nodes that may have changed, watches what is held for long, and removes
// what nobody renews.
func (s *session) runJanitor() {
	e := s.e
	timer := time.NewTimer(s.TTL)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.wakeup:
		case <-s.Ended:
			s.markExpired()
			return
		case <-s.stopped:
			return
		case <-e.life.Done():
			return
		}
		s.checkChangedNodes()
		s.startDueWatches()
		s.removeAbandoned()

		e.mu.Lock()
		next := s.TTL
		for cl := range s.claims {
			if !cl.isBusy() {
				next = min(next, max(s.TTL-e.clock.SinceAtLeast(cl.lastWanted), watchDelay))
			}
		}
		if len(s.newerUnwatched)+len(s.olderUnwatched) > 0 {
			next = min(next, watchDelay)
		}
		e.mu.Unlock()
		timer.Reset(max(next, time.Millisecond))
	}
}

// scheduleWatch has the claim's own node watched, unless it goes soon.
func (e *Engine) scheduleWatch(cl *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.scheduleWatchLocked(cl)
}

func (e *Engine) scheduleWatchLocked(cl *claim) {
	s := cl.session
	if s == nil || s.forDetached || cl.watch.stop != nil || cl.watch.scheduled {
		return
	}
	cl.watch.scheduled = true
	s.newerUnwatched = append(s.newerUnwatched, cl)
	if len(s.newerUnwatched)+len(s.olderUnwatched) == 1 {
		s.unwatchedSplit = e.clock.Now()
		s.wakeJanitor()
	}
}

// startDueWatches begins to watch the nodes that have stood for a while.
func (s *session) startDueWatches() {
	e := s.e
	e.mu.Lock()
	var stand []*claim
	if len(s.newerUnwatched)+len(s.olderUnwatched) > 0 && e.clock.Since(s.unwatchedSplit) >= watchDelay {
		for _, cl := range s.olderUnwatched {
			cl.watch.scheduled = false
			if _, ok := s.claims[cl]; ok && cl.watch.stop == nil && cl.loss == nil {
				stand = append(stand, cl)
			}
		}
		clear(s.olderUnwatched)
		s.olderUnwatched, s.newerUnwatched, s.unwatchedSplit = s.newerUnwatched, s.olderUnwatched[:0], e.clock.Now()
	}
	e.mu.Unlock()
	for _, cl := range stand {
		e.watchOwnNode(cl)
	}
}

// checkChangedNodes reads the nodes that may have changed. A claim whose add is on its way has none to be read: that nothing stands
// then would be taken for its removal, when the add has landed meanwhile.
func (s *session) checkChangedNodes() {
	e := s.e
	e.mu.Lock()
	var which []*claim
	var at []NodeRef
	for cl := range s.toCheck {
		if cl.node.Token != 0 && !cl.leaving {
			which, at = append(which, cl), append(at, NodeRef{cl.Name, cl.node.Key})
		}
	}
	clear(s.toCheck)
	e.mu.Unlock()
	for len(which) > 0 {
		k := min(len(which), MaxRead)
		some, there := which[:k], at[:k]
		which, at = which[k:], at[k:]
		nodes, err := s.readNodes(there)
		if err != nil {
			continue // the next renewal tells
		}
		if s.anyMissing(some, nodes) { // if it is the session that has ended, that is what there is to tell
			if err := s.keepAlive(e.life); err != nil && !errors.Is(err, ErrSessionExpired) {
				continue
			}
		}
		for i, cl := range some {
			_ = e.updateNodeUnder(there[i].Key, cl, nodes[i])
		}
	}
}

// isWanted reports whether a claim of this session is still wanted. Called with mu held.
func (s *session) isWanted(cl *claim) bool {
	_, ok := s.claims[cl]
	return ok && !cl.leaving
}

// anyMissing reports whether a node is gone that should stand.
func (s *session) anyMissing(claims []*claim, nodes []Node) bool {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	for i, cl := range claims {
		if nodes[i].Token == 0 && s.isWanted(cl) {
			return true
		}
	}
	return false
}

func (s *session) readNodes(at []NodeRef) ([]Node, error) {
	ctx, cancel := requestContext(s.e.life)
	defer cancel()
	return s.e.store.Read(ctx, at)
}

// removeAbandoned removes claims that the client has not renewed for their TTL, or turned from without releasing them: the session
// would keep them for ever. One that another process has renewed meanwhile stays.
func (s *session) removeAbandoned() {
	e := s.e
	e.mu.Lock()
	var old []*claim
	var at []NodeRef
	for cl := range s.claims {
		if !cl.isBusy() && e.clock.SinceAtLeast(cl.lastWanted) > s.TTL && len(old) < MaxRead {
			old, at = append(old, cl), append(at, NodeRef{cl.Name, cl.node.Key})
		}
	}
	e.mu.Unlock()
	if len(old) == 0 {
		return
	}
	nodes, err := s.readNodes(at)
	if err != nil {
		s.postponeRemoval(old...)
		return
	}
	for i, cl := range old {
		if !s.removeIfAbandoned(cl, nodes[i]) { // nor is there an answer for the others, for which what is urgent would wait
			s.postponeRemoval(old[i:]...)
			return
		}
	}
}

// removeIfAbandoned ends one claim for good, as it was just read. It is false if the store has not answered.
func (s *session) removeIfAbandoned(cl *claim, n Node) bool {
	e := s.e
	e.mu.Lock()
	if cl.isBusy() || e.clock.SinceAtLeast(cl.lastWanted) <= s.TTL {
		e.mu.Unlock()
		return true // asked for again meanwhile
	}
	if n.Token != 0 && n.Renewed > cl.node.Renewed && !n.Broken {
		cl.lastWanted, cl.node = e.clock.Now(), n
		e.mu.Unlock()
		return true
	}
	e.markLostLocked(cl, driver.LossExpired)
	cl.setLeaving(true)
	unsure := cl.add.unresolved
	e.mu.Unlock()
	ctx, cancel := requestContext(e.life)
	defer cancel()
	var err error
	switch {
	case unsure:
		_, err = e.store.Withdraw(ctx, cl.Name, s.Session, cl.add.number, cl.ID)
	case n.Token != 0:
		var stood bool
		stood, _, err = e.store.Remove(ctx, cl.Name, n, false)
		if err == nil && !stood {
			return true // changed under our hands: look again
		}
	}
	if err != nil && !errors.Is(err, ErrSessionExpired) {
		return false
	}
	e.forgetClaim(cl)
	return true
}

// postponeRemoval has claims that could not be swept tried again, not at once.
func (s *session) postponeRemoval(claims ...*claim) {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	for _, cl := range claims {
		cl.lastWanted = cl.lastWanted.Add(s.TTL / 20)
	}
}

package sequence

import (
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// watchAfter is how long a claim stands at least, and half of what it stands at most, before its node is watched: those that go
// at once cost no watch.
const watchAfter = 100 * time.Millisecond

// attend looks after a session's claims: it reads nodes that may have changed, watches what is held for long, and removes
// what nobody renews.
func (s *session) attend() {
	e := s.e
	timer := time.NewTimer(s.TTL)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.wake:
		case <-s.Ended:
			s.die()
			return
		case <-s.over:
			return
		case <-e.life.Done():
			return
		}
		s.check()
		s.watch()
		s.sweep()

		e.mu.Lock()
		next := s.TTL
		for cl := range s.claims {
			if cl.busy == nil && cl.adding == nil {
				next = min(next, max(s.TTL-e.clock.SinceAtLeast(cl.asked), watchAfter))
			}
		}
		if len(s.arrived)+len(s.settled) > 0 {
			next = min(next, watchAfter)
		}
		e.mu.Unlock()
		timer.Reset(max(next, time.Millisecond))
	}
}

// watchSoon has the claim's own node watched, unless it goes soon.
func (e *Engine) watchSoon(cl *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watchSoonLocked(cl)
}

func (e *Engine) watchSoonLocked(cl *claim) {
	s := cl.session
	if s == nil || s.alone || cl.unwatch != nil || cl.unwatched {
		return
	}
	cl.unwatched = true
	s.arrived = append(s.arrived, cl)
	if len(s.arrived)+len(s.settled) == 1 {
		s.parted = e.clock.Now()
		s.poke()
	}
}

// watch begins to watch the nodes that have stood for a while.
func (s *session) watch() {
	e := s.e
	e.mu.Lock()
	var stand []*claim
	if len(s.arrived)+len(s.settled) > 0 && e.clock.Since(s.parted) >= watchAfter {
		for _, cl := range s.settled {
			cl.unwatched = false
			if _, ok := s.claims[cl]; ok && cl.unwatch == nil && cl.loss == nil {
				stand = append(stand, cl)
			}
		}
		clear(s.settled)
		s.settled, s.arrived, s.parted = s.arrived, s.settled[:0], e.clock.Now()
	}
	e.mu.Unlock()
	for _, cl := range stand {
		e.watchOwn(cl)
	}
}

// check reads the nodes that may have changed. A claim whose add is on its way has none to be read: that nothing stands
// then would be taken for its removal, when the add has landed meanwhile.
func (s *session) check() {
	e := s.e
	e.mu.Lock()
	var which []*claim
	var at []NodeRef
	for cl := range s.checks {
		if cl.node.Token != 0 && !cl.leaving {
			which, at = append(which, cl), append(at, NodeRef{cl.Name, cl.node.Key})
		}
	}
	clear(s.checks)
	e.mu.Unlock()
	for len(which) > 0 {
		k := min(len(which), MaxRead)
		some, there := which[:k], at[:k]
		which, at = which[k:], at[k:]
		nodes, err := s.read(there)
		if err != nil {
			continue // the next renewal tells
		}
		if s.missed(some, nodes) { // if it is the session that has ended, that is what there is to tell
			if err := s.beat(e.life); err != nil && !errors.Is(err, ErrSessionExpired) {
				continue
			}
		}
		for i, cl := range some {
			_ = e.seenUnder(there[i].Key, cl, nodes[i])
		}
	}
}

// stands reports whether a claim of this session is still wanted. Called with mu held.
func (s *session) stands(cl *claim) bool {
	_, ok := s.claims[cl]
	return ok && !cl.leaving
}

// missed reports whether a node is gone that should stand.
func (s *session) missed(claims []*claim, nodes []Node) bool {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	for i, cl := range claims {
		if nodes[i].Token == 0 && s.stands(cl) {
			return true
		}
	}
	return false
}

func (s *session) read(at []NodeRef) ([]Node, error) {
	ctx, cancel := bounded(s.e.life)
	defer cancel()
	return s.e.tree.Read(ctx, at)
}

// sweep removes claims that the client has not renewed for their TTL, or turned from without releasing them: the session
// would keep them for ever. One that another process has renewed meanwhile stays.
func (s *session) sweep() {
	e := s.e
	e.mu.Lock()
	var old []*claim
	var at []NodeRef
	for cl := range s.claims {
		if cl.busy == nil && cl.adding == nil && e.clock.SinceAtLeast(cl.asked) > s.TTL && len(old) < MaxRead {
			old, at = append(old, cl), append(at, NodeRef{cl.Name, cl.node.Key})
		}
	}
	e.mu.Unlock()
	if len(old) == 0 {
		return
	}
	nodes, err := s.read(at)
	if err != nil {
		s.later(old...)
		return
	}
	for i, cl := range old {
		if !s.remove(cl, nodes[i]) { // nor is there an answer for the others, for which what is urgent would wait
			s.later(old[i:]...)
			return
		}
	}
}

// remove ends one claim for good, as it was just read. It is false if the store has not answered.
func (s *session) remove(cl *claim, n Node) bool {
	e := s.e
	e.mu.Lock()
	if cl.busy != nil || cl.adding != nil || e.clock.SinceAtLeast(cl.asked) <= s.TTL {
		e.mu.Unlock()
		return true // asked for again meanwhile
	}
	if n.Token != 0 && n.Renewed > cl.node.Renewed && !n.Broken {
		cl.asked, cl.node = e.clock.Now(), n
		e.mu.Unlock()
		return true
	}
	e.loseLocked(cl, driver.LossExpired)
	cl.leaving = true
	unsure := cl.unsure
	e.mu.Unlock()
	ctx, cancel := bounded(e.life)
	defer cancel()
	var err error
	switch {
	case unsure:
		_, err = e.tree.Withdraw(ctx, cl.Name, s.Session, cl.number, cl.ID)
	case n.Token != 0:
		var stood bool
		stood, _, err = e.tree.Remove(ctx, cl.Name, n, false)
		if err == nil && !stood {
			return true // changed under our hands: look again
		}
	}
	if err != nil && !errors.Is(err, ErrSessionExpired) {
		return false
	}
	e.forget(cl)
	return true
}

// later has claims that could not be swept tried again, not at once.
func (s *session) later(claims ...*claim) {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	for _, cl := range claims {
		cl.asked = cl.asked.Add(s.TTL / 20)
	}
}

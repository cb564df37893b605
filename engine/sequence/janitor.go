package sequence

import (
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// watchDelay is how long a claim exists at least, and half of how long it exists at most, before its own node is
// watched. Claims that are released at once cost no watch.
const watchDelay = 100 * time.Millisecond

// waiterWatchDelay is how long a claim waits for the lock before its own node is watched, too. On a lock that many want,
// a watch per turn would be a third of what the turn costs. Until then a waiter that is broken does not learn of it.
const waiterWatchDelay = time.Second

// checkRetryDelay is how long the janitor waits before it repeats a check that has failed. It waits twice as long after
// each further failure, up to maxCheckRetryDelay.
const (
	checkRetryDelay    = 100 * time.Millisecond
	maxCheckRetryDelay = 2 * time.Second
)

// keptCapacity is for how many claims the janitor keeps memory that it does not use at the moment.
const keptCapacity = 1024

// runJanitor looks after a session's claims until the session ends: it reads nodes that may have changed, watches the
// nodes of claims that last, and removes claims that nobody wants any more. It sleeps until one of these is due. It is
// separate from the keep-alive loop because its requests may hang, and keep-alives must not wait for them.
func (s *session) runJanitor() {
	e := s.e
	timer := time.NewTimer(s.TTL)
	defer timer.Stop()
	searched, nextSearch := e.clock.Now(), s.TTL // for abandoned claims
	retryDelay := time.Duration(0)               // 0: the last check has not failed
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
		if s.checkChangedNodes() {
			retryDelay = 0
		} else {
			retryDelay = min(max(2*retryDelay, checkRetryDelay), maxCheckRetryDelay)
		}
		s.startDueWatches()
		// Not each time: it looks at all claims.
		if e.clock.Since(searched) >= nextSearch {
			s.removeAbandoned()
			searched, nextSearch = e.clock.Now(), s.untilAbandoned()
		}
		next := max(nextSearch-e.clock.Since(searched), watchDelay)
		e.mu.Lock()
		if len(s.newerUnwatched)+len(s.olderUnwatched) > 0 {
			next = min(next, watchDelay)
		}
		e.mu.Unlock()
		if retryDelay > 0 {
			next = min(next, retryDelay)
		}
		timer.Reset(max(next, time.Millisecond))
	}
}

// untilAbandoned is how long no claim can be abandoned. A claim that comes meanwhile, or that a call is busy with,
// cannot be before a TTL has passed.
func (s *session) untilAbandoned() time.Duration {
	e := s.e
	e.mu.Lock()
	defer e.mu.Unlock()
	until := s.TTL
	for _, cl := range e.claims {
		if cl.session == s && !cl.isBusy() {
			until = min(until, max(s.TTL-(e.clock.Monotonic()-cl.lastWanted), watchDelay))
		}
	}
	return until
}

// scheduleWatch has the claim's own node watched if the claim lasts longer than watchDelay.
func (e *Engine) scheduleWatch(cl *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.scheduleWatchLocked(cl)
}

// scheduleWatchLocked notes a claim whose node the janitor should watch soon. Claims that end before that cost no
// watch.
func (e *Engine) scheduleWatchLocked(cl *claim) {
	s := cl.session
	if s == nil || s.forDetached || cl.watch.started || cl.watch.scheduled {
		return
	}
	cl.watch.scheduled = true
	s.newerUnwatched = append(s.newerUnwatched, cl)
	if len(s.newerUnwatched)+len(s.olderUnwatched) == 1 {
		s.unwatchedSplit = e.clock.Now()
		s.wakeJanitor()
	}
}

// startDueWatches starts the watches of claims that have lasted long enough. Instead of a time per claim there are two
// lists, split at one moment: the older list is due one watchDelay after that moment.
func (s *session) startDueWatches() {
	e := s.e
	e.mu.Lock()
	var stand []*claim
	if len(s.newerUnwatched)+len(s.olderUnwatched) > 0 && e.clock.Since(s.unwatchedSplit) >= watchDelay {
		for _, cl := range s.olderUnwatched {
			isDue := s.has(cl) && !cl.watch.started && cl.loss == nil
			if isDue && e.hasJustBegunToWait(cl) {
				s.newerUnwatched = append(s.newerUnwatched, cl)
				continue
			}
			cl.watch.scheduled = false
			if isDue {
				stand = append(stand, cl)
			}
		}
		clear(s.olderUnwatched)
		if cap(s.olderUnwatched) > keptCapacity {
			s.olderUnwatched = nil
		}
		s.olderUnwatched, s.newerUnwatched, s.unwatchedSplit = s.newerUnwatched, s.olderUnwatched[:0], e.clock.Now()
	}
	e.mu.Unlock()
	for _, cl := range stand {
		e.watchOwnNode(cl)
	}
}

// hasJustBegunToWait reports whether a claim waits for its lock, and has not for waiterWatchDelay. It is called with mu
// held.
func (e *Engine) hasJustBegunToWait(cl *claim) bool {
	_, waits := e.waiting[cl.name][cl.acquire]
	return waits && e.clock.Since(cl.acquire.turn.since) < waiterWatchDelay
}

// checkChangedNodes reads the nodes that may have changed. A claim whose Add is under way is left out: its node is not
// known yet, and a read from before the Add took effect would look like a removal. It returns false if the store did
// not answer. Then the claims concerned stay in toCheck: a waiting claim that was broken has no renewal that would
// find out.
func (s *session) checkChangedNodes() (answered bool) {
	e := s.e
	e.mu.Lock()
	var claims []*claim
	var refs []NodeRef
	var reported []uint32
	for cl := range s.toCheck {
		// A claim that is being released is expected to lose its node.
		if cl.node.token != 0 && !cl.leaving {
			claims, refs = append(claims, cl), append(refs, NodeRef{cl.name, cl.node.key})
			reported = append(reported, cl.watch.reported)
		}
	}
	if clear(s.toCheck); len(claims) > keptCapacity {
		s.toCheck = map[*claim]struct{}{} // since a map never shrinks
	}
	e.mu.Unlock()
	for len(claims) > 0 {
		k := min(len(claims), MaxRead)
		batch, batchRefs, batchReported := claims[:k], refs[:k], reported[:k]
		nodes, err := s.readNodes(batchRefs)
		if err == nil && s.anyMissing(batch, nodes) {
			// If the session has ended, that is the reason to report, so ask first.
			if err = s.keepAlive(e.life); errors.Is(err, ErrSessionExpired) {
				err = nil
			} else if err == nil {
				e.addBreakReasons(e.life, batch, nodes)
			}
		}
		if err != nil {
			s.checkAgain(claims) // these and the rest: no more requests to a store that does not answer
			return false
		}
		for i, cl := range batch {
			_ = e.updateNodeUnder(batchRefs[i].Key, batchReported[i], cl, nodes[i])
		}
		claims, refs, reported = claims[k:], refs[k:], reported[k:]
	}
	return true
}

// checkAgain has claims read again whose check has failed.
func (s *session) checkAgain(claims []*claim) {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	for _, cl := range claims {
		if s.isWanted(cl) {
			s.toCheck[cl] = struct{}{}
		}
	}
}

// isWanted reports whether a claim belongs to this session and is not being released. It is called with mu held.
func (s *session) isWanted(cl *claim) bool { return s.has(cl) && !cl.leaving }

// anyMissing reports whether one of the claims should have a node and has none.
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

func (s *session) readNodes(refs []NodeRef) ([]Node, error) {
	ctx, cancel := requestContext(s.e.life)
	defer cancel()
	return s.e.store.Read(ctx, refs)
}

// removeAbandoned removes claims that this client has not renewed for their TTL, or gave up without a release. Without
// it the session's keep-alives would keep them forever. A claim that another process has renewed meanwhile stays.
func (s *session) removeAbandoned() {
	e := s.e
	e.mu.Lock()
	var old []*claim
	var refs []NodeRef
	for _, cl := range e.claims {
		if cl.session == s && !cl.isBusy() && e.clock.Monotonic()-cl.lastWanted > s.TTL && len(old) < MaxRead {
			old, refs = append(old, cl), append(refs, NodeRef{cl.name, cl.node.key})
		}
	}
	e.mu.Unlock()
	if len(old) == 0 {
		return
	}
	nodes, err := s.readNodes(refs)
	if err != nil {
		s.postponeRemoval(old...)
		return
	}
	for i, cl := range old {
		if !s.removeIfAbandoned(cl, nodes[i]) { // the store does not answer; urgent work must not wait for the others
			s.postponeRemoval(old[i:]...)
			return
		}
	}
}

// removeIfAbandoned removes one abandoned claim, whose node was just read as n. It returns false if the store has not
// answered.
func (s *session) removeIfAbandoned(cl *claim, n Node) bool {
	e := s.e
	e.mu.Lock()
	if !s.has(cl) || cl.isBusy() || e.clock.Monotonic()-cl.lastWanted <= s.TTL {
		e.mu.Unlock()
		return true // wanted again meanwhile, or forgotten: then the node may be another claim's
	}
	// Another process has renewed the claim; it gets another TTL.
	if n.Token != 0 && n.Renewed > cl.node.renewed && !n.Broken {
		cl.lastWanted = e.clock.Monotonic()
		cl.setNode(n)
		e.mu.Unlock()
		return true
	}
	// From here on the claim is lost for this client, whether or not the store can be reached: its node may be gone
	// at any moment.
	e.markLostLocked(cl, &driver.LossError{Cause: driver.LossExpired})
	cl.setLeaving(true)
	// It was detached, and lives on without this client. No add of it can take effect, but its node keeps its key.
	if n.Token != 0 && n.Session != s.ID {
		cl.numberSpent = true
		e.forgetClaimLocked(cl)
		e.mu.Unlock()
		return true
	}
	unresolved := cl.addUnresolved
	e.mu.Unlock()
	ctx, cancel := requestContext(e.life)
	defer cancel()
	var err error
	if n.Token != 0 {
		var existed bool
		existed, _, err = e.store.Remove(ctx, cl.name, n, Then{})
		if err == nil && !existed {
			return true // it was changed at the same time: read it again
		}
	}
	// Only when the node that is known is gone, because Withdraw would remove it also if it was detached meanwhile.
	if err == nil && unresolved {
		_, err = e.store.Withdraw(ctx, cl.name, s.Session, cl.addNumber, cl.id)
	}
	if err != nil && !errors.Is(err, ErrSessionExpired) {
		return false
	}
	e.forgetClaim(cl)
	return true
}

// postponeRemoval has claims that could not be removed tried again after a twentieth of the TTL.
func (s *session) postponeRemoval(claims ...*claim) {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	for _, cl := range claims {
		cl.lastWanted += s.TTL / 20
	}
}

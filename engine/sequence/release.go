package sequence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Release removes a claim's node with one request. If the claim's Add is still under way, Release waits for it. If an
// Add got no reply, the claim is withdrawn, so that the Add cannot take effect later.
func (e *Engine) Release(ctx context.Context, c driver.Claim, r string) error {
	ctx, stop := e.life.Bind(ctx)
	defer stop()
	retry := e.newRetryLoop(ctx, c.TTL)
	e.mu.Lock()
	cl := e.claims[c.ID]
	if cl != nil && (cl.name != c.Name || r != "" && r != FormatRef(cl.node.key, cl.node.token)) {
		cl = nil
	}
	var adding chan struct{}
	if cl != nil {
		// From here on the claim is not checked or renewed, and the removal of its node is no loss.
		cl.setLeaving(true)
		adding = cl.addDone
	}
	e.mu.Unlock()
	switch {
	case e.life.Err() != nil:
		return driver.ErrClosed
	case cl == nil:
		return e.releaseElsewhere(retry, c, r)
	case adding != nil:
		select {
		case <-adding:
		case <-ctx.Done():
			return driverutil.Uncertain(e.contextError(ctx))
		}
	}
	return e.releaseClaim(retry, cl)
}

// releaseClaim removes a claim of this client, or what is left of one whose node was found gone before. In that case a
// loss stays a loss, even if something was left to be removed.
func (e *Engine) releaseClaim(retry *retryLoop, cl *claim) error {
	e.mu.Lock()
	retry.lostBefore = cl.loss
	ended := cl.loss
	if cl.node.token != 0 {
		ended = nil
	}
	e.mu.Unlock()
	err := e.removeClaim(retry, cl)
	if err == nil && ended != nil {
		return ended
	}
	return err
}

// removeClaim removes a claim's node, and tries again until the store has answered or the call ends.
func (e *Engine) removeClaim(retry *retryLoop, cl *claim) error {
	var known ownNode // the node as last read: what the requests without a reply were to remove
	for {
		e.mu.Lock()
		s, n, unresolved, loss := cl.session, cl.node, cl.addUnresolved, cl.loss
		list, next := len(e.waiting[cl.name]) > 0, e.successorLocked(cl)
		e.mu.Unlock()
		if n.token != 0 { // a read during the release may find it gone, and forget it
			known = n
		}
		// There is no node to remove any more. If a request of this release got no reply, it may have removed the
		// node, and the release has succeeded; otherwise the claim was lost.
		if s == nil || n.token == 0 && !unresolved || s.isExpired() {
			e.forgetClaim(cl)
			switch {
			case retry.Uncertain:
				return e.resolveRelease(retry, cl, known.asNode(cl.id))
			case loss != nil:
				return loss
			}
			return e.whyGone(retry.ctx, cl.name, known.asNode(cl.id))
		}
		ctx, cancel := requestContext(retry.ctx)
		start := e.clock.Now()
		var existed bool
		var left Snapshot
		var err error
		node := Node{Key: n.key, Token: n.token}
		switch {
		case unresolved:
			existed, err = e.store.Withdraw(ctx, cl.name, s.Session, cl.addNumber, cl.id)
		case next.token != 0:
			existed, left, err = e.store.Remove(ctx, cl.name, node, Then{Next: next.key})
			// Meanwhile the waiter may have gone, and a claim behind all others may have its key.
			if len(left.Nodes) > 0 && left.Nodes[0].Token != next.token {
				left.Nodes = nil
			}
		default:
			existed, left, err = e.store.Remove(ctx, cl.name, node, Then{List: list})
		}
		cancel()
		if err == nil || errors.Is(err, ErrSessionExpired) {
			return e.finishRelease(retry, cl, known.asNode(cl.id), existed && err == nil, timedSnapshot{left, start})
		}
		retry.noteWrite(err)
		if err := retry.waitAndRetry(err); err != nil {
			return err
		}
	}
}

// successorLocked is the node of the one waiter of this client that is granted when cl goes, however many wait behind
// it. Since cl holds the whole lock, no claim is ahead of it, and none can come between the two. It is zero if there is
// no such waiter, or if the whole lock must be listed: of readers several may be granted, and a semaphore's claim must
// know which claim is behind it. It is called with mu held.
func (e *Engine) successorLocked(cl *claim) (next ownNode) {
	if !e.traits.ReadsNext || !cl.wasGranted() || !cl.isExclusive {
		return next
	}
	for a := range e.waiting[cl.name] {
		if a.turn.blockedBy == cl.node.key {
			if next.token != 0 { // several readers
				return ownNode{}
			}
			next = a.cl.node
		}
	}
	return next
}

// isExpired reports whether the session has ended.
func (s *session) isExpired() bool {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	return s.expired
}

// resolveRelease is the result of a release whose claim is found gone after a request without a reply. That request has
// removed it, unless someone left a note of having broken it, the session ended before its time, or the claim was lost
// before: then another request of this client may have removed it.
func (e *Engine) resolveRelease(retry *retryLoop, cl *claim, n Node) error {
	if err := e.checkNotBroken(retry, cl.name, n, retry.ttl); err != nil {
		return err
	}
	if retry.lostBefore != nil {
		return retry.lostBefore
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := cl.session; s != nil && s.expired && e.clock.Since(s.trustedSince()) < s.TTL {
		return fmt.Errorf("%w: the session was ended while the claim was being released", driver.ErrUncertain)
	}
	return nil
}

// checkNotBroken returns a loss if there is a note that the claim was broken. A missing note proves nothing if the
// release began so long ago that a note may have expired; the outcome is uncertain then.
func (e *Engine) checkNotBroken(retry *retryLoop, name string, n Node, ttl time.Duration) error {
	retry.Uncertain = true // the node is gone, and only the note tells why
	for {
		ctx, cancel := requestContext(retry.ctx)
		broken, reason, err := e.readBreakNote(ctx, name, n)
		cancel()
		switch {
		case err == nil && broken:
			return driverutil.BrokenError(reason)
		case err == nil && e.traits.LeavesNotes && e.clock.Since(retry.startedAt) > BreakNoteTime(ttl)-ttl:
			return fmt.Errorf("%w: the release was asked for so long ago that a note of a break may be gone",
				driver.ErrUncertain)
		case err == nil:
			return nil
		}
		if err := retry.waitAndRetry(err); err != nil {
			return err
		}
	}
}

// finishRelease forgets a claim whose node, last read as n, is gone, and returns the result of its release. existed
// says whether this request removed the node. Its snapshot of the lock goes to the waiters of this client.
func (e *Engine) finishRelease(retry *retryLoop, cl *claim, n Node, existed bool, left timedSnapshot) error {
	// The next holder in this process learns of its turn from this snapshot, without a request of its own.
	if left.Revision != 0 {
		left.Name = cl.name
		e.shareSnapshot(left, cl)
	}
	e.forgetClaim(cl)
	// A session of its own has no other claims.
	if cl.session.forDetached {
		ctx, cancel := requestContext(retry.ctx)
		_ = e.store.EndSession(ctx, cl.session.ID) // if it fails, the session expires
		cancel()
	}
	e.mu.Lock()
	loss, withdrawn := cl.loss, cl.addUnresolved && cl.wasGranted()
	e.mu.Unlock()
	switch {
	case existed && withdrawn: // it may be the node of a delayed add, made after the granted one was broken
		return e.checkNotBroken(retry, cl.name, n, retry.ttl)
	case existed:
		return nil
	case retry.Uncertain:
		return e.resolveRelease(retry, cl, n)
	}
	if loss != nil {
		return loss
	}
	return e.whyGone(retry.ctx, cl.name, n)
}

// releaseElsewhere removes a claim that another client made, or that this one has forgotten.
func (e *Engine) releaseElsewhere(retry *retryLoop, c driver.Claim, r string) error {
	if c.ID == "" && r == "" {
		return &driver.LossError{Cause: driver.LossGone}
	}
	var tried Node // the node that a request without a reply was to remove
	for {
		n, err := e.findNode(retry.ctx, c.Name, c.ID, r)
		if err == nil {
			if n.Token == 0 {
				if retry.Uncertain {
					return e.checkNotBroken(retry, c.Name, tried, tried.TTL)
				}
				return e.whyGone(retry.ctx, c.Name, nodeOfRef(c.ID, r))
			}
			var existed bool
			ctx, cancel := requestContext(retry.ctx)
			existed, _, err = e.store.Remove(ctx, c.Name, Node{Key: n.Key, Token: n.Token, Foreign: n.Foreign}, Then{})
			cancel()
			if err == nil {
				if existed && n.Detached {
					ctx, cancel := requestContext(retry.ctx)
					_ = e.store.EndSession(ctx, n.Session) // it was the claim's own session
					cancel()
				}
				switch {
				case existed:
					return nil
				case retry.Uncertain:
					return e.checkNotBroken(retry, c.Name, n, n.TTL)
				}
				return e.whyGone(retry.ctx, c.Name, n)
			}
			tried = n
			retry.noteWrite(err)
		}
		if err := retry.waitAndRetry(err); err != nil {
			return err
		}
	}
}

// nodeOfRef is as much of a node as is known from a claim's ID and ref.
func nodeOfRef(id, r string) Node {
	key, token, err := parseRef(r)
	if err != nil {
		return Node{}
	}
	return Node{Key: key, Token: token, Payload: Payload{ID: id}}
}

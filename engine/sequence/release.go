package sequence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Release removes a claim's node in one request. A claim whose add is still under way is waited for; one whose add has had
// no answer is withdrawn, so that it cannot come later.
func (e *Engine) Release(ctx context.Context, c driver.Claim, r string) error {
	ctx, stop := e.bindContext(ctx)
	defer stop()
	p := e.newRetryLoop(ctx, driver.UnreachableTimeout(c.TTL))
	e.mu.Lock()
	cl := e.claims[c.ID]
	if cl != nil && (cl.Name != c.Name || r != "" && r != formatRef(cl.node)) {
		cl = nil
	}
	var adding chan struct{}
	if cl != nil {
		cl.setLeaving(true)
		adding = cl.add.done
	}
	e.mu.Unlock()
	switch {
	case e.life.Err() != nil:
		return driver.ErrClosed
	case cl == nil:
		return e.releaseElsewhere(p, c, r)
	case adding != nil:
		select {
		case <-adding:
		case <-ctx.Done():
			return driver.Uncertain(e.contextError(ctx))
		}
	}
	return e.releaseClaim(p, cl)
}

// releaseClaim removes a claim of this client, or what has remained of one whose node was found gone before.
func (e *Engine) releaseClaim(p *retryLoop, cl *claim) error {
	e.mu.Lock()
	ended := cl.loss
	if cl.node.Token != 0 {
		ended = nil
	}
	e.mu.Unlock()
	err := e.removeClaim(p, cl)
	if err == nil && ended != nil {
		return ended
	}
	return err
}

func (e *Engine) removeClaim(p *retryLoop, cl *claim) error {
	var known Node // as it was seen last to stand: what the tries without an answer were to remove
	for {
		e.mu.Lock()
		s, n, unsure, loss := cl.session, cl.node, cl.add.unresolved, cl.loss
		look, next := len(e.waiting[cl.Name]) > 0, e.successorLocked(cl)
		e.mu.Unlock()
		if n.Token != 0 { // it is forgotten beneath the release if a read shows that it is gone
			known = n
		}
		if s == nil || n.Token == 0 && !unsure || s.isExpired() {
			e.forgetClaim(cl)
			switch {
			case p.writeUnresolved:
				return e.resolveRelease(p, cl, known)
			case loss != nil:
				return loss
			}
			return e.whyGone(p.ctx, cl.Name, known)
		}
		ctx, cancel := requestContext(p.ctx)
		start := e.clock.Now()
		var stood bool
		var left Snapshot
		var err error
		node := Node{Key: n.Key, Token: n.Token}
		switch {
		case unsure:
			stood, err = e.store.Withdraw(ctx, cl.Name, s.Session, cl.add.number, cl.ID)
		case next != "":
			stood, left, err = e.successorReader.RemoveAndReadNext(ctx, cl.Name, node, next)
		default:
			stood, left, err = e.store.Remove(ctx, cl.Name, node, look)
		}
		cancel()
		if err == nil || errors.Is(err, ErrSessionExpired) {
			return e.finishRelease(p, cl, known, stood && err == nil, timedSnapshot{left, start})
		}
		p.writeUnresolved = true
		if err := p.waitAndRetry(err); err != nil {
			return err
		}
	}
}

// successorLocked is the key of the claim of this client that is the first in line when cl has gone, and so is let in, however
// many stand behind it: cl has the whole lock, so nobody stands before it, and nobody can come between the two. It is empty
// if there is none, or if more is to be looked at: a semaphore's claim has to know who comes next.
func (e *Engine) successorLocked(cl *claim) string {
	if e.successorReader == nil || !cl.wasGranted() || cl.Weight < cl.Limit || cl.Kind == driver.KindSemaphore {
		return ""
	}
	var next string
	for w := range e.waiting[cl.Name] {
		if w.turn.blockedBy == cl.node.Key {
			if next != "" { // readers
				return ""
			}
			next = w.node.Key
		}
	}
	return next
}

func (s *session) isExpired() bool {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	return s.expired
}

// resolveRelease tells what a release has come to whose first try had no answer, when the claim is found gone: that try has
// removed it, unless somebody left a note of having broken it, or the session was ended before its time.
func (e *Engine) resolveRelease(p *retryLoop, cl *claim, n Node) error {
	if err := e.checkNotBroken(p, cl.Name, n, cl.TTL); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := cl.session; s != nil && s.expired && e.clock.Since(s.trustedSince()) < s.TTL {
		return fmt.Errorf("%w: the session was ended while the claim was being released", driver.ErrUncertain)
	}
	return nil
}

// checkNotBroken makes sure that nobody else has removed the node of a claim with this TTL.
func (e *Engine) checkNotBroken(p *retryLoop, name string, n Node, ttl time.Duration) error {
	for {
		ctx, cancel := requestContext(p.ctx)
		broken, err := e.wasBroken(ctx, name, n)
		cancel()
		switch {
		case err == nil && broken:
			return &driver.LossError{Cause: driver.LossBroken}
		case err == nil && e.breaker != nil && e.clock.Since(p.startedAt) > BreakNoteTime(ttl)-ttl:
			return fmt.Errorf("%w: the release was asked for so long ago that a note of a break may be gone", driver.ErrUncertain)
		case err == nil:
			return nil
		}
		if err := p.waitAndRetry(err); err != nil {
			return err
		}
	}
}

// finishRelease takes in that a claim's node, as it was seen last, is gone.
func (e *Engine) finishRelease(p *retryLoop, cl *claim, n Node, stood bool, left timedSnapshot) error {
	if left.Revision != 0 {
		left.Name = cl.Name
		e.shareSnapshot(left, cl)
	}
	e.forgetClaim(cl)
	if cl.session.forDetached {
		ctx, cancel := requestContext(p.ctx)
		_ = e.store.EndSession(ctx, cl.session.ID) // else its TTL ends it
		cancel()
	}
	e.mu.Lock()
	loss, withdrawn := cl.loss, cl.add.unresolved && cl.wasGranted()
	e.mu.Unlock()
	switch {
	case stood && withdrawn: // it may be what an add that came late has made, after the one that was granted had gone
		return e.checkNotBroken(p, cl.Name, n, cl.TTL)
	case stood:
		return nil
	case p.writeUnresolved:
		return e.resolveRelease(p, cl, n)
	}
	if loss != nil {
		return loss
	}
	return e.whyGone(p.ctx, cl.Name, n)
}

// releaseElsewhere removes a claim that another client made, or that this one has forgotten.
func (e *Engine) releaseElsewhere(p *retryLoop, c driver.Claim, r string) error {
	if c.ID == "" && r == "" {
		return &driver.LossError{Cause: driver.LossGone}
	}
	var tried Node // what a try without an answer was to remove
	for {
		n, err := e.findNode(p.ctx, c.Name, c.ID, r)
		if err == nil {
			if n.Token == 0 {
				if p.writeUnresolved {
					return e.checkNotBroken(p, c.Name, tried, tried.TTL)
				}
				return e.whyGone(p.ctx, c.Name, nodeOfRef(c.ID, r))
			}
			var stood bool
			ctx, cancel := requestContext(p.ctx)
			stood, _, err = e.store.Remove(ctx, c.Name, Node{Key: n.Key, Token: n.Token, Foreign: n.Foreign}, false)
			cancel()
			if err == nil {
				if stood && n.Detached {
					ctx, cancel := requestContext(p.ctx)
					_ = e.store.EndSession(ctx, n.Session) // it was the claim's own
					cancel()
				}
				switch {
				case stood:
					return nil
				case p.writeUnresolved:
					return e.checkNotBroken(p, c.Name, n, n.TTL)
				}
				return e.whyGone(p.ctx, c.Name, n)
			}
			p.writeUnresolved, tried = true, n
		}
		if err := p.waitAndRetry(err); err != nil {
			return err
		}
	}
}

// nodeOfRef is as much of a node as is known of a claim by its id and ref.
func nodeOfRef(id, r string) Node {
	key, token, err := parseRef(r)
	if err != nil {
		return Node{}
	}
	return Node{Key: key, Token: token, Payload: Payload{ID: id}}
}

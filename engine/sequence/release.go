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
	ctx, stop := e.bind(ctx)
	defer stop()
	p := e.patience(ctx, driver.UnreachableTimeout(c.TTL))
	e.mu.Lock()
	cl := e.claims[c.ID]
	if cl != nil && (cl.Name != c.Name || r != "" && r != ref(cl.node)) {
		cl = nil
	}
	var adding chan struct{}
	if cl != nil {
		cl.leaving = true
		adding = cl.adding
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
			return driver.Uncertain(e.over(ctx))
		}
	}
	return e.release(p, cl)
}

// release removes a claim of this client, or what has remained of one whose node was found gone before.
func (e *Engine) release(p *patience, cl *claim) error {
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

func (e *Engine) removeClaim(p *patience, cl *claim) error {
	var known Node // as it was seen last to stand: what the tries without an answer were to remove
	for {
		e.mu.Lock()
		s, n, unsure, loss := cl.session, cl.node, cl.unsure, cl.loss
		look, next := len(e.waiting[cl.Name]) > 0, e.nextLocked(cl)
		e.mu.Unlock()
		if n.Token != 0 { // it is forgotten beneath the release if a read shows that it is gone
			known = n
		}
		if s == nil || n.Token == 0 && !unsure || s.isDead() {
			e.forget(cl)
			switch {
			case p.unsure:
				return e.outcome(p, cl, known)
			case loss != nil:
				return loss
			}
			return e.whyGone(p.ctx, cl.Name, known)
		}
		ctx, cancel := bounded(p.ctx)
		start := e.clock.Now()
		var stood bool
		var left Snapshot
		var err error
		node := Node{Key: n.Key, Token: n.Token}
		switch {
		case unsure:
			stood, err = e.tree.Withdraw(ctx, cl.Name, s.Session, cl.number, cl.ID)
		case next != "":
			stood, left, err = e.successor.RemoveAndReadNext(ctx, cl.Name, node, next)
		default:
			stood, left, err = e.tree.Remove(ctx, cl.Name, node, look)
		}
		cancel()
		if err == nil || errors.Is(err, ErrSessionExpired) {
			return e.released(p, cl, known, stood && err == nil, sight{left, start})
		}
		p.unsure = true
		if err := p.again(err); err != nil {
			return err
		}
	}
}

// nextLocked is the key of the claim of this client that is the first in line when cl has gone, and so is let in, however
// many stand behind it: cl has the whole lock, so nobody stands before it, and nobody can come between the two. It is empty
// if there is none, or if more is to be looked at: a semaphore's claim has to know who comes next.
func (e *Engine) nextLocked(cl *claim) string {
	if e.successor == nil || !cl.granted || cl.Weight < cl.Limit || cl.Kind == driver.KindSemaphore {
		return ""
	}
	var next string
	for w := range e.waiting[cl.Name] {
		if w.blocker == cl.node.Key {
			if next != "" { // readers
				return ""
			}
			next = w.node.Key
		}
	}
	return next
}

func (s *session) isDead() bool {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	return s.dead
}

// outcome tells what a release has come to whose first try had no answer, when the claim is found gone: that try has
// removed it, unless somebody left a note of having broken it, or the session was ended before its time.
func (e *Engine) outcome(p *patience, cl *claim, n Node) error {
	if err := e.ownDoing(p, cl.Name, n, cl.TTL); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := cl.session; s != nil && s.dead && e.clock.Since(s.trusted()) < s.TTL {
		return fmt.Errorf("%w: the session was ended while the claim was being released", driver.ErrUncertain)
	}
	return nil
}

// ownDoing makes sure that nobody else has removed the node of a claim with this TTL.
func (e *Engine) ownDoing(p *patience, name string, n Node, ttl time.Duration) error {
	for {
		ctx, cancel := bounded(p.ctx)
		broken, err := e.wasBroken(ctx, name, n)
		cancel()
		switch {
		case err == nil && broken:
			return &driver.LossError{Cause: driver.LossBroken}
		case err == nil && e.breaker != nil && e.clock.Since(p.asked) > BreakNoteTime(ttl)-ttl:
			return fmt.Errorf("%w: the release was asked for so long ago that a note of a break may be gone", driver.ErrUncertain)
		case err == nil:
			return nil
		}
		if err := p.again(err); err != nil {
			return err
		}
	}
}

// released takes in that a claim's node, as it was seen last, is gone.
func (e *Engine) released(p *patience, cl *claim, n Node, stood bool, left sight) error {
	if left.Revision != 0 {
		left.Name = cl.Name
		e.share(left, cl)
	}
	e.forget(cl)
	if cl.session.alone {
		ctx, cancel := bounded(p.ctx)
		_ = e.tree.EndSession(ctx, cl.session.ID) // else its TTL ends it
		cancel()
	}
	e.mu.Lock()
	loss, withdrawn := cl.loss, cl.unsure && cl.granted
	e.mu.Unlock()
	switch {
	case stood && withdrawn: // it may be what an add that came late has made, after the one that was granted had gone
		return e.ownDoing(p, cl.Name, n, cl.TTL)
	case stood:
		return nil
	case p.unsure:
		return e.outcome(p, cl, n)
	}
	if loss != nil {
		return loss
	}
	return e.whyGone(p.ctx, cl.Name, n)
}

// releaseElsewhere removes a claim that another client made, or that this one has forgotten.
func (e *Engine) releaseElsewhere(p *patience, c driver.Claim, r string) error {
	if c.ID == "" && r == "" {
		return &driver.LossError{Cause: driver.LossGone}
	}
	var tried Node // what a try without an answer was to remove
	for {
		n, err := e.find(p.ctx, c.Name, c.ID, r)
		if err == nil {
			if n.Token == 0 {
				if p.unsure {
					return e.ownDoing(p, c.Name, tried, tried.TTL)
				}
				return e.whyGone(p.ctx, c.Name, named(c.ID, r))
			}
			var stood bool
			ctx, cancel := bounded(p.ctx)
			stood, _, err = e.tree.Remove(ctx, c.Name, Node{Key: n.Key, Token: n.Token, Foreign: n.Foreign}, false)
			cancel()
			if err == nil {
				if stood && n.Detached {
					ctx, cancel := bounded(p.ctx)
					_ = e.tree.EndSession(ctx, n.Session) // it was the claim's own
					cancel()
				}
				switch {
				case stood:
					return nil
				case p.unsure:
					return e.ownDoing(p, c.Name, n, n.TTL)
				}
				return e.whyGone(p.ctx, c.Name, n)
			}
			p.unsure, tried = true, n
		}
		if err := p.again(err); err != nil {
			return err
		}
	}
}

// named is as much of a node as is known of a claim by its id and ref.
func named(id, r string) Node {
	key, token, err := unref(r)
	if err != nil {
		return Node{}
	}
	return Node{Key: key, Token: token, Payload: Payload{ID: id}}
}

package sequence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Break marks or removes a node, if it stands as it was just read. A marked claim's client removes it when it has heard of
// it and released it, or when its TTL is over; if the client is gone its session ends.
func (e *Engine) Break(ctx context.Context, name, r string, mode driver.BreakMode) error {
	key, token, err := parseRef(r)
	if err != nil {
		return err
	}
	ctx, stop := e.bindContext(ctx)
	defer stop()
	p := e.newRetryLoop(ctx, driver.UnreachableTimeout(driver.MaxTTL))
	for {
		over, err := e.tryBreak(p, name, key, token, mode)
		if over {
			return err
		}
		if err == nil {
			p.noteAnswer()
			continue // it has changed meanwhile
		}
		if err := p.waitAndRetry(err); err != nil {
			return err
		}
	}
}

// tryBreak is one try. Not over and without an error, it is to be made again at once.
func (e *Engine) tryBreak(p *retryLoop, name, key string, token int64, mode driver.BreakMode) (over bool, err error) {
	ctx, cancel := requestContext(p.ctx)
	defer cancel()
	look, err := e.store.List(ctx, name, true)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(look.Nodes, func(n Node) bool { return n.Key == key && n.Token == token })
	if i < 0 {
		if p.writeUnresolved && mode != driver.BreakRequestRelease {
			return true, nil
		}
		return true, &driver.LossError{Cause: driver.LossGone}
	}
	n := look.Nodes[i]
	if mode == driver.BreakForce || mode == driver.BreakGraceful && i >= countGranted(look.Nodes) {
		stood, err := e.breakNode(ctx, name, n)
		p.writeUnresolved = p.writeUnresolved || err != nil
		return err == nil && stood, err
	}
	if n.Foreign {
		return true, fmt.Errorf("%w: a foreign holder cannot be told, only removed by force", driver.ErrUnsupported)
	}
	note := n.Payload
	note.Broken = note.Broken || mode == driver.BreakGraceful
	note.ReleaseRequested = note.ReleaseRequested || mode == driver.BreakRequestRelease
	if note == n.Payload {
		return true, nil
	}
	_, ok, err := e.store.Change(ctx, name, n, note)
	return err == nil && ok, err
}

// breakNode removes another's node, and leaves a note of that for its holder.
func (e *Engine) breakNode(ctx context.Context, name string, n Node) (stood bool, err error) {
	if e.breaker != nil && !n.Foreign {
		return e.breaker.BreakNode(ctx, name, n)
	}
	stood, _, err = e.store.Remove(ctx, name, Node{Key: n.Key, Token: n.Token, Foreign: n.Foreign}, false)
	return stood, err
}

// whyGone is why a claim does not stand that its holder has not given up.
func (e *Engine) whyGone(ctx context.Context, name string, n Node) *driver.LossError {
	ctx, cancel := requestContext(ctx)
	defer cancel()
	if broken, err := e.wasBroken(ctx, name, n); err == nil && broken {
		return &driver.LossError{Cause: driver.LossBroken}
	}
	return &driver.LossError{Cause: driver.LossGone}
}

func (e *Engine) wasBroken(ctx context.Context, name string, n Node) (bool, error) {
	if e.breaker == nil || n.ID == "" || n.Token == 0 {
		return false, nil
	}
	return e.breaker.WasBroken(ctx, name, n)
}

// Detach moves a claim's node to a session of its own, which nobody beats. The node keeps its place and its token.
func (e *Engine) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if e.mover == nil {
		return fmt.Errorf("%w: on this store a claim ends with its client", driver.ErrUnsupported)
	}
	ctx, stop := e.bindContext(ctx)
	defer stop()
	p := e.newRetryLoop(ctx, driver.UnreachableTimeout(g.GrantedTTL))
	var to Session
	for {
		over, err := e.tryDetach(p, g, keep, &to)
		if over {
			if err != nil && to.ID != "" {
				ctx, cancel := requestContext(ctx)
				_ = e.store.EndSession(ctx, to.ID) // else its TTL ends it
				cancel()
			}
			return err
		}
		if err == nil {
			p.noteAnswer()
			continue // it has changed meanwhile
		}
		if err := p.waitAndRetry(err); err != nil {
			return err
		}
	}
}

func (e *Engine) tryDetach(p *retryLoop, g driver.Grant, keep time.Duration, to *Session) (over bool, err error) {
	ctx, cancel := requestContext(p.ctx)
	defer cancel()
	n, err := e.findNode(ctx, g.Name, g.ID, g.Ref)
	switch {
	case err != nil:
		return false, err
	case n.Token == 0 || n.Token != g.Token:
		return true, &driver.LossError{Cause: driver.LossGone}
	case n.Broken:
		return true, &driver.LossError{Cause: driver.LossBroken}
	case to.ID != "" && n.Session == to.ID: // the answer to an earlier try was lost
		e.forgetDetached(g)
		return true, nil
	case to.ID == "":
		if *to, err = e.store.OpenSession(ctx, max(keep, e.info.MinTTL)); err != nil {
			return false, err
		}
	}
	note := n.Payload
	note.Detached, note.TTL = true, to.TTL
	_, ok, err := e.mover.Move(ctx, g.Name, n, *to, note)
	if errors.Is(err, ErrSessionExpired) { // if it is the claim's own, the next try finds nothing; else it needs another
		*to = Session{}
	}
	if err != nil || !ok {
		return false, err
	}
	if n.Detached {
		_ = e.store.EndSession(ctx, n.Session) // the one that it had before
	}
	e.forgetDetached(g)
	return true, nil
}

// forgetDetached lets go of a claim that has nobody behind it any more.
func (e *Engine) forgetDetached(g driver.Grant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl := e.claims[g.ID]; cl != nil {
		cl.setLeaving(true)
		e.forgetClaimLocked(cl)
	}
}

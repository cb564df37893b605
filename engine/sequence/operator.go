package sequence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Break marks or removes a node, if it is still as it was just read. The client of a marked claim removes it
// when it learns of the mark and releases it, or when the claim's TTL has passed. If that client is gone, its session
// expires.
func (e *Engine) Break(ctx context.Context, name, r string, b driver.Break) error {
	key, token, err := parseRef(r)
	if err != nil {
		return err
	}
	ctx, stop := e.life.Bind(ctx)
	defer stop()
	retry := e.newRetryLoop(ctx, driver.MaxTTL)
	for {
		done, err := e.tryBreak(retry, name, Node{Key: key, Token: token}, b)
		if done {
			return err
		}
		if err == nil {
			retry.NoteAnswer()
			continue // it has changed meanwhile
		}
		if err := retry.waitAndRetry(err); err != nil {
			return err
		}
	}
}

// tryBreak is one try. If it is not done and returns no error, the node has changed, and Break tries again at once.
func (e *Engine) tryBreak(
	retry *retryLoop, name string, which Node, b driver.Break,
) (done bool, err error) {
	ctx, cancel := requestContext(retry.ctx)
	defer cancel()
	snapshot, err := e.store.List(ctx, name, true)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(snapshot.Nodes, func(n Node) bool { return n.Key == which.Key && n.Token == which.Token })
	if i < 0 {
		if retry.Uncertain && b.Mode != driver.BreakRequestRelease {
			return true, nil
		}
		return true, &driver.LossError{Cause: driver.LossGone}
	}
	n := snapshot.Nodes[i]
	if b.Mode == driver.BreakForce || b.Mode == driver.BreakGraceful && i >= countGranted(snapshot.Nodes) {
		existed, err := e.breakNode(ctx, name, n, b.Reason)
		retry.noteWrite(err)
		return err == nil && existed, err
	}
	if n.Foreign {
		return true, fmt.Errorf("%w: a foreign holder cannot be notified, only removed by force", driver.ErrUnsupported)
	}
	payload := n.Payload
	// A graceful break asks the holder's client to let go. A waiter has nothing to let go of, and was removed above.
	if b.Mode == driver.BreakGraceful && !payload.Broken {
		payload.Broken, payload.BreakReason = true, b.Reason
	}
	payload.ReleaseRequested = payload.ReleaseRequested || b.Mode == driver.BreakRequestRelease
	if payload == n.Payload {
		return true, nil
	}
	_, ok, err := e.store.Change(ctx, name, n, payload, Among{})
	retry.noteWrite(err)
	return err == nil && ok, err
}

// breakNode removes another client's node, and leaves a note of it for the holder where the store can.
func (e *Engine) breakNode(ctx context.Context, name string, n Node, reason string) (existed bool, err error) {
	if e.traits.LeavesNotes && !n.Foreign {
		return e.store.BreakNode(ctx, name, n, reason)
	}
	existed, _, err = e.store.Remove(ctx, name, Node{Key: n.Key, Token: n.Token, Foreign: n.Foreign}, Then{})
	return existed, err
}

// whyGone is the loss of a claim whose node is gone although its holder did not release it.
func (e *Engine) whyGone(ctx context.Context, name string, n Node) *driver.LossError {
	ctx, cancel := requestContext(ctx)
	defer cancel()
	if broken, reason, err := e.readBreakNote(ctx, name, n); err == nil && broken {
		return driverutil.BrokenError(reason)
	}
	return &driver.LossError{Cause: driver.LossGone}
}

// ReadTokenFloor costs what the store needs to tell its last token.
func (e *Engine) ReadTokenFloor(ctx context.Context) (driver.TokenFloor, error) {
	floor, _, err := e.readTokenFloor(ctx)
	return floor, err
}

// readTokenFloor reads the smallest token that the store can still give. For a store whose tokens cannot be
// raised, adviseRaise says what an operator can do instead.
func (e *Engine) readTokenFloor(ctx context.Context) (f driver.TokenFloor, adviseRaise func(int64) string, err error) {
	ctx, stop := e.life.Bind(ctx)
	defer stop()
	last, adviseRaise, err := e.store.ReadLastToken(ctx)
	if err != nil {
		return f, nil, err
	}
	return driver.TokenFloor{Token: last + 1}, adviseRaise, nil
}

// RaiseToken changes nothing, because the store makes the tokens. It says what an operator can do.
func (e *Engine) RaiseToken(ctx context.Context, _ string, atLeast int64) error {
	floor, adviseRaise, err := e.readTokenFloor(ctx)
	switch {
	case err != nil:
		return err
	case floor.Token >= atLeast:
		return nil
	}
	return fmt.Errorf("%w: the store itself makes the tokens, now from %d on, for clients of every make; %s",
		driver.ErrUnsupported, floor.Token, adviseRaise(atLeast))
}

// readBreakNote reports whether the store has a note that this node was broken, and its reason.
func (e *Engine) readBreakNote(ctx context.Context, name string, n Node) (found bool, reason string, err error) {
	if n.ID == "" || n.Token == 0 {
		return false, "", nil
	}
	return e.store.ReadBreakNote(ctx, name, n)
}

// maxReasonTime limits how long a client that finds claims gone asks for the reasons, before it tells their holders.
const maxReasonTime = 300 * time.Millisecond

// addBreakReasons completes the nodes of claims that are gone with what the operators have said who broke them. It is
// best effort, because a loss must be told soon: what the store does not answer in time is left out.
func (e *Engine) addBreakReasons(ctx context.Context, claims []*claim, nodes []Node) {
	ctx, cancel := context.WithTimeout(ctx, maxReasonTime)
	defer cancel()
	for i, cl := range claims {
		if nodes[i].Token == 0 && ctx.Err() == nil {
			nodes[i].BreakReason = e.readBreakReason(ctx, cl)
		}
	}
}

// readBreakReason returns what the operator has said who broke a claim, if its loss is not known yet.
func (e *Engine) readBreakReason(ctx context.Context, cl *claim) string {
	e.mu.Lock()
	known, isLost := cl.node, cl.loss != nil
	e.mu.Unlock()
	if isLost {
		return ""
	}
	_, reason, _ := e.readBreakNote(ctx, cl.name, known.asNode(cl.id))
	return reason
}

// Detach moves a claim's node to a session of its own, to which this client sends no keep-alives. The node keeps its
// place and its token.
func (e *Engine) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if !e.traits.Moves {
		return fmt.Errorf("%w: on this store a claim ends with its client", driver.ErrUnsupported)
	}
	ctx, stop := e.life.Bind(ctx)
	defer stop()
	retry := e.newRetryLoop(ctx, g.GrantedTTL)
	var to Session
	for {
		done, err := e.tryDetach(retry, g, keep, &to)
		if done {
			if err != nil && to.ID != "" {
				ctx, cancel := requestContext(ctx)
				_ = e.store.EndSession(ctx, to.ID) // if it fails, the session expires
				cancel()
			}
			return err
		}
		if err == nil {
			retry.NoteAnswer()
			continue // it has changed meanwhile
		}
		if err := retry.waitAndRetry(err); err != nil {
			return err
		}
	}
}

// tryDetach is one try. If it is not done and returns no error, the node has changed, and Detach tries again at once.
func (e *Engine) tryDetach(retry *retryLoop, g driver.Grant, keep time.Duration, to *Session) (done bool, err error) {
	ctx, cancel := requestContext(retry.ctx)
	defer cancel()
	n, err := e.findNode(ctx, g.Name, g.ID, g.Ref)
	switch {
	case err != nil:
		return false, err
	case n.Token == 0 || n.Token != g.Token:
		return true, &driver.LossError{Cause: driver.LossGone}
	case n.Broken:
		return true, driverutil.BrokenError(n.BreakReason)
	case to.ID != "" && n.Session == to.ID: // the reply to an earlier try was lost
		e.forgetDetached(g)
		return true, nil
	// Opened once: later tries use the same session.
	case to.ID == "":
		if *to, err = e.store.OpenSession(ctx, max(keep, e.info.MinTTL)); err != nil {
			return false, err
		}
	}
	payload := n.Payload
	payload.Detached, payload.TTL = true, to.TTL
	e.spendNumber(g.ID)
	_, ok, err := e.store.Move(ctx, g.Name, n, *to, payload)
	retry.noteWrite(err)
	if errors.Is(err, ErrSessionExpired) {
		*to = Session{} // the next try opens another, unless the claim's own session has ended and its node is gone
	}
	if err != nil || !ok {
		return false, err
	}
	if n.Detached {
		_ = e.store.EndSession(ctx, n.Session) // the session that it had before
	}
	e.forgetDetached(g)
	return true, nil
}

// spendNumber is called before the node of a claim is moved. Whatever comes of that, no other claim gets the number:
// the node may live on, and the store refuses adds of it.
func (e *Engine) spendNumber(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl := e.claims[id]; cl != nil {
		cl.numberSpent = true
	}
}

// forgetDetached forgets a claim that this client no longer keeps alive.
func (e *Engine) forgetDetached(g driver.Grant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl := e.claims[g.ID]; cl != nil {
		cl.setLeaving(true)
		e.forgetClaimLocked(cl)
	}
}

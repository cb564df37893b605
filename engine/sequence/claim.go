package sequence

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// claim is what this client knows of a claim of its own. All of it but the Claim is guarded by the engine's mutex.
type claim struct {
	driver.Claim
	session   *session
	addNumber int64 // within the session

	acquireDone     chan struct{} // not nil while an Acquire is under way; closed when it ends
	addDone         chan struct{} // not nil while an Add is under way; closed when it has an answer, or will have none
	addUnresolved   bool          // the outcome of an Add is not known, so one may yet take effect, or its node has gone without another that it may have: the claim must be withdrawn
	joined          bool          // the claim was seen to stand, and was let into the line
	node            Node          // as last seen; Token 0: not known to stand
	granted         bool
	lastWanted      driver.Instant // from when it may stand for its TTL: the client was granted it, asked for a renewal, was answered, or turned from it
	releaseNotified bool           // that its holder is asked to give up
	leaving         bool           // a release is under way, or a sweep

	weightUnresolved bool // a change of its weight is under way, or has had no answer
	loss             *driver.LossError
	snapshots        chan timedSnapshot // buffered; while waiting: looks by which it fits
	wakeup           chan struct{}      // buffered; while waiting: look again
	blockedBy        string             // while waiting: key of the node in the way, if that is one of this client's
	stopWatch        func()             // of its own node

	watchScheduled bool // stands in the session's list of those to be watched
}

// timedSnapshot is a look, and when it was started.
type timedSnapshot struct {
	Snapshot
	start driver.Instant
}

// beginAcquire finds or makes the claim that an Acquire is about. For one id one Acquire is under way at a time.
func (e *Engine) beginAcquire(ctx context.Context, c driver.Claim) (*claim, error) {
	for {
		e.mu.Lock()
		if e.life.Err() != nil {
			e.mu.Unlock()
			return nil, driver.ErrClosed
		}
		cl := e.claims[c.ID]
		if cl == nil {
			cl = &claim{Claim: c, snapshots: make(chan timedSnapshot, 1), wakeup: make(chan struct{}, 1)}
			e.claims[c.ID] = cl
		}
		under := cl.acquireDone
		if under == nil {
			under = cl.addDone // an earlier call has given up, and its Add has not
		}
		if under == nil {
			cl.Wait = c.Wait
			cl.acquireDone = make(chan struct{})
			cl.leaving = false
			e.mu.Unlock()
			return cl, nil
		}
		e.mu.Unlock()
		select {
		case <-under:
		case <-ctx.Done():
			return nil, e.contextError(ctx)
		}
	}
}

// endAcquire ends an Acquire. A claim that does not stand is forgotten.
func (e *Engine) endAcquire(cl *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	cl.lastWanted = e.clock.Now()
	close(cl.acquireDone)
	cl.acquireDone = nil
	if cl.addDone == nil && !cl.addUnresolved && cl.node.Token == 0 {
		e.forgetClaimLocked(cl)
	}
	if s := cl.session; s != nil {
		select {
		case <-cl.wakeup: // the node may have changed since it was looked at
			if _, ok := s.claims[cl]; ok && !s.forDetached {
				s.toCheck[cl] = struct{}{}
			}
		default:
		}
		if len(s.toCheck) > 0 || !cl.granted {
			s.wakeJanitor()
		}
	}
}

// forgetClaim drops a claim that does not stand any more.
func (e *Engine) forgetClaim(cl *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgetClaimLocked(cl)
}

func (e *Engine) forgetClaimLocked(cl *claim) {
	e.wakeBlockedLocked(cl)
	if e.claims[cl.ID] == cl {
		delete(e.claims, cl.ID)
	}
	if s := cl.session; s != nil {
		delete(s.claims, cl)
		delete(s.toCheck, cl)
		if len(s.claims) == 0 {
			s.idleSince = e.clock.Now()
		}
	}
	if cl.stopWatch != nil {
		cl.stopWatch()
		cl.stopWatch = nil
	}
}

// markLost notes that a claim has ended from outside, tells whoever waits or holds, and returns the loss that was noted first.
func (e *Engine) markLost(cl *claim, why driver.LossCause) *driver.LossError {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.markLostLocked(cl, why)
}

func (e *Engine) markLostLocked(cl *claim, why driver.LossCause) *driver.LossError {
	if cl.loss == nil {
		cl.loss = &driver.LossError{Cause: why}
		if cl.granted && !cl.leaving {
			e.queueEndingLocked(driver.Ending{Name: cl.Name, ID: cl.ID, Err: cl.loss})
		}
		wakeOne(cl.wakeup)
		e.wakeBlockedLocked(cl)
	}
	return cl.loss
}

// wakeBlockedLocked has those of this client look again that wait for a claim of this client, and so do not watch it.
func (e *Engine) wakeBlockedLocked(cl *claim) {
	if cl.node.Token == 0 {
		return
	}
	for w := range e.waiting[cl.Name] {
		if w.blockedBy == cl.node.Key {
			wakeOne(w.wakeup)
		}
	}
}

// requestCheck is called when a claim's own node may have changed.
func (e *Engine) requestCheck(cl *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := cl.session; s != nil && !s.forDetached && s.isWanted(cl) {
		s.toCheck[cl] = struct{}{}
		s.wakeJanitor()
	}
}

// watchOwnNode watches a claim's own node until it is forgotten.
func (e *Engine) watchOwnNode(cl *claim) {
	e.mu.Lock()
	node := cl.node
	if cl.stopWatch != nil || node.Token == 0 || e.claims[cl.ID] != cl {
		e.mu.Unlock()
		return
	}
	cl.stopWatch = func() {} // so that nobody else begins
	e.mu.Unlock()
	stop := e.store.Watch(cl.Name, node.Key, 0, func() { e.requestCheck(cl) })
	e.mu.Lock()
	if e.claims[cl.ID] == cl {
		cl.stopWatch = stop
		stop = nil
	}
	e.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// updateNode takes in a claim's own node as it was read, and reports whether it stands unbroken. Marks are told once.
func (e *Engine) updateNode(cl *claim, n Node, found bool) *driver.LossError {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.updateNodeLocked(cl, n, found)
}

// updateNodeUnder is seen for what was read under a key, beside an Acquire that may have made the claim anew since.
func (e *Engine) updateNodeUnder(key string, cl *claim, n Node) *driver.LossError {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl.node.Key != key {
		return nil
	}
	return e.updateNodeLocked(cl, n, n.Token != 0)
}

func (e *Engine) updateNodeLocked(cl *claim, n Node, found bool) *driver.LossError {
	switch {
	case cl.loss != nil:
		return cl.loss
	case !found || cl.node.Token != 0 && n.Token != cl.node.Token:
		loss := e.markLostLocked(cl, driver.LossBroken)
		if e.leftoverChecker != nil && e.leftoverChecker.MayHaveLeftovers(cl.node.Key) {
			cl.addUnresolved = true
		}
		cl.node = Node{}
		return loss
	case n.Broken:
		cl.node = n
		return e.markLostLocked(cl, driver.LossBroken)
	}
	if n.Renewed > cl.node.Renewed {
		cl.lastWanted = e.clock.Now()
	}
	cl.node = n
	if n.ReleaseRequested && cl.granted && !cl.releaseNotified {
		cl.releaseNotified = true
		e.queueEndingLocked(driver.Ending{Name: cl.Name, ID: cl.ID, ReleaseRequested: true})
	}
	return nil
}

// wakeOne wakes whoever listens, if it is not awake already.
func wakeOne(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// queueEndingLocked queues an ending for NextEnding.
func (e *Engine) queueEndingLocked(end driver.Ending) {
	if len(e.endings) >= maxEndings {
		e.endings = e.endings[1:]
	}
	e.endings = append(e.endings, end)
	wakeOne(e.endingQueued)
}

// NextEnding tells of sessions that the store has ended, of nodes that were removed, and of marks.
func (e *Engine) NextEnding(ctx context.Context) (driver.Ending, error) {
	for {
		if ctx.Err() != nil || e.life.Err() != nil {
			return driver.Ending{}, e.contextError(ctx)
		}
		e.mu.Lock()
		if len(e.endings) > 0 {
			end := e.endings[0]
			e.endings = e.endings[1:]
			if len(e.endings) > 0 {
				wakeOne(e.endingQueued) // for another caller
			}
			e.mu.Unlock()
			return end, nil
		}
		e.mu.Unlock()
		select {
		case <-e.endingQueued:
		case <-ctx.Done():
		case <-e.life.Done():
		}
	}
}

// newPayload is what a claim's node says.
func (cl *claim) newPayload(ttl time.Duration) Payload {
	return Payload{
		ID: cl.ID, Kind: cl.Kind, Limit: cl.Limit, Weight: cl.Weight, TTL: ttl, Owner: cl.Owner, Meta: cl.Meta,
		CreatedAt: time.Now().UnixMicro(), Detached: cl.Detached,
	}
}

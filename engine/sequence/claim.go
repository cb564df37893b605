package sequence

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// claim is what this client knows of a claim of its own. All of it but the Claim is guarded by the engine's mutex.
type claim struct {
	driver.Claim
	session *session
	number  int64 // within the session

	busy    chan struct{} // not nil while an Acquire is under way; closed when it ends
	adding  chan struct{} // not nil while an Add is under way; closed when it has an answer, or will have none
	unsure  bool          // the outcome of an Add is not known, so one may yet take effect, or its node has gone without another that it may have: the claim must be withdrawn
	arrived bool          // the claim was seen to stand, and was let into the line
	node    Node          // as last seen; Token 0: not known to stand
	granted bool
	asked   driver.Instant // from when it may stand for its TTL: the client was granted it, asked for a renewal, was answered, or turned from it
	told    bool           // that its holder is asked to give up
	leaving bool           // a release is under way, or a sweep

	reweighing bool // a change of its weight is under way, or has had no answer
	loss       *driver.LossError
	seats      chan sight    // buffered; while waiting: looks by which it fits
	wake       chan struct{} // buffered; while waiting: look again
	blocker    string        // while waiting: key of the node in the way, if that is one of this client's
	unwatch    func()        // of its own node

	unwatched bool // stands in the session's list of those to be watched
}

// sight is a look, and when it was started.
type sight struct {
	Snapshot
	start driver.Instant
}

// enter finds or makes the claim that an Acquire is about. For one id one Acquire is under way at a time.
func (e *Engine) enter(ctx context.Context, c driver.Claim) (*claim, error) {
	for {
		e.mu.Lock()
		if e.life.Err() != nil {
			e.mu.Unlock()
			return nil, driver.ErrClosed
		}
		cl := e.claims[c.ID]
		if cl == nil {
			cl = &claim{Claim: c, seats: make(chan sight, 1), wake: make(chan struct{}, 1)}
			e.claims[c.ID] = cl
		}
		under := cl.busy
		if under == nil {
			under = cl.adding // an earlier call has given up, and its Add has not
		}
		if under == nil {
			cl.Wait = c.Wait
			cl.busy = make(chan struct{})
			cl.leaving = false
			e.mu.Unlock()
			return cl, nil
		}
		e.mu.Unlock()
		select {
		case <-under:
		case <-ctx.Done():
			return nil, e.over(ctx)
		}
	}
}

// exit ends an Acquire. A claim that does not stand is forgotten.
func (e *Engine) exit(cl *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	cl.asked = e.clock.Now()
	close(cl.busy)
	cl.busy = nil
	if cl.adding == nil && !cl.unsure && cl.node.Token == 0 {
		e.forgetLocked(cl)
	}
	if s := cl.session; s != nil {
		select {
		case <-cl.wake: // the node may have changed since it was looked at
			if _, ok := s.claims[cl]; ok && !s.alone {
				s.checks[cl] = struct{}{}
			}
		default:
		}
		if len(s.checks) > 0 || !cl.granted {
			s.poke()
		}
	}
}

// forget drops a claim that does not stand any more.
func (e *Engine) forget(cl *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgetLocked(cl)
}

func (e *Engine) forgetLocked(cl *claim) {
	e.unblockLocked(cl)
	if e.claims[cl.ID] == cl {
		delete(e.claims, cl.ID)
	}
	if s := cl.session; s != nil {
		delete(s.claims, cl)
		delete(s.checks, cl)
		if len(s.claims) == 0 {
			s.idleSince = e.clock.Now()
		}
	}
	if cl.unwatch != nil {
		cl.unwatch()
		cl.unwatch = nil
	}
}

// lose notes that a claim has ended from outside, tells whoever waits or holds, and returns the loss that was noted first.
func (e *Engine) lose(cl *claim, why driver.LossCause) *driver.LossError {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.loseLocked(cl, why)
}

func (e *Engine) loseLocked(cl *claim, why driver.LossCause) *driver.LossError {
	if cl.loss == nil {
		cl.loss = &driver.LossError{Cause: why}
		if cl.granted && !cl.leaving {
			e.tellLocked(driver.Ending{Name: cl.Name, ID: cl.ID, Err: cl.loss})
		}
		poke(cl.wake)
		e.unblockLocked(cl)
	}
	return cl.loss
}

// unblockLocked has those of this client look again that wait for a claim of this client, and so do not watch it.
func (e *Engine) unblockLocked(cl *claim) {
	if cl.node.Token == 0 {
		return
	}
	for w := range e.waiting[cl.Name] {
		if w.blocker == cl.node.Key {
			poke(w.wake)
		}
	}
}

// changed is called when a claim's own node may have changed.
func (e *Engine) changed(cl *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := cl.session; s != nil && !s.alone && s.stands(cl) {
		s.checks[cl] = struct{}{}
		s.poke()
	}
}

// watchOwn watches a claim's own node until it is forgotten.
func (e *Engine) watchOwn(cl *claim) {
	e.mu.Lock()
	node := cl.node
	if cl.unwatch != nil || node.Token == 0 || e.claims[cl.ID] != cl {
		e.mu.Unlock()
		return
	}
	cl.unwatch = func() {} // so that nobody else begins
	e.mu.Unlock()
	stop := e.tree.Watch(cl.Name, node.Key, 0, func() { e.changed(cl) })
	e.mu.Lock()
	if e.claims[cl.ID] == cl {
		cl.unwatch = stop
		stop = nil
	}
	e.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// seen takes in a claim's own node as it was read, and reports whether it stands unbroken. Marks are told once.
func (e *Engine) seen(cl *claim, n Node, found bool) *driver.LossError {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seenLocked(cl, n, found)
}

// seenUnder is seen for what was read under a key, beside an Acquire that may have made the claim anew since.
func (e *Engine) seenUnder(key string, cl *claim, n Node) *driver.LossError {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl.node.Key != key {
		return nil
	}
	return e.seenLocked(cl, n, n.Token != 0)
}

func (e *Engine) seenLocked(cl *claim, n Node, found bool) *driver.LossError {
	switch {
	case cl.loss != nil:
		return cl.loss
	case !found || cl.node.Token != 0 && n.Token != cl.node.Token:
		loss := e.loseLocked(cl, driver.LossBroken)
		if e.remainder != nil && e.remainder.MayHaveLeftovers(cl.node.Key) {
			cl.unsure = true
		}
		cl.node = Node{}
		return loss
	case n.Broken:
		cl.node = n
		return e.loseLocked(cl, driver.LossBroken)
	}
	if n.Renewed > cl.node.Renewed {
		cl.asked = e.clock.Now()
	}
	cl.node = n
	if n.ReleaseRequested && cl.granted && !cl.told {
		cl.told = true
		e.tellLocked(driver.Ending{Name: cl.Name, ID: cl.ID, ReleaseRequested: true})
	}
	return nil
}

// poke wakes whoever listens, if it is not awake already.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// tellLocked queues an ending for NextEnding.
func (e *Engine) tellLocked(end driver.Ending) {
	if len(e.endings) >= maxEndings {
		e.endings = e.endings[1:]
	}
	e.endings = append(e.endings, end)
	poke(e.ended)
}

// NextEnding tells of sessions that the store has ended, of nodes that were removed, and of marks.
func (e *Engine) NextEnding(ctx context.Context) (driver.Ending, error) {
	for {
		if ctx.Err() != nil || e.life.Err() != nil {
			return driver.Ending{}, e.over(ctx)
		}
		e.mu.Lock()
		if len(e.endings) > 0 {
			end := e.endings[0]
			e.endings = e.endings[1:]
			if len(e.endings) > 0 {
				poke(e.ended) // for another caller
			}
			e.mu.Unlock()
			return end, nil
		}
		e.mu.Unlock()
		select {
		case <-e.ended:
		case <-ctx.Done():
		case <-e.life.Done():
		}
	}
}

// note is what a claim's node says.
func (cl *claim) note(ttl time.Duration) Payload {
	return Payload{
		ID: cl.ID, Kind: cl.Kind, Limit: cl.Limit, Weight: cl.Weight, TTL: ttl, Owner: cl.Owner, Meta: cl.Meta,
		At: time.Now().UnixMicro(), Detached: cl.Detached,
	}
}

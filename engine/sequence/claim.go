package sequence

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// claim is what this client knows of one of its own claims. Everything but the name and the ID is guarded by the
// engine's mutex. A process may hold very many claims, so what only an Acquire needs is in its acquisition, and of
// the node there is no more than a held claim needs.
type claim struct {
	name, id string
	session  *session
	node     ownNode
	loss     *driver.LossError // not nil once the claim has ended from outside
	acquire  *acquisition      // not nil while an Acquire is under way

	addNumber int64         // of this claim within its session: see Traits.ReusesNumbers
	addDone   chan struct{} // not nil while an Add is under way; closed when it has a reply, or will get none
	// addUnresolved says that Remove is not enough to end the claim, and Withdraw is needed: an add got no reply and
	// may still take effect, or the node is gone but the store may have a leftover of it (see
	// NodeStore.MayHaveLeftovers).
	addUnresolved bool
	// numberSpent says that no other claim may get the number: an add got no reply once, or the node may live on under
	// another session.
	numberSpent bool

	progress         phase // phaseJoining, phaseWaiting or phaseGranted: how far it has come
	leaving          bool  // a release is under way, or the janitor removes the claim
	releaseRequested bool  // its node says so
	releaseNotified  bool  // the holder was notified that its release is requested
	weightUnresolved bool  // a change of its weight is under way, or got no reply
	isExclusive      bool  // a mutex or a writer: see successorLocked

	watch nodeWatch

	// lastWanted is when the client last showed that it wants the claim, by its monotonic clock: it was granted, its
	// renewal was requested or confirmed, or the client gave up waiting for it. The janitor removes a claim that nobody
	// has wanted for its TTL.
	lastWanted time.Duration
}

// ownNode is what the engine keeps of a claim's own node, as it was last read. An acquisition has all of it.
type ownNode struct {
	key     string
	token   int64 // 0: the node is not known to exist
	version int64
	renewed int64
}

// asNode is the node by its place: what Remove and ReadBreakNote ask for, with the claim's ID.
func (n ownNode) asNode(id string) Node {
	return Node{Key: n.key, Token: n.token, Payload: Payload{ID: id}}
}

// turn is how a waiting claim learns that its turn may have come.
type turn struct {
	since     driver.Instant     // when it began to wait
	snapshots chan timedSnapshot // buffered; snapshots, read by others of this client, in which the claim is granted
	wakeup    chan struct{}      // buffered; the lock may have changed, so it must be listed again
	blockedBy string             // key of the node that this claim waits for, if that is a claim of the same session
}

// nodeWatch is the watch of a claim's own node.
type nodeWatch struct {
	subscription Subscription // nil if there is none
	// How many changes the store has reported, and how many of them the last read of the node took into account.
	reported, read uint32
	started        bool // there is one, or is about to be
	scheduled      bool // in the session's list of claims that get a watch if they last
}

// end ends the watch. It is called with mu held.
func (w *nodeWatch) end() {
	if w.subscription != nil {
		w.subscription.Stop()
		w.subscription = nil
	}
}

// isUnchanged reports whether the node is as it was last read, as far as the watch has told. It is called with mu held.
func (w *nodeWatch) isUnchanged() bool {
	return w.subscription != nil && w.reported == w.read && w.subscription.IsLive()
}

// phase is where a claim is between its Acquire and its end.
//
//	joining -> waiting -> granted -> leaving
//
// A claim that is granted at once skips waiting. Every phase can be followed by leaving or lost. An Acquire that is
// repeated for a claim that was leaving (its release failed) takes it back to where it was. A claim whose session
// ended before it was granted goes from lost back to joining, under another session; a lost claim that was granted
// stays lost.
type phase int8

const (
	phaseJoining phase = iota // its node is not known to exist
	phaseWaiting              // its node exists, within the bounds of the lock
	phaseGranted              // a snapshot and a keep-alive have confirmed it
	phaseLeaving              // it is being removed
	phaseLost                 // it has ended from outside
)

// onPhaseChange, if it is not nil, is called with each change of phase. Tests check the changes with it.
var onPhaseChange func(from, to phase)

// phase derives where the claim stands: a loss comes before everything else, and a claim that leaves makes no
// progress.
func (cl *claim) phase() phase {
	switch {
	case cl.loss != nil:
		return phaseLost
	case cl.leaving:
		return phaseLeaving
	}
	return cl.progress
}

// setPhase is the only place that changes how far a claim has come, and whether it ends.
func (cl *claim) setPhase(progress phase, leaving bool, loss *driver.LossError) {
	from := cl.phase()
	cl.progress, cl.leaving, cl.loss = progress, leaving, loss
	if to := cl.phase(); onPhaseChange != nil && to != from {
		onPhaseChange(from, to)
	}
}

func (cl *claim) advanceTo(progress phase)       { cl.setPhase(progress, cl.leaving, cl.loss) }
func (cl *claim) setLeaving(leaving bool)        { cl.setPhase(cl.progress, leaving, cl.loss) }
func (cl *claim) setLoss(loss *driver.LossError) { cl.setPhase(cl.progress, cl.leaving, loss) }

// wasGranted reports whether the claim has been granted, whatever became of it since.
func (cl *claim) wasGranted() bool { return cl.progress == phaseGranted }

// isBusy reports whether an Acquire or an Add of the claim is under way. Only that call decides about the claim then.
func (cl *claim) isBusy() bool { return cl.acquire != nil || cl.addDone != nil }

// timedSnapshot is a snapshot with the time at which its request was started.
type timedSnapshot struct {
	Snapshot
	start driver.Instant
}

// beginAcquire finds the claim that an Acquire is for, or makes it. Only one Acquire per claim ID runs at a time;
// another one waits here.
func (e *Engine) beginAcquire(ctx context.Context, c driver.Claim) (*acquisition, error) {
	for {
		e.mu.Lock()
		if e.life.Err() != nil {
			e.mu.Unlock()
			return nil, driver.ErrClosed
		}
		cl := e.claims[c.ID]
		if cl == nil {
			cl = &claim{name: c.Name, id: c.ID, isExclusive: c.Exclusive() && c.Kind != driver.KindSemaphore}
			e.claims[c.ID] = cl
		}
		// Acquires for one ID must not overlap: each would believe that the claim's node is its own.
		under := cl.addDone // not nil: an earlier call was given up, but its Add is still under way
		if cl.acquire != nil {
			under = cl.acquire.done
		}
		if under == nil {
			a := &acquisition{
				retryLoop: e.newRetryLoop(ctx, c.TTL), Claim: c, cl: cl, done: make(chan struct{}),
				turn: turn{snapshots: make(chan timedSnapshot, 1), wakeup: make(chan struct{}, 1)},
			}
			cl.acquire = a
			cl.setLeaving(false)
			e.mu.Unlock()
			return a, nil
		}
		e.mu.Unlock()
		select {
		case <-under:
		case <-ctx.Done():
			return nil, e.contextError(ctx)
		}
	}
}

// endAcquire ends an Acquire. A claim without a node, and without an Add that might create one, is forgotten.
func (e *Engine) endAcquire(a *acquisition) {
	e.mu.Lock()
	defer e.mu.Unlock()
	cl := a.cl
	cl.lastWanted = e.clock.Monotonic()
	close(a.done)
	cl.acquire = nil
	// Otherwise the claim stays known, so that a release or the janitor can remove what is left of it.
	if cl.addDone == nil && !cl.addUnresolved && cl.node.token == 0 {
		e.forgetClaimLocked(cl)
	}
	if s := cl.session; s != nil {
		select {
		case <-a.turn.wakeup: // the node may have changed since it was read
			if s.has(cl) && !s.forDetached {
				s.toCheck[cl] = struct{}{}
			}
		default:
		}
		if len(s.toCheck) > 0 || !cl.wasGranted() {
			s.wakeJanitor()
		}
	}
}

// forgetClaim drops a claim whose node is gone.
func (e *Engine) forgetClaim(cl *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgetClaimLocked(cl)
}

// forgetClaimLocked removes a claim that has ended from the engine and its session, and wakes those that it
// blocked.
func (e *Engine) forgetClaimLocked(cl *claim) {
	e.wakeBlockedLocked(cl)
	if s := cl.session; s != nil && s.has(cl) {
		s.freeNumber(cl)
		s.dropClaim(cl)
		if s.claimCount == 0 {
			s.noteIdle()
		}
	}
	if e.claims[cl.id] == cl {
		delete(e.claims, cl.id)
	}
	cl.watch.end()
}

// markLost records that a claim has ended from outside, and notifies its waiting Acquire or its holder. It returns the
// loss that was recorded first.
func (e *Engine) markLost(cl *claim, why driver.LossCause) *driver.LossError {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.markLostLocked(cl, &driver.LossError{Cause: why})
}

// markLostLocked records that a claim is lost. Only the first cause counts. The holder is told by an ending, and a
// waiter by being woken.
func (e *Engine) markLostLocked(cl *claim, loss *driver.LossError) *driver.LossError {
	if cl.loss == nil {
		cl.setLoss(loss)
		if cl.wasGranted() && !cl.leaving {
			e.queueEndingLocked(driver.Ending{Name: cl.name, ID: cl.id, Err: cl.loss})
		}
		if cl.acquire != nil {
			wakeOne(cl.acquire.turn.wakeup)
		}
		e.wakeBlockedLocked(cl)
	}
	return cl.loss
}

// wakeBlockedLocked wakes the waiters of this client that wait for this claim. They do not watch its node. It is
// called with mu held.
func (e *Engine) wakeBlockedLocked(cl *claim) {
	if cl.node.token == 0 {
		return
	}
	for a := range e.waiting[cl.name] {
		if a.turn.blockedBy == cl.node.key {
			wakeOne(a.turn.wakeup)
		}
	}
}

// requestCheck has the janitor read a claim's node, which may have changed. Until it was read, no renewal relies on the
// watch.
func (e *Engine) requestCheck(cl *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	cl.watch.reported++
	if s := cl.session; s != nil && !s.forDetached && s.isWanted(cl) {
		s.toCheck[cl] = struct{}{}
		s.wakeJanitor()
	}
}

// watchOwnNode watches a claim's own node until the claim is forgotten.
func (e *Engine) watchOwnNode(cl *claim) {
	e.mu.Lock()
	node := cl.node
	if cl.watch.started || node.token == 0 || e.claims[cl.id] != cl {
		e.mu.Unlock()
		return
	}
	cl.watch.started = true
	e.mu.Unlock()
	// Not under the mutex: the store has locks of its own. The token is the revision in which the node was made, so
	// each change since then is reported.
	subscription := e.store.Watch(cl.name, node.key, node.token, func() { e.requestCheck(cl) })
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.claims[cl.id] != cl || cl.node.key != node.key {
		subscription.Stop()
		return
	}
	cl.watch.subscription = subscription
}

// updateNode updates a claim with its own node as it was read. It returns a loss if the node is gone, is another one or
// is marked as broken.
func (e *Engine) updateNode(cl *claim, n Node, found bool) *driver.LossError {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.updateNodeLocked(cl, n, found)
}

// updateNodeUnder is updateNode for a node that was read by its key, when the watch had reported so many changes. It
// does nothing if the claim has another node by now: an Acquire may have added it since the read, and a node that is
// gone under the old key says nothing about the new one.
func (e *Engine) updateNodeUnder(key string, reported uint32, cl *claim, n Node) *driver.LossError {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl.node.key != key {
		return nil
	}
	cl.watch.read = reported
	return e.updateNodeLocked(cl, n, n.Token != 0)
}

// updateNodeLocked takes over what the store shows of the claim's node, and returns the loss if that means one.
func (e *Engine) updateNodeLocked(cl *claim, n Node, found bool) *driver.LossError {
	switch {
	case cl.loss != nil:
		return cl.loss
	// A node goes by its owner's release, with its session, or by a break. The owner has not released it, and the
	// callers have made sure that the session lives, so it was broken.
	case !found || cl.node.token != 0 && n.Token != cl.node.token:
		loss := e.markLostLocked(cl, driverutil.BrokenError(n.BreakReason))
		if e.store.MayHaveLeftovers(cl.node.key) {
			// Only Withdraw removes the leftover.
			cl.addUnresolved, cl.numberSpent = true, true
		}
		cl.setNode(Node{})
		return loss
	case n.Broken:
		cl.setNode(n)
		return e.markLostLocked(cl, driverutil.MarkedError(n.BreakReason))
	}
	// Another process has renewed the claim, so it is wanted.
	if n.Renewed > cl.node.renewed {
		cl.lastWanted = e.clock.Monotonic()
	}
	cl.setNode(n)
	if n.ReleaseRequested && cl.wasGranted() && !cl.releaseNotified {
		cl.releaseNotified = true
		e.queueEndingLocked(driver.Ending{Name: cl.name, ID: cl.id, ReleaseRequested: true})
	}
	return nil
}

// setNode records the claim's own node as it was read or written; a zero Node: it does not exist. It is called
// with mu held.
func (cl *claim) setNode(n Node) {
	key := cl.node.key // kept if it is equal: it may be part of the claim's ref
	if n.Key != key {
		key = n.Key
	}
	cl.node = ownNode{key: key, token: n.Token, version: n.Version, renewed: n.Renewed}
	cl.releaseRequested = n.ReleaseRequested
	if cl.acquire != nil {
		cl.acquire.node = n
	}
}

// wakeOne wakes the reader of a channel of capacity 1. It does nothing if a wake-up is already pending.
func wakeOne(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// newPayload is the payload of a claim's new node.
func newPayload(c *driver.Claim, ttl time.Duration) Payload {
	return Payload{
		ID: c.ID, Kind: c.Kind, Limit: c.Limit, Weight: c.Weight, TTL: ttl, Owner: c.Owner, Meta: c.Meta,
		CreatedAt: time.Now().UnixMicro(), Detached: c.Detached,
	}
}

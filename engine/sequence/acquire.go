package sequence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Acquire takes a free lock in one request to the tree, beside which a beat flies if the last one is old. A claim that
// does not fit waits in its place; it is granted by a look that shows it in a place that fits.
func (e *Engine) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := c.Check(e.info); err != nil {
		return driver.Grant{}, err
	}
	if c.Detached && e.mover == nil {
		return driver.Grant{}, fmt.Errorf("%w: on this store a claim ends with its client, so none can be detached", driver.ErrUnsupported)
	}
	ctx, done := e.bindContext(ctx)
	defer done()
	if ctx.Err() != nil {
		return driver.Grant{}, e.contextError(ctx)
	}
	cl, err := e.beginAcquire(ctx, c)
	if err != nil {
		return driver.Grant{}, err
	}
	defer e.endAcquire(cl)
	a := &acquisition{retryLoop: e.newRetryLoop(ctx, driver.UnreachableTimeout(c.TTL)), cl: cl}
	for {
		g, err := a.joinAndWait()
		if !a.rejoinAfterSessionEnd(err) {
			return g, a.finalError(err)
		}
	}
}

// acquisition is one Acquire under way.
type acquisition struct {
	*retryLoop
	cl        *claim
	lastNodes []Node // as the lock was seen last

	watchedKey string // the key that is watched
	isWatching bool
	stopWatch  func() // the watch

	endedSessions int // how many have ended under the claim
}

// rejoinAfterSessionEnd has the claim made again, behind all that stand, if its session has ended before it was granted: the client was
// stopped for longer than its TTL, or the store was silent or had lost its leader. Nobody wanted the wait to end.
func (a *acquisition) rejoinAfterSessionEnd(err error) bool {
	var loss *driver.LossError
	if !errors.As(err, &loss) || loss.Cause != driver.LossSessionExpired || !a.dropEndedSession() {
		return false
	}
	a.noteAnswer() // it has said so
	if a.endedSessions++; a.endedSessions > 1 {
		_ = a.e.sleep(a.ctx, rand.N(10*time.Millisecond<<min(a.endedSessions, 6)))
	}
	return true
}

// dropEndedSession lets go of a session that has ended, and of the node with it, unless the claim was granted under it.
func (a *acquisition) dropEndedSession() bool {
	e, cl := a.e, a.cl
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl.wasGranted() || e.life.Err() != nil || a.ctx.Err() != nil {
		return false
	}
	if s := cl.session; s != nil {
		delete(s.claims, cl)
		delete(s.toCheck, cl)
	}
	if cl.watch.stop != nil {
		cl.watch.stop()
	}
	e.wakeBlockedLocked(cl)
	cl.setPhase(phaseJoining, cl.leaving, nil)
	cl.session, cl.node, cl.add.unresolved, cl.turn.blockedBy, cl.watch = nil, Node{}, false, "", nodeWatch{}
	return true
}

// finalError gives an error its final form. A wait that was given up says for whom it was in vain; that it has ended for another
// reason as well, at the same time, is nothing that its caller asks for any more.
func (a *acquisition) finalError(err error) error {
	if errors.Is(err, driver.ErrDenied) && a.mayHaveNode() { // the client gives it back only if it is told so
		err = fmt.Errorf("%w: %w", driver.ErrUncertain, err)
	}
	if err == nil || a.ctx.Err() == nil || a.e.life.Err() != nil {
		return err
	}
	if errors.Is(err, driver.ErrLost) && !a.wasGranted() {
		err = driver.Uncertain(a.ctx.Err())
	}
	var told *driver.HeldError
	if !errors.Is(err, a.ctx.Err()) || len(a.lastNodes) == 0 || errors.As(err, &told) {
		return err
	}
	return fmt.Errorf("%w: %w", err, newHeldError(a.lastNodes))
}

// mayHaveNode reports whether a node of the claim stands, or may come to stand.
func (a *acquisition) mayHaveNode() bool {
	a.e.mu.Lock()
	defer a.e.mu.Unlock()
	return a.cl.add.unresolved || a.cl.node.Token != 0
}

func (a *acquisition) wasGranted() bool {
	a.e.mu.Lock()
	defer a.e.mu.Unlock()
	return a.cl.wasGranted()
}

// joinAndWait puts the claim in line under one session, and sees it through.
func (a *acquisition) joinAndWait() (driver.Grant, error) {
	e, cl := a.e, a.cl
	s, err := e.bindSession(a.ctx, cl)
	for err != nil {
		if err = a.waitAndRetry(err); err != nil {
			return driver.Grant{}, err
		}
		s, err = e.bindSession(a.ctx, cl)
	}
	if s.isStale() {
		e.startGoroutine(func() { _, _ = s.freshKeepAlive(e.life) }) // it flies beside the add
	}
	seen, err := a.joinLine(s)
	if err == nil {
		seen, err = a.waitForTurn(s, seen)
	}
	a.stopWatching()
	if err != nil {
		return driver.Grant{}, err
	}
	return a.confirmGrant(s, seen)
}

// confirmGrant is what a look has shown, confirmed by a beat.
func (a *acquisition) confirmGrant(s *session, seen timedSnapshot) (driver.Grant, error) {
	e, cl := a.e, a.cl
	since, err := s.freshKeepAlive(a.ctx)
	for err != nil {
		if errors.Is(err, ErrSessionExpired) {
			return driver.Grant{}, e.markLost(cl, driver.LossSessionExpired)
		}
		if err = a.waitAndRetry(err); err != nil {
			return driver.Grant{}, err
		}
		since, err = s.freshKeepAlive(a.ctx)
	}
	if e.clock.Since(seen.start) > e.clock.Since(since) {
		since = seen.start
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl.loss != nil {
		return driver.Grant{}, cl.loss
	}
	cl.advanceTo(phaseGranted)
	cl.lastWanted = e.clock.Now()
	e.scheduleWatchLocked(cl)
	return driver.Grant{Claim: cl.Claim, Token: cl.node.Token, Since: since, GrantedTTL: s.TTL, Ref: formatRef(cl.node)}, nil
}

// joinLine makes the claim stand, and looks at how it stands. It stood before if this is asked for again.
func (a *acquisition) joinLine(s *session) (timedSnapshot, error) {
	e, cl := a.e, a.cl
	e.mu.Lock()
	stood := cl.node.Token != 0
	e.mu.Unlock()
	if stood {
		return a.readLine(s)
	}
	guard := AddAlways
	switch {
	case !cl.Wait:
		guard = AddIfAlone
	case e.hasWaiters(cl.Name):
		guard = AddBatched
	}
	for passed := 1; ; passed++ {
		seen, err := a.addNode(s, guard)
		if err != nil {
			if errors.Is(err, ErrSessionExpired) {
				s.markExpired()
				return seen, e.markLost(cl, driver.LossSessionExpired)
			}
			if err := a.waitAndRetry(err); err != nil {
				return seen, err
			}
			continue
		}
		a.noteAnswer()
		a.lastNodes = seen.Nodes
		if i := findOwn(seen.Nodes, cl.ID, s.ID); i >= 0 {
			return seen, a.acceptJoin(s, seen, i)
		}
		if a.ctx.Err() != nil {
			return seen, driver.Uncertain(e.contextError(a.ctx))
		}
		err = a.whyRefused(seen)
		var told *driver.HeldError
		if errors.As(err, &told) && len(told.Holders) == 0 {
			continue // those who held it have gone meanwhile
		}
		if err != nil {
			return seen, a.removeThenRefuse(s, err)
		}
		guard = AddCondition(seen.Revision)
		if passed >= maxOvertaken {
			guard = AddAlways // it may come to stand in line, and is taken back then
		}
	}
}

// maxOvertaken is how often a claim that does not wait looks anew because others have come since it saw room. Far from a store where
// others come all the time it would do nothing else.
const maxOvertaken = 8

// hasWaiters reports whether claims of this client wait for a lock.
func (e *Engine) hasWaiters(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.waiting[name]) > 0
}

// acceptJoin takes in that the claim has come to stand, and takes it back if it may not.
func (a *acquisition) acceptJoin(s *session, seen timedSnapshot, i int) error {
	e, cl := a.e, a.cl
	if loss := e.updateNode(cl, seen.Nodes[i], true); loss != nil {
		return loss
	}
	e.mu.Lock()
	joined := cl.progress != phaseJoining
	e.mu.Unlock()
	if joined {
		return nil
	}
	err := checkMismatch(seen.Nodes[:i], &cl.Claim)
	if err == nil && exceedsBounds(seen.Nodes, i, e.info) {
		err = driver.ErrQueueFull
	}
	if err == nil && !cl.Wait && !isGranted(seen.Nodes, i) { // the tree could not guard the add
		err = a.readHeldError(seen)
	}
	if err != nil {
		return a.removeThenRefuse(s, err)
	}
	e.mu.Lock()
	cl.advanceTo(phaseWaiting)
	e.mu.Unlock()
	return nil
}

// whyRefused is why a claim that does not wait is not let in, going by a look without it; nil: it would be.
func (a *acquisition) whyRefused(seen timedSnapshot) error {
	if err := checkMismatch(seen.Nodes, &a.cl.Claim); err != nil {
		return err
	}
	switch {
	case !hasRoom(seen.Nodes, &a.cl.Claim):
		return a.readHeldError(seen)
	case len(seen.Nodes) >= a.e.info.MaxHolders:
		return driver.ErrQueueFull
	}
	return nil
}

// removeThenRefuse makes sure that nothing is left of a claim that is refused.
func (a *acquisition) removeThenRefuse(s *session, refusal error) error {
	a.e.mu.Lock()
	trace := a.cl.node.Token != 0 || a.cl.add.unresolved
	a.e.mu.Unlock()
	if trace {
		if err := a.removeOwnNode(s); err != nil {
			return fmt.Errorf("%w: %v", err, refusal) // no refusal: it may stand
		}
	}
	return refusal
}

func (a *acquisition) readHeldError(seen timedSnapshot) error {
	if !seen.Full {
		if l, err := a.listNodes(true); err == nil {
			return newHeldError(l.Nodes)
		}
	}
	return newHeldError(seen.Nodes)
}

// removeOwnNode removes the claim's node within this call.
func (a *acquisition) removeOwnNode(s *session) error {
	e, cl := a.e, a.cl
	for {
		ctx, cancel := requestContext(a.ctx)
		e.mu.Lock()
		n, unsure := cl.node, cl.add.unresolved
		e.mu.Unlock()
		var err error
		if unsure {
			_, err = e.store.Withdraw(ctx, cl.Name, s.Session, cl.add.number, cl.ID)
		} else {
			_, _, err = e.store.Remove(ctx, cl.Name, Node{Key: n.Key, Token: n.Token}, false)
		}
		cancel()
		if err == nil || errors.Is(err, ErrSessionExpired) { // then it went with the session
			e.mu.Lock()
			e.wakeBlockedLocked(cl)
			cl.node, cl.add.unresolved = Node{}, false
			e.mu.Unlock()
			return nil
		}
		if err := a.waitAndRetry(err); err != nil {
			return err
		}
	}
}

// addNode sends the add and waits for its answer. The add goes on when the caller gives up: whoever releases the claim then
// waits for the answer, and nearly always knows what there is to be removed.
func (a *acquisition) addNode(s *session, guard AddCondition) (timedSnapshot, error) {
	e, cl := a.e, a.cl
	answer := make(chan error, 1)
	var seen timedSnapshot
	flight := make(chan struct{})
	e.mu.Lock()
	cl.add.done = flight
	number := cl.add.number
	ok := e.startGoroutineLocked(func() {
		ctx, cancel := requestContext(e.life)
		defer cancel()
		start := e.clock.Now()
		look, err := e.store.Add(ctx, cl.Name, s.Session, number, cl.newPayload(s.TTL), guard)
		seen = timedSnapshot{look, start}
		e.finishAdd(cl, s, look, err)
		answer <- err
		close(flight)
	})
	if !ok {
		cl.add.done = nil
	}
	e.mu.Unlock()
	if !ok {
		return timedSnapshot{}, driver.ErrClosed
	}
	select {
	case err := <-answer:
		return seen, err
	case <-a.ctx.Done():
		return timedSnapshot{}, e.contextError(a.ctx)
	}
}

// finishAdd notes what an add has brought, before anybody else can see that it has ended.
func (e *Engine) finishAdd(cl *claim, s *session, look Snapshot, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	cl.add.done = nil
	cl.add.unresolved = cl.add.unresolved || err != nil && !errors.Is(err, ErrSessionExpired) && !driver.IsFinal(err)
	if err == nil {
		if i := findOwn(look.Nodes, cl.ID, s.ID); i >= 0 {
			cl.node = look.Nodes[i]
		}
	}
	if cl.acquireDone == nil { // given up: it is released, or swept
		cl.lastWanted = e.clock.Now()
		if !cl.add.unresolved && cl.node.Token == 0 {
			e.forgetClaimLocked(cl)
		}
		s.wakeJanitor()
	}
}

// listNodes reads the lock once.
func (a *acquisition) listNodes(full bool) (timedSnapshot, error) {
	ctx, cancel := requestContext(a.ctx)
	defer cancel()
	start := a.e.clock.Now()
	look, err := a.e.store.List(ctx, a.cl.Name, full)
	return timedSnapshot{look, start}, err
}

// readLine reads the lock until there is an answer, shares it with the others of this client that wait, and takes in how the
// claim stands.
func (a *acquisition) readLine(s *session) (timedSnapshot, error) {
	for {
		done := a.e.beginListing(a.cl.Name)
		seen, err := a.listNodes(false)
		if err == nil {
			a.noteAnswer()
			a.e.shareSnapshot(seen, a.cl)
		}
		done()
		if err == nil {
			return seen, a.checkOwnNode(s, seen)
		}
		if err := a.waitAndRetry(err); err != nil {
			return seen, err
		}
	}
}

// beginListing notes that a look is under way, until done is called, unless another one is.
func (e *Engine) beginListing(name string) (done func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listings[name] != nil {
		return func() {}
	}
	looking := make(chan struct{})
	e.listings[name] = looking
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.listings, name)
		close(looking)
	}
}

// checkOwnNode notes what a look shows of the claim.
func (a *acquisition) checkOwnNode(s *session, seen timedSnapshot) error {
	a.lastNodes = seen.Nodes
	i := findOwn(seen.Nodes, a.cl.ID, s.ID)
	var n Node
	if i >= 0 {
		n = seen.Nodes[i]
		if !seen.Full { // the listing may not say it
			a.e.mu.Lock()
			n.Token, n.Version = a.cl.node.Token, a.cl.node.Version
			a.e.mu.Unlock()
		}
	}
	if i < 0 { // if it is the session that has ended, that is what there is to tell
		for err := s.keepAlive(a.ctx); err != nil && !errors.Is(err, ErrSessionExpired); err = s.keepAlive(a.ctx) {
			if err := a.waitAndRetry(err); err != nil {
				return err
			}
		}
	}
	if loss := a.e.updateNode(a.cl, n, i >= 0); loss != nil {
		return loss
	}
	return nil
}

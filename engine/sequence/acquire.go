package sequence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Acquire takes a free lock with one request to the store. If the session's last keep-alive is old, another one is sent
// at the same time. A claim that is not granted waits at its place, until a snapshot shows that it is granted.
func (e *Engine) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := c.Check(e.info); err != nil {
		return driver.Grant{}, err
	}
	if c.Detached && !e.traits.Moves {
		return driver.Grant{}, fmt.Errorf("%w: on this store a claim ends with its client, so none can be detached",
			driver.ErrUnsupported)
	}
	ctx, done := e.life.Bind(ctx)
	defer done()
	if ctx.Err() != nil {
		return driver.Grant{}, e.contextError(ctx)
	}
	a, err := e.beginAcquire(ctx, c)
	if err != nil {
		return driver.Grant{}, err
	}
	defer e.endAcquire(a)
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
	driver.Claim               // what is asked for
	cl           *claim        // what is known of it
	done         chan struct{} // closed when the Acquire ends
	lastNodes    []Node        // of the last snapshot

	// Guarded by the engine's mutex.
	turn turn
	node Node // the claim's own, as last read during this call

	watchedKey string
	blocker    Subscription // to the node with watchedKey

	endedSessions int // how often its session has ended during this call
}

// rejoinAfterSessionEnd reports whether the claim is to join the lock again, behind all others, because its session
// ended before it was granted: this process was stopped for longer than the TTL, or the store was unreachable or had
// lost its leader. The caller still wants the lock, so the wait goes on.
func (a *acquisition) rejoinAfterSessionEnd(err error) bool {
	var loss *driver.LossError
	if !errors.As(err, &loss) || loss.Cause != driver.LossSessionExpired || !a.dropEndedSession() {
		return false
	}
	a.NoteAnswer() // that the session has ended is an answer
	if a.endedSessions++; a.endedSessions > 1 {
		_ = a.e.life.Sleep(a.ctx, rand.N(10*time.Millisecond<<min(a.endedSessions, 6)))
	}
	return true
}

// dropEndedSession separates the claim from a session that has ended, and forgets the node that went with it. It
// returns false if the claim was granted under that session: then the claim is lost. It also does so if the call has
// ended.
func (a *acquisition) dropEndedSession() bool {
	e, cl := a.e, a.cl
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl.wasGranted() || e.life.Err() != nil || a.ctx.Err() != nil {
		return false
	}
	if s := cl.session; s != nil && s.has(cl) {
		s.dropClaim(cl)
	}
	cl.watch.end()
	e.wakeBlockedLocked(cl)
	cl.setPhase(phaseJoining, cl.leaving, nil)
	cl.setNode(Node{})
	cl.session, cl.addUnresolved, cl.watch, a.turn.blockedBy = nil, false, nodeWatch{}, ""
	return true
}

// finalError turns an error into the one that Acquire returns. A wait that the caller gave up reports who holds the
// lock. If the claim was lost for another reason at the same time, the caller does not need to know, unless it had been
// granted. Any other error is uncertain while the claim may have a node: only then will the client release it.
func (a *acquisition) finalError(err error) error {
	if ended := a.ctx.Err(); err != nil && ended != nil && a.e.life.Err() == nil {
		if errors.Is(err, driver.ErrLost) && !a.wasGranted() {
			err = ended
		}
		var heldErr *driver.HeldError
		if errors.Is(err, ended) && len(a.lastNodes) > 0 && !errors.As(err, &heldErr) {
			err = fmt.Errorf("%w: %w", err, newHeldError(a.lastNodes))
		}
	}
	a.Uncertain = a.mayHaveNode() && !errors.Is(err, driver.ErrLost)
	return a.End(err)
}

// mayHaveNode reports whether a node of the claim exists, or may yet be created by an Add.
func (a *acquisition) mayHaveNode() bool {
	a.e.mu.Lock()
	defer a.e.mu.Unlock()
	return a.cl.addDone != nil || a.cl.addUnresolved || a.cl.node.token != 0
}

func (a *acquisition) wasGranted() bool {
	a.e.mu.Lock()
	defer a.e.mu.Unlock()
	return a.cl.wasGranted()
}

// joinAndWait adds the claim's node under one session, waits for its turn, and confirms it.
func (a *acquisition) joinAndWait() (driver.Grant, error) {
	s, seen, err := a.enterAndJoin()
	if err != nil {
		return driver.Grant{}, err
	}
	seen, err = a.waitForTurn(s, seen)
	a.stopWatching()
	if err != nil {
		return driver.Grant{}, err
	}
	return a.confirmGrant(s, seen)
}

// enterAndJoin waits until the claim may join its lock, and has it join. A claim that may have a node already, from an
// earlier Acquire, does not wait for that: the refusal that waiting claims share would be wrong for it, because its
// node may be in the queue. The claim gets its session after the wait, since a session could end meanwhile.
func (a *acquisition) enterAndJoin() (s *session, seen timedSnapshot, err error) {
	if a.Wait && !a.mayHaveNode() {
		var arrivals int
		if arrivals, err = a.enter(); err != nil {
			return nil, seen, err
		}
		defer func() { a.leaveEntrance(arrivals, err) }()
		if err = a.checkRoom(); err != nil {
			return nil, seen, err
		}
	}
	return a.bindAndJoin()
}

// bindAndJoin is ensureNode after the claim was bound to a session, which it returns. Without a session there is no
// node.
func (a *acquisition) bindAndJoin() (*session, timedSnapshot, error) {
	a.RequestStarted(a.e.clock.Now())
	s, err := a.bindSession()
	for err != nil {
		if err = a.waitAndRetry(err); err != nil {
			return nil, timedSnapshot{}, err
		}
		s, err = a.bindSession()
	}
	// The grant needs a fresh keep-alive. Sent now, its reply is there when the add has its own, so a free lock
	// costs one round trip.
	if s.isStale() {
		a.e.life.Go(func() { _, _ = s.freshKeepAlive(a.e.life) }) // while the add is under way
	}
	seen, err := a.ensureNode(s)
	return s, seen, err
}

// confirmGrant grants the claim that a snapshot showed to be granted, after a keep-alive of its session. The grant
// counts from the earlier start of the two requests.
func (a *acquisition) confirmGrant(s *session, seen timedSnapshot) (driver.Grant, error) {
	e, cl := a.e, a.cl
	a.RequestStarted(e.clock.Now())
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
	// The older of the two requests limits the trust: the keep-alive may be newer than the snapshot, or the other
	// way around.
	if e.clock.Since(seen.start) > e.clock.Since(since) {
		since = seen.start
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl.loss != nil {
		return driver.Grant{}, cl.loss
	}
	// No loss was noticed between the snapshot and this moment.
	cl.advanceTo(phaseGranted)
	cl.lastWanted = e.clock.Monotonic()
	e.scheduleWatchLocked(cl)
	ref := a.node.Ref
	if ref == "" || a.node.Token != cl.node.token {
		ref = FormatRef(cl.node.key, cl.node.token)
	}
	cl.node.key = ref[:len(cl.node.key)] // the holder keeps the ref, so the key costs no memory of its own
	return driver.Grant{Claim: a.Claim, Token: cl.node.token, Since: since, GrantedTTL: s.TTL, Ref: ref}, nil
}

// ensureNode makes sure that the claim has a node, and returns a snapshot with it. The node exists already if an
// earlier Acquire for the same claim was given up. After an error that is not final, the node may exist.
func (a *acquisition) ensureNode(s *session) (timedSnapshot, error) {
	e, cl := a.e, a.cl
	e.mu.Lock()
	existed := cl.node.token != 0
	e.mu.Unlock()
	if existed {
		return a.readSnapshot(s)
	}
	// A claim that does not wait must leave no node behind if the lock is held, so at first it is added only to a lock
	// without nodes. If the reply shows nodes behind which it would be granted nevertheless, the next add is made on
	// the condition that no other has come.
	condition := AddAlways
	switch {
	case !a.Wait:
		condition = AddIfAlone
	case e.hasWaiters(a.Name):
		condition = AddBatched
	}
	for passed := 1; ; passed++ {
		seen, err := a.addNode(s, condition)
		if err != nil {
			if errors.Is(err, ErrSessionExpired) {
				// The store has just said so, and the keep-alive loop need not find it out again.
				s.markExpired()
				return seen, e.markLost(cl, driver.LossSessionExpired)
			}
			if err := a.waitAndRetry(err); err != nil {
				return seen, err
			}
			continue
		}
		a.NoteAnswer()
		a.lastNodes = seen.Nodes
		// The node is there, from this add or from an earlier one without a reply.
		if i := findOwn(seen.Nodes, a.ID, s.ID); i >= 0 {
			return a.acceptJoin(s, seen, i)
		}
		if a.ctx.Err() != nil {
			return seen, e.contextError(a.ctx)
		}
		// A node has the key that this client did not know of, such as one that was restored from a backup.
		if condition < 0 && e.traits.ReusesNumbers {
			if a.mayHaveNode() { // an add without a reply, which could still take effect under the old number
				if err := a.removeOwnNode(s); err != nil {
					return seen, err
				}
			}
			s.renumber(cl)
			continue
		}
		err = a.whyRefused(seen)
		var heldErr *driver.HeldError
		if errors.As(err, &heldErr) && len(heldErr.Holders) == 0 {
			continue // the holders have gone meanwhile
		}
		if err != nil {
			return seen, a.removeThenRefuse(s, err)
		}
		condition = AddCondition(seen.Revision)
		if passed >= maxOvertaken {
			condition = AddAlways // if it is not granted, its node is removed again
		}
	}
}

// maxOvertaken is how often a claim that does not wait lists the lock again because others have joined between its
// read, which showed room, and its add. On a busy lock that is far away this could go on forever.
const maxOvertaken = 8

// hasWaiters reports whether claims of this client wait for the lock.
func (e *Engine) hasWaiters(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.waiting[name]) > 0
}

// acceptJoin checks the place at which the new node was added, and removes the node if the claim may not stay there:
// the lock has another kind or limit, it has too many holders or waiters, or the claim does not wait and is not
// granted. It returns the snapshot by which the claim stays.
func (a *acquisition) acceptJoin(s *session, seen timedSnapshot, i int) (timedSnapshot, error) {
	e, cl := a.e, a.cl
	if loss := e.updateNode(cl, seen.Nodes[i], true); loss != nil {
		return seen, loss
	}
	e.mu.Lock()
	joined := cl.progress != phaseJoining
	e.mu.Unlock()
	if joined {
		return seen, nil
	}
	// Only the nodes ahead count: a later claim of another kind is the one that must go.
	err := checkMismatch(seen.Nodes[:i], &a.Claim)
	if err == nil && exceedsBounds(seen.Nodes, i, e.info) {
		err = driver.ErrQueueFull
		e.noteFull(a.Name)
	}
	if err == nil && !a.Wait && !isGranted(seen.Nodes, i) { // the store cannot add under a condition
		if !seen.Full {
			// The refusal needs a full list, by which the claim may be granted meanwhile. Then it must not be
			// refused: others have been, because its node is ahead of theirs.
			if l, listErr := a.listNodes(true); listErr == nil {
				if k := findOwn(l.Nodes, a.ID, s.ID); k >= 0 {
					return a.acceptJoin(s, l, k)
				}
			}
		}
		err = newHeldError(slices.Concat(seen.Nodes[:i], seen.Nodes[i+1:]))
	}
	if err != nil {
		return seen, a.removeThenRefuse(s, err)
	}
	e.mu.Lock()
	cl.advanceTo(phaseWaiting)
	e.mu.Unlock()
	return seen, nil
}

// whyRefused is why a claim that does not wait is not added to the lock as it is in this snapshot. It returns nil if
// the claim would be granted.
func (a *acquisition) whyRefused(seen timedSnapshot) error {
	if err := checkMismatch(seen.Nodes, &a.Claim); err != nil {
		return err
	}
	switch {
	case !hasRoom(seen.Nodes, &a.Claim):
		return a.readHeldError(seen)
	case len(seen.Nodes) >= a.e.info.MaxHolders:
		return driver.ErrQueueFull
	}
	return nil
}

// removeThenRefuse returns the refusal once nothing is left of the claim. If that cannot be made sure, it returns the
// reason instead: the caller must not take a claim that may exist for a refused one.
func (a *acquisition) removeThenRefuse(s *session, refusal error) error {
	a.e.mu.Lock()
	exists := a.cl.node.token != 0 || a.cl.addUnresolved
	a.e.mu.Unlock()
	if exists {
		if err := a.removeOwnNode(s); err != nil {
			return fmt.Errorf("%w: %v", err, refusal) // not the refusal itself: the node may exist
		}
	}
	return refusal
}

// readHeldError is the refusal of a claim that does not wait. It names the holders, for which the lock is listed in
// full if necessary.
func (a *acquisition) readHeldError(seen timedSnapshot) error {
	if !seen.Full {
		if l, err := a.listNodes(true); err == nil {
			return newHeldError(l.Nodes)
		}
	}
	return newHeldError(seen.Nodes)
}

// removeOwnNode removes the claim's node, and tries again until the store has answered or the call ends.
func (a *acquisition) removeOwnNode(s *session) error {
	e, cl := a.e, a.cl
	for {
		ctx, cancel := requestContext(a.ctx)
		e.mu.Lock()
		n, unresolved := cl.node, cl.addUnresolved
		e.mu.Unlock()
		var err error
		// Remove ends only the node that is known. A delayed add could bring another one.
		if unresolved {
			_, err = e.store.Withdraw(ctx, cl.name, s.Session, cl.addNumber, cl.id)
		} else {
			_, _, err = e.store.Remove(ctx, cl.name, Node{Key: n.key, Token: n.token}, Then{})
		}
		cancel()
		if err == nil || errors.Is(err, ErrSessionExpired) { // then the node went with the session
			e.mu.Lock()
			e.wakeBlockedLocked(cl)
			cl.setNode(Node{})
			cl.addUnresolved = false
			e.mu.Unlock()
			return nil
		}
		if err := a.waitAndRetry(err); err != nil {
			return err
		}
	}
}

// addNode sends the Add and waits for its reply. The request goes on if the caller gives up. A release of the claim
// waits for the reply, so it nearly always knows which node to remove, and need not withdraw it.
func (a *acquisition) addNode(s *session, condition AddCondition) (timedSnapshot, error) {
	e, cl := a.e, a.cl
	a.RequestStarted(e.clock.Now())
	answer := make(chan error, 1)
	var seen timedSnapshot
	inFlight := make(chan struct{})
	e.mu.Lock()
	cl.addDone = inFlight
	number := cl.addNumber
	// The request runs under the life of the engine, not of the caller, so that its outcome becomes known.
	ok := e.life.Go(func() {
		ctx, cancel := requestContext(e.life)
		defer cancel()
		start := e.clock.Now()
		snapshot, err := e.store.Add(ctx, a.Name, s.Session, number, newPayload(&a.Claim, s.TTL), condition)
		seen = timedSnapshot{snapshot, start}
		e.finishAdd(cl, s, snapshot, err)
		answer <- err
		close(inFlight)
	})
	if !ok {
		cl.addDone = nil
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

// finishAdd updates the claim with the reply to its Add. That must happen before anyone can see that the Add has ended.
func (e *Engine) finishAdd(cl *claim, s *session, snapshot Snapshot, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	cl.addDone = nil
	// An expired session adds nothing, and after a final error the store has not carried out the request. After any
	// other error the add may still take effect.
	cl.addUnresolved = cl.addUnresolved || err != nil && !errors.Is(err, ErrSessionExpired) &&
		!driverutil.IsFinal(err)
	cl.numberSpent = cl.numberSpent || cl.addUnresolved
	if err == nil {
		if i := findOwn(snapshot.Nodes, cl.id, s.ID); i >= 0 {
			cl.setNode(snapshot.Nodes[i])
		}
	}
	if cl.acquire == nil { // the caller has given up: a release or the janitor removes the claim
		cl.lastWanted = e.clock.Monotonic()
		if !cl.addUnresolved && cl.node.token == 0 {
			e.forgetClaimLocked(cl)
		}
		s.wakeJanitor()
	}
}

// listNodes lists the lock once.
func (a *acquisition) listNodes(full bool) (timedSnapshot, error) {
	ctx, cancel := requestContext(a.ctx)
	defer cancel()
	start := a.e.clock.Now()
	a.RequestStarted(start)
	snapshot, err := a.e.store.List(ctx, a.Name, full)
	return timedSnapshot{snapshot, start}, err
}

// readSnapshot lists the lock until the store has answered, gives the snapshot to the other claims of this client that
// it concerns, and updates the claim's own node.
func (a *acquisition) readSnapshot(s *session) (timedSnapshot, error) {
	for {
		done := a.e.beginListing(a.Name)
		seen, err := a.listNodes(false)
		if err == nil {
			a.NoteAnswer()
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

// beginListing records that the lock is being listed, until done is called. It does nothing if another listing is under
// way.
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

// checkOwnNode updates the claim from a snapshot, and returns a loss if its node is gone or marked. It also does so if
// somebody has overwritten what the node says. Such a node would stay for as long as the session, and nobody
// would know whose it is, so it is removed.
func (a *acquisition) checkOwnNode(s *session, seen timedSnapshot) error {
	a.lastNodes = seen.Nodes
	i := findOwn(seen.Nodes, a.ID, s.ID)
	var n Node
	if i >= 0 {
		n = seen.Nodes[i]
		if !seen.Full { // the snapshot may not have them
			a.e.mu.Lock()
			n.Token, n.Version = a.cl.node.token, a.cl.node.version
			a.e.mu.Unlock()
		}
	}
	if i < 0 { // if the session has ended, that is the reason to report, so ask first
		for err := s.keepAlive(a.ctx); err != nil && !errors.Is(err, ErrSessionExpired); err = s.keepAlive(a.ctx) {
			if err := a.waitAndRetry(err); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(a.ctx, maxReasonTime)
		n.BreakReason = a.e.readBreakReason(ctx, a.cl)
		cancel()
		a.e.mu.Lock()
		key := a.cl.node.key
		k := slices.IndexFunc(seen.Nodes, func(n Node) bool { return n.Key == key })
		// The node lives on: another process has detached it, or somebody has overwritten it.
		a.cl.numberSpent = a.cl.numberSpent || k >= 0
		a.e.mu.Unlock()
		if k >= 0 && seen.Nodes[k].Foreign {
			if err := a.removeOwnNode(s); err != nil {
				return err
			}
			n.BreakReason = cmp.Or(n.BreakReason, "somebody has changed its node in the store")
		}
	}
	if loss := a.e.updateNode(a.cl, n, i >= 0); loss != nil {
		return loss
	}
	return nil
}

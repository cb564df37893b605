package holdfast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// hold is a granted claim as its client keeps it, from the grant to the end, however it ends. Callers have Leases on
// it, one for each time they locked: a single one unless the lock is re-entrant. Its state moves once, from held to
// released, lost or closed, and never back.
//
// A process may have very many holds. So a hold keeps of its grant only what is its own, and has 208 bytes, which is
// one of the sizes in which Go allocates.
type hold struct {
	*terms
	name, id, ref string
	token         int64
	startedAt     driver.Instant // when the caller got it; MinHold and MaxHold count from here

	renewal     renewal // guarded by the mutex of the renewer, as is marginClass
	marginClass int8

	hasTurn bool // it has the turn for its name in the client's queue

	mu               sync.Mutex // guards what follows; no other mutex is locked while it is held
	state            holdState
	releaseRequested bool           // the holder was asked to release the lock
	cleanedUp        bool           // the claim of a lost hold has been cleaned up, or is about to be
	unused           bool           // no work can have begun: it belongs to a LockAll or Begin that has not returned
	since            driver.Instant // of the grant or the last renewal, as is grantedTTL
	grantedTTL       time.Duration
	firstLease       Lease      // part of the hold to save an allocation
	inBatch          uint64     // number of the batch that renews it at present, 0 if none does
	loss             *LossError // why it was lost; also if the store says so of a release that had begun

	// nil for most. Runs and holds on read-write locks have it from the beginning, so they read their part without mu.
	extras *extras
}

// extras are what few holds have.
type extras struct {
	// Of a run of a ledger:
	attempt  int64
	outcome  *runOutcome // nil until the run is ended by one; guarded by the mutex of the hold, as is reported
	reported bool        // the ledger shows an outcome that was reported

	// Of a read-write lock:
	changingWeight chan struct{} // has an element while a call changes the weight
	weight         int64         // at present; asked.Weight is the one that was claimed; guarded by the mutex of the hold

	// Of a semaphore, if its permits have numbers; never changed:
	permits []int64

	// Of any hold, and guarded by its mutex:
	progressAt        driver.Instant // when its holder last noted progress, or the hold began; of a hold that is bound to it
	reentries         []*Lease       // the leases besides the first one that have not been released
	releaseRequestedC chan struct{}  // is closed when it is; nil until a caller asks for it
	renewalErr        error          // why the last renewal failed; nil if it succeeded
	detachFor         time.Duration  // how long the claim must exist after the release
}

// ensureExtras returns the extras, which it makes if there are none. It is called with mu held.
func (h *hold) ensureExtras() *extras {
	if h.extras == nil {
		h.extras = &extras{}
	}
	return h.extras
}

// terms is what a hold has in common with others. It does not change.
type terms struct {
	client           *Client
	asked            driver.Claim  // without name and ID
	minHold, maxHold time.Duration // maxHold 0: no bound
	progress         time.Duration // how long the hold lasts without progress; 0: that does not matter
	expected         time.Duration // for events
	isRun            bool          // of a ledger, and not the lock of a job
}

// sharedTerms has the terms of the newest holds.
type sharedTerms struct {
	mu    sync.Mutex
	terms driverutil.Shared[terms]
}

// get returns terms that are equal to t.
func (s *sharedTerms) get(t *terms) *terms {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.terms.Get(t)
}

// ending says what becomes of a claim when its last lease ends. The zero value: it is released.
type ending struct {
	detachFor time.Duration // it stays in the store for so long
	outcome   *runOutcome   // of a run
}

// runOutcome is how a run has ended.
type runOutcome struct {
	state  driver.RunState
	report func(context.Context) error // removes the claim, in place of a release
}

// holdState says whether the claim is held, or else how the hold ended.
type holdState uint8

const (
	stateHeld     holdState = iota
	stateReleased           // the release of the last lease has begun
	stateLost
	stateClosed
)

// newHold makes a hold with its first lease. It begins when the renewer takes charge of it.
func (c *Client) newHold(ctx context.Context, g driver.Grant, hasTurn bool, o *LockOptions) (*hold, *Lease) {
	t := terms{client: c, asked: g.Claim, minHold: o.MinHold, maxHold: o.MaxHold, progress: o.Progress, expected: o.Expected,
		isRun: (g.Run != nil || g.Attempt != 0) && !g.Withdrawn} // a driver may return the grant without what was asked for
	t.asked.Name, t.asked.ID = "", ""
	h := &hold{terms: c.terms.get(&t), name: g.Name, id: g.ID, ref: g.Ref, token: g.Token,
		since: g.Since, grantedTTL: g.GrantedTTL, hasTurn: hasTurn,
		renewal: renewal{endIndex: notInHeap, dueIndex: notInHeap}}
	switch {
	case t.isRun:
		h.extras = &extras{attempt: g.Attempt}
	case g.Kind == KindRW:
		h.extras = &extras{weight: g.Weight, changingWeight: make(chan struct{}, 1)}
	case g.Permits != nil:
		h.extras = &extras{permits: g.Permits}
	}
	if t.progress > 0 {
		h.ensureExtras()
	}
	if o.Reentrant {
		ctx = withHold(ctx, h)
	}
	h.firstLease = Lease{hold: h, values: ctx}
	return h, &h.firstLease
}

// claim is the claim as it was made.
func (h *hold) claim() driver.Claim {
	c := h.asked
	c.Name, c.ID = h.name, h.id
	return c
}

// currentGrant is the grant as it is after renewals and changes of its weight. It is called with mu held.
func (h *hold) currentGrant() driver.Grant {
	g := driver.Grant{Claim: h.claim(), Token: h.token, Since: h.since, GrantedTTL: h.grantedTTL, Ref: h.ref}
	switch {
	case h.isRun:
		g.Attempt = h.extras.attempt
	case h.asked.Kind == KindRW:
		g.Weight = h.extras.weight
	}
	return g
}

// permitNumbers are the numbers of the permits; nil if there are none. A hold on a semaphore gets no numbers later.
func (h *hold) permitNumbers() []int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.extras == nil {
		return nil
	}
	return h.extras.permits
}

// explainNoPermits says why the permits have no numbers.
func (h *hold) explainNoPermits() error {
	switch {
	case h.asked.Kind != KindSemaphore:
		return fmt.Errorf("%w: only a semaphore has permits", ErrUnsupported)
	case !h.client.store.Info().Abilities.Permits:
		return fmt.Errorf("%w: permits have no numbers in this store", ErrUnsupported)
	case h.asked.Weight > driver.MaxPermits:
		return fmt.Errorf("%w: permits have numbers up to a weight of %d", ErrUnsupported, driver.MaxPermits)
	}
	return fmt.Errorf("%w: a holder has permits without numbers, as those of an earlier version of Holdfast", ErrUnsupported)
}

// claimInfo is the claim of a mutex, as its own process knows it.
func (h *hold) claimInfo() ClaimInfo {
	return ClaimInfo{Ref: h.ref, Owner: h.asked.Owner, Meta: h.asked.Meta, Weight: h.asked.Weight, Token: h.token,
		TTL: h.asked.TTL}
}

// begin notes when the caller gets the lease. It is called before anybody has it.
func (h *hold) begin(at driver.Instant) {
	h.startedAt = at
	if h.progress > 0 {
		h.extras.progressAt = at
	}
}

// remainingAt is how long the lease stays valid after now if no renewal succeeds and no progress is noted. It is called
// with mu held.
func (h *hold) remainingAt(now driver.Instant) time.Duration {
	left := h.renewableFor(now)
	if h.progress > 0 {
		left = min(left, h.progressLeft(now))
	}
	return left
}

// progressLeft is how long the lease stays valid without progress. No work can have begun under a lease that its caller
// does not have yet. It is called with mu held.
func (h *hold) progressLeft(now driver.Instant) time.Duration {
	if h.unused {
		return h.progress
	}
	return h.progress - now.Since(h.extras.progressAt)
}

// noteProgress notes that the work under the lease gets on. A lease that has ended stays as it is, even if nobody has
// noticed its end yet.
func (h *hold) noteProgress(l *Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.client.clock.Now()
	if h.progress > 0 && h.state == stateHeld && l.state == leaseOpen && h.remainingAt(now) > 0 {
		h.extras.progressAt = now
	}
}

// renewableFor is how long the lease stays valid after now if there is progress, but no renewal succeeds. The renewals
// are planned by this: they go on as if there were progress. It is called with mu held.
func (h *hold) renewableFor(now driver.Instant) time.Duration {
	left := trustedFor(now, h.since, h.grantedTTL)
	if h.maxHold > 0 {
		left = min(left, h.maxHold-now.Since(h.startedAt))
	}
	return left
}

// endsByMaxHold reports whether the lease will end by its MaxHold even if it is renewed. It is called with mu held.
func (h *hold) endsByMaxHold(now driver.Instant) bool {
	return h.maxHold > 0 && h.renewableFor(now) < trustedFor(now, h.since, h.grantedTTL)
}

// trustedFor is how long a grant is still valid that was confirmed for ttl by a request started at since. The margin
// and the count from the start of the request make sure that it ends here before it can end in the store.
func trustedFor(now, since driver.Instant, ttl time.Duration) time.Duration {
	return ttl - driver.Margin(ttl) - now.Since(since)
}

// checkExpiry reads the clock, handles the loss if the lease has expired, and returns how long it is still valid.
func (h *hold) checkExpiry() time.Duration {
	left, expired := h.expireIfDue()
	if expired {
		h.client.handleLoss(h)
	}
	return left
}

// expireIfDue reads the clock. It returns how long the lease is still valid, 0 if it has ended, and whether this call
// found that it has expired: the caller must then call [Client.handleLoss].
func (h *hold) expireIfDue() (left time.Duration, expired bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.expireIfDueLocked()
}

// expireIfDueLocked ends the hold if its time is up, and says why. Otherwise it returns the time that is left.
func (h *hold) expireIfDueLocked() (left time.Duration, expired bool) {
	if h.state != stateHeld {
		return 0, false
	}
	now := h.client.clock.Now()
	if left = h.remainingAt(now); left > 0 {
		return left, false
	}
	loss := &LossError{Cause: LossExpired}
	switch {
	case h.maxHold > 0 && now.Since(h.startedAt) >= h.maxHold:
		loss = &LossError{Cause: LossMaxHold}
	case h.progress > 0 && h.progressLeft(now) <= 0:
		loss = &LossError{Cause: LossNoProgress}
	case h.renewalErr() != nil || h.inBatch != 0:
		loss = &LossError{Cause: LossUnreachable, Err: h.renewalErr()}
	}
	h.state, h.loss = stateLost, loss
	return 0, true
}

// err is nil while the lock is held, then why that ended. It is called with mu held, or after the end.
func (h *hold) err() error {
	switch {
	case h.loss != nil:
		return h.loss
	case h.state == stateReleased:
		return ErrReleased
	case h.state == stateClosed:
		return ErrClosed
	}
	return nil
}

// renewalErr is why the last renewal failed, or nil if it succeeded. It is called with mu held.
func (h *hold) renewalErr() error {
	if h.extras == nil {
		return nil
	}
	return h.extras.renewalErr
}

// endAs moves a hold from held to another state, and reports whether it was held: the caller must then do what follows
// from the new state. loss is set if the state is stateLost.
func (h *hold) endAs(state holdState, loss *LossError) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != stateHeld {
		return false
	}
	h.state, h.loss = state, loss
	return true
}

// cancelContexts ends the contexts of the leases that have not been released.
func (h *hold) cancelContexts(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.firstLease.state == leaseOpen {
		h.firstLease.endContext(err)
	}
	if h.extras != nil {
		for _, l := range h.extras.reentries {
			l.endContext(err)
		}
	}
}

// noteReleaseRequest notes that somebody asks the holder to release the lock, and reports it once.
func (h *hold) noteReleaseRequest() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != stateHeld || h.releaseRequested {
		return
	}
	h.releaseRequested = true
	if h.extras != nil && h.extras.releaseRequestedC != nil {
		close(h.extras.releaseRequestedC)
	}
	h.client.emitEvent(EventReleaseRequested, h, eventDetails{})
}

// releaseLease ends one lease. last is true if that ends the hold: the caller must then release the claim. Otherwise
// err says why there is nothing to release, and cleanUpDue whether the claim must be cleaned up: a lost claim may still
// exist, and was not removed until now because the work under it may have gone on until now. A lost run is not cleaned
// up here, since its outcome is reported nevertheless.
//
// The outcome of a run is set in the same step that ends it. So only the call that ends the run reports an outcome, and
// a run that is closed or lost has none.
func (h *hold) releaseLease(l *Lease, e ending) (last, cleanUpDue bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.state != leaseOpen {
		return false, false, l.releaseErr()
	}
	open := h.countLeases()
	if e.detachFor > 0 && h.state == stateHeld && open > 1 {
		return false, false, newInvalidError("a lock that was entered %d times cannot be detached", open)
	}
	if h.extras != nil {
		h.extras.reentries = slices.DeleteFunc(h.extras.reentries, func(o *Lease) bool { return o == l })
	}
	if h.state != stateHeld {
		l.state = leaseEnded
		l.endContext(h.err())
		return false, open == 1 && e.outcome == nil && h.takeCleanUp(), h.err()
	}
	l.endContext(ErrReleased)
	if open > 1 {
		l.state = leaseReleased
		return false, false, nil
	}
	l.state = leaseEnded
	h.state = stateReleased
	if e.detachFor > 0 {
		h.ensureExtras().detachFor = e.detachFor
	}
	if e.outcome != nil {
		h.extras.outcome = e.outcome
	}
	return true, false, nil
}

// countLeases is how many leases have not been released. It is called with mu held.
func (h *hold) countLeases() (n int) {
	if h.firstLease.state == leaseOpen {
		n++
	}
	if h.extras != nil {
		n += len(h.extras.reentries)
	}
	return n
}

// takeCleanUp gives its caller, once, the task to clean up a lost claim. It is called with mu held.
func (h *hold) takeCleanUp() bool {
	must := h.state == stateLost && !h.cleanedUp
	h.cleanedUp = h.cleanedUp || must
	return must
}

// cleanUpLost releases the claim of a hold that is lost in the background, unless that was done before.
func (h *hold) cleanUpLost() {
	h.mu.Lock()
	due := h.takeCleanUp()
	h.mu.Unlock()
	if due {
		h.client.cleanUp(h.asked.TTL, h.tryRelease)
	}
}

// releaseClaim releases the claim of a hold that is in the state released or closed. It is called once.
func (h *hold) releaseClaim(ctx context.Context) error {
	c := h.client
	c.renewer.removeHold(h)
	err := h.tryRelease(ctx)
	if h.hasTurn {
		// after the event is queued, so that the events of the next holder follow it
		defer c.queue.passTurn(h.name)
	}
	switch {
	case err == nil:
		c.emitEvent(h.endEvent(nil), h, eventDetails{})
		return nil
	case errors.Is(err, ErrLost):
		loss := lossOf(err)
		c.emitEvent(EventLost, h, eventDetails{err: loss})
		return loss
	case errors.Is(err, ErrUncertain) || !isOneOf(err, lastingErrors...):
		c.cleanUp(h.asked.TTL, h.tryRelease)
		err = h.uncertainEnd(err)
	}
	c.emitEvent(h.endEvent(err), h, eventDetails{err: err})
	return err
}

// uncertainEnd is the error of an end whose outcome is not known. It says what becomes of the claim.
func (h *hold) uncertainEnd(err error) error {
	if !errors.Is(err, ErrUncertain) {
		err = fmt.Errorf("%w: %w", ErrUncertain, err)
	}
	if h.isRun {
		return fmt.Errorf("%w; the client goes on reporting for as long as the TTL, and if no report arrives, the run is abandoned",
			err)
	}
	return fmt.Errorf("%w; the lock ends by its TTL at the latest", err)
}

// tryRelease makes one attempt to remove the claim, or to detach it for as long as it must still exist. A claim that
// was broken is removed as well.
func (h *hold) tryRelease(ctx context.Context) error {
	c := h.client
	h.mu.Lock()
	grant, keep, outcome := h.currentGrant(), h.keepFor(), h.outcome()
	grant.Withdrawn = grant.Withdrawn || h.isRun && h.unused
	h.mu.Unlock()
	if outcome != nil {
		return outcome.report(ctx)
	}
	if keep > 0 {
		lost := c.store.Detach(ctx, grant, keep)
		if !errors.Is(lost, ErrLost) {
			return lost
		}
		if err := c.store.Release(ctx, grant.Claim, ""); err != nil && !errors.Is(err, ErrLost) {
			return err
		}
		return lost // why it could not be detached
	}
	return c.store.Release(ctx, grant.Claim, "")
}

// endEvent is the event of a hold that its holder has ended, and for which the store has returned err. For a run it
// says what the ledger shows: a run that was released without an outcome has failed, and one whose outcome was
// refused is abandoned when its TTL has passed.
func (h *hold) endEvent(err error) EventKind {
	h.mu.Lock()
	defer h.mu.Unlock()
	outcome := h.outcome()
	switch {
	case !h.isRun:
		return EventReleased
	case outcome == nil && err == nil:
		return EventRunFailed
	case outcome == nil || err != nil && !errors.Is(err, ErrUncertain):
		return EventRunAbandoned
	}
	return outcomeEvent(outcome.state)
}

// outcome is how a run ended; nil for a lock. It is called with mu held.
func (h *hold) outcome() *runOutcome {
	if !h.isRun {
		return nil
	}
	return h.extras.outcome
}

// outcomeEvent is the event of a run that its worker has ended with this outcome.
func outcomeEvent(outcome driver.RunState) EventKind {
	if outcome == driver.RunSucceeded {
		return EventRunSucceeded
	}
	return EventRunFailed
}

// keepFor is how long the claim must still exist after the release, in whole milliseconds; 0: not at all. It is called
// with mu held.
func (h *hold) keepFor() time.Duration {
	var detachFor time.Duration
	if h.extras != nil {
		detachFor = h.extras.detachFor
	}
	return max(detachFor, h.minHoldLeft())
}

// minHoldLeft is what is left of MinHold, in whole milliseconds. It is called with mu held.
func (h *hold) minHoldLeft() time.Duration {
	if h.minHold == 0 || h.unused {
		return 0
	}
	// the clock may be a wall clock that was set back
	left := h.minHold - max(h.client.clock.SinceAtLeast(h.startedAt), 0)
	return (max(left, 0) + time.Millisecond - 1).Truncate(time.Millisecond)
}

// setUnused says whether work can have begun under a lease that its caller does not have yet. The hold of a lease that
// has entered a lock again is in use.
func (h *hold) setUnused(l *Lease, unused bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l != &h.firstLease {
		return
	}
	if h.unused = unused; !unused && h.progress > 0 {
		h.extras.progressAt = h.client.clock.Now() // the work begins now
	}
}

// handleLoss does what follows from a loss. It is called once, by the goroutine that found the loss. It does not
// release the claim: the work under the lease may not have stopped yet, and the claim keeps others out until its TTL
// has expired. Only a lease that has reached its MaxHold, or has ended because there was no progress, whose TTL may
// have a long time to go, is released, a margin later. Of a run its worker reports the failure.
func (c *Client) handleLoss(h *hold) {
	c.renewer.removeHold(h)
	h.cancelContexts(h.loss)
	c.emitEvent(EventLost, h, eventDetails{err: h.loss})
	if h.hasTurn {
		c.queue.passTurn(h.name)
	}
	if h.loss.Cause == LossMaxHold || h.loss.Cause == LossNoProgress && !h.isRun {
		c.inflight.start(func() {
			sleepContext(c.base, maxHoldGraceOf(h.asked.TTL))
			h.cleanUpLost()
		})
	}
}

// maxHoldGraceOf is the time between the end of a lease by its MaxHold and the release of its claim. It gives the work
// time to notice. Both ends are by the same clock, so no difference between clocks has to be allowed for.
func maxHoldGraceOf(ttl time.Duration) time.Duration { return min(driver.Margin(ttl), time.Second) }

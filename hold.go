package holdfast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// hold is a granted claim as its client keeps it: from the grant to the end, whoever ends it. Callers have handles on
// it, Leases, one each time they locked: a single one unless the lock is re-entrant.
type hold struct {
	client    *Client
	hasTurn   bool           // it has its name's turn in the client's queue
	startedAt driver.Instant // when its caller was given it; MinHold and MaxHold count from here
	minHold   time.Duration
	maxHold   time.Duration // 0: no bound

	changingWeight chan struct{} // of a read-write lock: a place for whoever asks the store for another weight

	mu                sync.Mutex   // guards what follows; no other lock is taken under it
	grant             driver.Grant // Since and TTL move with renewals, Weight is as claimed; the rest stays and may be read without mu
	weight            int64        // what it weighs now
	leases            []*Lease     // those that have not been given up
	firstLease        Lease        // the first of them, in the same piece of memory,
	oneLease          [1]*Lease    // and the list for as long as it is the only one
	state             holdState
	releaseRequested  bool          // its holder was told that somebody asks for the lock
	releaseRequestedC chan struct{} // closed then; nil while nobody listens
	detachFor         time.Duration // how long the claim shall stand when it has been given up
	cleanedUp         bool          // a clean-up was started after the loss
	inBatch           uint64        // the renewal under way, 0 if none is
	renewalErr        error         // why the last renewal got no answer
	err               error         // why it ended

	renewal renewal // guarded by the mutex of the renewer, not by mu
}

type holdState uint8

const (
	stateHeld     holdState = iota
	stateReleased           // the last Unlock has begun
	stateLost
	stateClosed
)

// newHold makes a tenure with its first handle. It begins when the renewer takes it into care.
func (c *Client) newHold(ctx context.Context, g driver.Grant, queued bool, o LockOptions) (*hold, *Lease) {
	h := &hold{client: c, grant: g, weight: g.Weight, hasTurn: queued, minHold: o.MinHold, maxHold: o.MaxHold, renewal: renewal{endIndex: notInHeap, dueIndex: notInHeap}}
	if g.Kind == KindRW {
		h.changingWeight = make(chan struct{}, 1)
	}
	if o.Reentrant {
		ctx = withHold(ctx, h)
	}
	h.firstLease = Lease{hold: h, values: ctx}
	h.oneLease[0] = &h.firstLease
	h.leases = h.oneLease[:]
	return h, &h.firstLease
}

func (h *hold) lockName() string { return h.grant.Name }

// currentGrant is the grant as it is now. Called with mu held.
func (h *hold) currentGrant() driver.Grant {
	g := h.grant
	g.Weight = h.weight
	return g
}

// claimInfo is the claim as its own process knows it. It is one of a mutex.
func (h *hold) claimInfo() ClaimInfo {
	g := &h.grant
	return ClaimInfo{Ref: g.Ref, Owner: g.Owner, Meta: g.Meta, Weight: g.Weight, Token: g.Token, TTL: g.Claim.TTL}
}

// remainingAt is how long the lease may be believed in. Called with mu held.
func (h *hold) remainingAt(now driver.Instant) time.Duration {
	left := trustedFor(now, h.grant.Since, h.grant.GrantedTTL)
	if h.maxHold > 0 {
		left = min(left, h.maxHold-now.Since(h.startedAt))
	}
	return left
}

// endsByMaxHold reports whether the lease will end by its MaxHold, however it is renewed. Called with mu held.
func (h *hold) endsByMaxHold(now driver.Instant) bool {
	return h.maxHold > 0 && h.remainingAt(now) < trustedFor(now, h.grant.Since, h.grant.GrantedTTL)
}

// trustedFor is how long a grant may be believed in that a request started at since has confirmed for ttl.
func trustedFor(now, since driver.Instant, ttl time.Duration) time.Duration {
	return ttl - driver.Margin(ttl) - now.Since(since)
}

// checkExpiry reads the clock, sees to what follows if the lease has ended, and returns what is left of it.
func (h *hold) checkExpiry() time.Duration {
	left, expired := h.expireIfDue()
	if expired {
		h.client.handleLoss(h)
	}
	return left
}

// expireIfDue reads the clock. It returns what is left, 0 if the lease has ended, and whether it was this call that found
// the end: the caller then owes it [Client.ended].
func (h *hold) expireIfDue() (left time.Duration, expired bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.expireIfDueLocked()
}

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
	case h.renewalErr != nil || h.inBatch != 0:
		loss = &LossError{Cause: LossUnreachable, Err: h.renewalErr}
	}
	h.state, h.err = stateLost, loss
	return 0, true
}

// endAs moves a held lease to another state, and reports whether it was held: the caller then owes it what follows.
func (h *hold) endAs(state holdState, err error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != stateHeld {
		return false
	}
	h.state, h.err = state, err
	return true
}

// cancelContexts ends the contexts of the handles that have not been given up.
func (h *hold) cancelContexts(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.leases {
		l.endContext(err)
	}
}

// noteReleaseRequest notes that somebody asks for the lock, and says so once.
func (h *hold) noteReleaseRequest() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != stateHeld || h.releaseRequested {
		return
	}
	h.releaseRequested = true
	if h.releaseRequestedC != nil {
		close(h.releaseRequestedC)
	}
	h.client.emitEvent(EventReleaseRequested, h, Event{})
}

// releaseLease gives one handle up. It is the last if that ends the tenure, and the claim then has to be released. Else it
// returns why there is nothing to give up, and whether a clean-up is due: a lost claim may still stand, and was left
// alone until now because the work under it may have gone on until now.
func (h *hold) releaseLease(l *Lease, lapse time.Duration) (last, sweep bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.err != nil {
		return false, false, l.err
	}
	if lapse > 0 && h.state == stateHeld && len(h.leases) > 1 {
		return false, false, newInvalidError("a lock that was entered %d times cannot be left to lapse", len(h.leases))
	}
	h.leases = slices.DeleteFunc(h.leases, func(o *Lease) bool { return o == l })
	if h.state != stateHeld {
		l.err = h.err
		l.endContext(l.err)
		return false, len(h.leases) == 0 && h.mustCleanUp(), h.err
	}
	l.err = ErrReleased
	l.endContext(l.err)
	if len(h.leases) > 0 {
		return false, false, nil
	}
	h.state, h.err, h.detachFor = stateReleased, ErrReleased, lapse
	return true, false, nil
}

// mustCleanUp reports whether a lost claim has to be cleaned up, once. Called with mu held.
func (h *hold) mustCleanUp() bool {
	must := h.state == stateLost && !h.cleanedUp
	h.cleanedUp = h.cleanedUp || must
	return must
}

// releaseClaim gives back a claim whose state says that it was. It is called once.
func (h *hold) releaseClaim(ctx context.Context) error {
	c := h.client
	c.renewer.removeHold(h)
	err := h.tryRelease(ctx)
	if h.hasTurn {
		defer c.queue.passTurn(h.lockName()) // behind the event: those of the next holder come after it
	}
	switch {
	case err == nil:
		c.emitEvent(EventReleased, h, Event{})
		return nil
	case errors.Is(err, ErrLost):
		loss := lossOf(err)
		c.emitEvent(EventLost, h, Event{Err: loss})
		return loss
	case errors.Is(err, ErrUncertain) || !isOneOf(err, lastingErrors...):
		c.cleanUp(h.grant.Claim.TTL, h.tryRelease)
		err = fmt.Errorf("%w: the lock ends by its TTL at the latest: %w", ErrUncertain, err)
	}
	c.emitEvent(EventReleased, h, Event{Err: err})
	return err
}

// tryRelease is one try to take the claim away, or to leave it standing alone for as long as it shall. A claim that was broken
// is let go all the same.
func (h *hold) tryRelease(ctx context.Context) error {
	c := h.client
	h.mu.Lock()
	grant, keep := h.currentGrant(), h.keepFor()
	h.mu.Unlock()
	if keep > 0 {
		err := c.findDetacher().Detach(ctx, grant, keep)
		if !errors.Is(err, ErrLost) {
			return err
		}
		if err := c.store.Release(ctx, grant.Claim, ""); err != nil && !errors.Is(err, ErrLost) {
			return err
		}
		return err
	}
	return c.store.Release(ctx, grant.Claim, "")
}

// keepFor is how long the claim shall go on standing from now on, in whole milliseconds. Called with mu held.
func (h *hold) keepFor() time.Duration {
	if h.detachFor == 0 && h.minHold == 0 {
		return 0
	}
	keep := max(h.detachFor, h.minHold-max(h.client.clock.SinceAtLeast(h.startedAt), 0)) // a wall clock may have been set back
	return (keep + time.Millisecond - 1).Truncate(time.Millisecond)
}

// handleLoss does what follows a loss, once, by whoever found it. The claim is not released now: the work under it may not
// have stopped yet, and its TTL keeps others out until it should have. Only a lease that has come to its MaxHold, and
// whose TTL may have far to go, is released, a margin later.
func (c *Client) handleLoss(h *hold) {
	c.renewer.removeHold(h)
	h.cancelContexts(h.err)
	c.emitEvent(EventLost, h, Event{Err: h.err})
	if h.hasTurn {
		c.queue.passTurn(h.lockName())
	}
	var loss *LossError
	if errors.As(h.err, &loss) && loss.Cause == LossMaxHold {
		c.inflight.start(func() {
			sleepContext(c.waiting, maxHoldGraceOf(h.grant.Claim.TTL))
			h.mu.Lock()
			sweep := h.mustCleanUp()
			h.mu.Unlock()
			if sweep {
				c.cleanUp(h.grant.Claim.TTL, h.tryRelease)
			}
		})
	}
}

// maxHoldGraceOf is the time between the end of a lease by its MaxHold and the release of its claim. It is for the work to
// hear of it; both ends are by the same clock, so that nothing is due to clocks that differ.
func maxHoldGraceOf(ttl time.Duration) time.Duration { return min(driver.Margin(ttl), time.Second) }

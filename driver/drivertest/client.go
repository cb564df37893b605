package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// client is one client of the store, with steps that fail the case if the store misbehaves.
type client struct {
	e        *Env
	store    driver.Store
	opened   driver.Store // the same without the wrapper, for the harness
	label    string
	ctx      context.Context // of its waiting calls; ends when the client is killed
	endCalls context.CancelFunc
	dead     bool
}

// wrapper passes all calls on. The cases see each store through one, so that a store which anybody has wrapped can do
// what it could before.
type wrapper struct{ driver.Store }

func newClient(e *Env, st driver.Store, label string) *client {
	c := &client{e: e, store: wrapper{st}, opened: st, label: label}
	c.ctx, c.endCalls = context.WithCancel(e.ctx)
	return c
}

// acquire calls the store and checks the grant or error.
func (c *client) acquire(ctx context.Context, cl driver.Claim) (driver.Grant, error) {
	before := c.e.now()
	g, err := c.store.Acquire(ctx, cl)
	returned := c.e.now()
	c.e.checkError(ctx, err)
	if err == nil {
		c.e.checkGrant(g, cl, before, returned)
	}
	return g, err
}

// checkError checks what is promised of every error.
func (e *Env) checkError(ctx context.Context, err error) {
	e.requireNoSecret(err)
	if ctx.Err() == nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		e.failf("the call's context has not ended, but its error is that of an ended context: %q", err)
	}
}

// earliestSince is the earliest instant that a confirmation may count from, for a call that was made at the given
// instant.
func (e *Env) earliestSince(called driver.Instant, ttl time.Duration) driver.Instant {
	if e.hasSessions() {
		return called.Add(-ttl / 6) // a session's last heartbeat
	}
	return called
}

// checkGrant checks what is promised of every grant.
func (e *Env) checkGrant(g driver.Grant, cl driver.Claim, before, returned driver.Instant) {
	first := e.earliestSince(before, g.GrantedTTL)
	switch {
	case g.Name != cl.Name || g.ID != cl.ID || g.Weight != cl.Weight || g.Kind != cl.Kind || g.Limit != cl.Limit:
		e.failf("the grant is of another claim: requested %+v, got %+v", cl, g.Claim)
	case g.Token <= 0 || g.Token >= 1<<53:
		e.failf("token %d is not between 1 and 2^53-1", g.Token)
	case g.GrantedTTL < cl.TTL:
		e.failf("granted a TTL of %v where %v was requested", g.GrantedTTL, cl.TTL)
	case g.Since.Monotonic < first.Monotonic || g.Since.Boottime < first.Boottime:
		e.failf("Since is before the call: %+v, called at %+v", g.Since, before)
	case g.Since.Monotonic > returned.Monotonic || g.Since.Boottime > returned.Boottime:
		e.failf("Since is after the return: %+v, returned at %+v", g.Since, returned)
	case !isPrintable(g.Ref):
		e.failf("Ref %q is empty or cannot be printed", g.Ref)
	}
}

func isPrintable(ref string) bool {
	if ref == "" || !utf8.ValidString(ref) {
		return false
	}
	for _, r := range ref {
		if !unicode.IsGraphic(r) {
			return false
		}
	}
	return true
}

// mustTry makes a claim that does not wait. It must be granted.
func (c *client) mustTry(cl driver.Claim) driver.Grant {
	cl.Wait = false
	g, err := c.acquire(c.e.ctx, cl)
	var held *driver.HeldError
	if errors.As(err, &held) && slices.ContainsFunc(held.Holders, func(h driver.ClaimInfo) bool { return h.Owner == cl.Owner }) {
		// An earlier request of this try had no reply, and the session with which it was granted has expired since.
		c.e.latef("a try on a free place of %q is refused by what it left itself: %w", cl.Name, err)
	}
	if err != nil {
		c.e.failf("a try on a free place of %q was not granted: %w", cl.Name, err)
	}
	return g
}

// mustTryWithin makes claims that do not wait, a new one each time, until one is granted.
func (c *client) mustTryWithin(within time.Duration, claim func() driver.Claim) driver.Grant {
	var g driver.Grant
	c.e.waitUntil(within, func() bool {
		cl := claim()
		cl.Wait = false
		var err error
		if g, err = c.acquire(c.e.ctx, cl); err != nil {
			c.e.requireError(err, driver.ErrHeld, "a try on a held lock")
		}
		return err == nil
	}, "no try was granted")
	return g
}

// mustBeHeld makes a claim that does not wait. It must be refused because the lock is held.
func (c *client) mustBeHeld(cl driver.Claim) *driver.HeldError {
	cl.Wait = false
	_, err := c.acquire(c.e.ctx, cl)
	c.e.requireError(err, driver.ErrHeld, "a try of weight %d on %q, where it does not fit", cl.Weight, cl.Name)
	var held *driver.HeldError
	if !errors.As(err, &held) {
		c.e.failf("the error is no *HeldError: %q", err)
	}
	return held
}

// mustBeRefused makes a claim that must be refused with the given error at once, whether it waits or not.
func (c *client) mustBeRefused(cl driver.Claim, target error) error {
	var err error
	for _, cl.Wait = range []bool{true, false} {
		cl.ID = c.e.mutexClaim(cl.Name).ID
		ctx, cancel := context.WithTimeout(c.e.ctx, c.e.slack)
		_, err = c.acquire(ctx, cl)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			c.e.latef("a claim that should be refused (wait: %v) had no answer within %v", cl.Wait, c.e.slack)
		}
		c.e.requireError(err, target, "a claim that should be refused (wait: %v)", cl.Wait)
	}
	return err
}

// mustAcquire makes a claim that waits. It must be granted before the case ends.
func (c *client) mustAcquire(cl driver.Claim) driver.Grant {
	cl.Wait = true
	g, err := c.acquire(c.ctx, cl)
	if err != nil {
		c.e.failf("a waiting claim on %q was not granted: %w", cl.Name, err)
	}
	return g
}

// mustRelease releases a claim that is held.
func (c *client) mustRelease(g driver.Grant) {
	if err := c.store.Release(c.e.ctx, g.Claim, ""); err != nil && c.e.ctx.Err() == nil {
		// otherwise the case has ended
		c.e.requireNoSecret(err)
		c.e.whileGranted(g, func() { c.e.failf("releasing token %d of %q: %w", g.Token, g.Name, err) })
	}
}

// releaseIfHeld releases a claim that may exist or not, as a caller does after an error, and reports whether it
// existed.
func (c *client) releaseIfHeld(cl driver.Claim) bool {
	err := c.store.Release(c.e.ctx, cl, "")
	c.e.requireNoSecret(err)
	if err != nil && !errors.Is(err, driver.ErrLost) {
		c.e.failf("cleaning up on %q: %w", cl.Name, err)
	}
	return err == nil
}

// mustBeGone releases a claim that does not exist any more. The store must return ErrLost.
func (c *client) mustBeGone(cl driver.Claim) {
	c.e.requireError(c.store.Release(c.e.ctx, cl, ""), driver.ErrLost, "releasing a claim on %q that does not exist",
		cl.Name)
}

// renewBatch renews a batch, and fails unless each grant is answered exactly once before Renew returns.
func (c *client) renewBatch(ctx context.Context, gs ...driver.Grant) []driver.Renewal {
	answers := make([]driver.Renewal, len(gs))
	counts := make([]int, len(gs))
	var returned atomic.Bool
	var mu sync.Mutex
	before := c.e.now()
	c.store.Renew(ctx, gs, func(i int, r driver.Renewal) {
		mu.Lock()
		defer mu.Unlock()
		if i < 0 || i >= len(gs) || returned.Load() {
			c.e.runInBackground(func() {
				c.e.failf("an answer for grant %d of %d, returned: %v", i, len(gs),
					returned.Load())
			})
			return
		}
		answers[i] = r
		counts[i]++
	})
	mu.Lock()
	defer mu.Unlock()
	returned.Store(true)
	for i, n := range counts {
		if n != 1 {
			c.e.failf("grant %d of a batch of %d got %d answers", i+1, len(gs), n)
		}
		answers[i] = c.renewAgainIfLossy(ctx, gs[i], answers[i])
		c.e.checkError(ctx, answers[i].Err)
		if answers[i].Err == nil {
			c.e.checkRenewal(answers[i], gs[i], before, c.e.now())
		}
	}
	return answers
}

// renewAgainIfLossy renews one grant of a batch again, if replies get lost, until the outcome is known.
func (c *client) renewAgainIfLossy(ctx context.Context, g driver.Grant, r driver.Renewal) driver.Renewal {
	first := true
	_ = c.e.retryIfLossy(ctx, func() error {
		if !first {
			c.store.Renew(ctx, []driver.Grant{g}, func(_ int, a driver.Renewal) { r = a })
		}
		first = false
		return r.Err
	})
	return r
}

// checkRenewal checks what is promised of every renewal.
func (e *Env) checkRenewal(r driver.Renewal, g driver.Grant, before, returned driver.Instant) {
	first := e.earliestSince(before, g.GrantedTTL)
	switch {
	case r.GrantedTTL < g.Claim.TTL:
		e.failf("renewed for %v where %v was requested", r.GrantedTTL, g.Claim.TTL)
	case r.Since.Monotonic < first.Monotonic || r.Since.Boottime < first.Boottime:
		e.failf("a renewal's Since is too old: %+v, called at %+v", r.Since, before)
	case r.Since.Monotonic > returned.Monotonic || r.Since.Boottime > returned.Boottime:
		e.failf("a renewal's Since is after its return: %+v, returned at %+v", r.Since, returned)
	}
}

// renewOnce renews one grant, and repeats that after an unknown outcome, as the client does.
func (c *client) renewOnce(g driver.Grant) driver.Renewal {
	start := c.e.now()
	for {
		r := c.renewBatch(c.e.ctx, g)[0]
		if !errors.Is(r.Err, driver.ErrUncertain) || c.e.since(start) > g.GrantedTTL/3 {
			return r
		}
		c.e.logRemark("a renewal is repeated: %v", r.Err)
	}
}

// mustRenew renews a grant that must be live, and returns it with its new end.
func (c *client) mustRenew(g driver.Grant) driver.Grant {
	r := c.renewOnce(g)
	if r.Err != nil {
		c.e.whileGranted(g, func() { c.e.failf("renewing token %d of %q: %w", g.Token, g.Name, r.Err) })
	}
	g.Since, g.GrantedTTL = r.Since, r.GrantedTTL
	return g
}

// mustBeLost renews a grant that must have ended, and returns the cause.
func (c *client) mustBeLost(g driver.Grant) driver.LossCause {
	err := c.renewOnce(g).Err
	loss := causeOf(err)
	if loss == "" {
		c.e.failf("renewing token %d of %q, which has ended: got %s, want a *LossError", g.Token, g.Name,
			describeError(err))
	}
	return loss
}

// causeOf returns the cause in a LossError. It is empty if err is none.
func causeOf(err error) driver.LossCause {
	var loss *driver.LossError
	if errors.As(err, &loss) {
		return loss.Cause
	}
	return ""
}

// mustInspect inspects a lock. It retries for a while if there is no answer.
func (c *client) mustInspect(name string) driver.Lock {
	var l driver.Lock
	err := c.e.retryRead(func() (err error) {
		l, err = c.store.Inspect(c.e.ctx, name)
		return err
	})
	c.e.requireAnswer(err, "inspecting %q", name)
	return l
}

// requireAnswer ends the case if a read has failed. Unless the error says what is so, there was no answer in time.
func (e *Env) requireAnswer(err error, format string, args ...any) {
	if err == nil {
		return
	}
	e.requireNoSecret(err)
	err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
	if driverutil.IsFinal(err) {
		e.failf("%w", err)
	}
	e.latef("%w", err)
}

// refOf returns the ref by which an operator can find a claim, whose owner is unique.
func (c *client) refOf(cl driver.Claim) string {
	l := c.mustInspect(cl.Name)
	for _, s := range slices.Concat(l.Holders, l.Waiters) {
		if s.Owner == cl.Owner {
			return s.Ref
		}
	}
	c.e.failf("the claim of %s is not shown: %s", cl.Owner, describeLock(l))
	return ""
}

// mustList returns the names that List yields, sorted.
func (c *client) mustList(prefix string) []string {
	var names []string
	err := c.e.retryRead(func() error {
		names = nil
		for l, err := range c.store.List(c.e.ctx, prefix) {
			if err != nil {
				return fmt.Errorf("%q: %w", l.Name, err)
			}
			names = append(names, l.Name)
		}
		return nil
	})
	c.e.requireAnswer(err, "listing %q", prefix)
	slices.Sort(names)
	return names
}

// tryBreak breaks the claim that ref names, as an operator does.
func (c *client) tryBreak(name, ref string, b driver.Break) (tries int, err error) {
	err = c.e.retryIfLossy(c.e.ctx, func() error {
		tries++
		return c.store.Break(c.e.ctx, name, ref, b)
	})
	return tries, err
}

// mustBreak breaks the claim that ref names. The claim must exist.
func (c *client) mustBreak(name, ref string, mode driver.BreakMode) {
	c.mustBreakWith(name, ref, driver.Break{Mode: mode})
}

func (c *client) mustBreakWith(name, ref string, b driver.Break) {
	tries, err := c.tryBreak(name, ref, b)
	if err != nil && (tries == 1 || !errors.Is(err, driver.ErrLost)) { // otherwise an earlier try has broken it
		c.e.failf("breaking on %q (%+v): %w", name, b, err)
	}
}

// mustReadTokenFloor returns the floor of the tokens to come, from a store that can tell it.
func (c *client) mustReadTokenFloor() (floor driver.TokenFloor) {
	err := c.e.retryRead(func() (err error) {
		floor, err = c.store.ReadTokenFloor(c.ctx)
		return err
	})
	c.e.requireAnswer(err, "reading the token floor")
	return floor
}

// raiseToken raises the tokens of a lock, and reports whether the store can do that. A store that has nothing to do
// must say that it is done.
func (c *client) raiseToken(name string, atLeast int64) (canRaise bool) {
	floor := c.mustReadTokenFloor()
	err := c.e.retryIfLossy(c.ctx, func() error { return c.store.RaiseToken(c.ctx, name, atLeast) })
	if err != nil && (!errors.Is(err, driver.ErrUnsupported) || floor.Token >= atLeast) {
		c.e.failf("raising the tokens to %d, with a floor of %d: %w", atLeast, floor.Token, err)
	}
	return err == nil
}

// startWaiting makes a waiting claim in the background.
func (c *client) startWaiting(cl driver.Claim) *waitingCall {
	cl.Wait = true
	w := &waitingCall{c: c, claim: cl, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(c.ctx)
	w.cancel = cancel
	c.e.runInBackground(func() {
		defer close(w.done)
		w.grant, w.err = c.acquire(ctx, cl)
		w.returned = c.e.now()
	})
	return w
}

// waitingCall is an Acquire that waits in the background.
type waitingCall struct {
	c        *client
	claim    driver.Claim
	cancel   context.CancelFunc
	done     chan struct{}
	grant    driver.Grant
	err      error
	returned driver.Instant
}

// requireQueued returns when the claim can be seen in the queue. On stores that do not show it, requireQueued lets
// some time pass.
func (w *waitingCall) requireQueued() *waitingCall {
	e := w.c.e
	if !e.isQueuedInStore(w.claim) {
		w.requireWaiting(50 * time.Millisecond)
		return w
	}
	var l driver.Lock
	e.waitUntil(e.slack, func() bool {
		l = e.d().mustInspect(w.claim.Name)
		return slices.ContainsFunc(l.Waiters, func(s driver.ClaimInfo) bool { return s.Owner == w.claim.Owner })
	}, "%s should wait in the queue, but %s", w.claim.Owner, lazyString(func() string { return describeLock(l) }))
	return w
}

// requireWaiting fails if the call returns within d.
func (w *waitingCall) requireWaiting(d time.Duration) *waitingCall {
	select {
	case <-w.done:
		w.c.e.failf("%s (weight %d) should wait on %q but got %s", w.claim.Owner, w.claim.Weight, w.claim.Name,
			w.describeOutcome())
	case <-closedAfter(d):
	}
	return w
}

func (w *waitingCall) describeOutcome() string {
	if w.err != nil {
		return describeError(w.err)
	}
	return "a grant"
}

// awaitReturn returns when the call has returned, and fails if that takes longer than within.
func (w *waitingCall) awaitReturn(within time.Duration) {
	select {
	case <-w.done:
	case <-closedAfter(within):
		e, asked := w.c.e, w.c.e.a()
		if w.claim.Run != nil {
			asked = w.c // the store does not show the keys of its ledger
		}
		e.latef("%s: the waiting Acquire on %q did not return within %v; %s", w.claim.Owner, w.claim.Name, within,
			describeLock(asked.mustInspect(w.claim.Name)))
	}
}

// mustBeGranted returns when the claim is granted, and fails if that takes longer than the store's slack.
func (w *waitingCall) mustBeGranted() driver.Grant { return w.mustBeGrantedWithin(w.c.e.slack) }

func (w *waitingCall) mustBeGrantedWithin(d time.Duration) driver.Grant {
	w.awaitReturn(d)
	if errors.Is(w.err, driver.ErrLost) {
		w.c.e.latef("%s: the waiting claim on %q, with a TTL of %v, was lost: %w", w.claim.Owner, w.claim.Name,
			w.claim.TTL,
			w.err)
	}
	if w.err != nil {
		w.c.e.failf("%s: the waiting claim on %q was not granted: %w", w.claim.Owner, w.claim.Name, w.err)
	}
	return w.grant
}

// mustFail returns when the call has returned with the given error. It allows for several requests in a row, since the
// call may have to find out why it fails.
func (w *waitingCall) mustFail(target error) {
	w.awaitReturn(5 * w.c.e.slack)
	w.c.e.requireError(w.err, target, "the waiting Acquire of %s", w.claim.Owner)
}

// giveUp ends the wait as a caller does: it ends the context, awaits the return of the call, and cleans up.
func (w *waitingCall) giveUp() {
	w.cancel()
	w.mustFail(context.Canceled)
	w.c.releaseIfHeld(w.claim)
}

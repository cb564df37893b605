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

// client is one client of the store, with steps that fail the case when the store does not do as it should.
type client struct {
	e     *Env
	store driver.Store
	label string
	ctx   context.Context // of its waiting calls; ends when the client is killed
	drop  context.CancelFunc
	dead  bool
}

func newClient(e *Env, st driver.Store, label string) *client {
	c := &client{e: e, store: st, label: label}
	c.ctx, c.drop = context.WithCancel(e.ctx)
	return c
}

// acquire calls the store and looks at the grant.
func (c *client) acquire(ctx context.Context, cl driver.Claim) (driver.Grant, error) {
	before := c.e.now()
	g, err := c.store.Acquire(ctx, cl)
	returned := c.e.now()
	c.e.soundError(ctx, err)
	if err == nil {
		c.e.soundGrant(g, cl, before, returned)
	}
	return g, err
}

// soundError checks what is promised of every error.
func (e *Env) soundError(ctx context.Context, err error) {
	e.noSecret(err)
	if ctx.Err() == nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		e.failf("the call's context goes on, and its error says otherwise: %q", err)
	}
}

// early is the first moment from which a confirmation may count that a call brought which was made at the given one.
func (e *Env) early(called driver.Instant, ttl time.Duration) driver.Instant {
	if e.sessions() {
		return called.Add(-ttl / 6) // a session's last heartbeat
	}
	return called
}

// soundGrant checks what is promised of every grant.
func (e *Env) soundGrant(g driver.Grant, cl driver.Claim, before, returned driver.Instant) {
	first := e.early(before, g.GrantedTTL)
	switch {
	case g.Name != cl.Name || g.ID != cl.ID || g.Weight != cl.Weight || g.Kind != cl.Kind || g.Limit != cl.Limit:
		e.failf("the grant is of another claim: asked %+v, got %+v", cl, g.Claim)
	case g.Token <= 0 || g.Token >= 1<<53:
		e.failf("token %d is not between 1 and 2^53-1", g.Token)
	case g.GrantedTTL < cl.TTL:
		e.failf("granted a TTL of %v where %v was asked", g.GrantedTTL, cl.TTL)
	case g.Since.Monotonic < first.Monotonic || g.Since.Boottime < first.Boottime:
		e.failf("Since is before the call: %+v, called at %+v", g.Since, before)
	case g.Since.Monotonic > returned.Monotonic || g.Since.Boottime > returned.Boottime:
		e.failf("Since is after the return: %+v, returned at %+v", g.Since, returned)
	case !printable(g.Ref):
		e.failf("Ref %q is empty or cannot be printed", g.Ref)
	}
}

func printable(ref string) bool {
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

// try makes a claim that does not wait, and must be granted.
func (c *client) try(cl driver.Claim) driver.Grant {
	cl.Wait = false
	g, err := c.acquire(c.e.ctx, cl)
	if errors.Is(err, driver.ErrUncertain) {
		c.e.latef("a try on a free place of %q had no answer in time: %w", cl.Name, err)
	}
	if err != nil {
		c.e.failf("a try on a free place of %q was not granted: %w", cl.Name, err)
	}
	return g
}

// tryFor makes such claims, each a new one, until one is granted.
func (c *client) tryFor(within time.Duration, claim func() driver.Claim) driver.Grant {
	var g driver.Grant
	c.e.until(within, func() bool {
		cl := claim()
		cl.Wait = false
		var err error
		if g, err = c.acquire(c.e.ctx, cl); err != nil {
			c.e.wants(err, driver.ErrHeld, "a try on a held lock")
		}
		return err == nil
	}, "no try was granted")
	return g
}

// held makes a claim that does not wait, and must be refused because the lock is held.
func (c *client) held(cl driver.Claim) *driver.HeldError {
	cl.Wait = false
	_, err := c.acquire(c.e.ctx, cl)
	c.e.wants(err, driver.ErrHeld, "a try of weight %d on %q, where it does not fit", cl.Weight, cl.Name)
	var held *driver.HeldError
	if !errors.As(err, &held) {
		c.e.failf("the error is no *HeldError: %q", err)
	}
	return held
}

// refused makes a claim that must be refused with the given error at once, whether it would wait or not, and without a
// trace.
func (c *client) refused(cl driver.Claim, target error) error {
	var err error
	for _, cl.Wait = range []bool{true, false} {
		cl.ID = c.e.mutex(cl.Name).ID
		ctx, cancel := context.WithTimeout(c.e.ctx, c.e.slack)
		_, err = c.acquire(ctx, cl)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			c.e.latef("a claim that should be refused (wait: %v) had no answer within %v", cl.Wait, c.e.slack)
		}
		c.e.wants(err, target, "a claim that should be refused (wait: %v)", cl.Wait)
	}
	return err
}

// lock makes a claim that waits, and must be granted before the case ends.
func (c *client) lock(cl driver.Claim) driver.Grant {
	cl.Wait = true
	g, err := c.acquire(c.ctx, cl)
	if err != nil {
		c.e.failf("a waiting claim on %q was not granted: %w", cl.Name, err)
	}
	return g
}

// release gives up a claim that stands.
func (c *client) release(g driver.Grant) {
	if err := c.store.Release(c.e.ctx, g.Claim, ""); err != nil && c.e.ctx.Err() == nil { // else the case was over
		c.e.noSecret(err)
		c.e.while(g, func() { c.e.failf("releasing token %d of %q: %w", g.Token, g.Name, err) })
	}
}

// clean releases a claim of which it is not known whether it stands, as a caller does after an error, and reports
// whether it stood.
func (c *client) clean(cl driver.Claim) bool {
	err := c.store.Release(c.e.ctx, cl, "")
	c.e.noSecret(err)
	if err != nil && !errors.Is(err, driver.ErrLost) {
		c.e.failf("cleaning up on %q: %w", cl.Name, err)
	}
	return err == nil
}

// gone releases a claim that does not stand any more, which must be said.
func (c *client) gone(cl driver.Claim) {
	c.e.wants(c.store.Release(c.e.ctx, cl, ""), driver.ErrLost, "releasing a claim on %q that does not stand", cl.Name)
}

// renewals renews a batch, and fails unless each grant is answered exactly once before Renew returns.
func (c *client) renewals(ctx context.Context, gs ...driver.Grant) []driver.Renewal {
	answers := make([]driver.Renewal, len(gs))
	counts := make([]int, len(gs))
	var returned atomic.Bool
	var mu sync.Mutex
	before := c.e.now()
	c.store.Renew(ctx, gs, func(i int, r driver.Renewal) {
		mu.Lock()
		defer mu.Unlock()
		if i < 0 || i >= len(gs) || returned.Load() {
			c.e.start(func() { c.e.failf("an answer for grant %d of %d, returned: %v", i, len(gs), returned.Load()) })
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
		answers[i] = c.ask(ctx, gs[i], answers[i])
		c.e.soundError(ctx, answers[i].Err)
		if answers[i].Err == nil {
			c.e.soundRenewal(answers[i], gs[i], before, c.e.now())
		}
	}
	return answers
}

// ask renews one grant of a batch again, where replies get lost, until it is known how it stands.
func (c *client) ask(ctx context.Context, g driver.Grant, r driver.Renewal) driver.Renewal {
	first := true
	_ = c.e.again(ctx, func() error {
		if !first {
			c.store.Renew(ctx, []driver.Grant{g}, func(_ int, a driver.Renewal) { r = a })
		}
		first = false
		return r.Err
	})
	return r
}

// soundRenewal checks what is promised of every renewal.
func (e *Env) soundRenewal(r driver.Renewal, g driver.Grant, before, returned driver.Instant) {
	first := e.early(before, g.GrantedTTL)
	switch {
	case r.GrantedTTL < g.Claim.TTL:
		e.failf("renewed for %v where %v was asked", r.GrantedTTL, g.Claim.TTL)
	case r.Since.Monotonic < first.Monotonic || r.Since.Boottime < first.Boottime:
		e.failf("a renewal's Since is too old: %+v, called at %+v", r.Since, before)
	case r.Since.Monotonic > returned.Monotonic || r.Since.Boottime > returned.Boottime:
		e.failf("a renewal's Since is after its return: %+v, returned at %+v", r.Since, returned)
	}
}

// renewal renews one grant, and asks again after an unknown answer, as the client does.
func (c *client) renewal(g driver.Grant) driver.Renewal {
	start := c.e.now()
	for {
		r := c.renewals(c.e.ctx, g)[0]
		if !errors.Is(r.Err, driver.ErrUncertain) || c.e.since(start) > g.GrantedTTL/3 {
			return r
		}
		c.e.log("a renewal is asked for again: %v", r.Err)
	}
}

// renew renews a grant that must be living, and gives it back with its new end.
func (c *client) renew(g driver.Grant) driver.Grant {
	r := c.renewal(g)
	if r.Err != nil {
		c.e.while(g, func() { c.e.failf("renewing token %d of %q: %w", g.Token, g.Name, r.Err) })
	}
	g.Since, g.GrantedTTL = r.Since, r.GrantedTTL
	return g
}

// lost renews a grant that must have ended.
func (c *client) lost(g driver.Grant) driver.LossCause {
	err := c.renewal(g).Err
	loss := lossOf(err)
	if loss == "" {
		c.e.failf("renewing token %d of %q, which has ended: got %s, want a *LossError", g.Token, g.Name, show(err))
	}
	return loss
}

// lossOf is the cause that a LossError gives, empty if err is none.
func lossOf(err error) driver.LossCause {
	var loss *driver.LossError
	if errors.As(err, &loss) {
		return loss.Cause
	}
	return ""
}

// inspect looks at a lock, and again for a while where there was no answer.
func (c *client) inspect(name string) driver.Lock {
	start := c.e.now()
	l, err := c.store.Inspect(c.e.ctx, name)
	for err != nil && !driverutil.IsFinal(err) && c.e.ctx.Err() == nil && c.e.since(start) < 5*c.e.slack {
		time.Sleep(20 * time.Millisecond)
		l, err = c.store.Inspect(c.e.ctx, name)
	}
	if err != nil {
		c.e.noSecret(err)
		if !driverutil.IsFinal(err) { // no answer in time
			c.e.latef("inspecting %q: %w", name, err)
		}
		c.e.failf("inspecting %q: %w", name, err)
	}
	return l
}

// refOf is the Ref by which an operator finds the claim of an owner.
func (c *client) refOf(cl driver.Claim) string {
	l := c.inspect(cl.Name)
	for _, s := range slices.Concat(l.Holders, l.Waiters) {
		if s.Owner == cl.Owner {
			return s.Ref
		}
	}
	c.e.failf("%s is not to be seen: %s", cl.Owner, tell(l))
	return ""
}

// list gives the names that List yields, sorted.
func (c *client) list(prefix string) []string {
	var names []string
	err := c.e.again(c.e.ctx, func() error {
		names = nil
		for l, err := range c.store.List(c.e.ctx, prefix) {
			if err != nil {
				return fmt.Errorf("%q: %w", l.Name, err)
			}
			names = append(names, l.Name)
		}
		return nil
	})
	if err != nil {
		c.e.failf("listing %q: %w", prefix, err)
	}
	slices.Sort(names)
	return names
}

// tryBreak acts as an operator on the claim that ref names.
func (c *client) tryBreak(name, ref string, mode driver.BreakMode) (tries int, err error) {
	err = c.e.again(c.e.ctx, func() error {
		tries++
		return c.store.Break(c.e.ctx, name, ref, mode)
	})
	return tries, err
}

// breaks does so, and the claim must stand.
func (c *client) breaks(name, ref string, mode driver.BreakMode) {
	tries, err := c.tryBreak(name, ref, mode)
	if err != nil && (tries == 1 || !errors.Is(err, driver.ErrLost)) { // else a try before had broken it
		c.e.failf("breaking on %q (mode %d): %w", name, mode, err)
	}
}

// queue makes a claim that waits, in the background.
func (c *client) queue(cl driver.Claim) *waiting {
	cl.Wait = true
	w := &waiting{c: c, claim: cl, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(c.ctx)
	w.cancel = cancel
	c.e.start(func() {
		defer close(w.done)
		w.grant, w.err = c.acquire(ctx, cl)
		w.returned = c.e.now()
	})
	return w
}

// waiting is a waiting Acquire under way.
type waiting struct {
	c        *client
	claim    driver.Claim
	cancel   context.CancelFunc
	done     chan struct{}
	grant    driver.Grant
	err      error
	returned driver.Instant
}

// stands goes on when the claim is seen in line. Where such a claim is not to be seen, some time must do.
func (w *waiting) stands() *waiting {
	e := w.c.e
	if !e.standsInLine(w.claim) {
		w.stays(50 * time.Millisecond)
		return w
	}
	var l driver.Lock
	e.until(e.slack, func() bool {
		l = e.d().inspect(w.claim.Name)
		return slices.ContainsFunc(l.Waiters, func(s driver.ClaimInfo) bool { return s.Owner == w.claim.Owner })
	}, "%s should wait in line but %s", w.claim.Owner, lazily(func() string { return tell(l) }))
	return w
}

// stays fails if the call returns within d.
func (w *waiting) stays(d time.Duration) *waiting {
	select {
	case <-w.done:
		w.c.e.failf("%s (weight %d) should wait on %q but got %s", w.claim.Owner, w.claim.Weight, w.claim.Name, w.outcome())
	case <-after(d):
	}
	return w
}

func (w *waiting) outcome() string {
	if w.err != nil {
		return show(w.err)
	}
	return "a grant"
}

// ends goes on when the call has returned, and fails if that takes longer than within.
func (w *waiting) ends(within time.Duration) {
	select {
	case <-w.done:
	case <-after(within):
		e := w.c.e
		e.latef("%s: the waiting Acquire on %q did not return within %v; %s", w.claim.Owner, w.claim.Name, within, tell(e.a().inspect(w.claim.Name)))
	}
}

// granted goes on when the claim is granted, and fails if that takes longer than the store's slack.
func (w *waiting) granted() driver.Grant { return w.grantedWithin(w.c.e.slack) }

func (w *waiting) grantedWithin(d time.Duration) driver.Grant {
	w.ends(d)
	if errors.Is(w.err, driver.ErrLost) {
		w.c.e.latef("%s: the waiting claim on %q, with a TTL of %v, was lost: %w", w.claim.Owner, w.claim.Name, w.claim.TTL, w.err)
	}
	if w.err != nil {
		w.c.e.failf("%s: the waiting claim on %q was not granted: %w", w.claim.Owner, w.claim.Name, w.err)
	}
	return w.grant
}

// refused goes on when the call has returned with the given error.
func (w *waiting) refused(target error) {
	w.ends(w.c.e.slack)
	w.c.e.wants(w.err, target, "the waiting Acquire of %s", w.claim.Owner)
}

// leaves gives the wait up as a caller does: it ends the context, awaits the call, and cleans up.
func (w *waiting) leaves() {
	w.cancel()
	w.refused(context.Canceled)
	w.c.clean(w.claim)
}

package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var cancelCases = []Case{
	newCase("cancel-waiting", "When the context of a waiting call ends, the call returns at once with the "+
		"context's error. After the caller's cleanup, nothing is left of the claim.", func(e *Env) {
		name := e.lockName("m")
		g := e.a().mustTry(e.mutexClaim(name))
		for _, cl := range []driver.Claim{e.mutexClaim(name), e.queuedClaim(name)} {
			w := e.b().startWaiting(cl).requireQueued()
			start := e.now()
			w.giveUp()
			var held *driver.HeldError
			if errors.As(w.err, &held) && (len(held.Holders) != 1 || held.Holders[0].Owner != g.Owner) {
				e.failf("it waited for %s, and the error is %q", g.Owner, w.err)
			}
			e.requireWithin(start, e.slack, "giving up and cleaning up")
			if l := e.a().mustInspect(name); len(l.Waiters) != 0 {
				e.failf("the canceled claim still exists: %s", describeLock(l))
			}
		}
		e.a().mustRelease(g)
		e.sleep(20 * time.Millisecond)
		e.requireEmpty(name, 0)
	}),
	newCase("deadline-waiting", "A waiting call with a deadline returns when the deadline has passed, with an "+
		"error that wraps context.DeadlineExceeded.", func(e *Env) {
		name := e.lockName("m")
		e.a().mustTry(e.mutexClaim(name))
		start := e.now()
		ctx, cancel := context.WithTimeout(e.ctx, 100*time.Millisecond)
		defer cancel()
		cl := e.queuedClaim(name)
		cl.Wait = true
		_, err := e.b().acquire(ctx, cl)
		e.requireError(err, context.DeadlineExceeded, "a wait whose deadline has passed")
		if took := e.since(start); took < 90*time.Millisecond {
			e.failf("a wait with a deadline of 100 ms ended after %v", took)
		}
		e.requireWithin(start, 100*time.Millisecond+e.slack, "a wait with a deadline of 100 ms")
		e.b().releaseIfHeld(cl)
		e.c().mustBeHeld(e.mutexClaim(name))
	}),
	newCase("cancel-before", "A claim under a context that has already ended is not granted. After the caller's "+
		"cleanup, nothing is left of it.", func(e *Env) {
		ctx, cancel := context.WithCancel(e.ctx)
		cancel()
		name := e.lockName("m")
		for _, wait := range []bool{false, true} {
			cl := e.queuedClaim(name)
			cl.Wait = wait
			_, err := e.a().acquire(ctx, cl)
			e.requireError(err, context.Canceled, "a claim under an ended context (wait: %v)", wait)
			e.a().releaseIfHeld(cl)
			e.requireEmpty(name, 0)
		}
	}),
	newCase("cancel-at-random", "Claims that are canceled at any moment and cleaned up are gone within a second: "+
		"none of them remains and blocks other claims.", func(e *Env) {
		usual := time.Second
		for range 3 { // the least of them, since a single one may have met a slow moment
			start := e.now()
			e.a().mustRelease(e.a().mustTry(e.mutexClaim(e.lockName("measure"))))
			usual = min(usual, max(e.since(start), 100*time.Microsecond))
		}
		held := e.lockName("held")
		g := e.d().mustTry(e.mutexClaim(held))
		free := []string{e.lockName("free-1"), e.lockName("free-2")}
		n := e.scaleEffort(200)
		var after, todo, made atomic.Int64
		todo.Store(int64(n))
		enough := e.halfTime() // on a slow store there are fewer claims
		e.runConcurrently(sharedClients, func(i int) {
			for k := todo.Add(-1); k >= 0 && time.Now().Before(enough); k = todo.Add(-1) {
				made.Add(1)
				c, cl, existed := e.client(i), e.queuedClaim(held), false
				switch {
				case k%2 == 0:
					cl = e.queuedClaim(free[k/2%2])
					existed = e.acquireAndCancel(c, cl, rand.N(2*usual))
				case k%4 == 1 || !e.isQueuedInStore(cl):
					existed = e.acquireAndCancel(c, cl, rand.N(10*usual))
				default: // make sure that the claim is queued, however slow the machine is
					c.startWaiting(cl).requireQueued().giveUp()
					existed = true
				}
				if existed {
					after.Add(1)
				}
			}
		})
		for _, name := range free {
			e.requireEmpty(name, time.Second)
		}
		e.requireHolder(g)
		if l := e.a().mustInspect(held); len(l.Waiters) != 0 {
			e.failf("canceled claims still exist: %s", describeLock(l))
		}
		e.d().mustRelease(g)
		e.requireEmpty(held, time.Second)
		e.logRemark("%d of %d claims existed when they were canceled", after.Load(), made.Load())
	}),
	newCase("acquire-again", "A second Acquire of a granted claim returns the same grant: the same token, renewed.",
		func(e *Env) {
			cl := e.mutexClaim(e.lockName("m"))
			g := e.a().mustTry(cl)
			again := e.a().mustTry(cl)
			waited := e.a().mustAcquire(cl)
			if again.Token != g.Token || waited.Token != g.Token {
				e.failf("token %d became %d and %d", g.Token, again.Token, waited.Token)
			}
			e.requireHolder(g)
			e.a().mustRenew(g)
			e.a().mustRelease(g)
			e.requireEmpty(cl.Name, 0)
		}),
	newCase("acquire-again-after-cancel", "A claim whose wait was canceled can be acquired again under its id, "+
		"and exists only once.", func(e *Env) {
		name := e.lockName("m")
		g := e.a().mustTry(e.mutexClaim(name))
		w := e.b().startWaiting(e.queuedClaim(name)).requireQueued()
		w.cancel()
		w.mustFail(context.Canceled)
		again := e.b().startWaiting(w.claim).requireQueued()
		if l := e.a().mustInspect(name); e.isQueuedInStore(w.claim) && len(l.Waiters) != 1 {
			e.failf("one claim should wait, but %s", describeLock(l))
		}
		e.a().mustRelease(g)
		e.requireHolder(again.mustBeGranted())
		e.b().mustRelease(again.grant)
		e.requireEmpty(name, 0)
	}),
}

// acquireAndCancel makes a claim, cancels it after d, cleans up as a caller does, and reports whether the claim
// existed.
func (e *Env) acquireAndCancel(c *client, cl driver.Claim, d time.Duration) bool {
	cl.Wait = true
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	var at atomic.Pointer[driver.Instant]
	timer := time.AfterFunc(d, func() {
		now := e.now()
		at.Store(&now)
		cancel()
	})
	defer timer.Stop()
	g, err := c.acquire(ctx, cl)
	returned := e.now()
	if err == nil {
		c.mustRelease(g)
		return true
	}
	if !errors.Is(err, context.Canceled) && !errors.Is(err, driver.ErrQueueFull) {
		panic(failurePanic{fmt.Errorf("a claim given up after %v: got %w, want the context's error", d, err)})
	}
	if t := at.Load(); t != nil && timeBetween(*t, returned) > e.slack {
		e.latef("a claim that was given up returned after %v", timeBetween(*t, returned))
	}
	return c.releaseIfHeld(cl)
}

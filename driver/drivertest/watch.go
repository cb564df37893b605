package drivertest

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var watchCases = []Case{
	newCase("next-change", "A client that watches a lock is notified of every change of its claims, and not while "+
		"nothing changes.", func(e *Env) {
		name := e.lockName("m")
		seen := e.c().mustInspect(name)
		next := func(change func(), want int) {
			if e.suite.opts.losesRequests() {
				seen = e.c().mustInspect(name) // a grant whose reply was lost is confirmed by another change
			}
			got := make(chan driver.Lock, 1)
			before := seen
			e.runInBackground(func() {
				l, err := e.c().nextChange(e.ctx, before)
				if err != nil {
					e.failf("NextChange: %w", err)
				}
				got <- l
			})
			select {
			case l := <-got:
				e.failf("nothing has changed, but NextChange returned %s", describeLock(l))
			case <-closedAfter(50 * time.Millisecond):
			}
			change()
			for deadline := closedAfter(e.slack); ; { // the change of a release may be seen in steps
				select {
				case seen = <-got:
				case <-deadline:
					e.latef("NextChange did not report a change: %s", describeLock(e.b().mustInspect(name)))
				}
				if len(seen.Holders) == want {
					return
				}
				l, err := e.c().nextChange(e.ctx, seen)
				if err != nil {
					e.failf("NextChange: %w", err)
				}
				got <- l
			}
		}
		var g driver.Grant
		old := seen
		next(func() { g = e.a().mustTry(e.mutexClaim(name)) }, 1)
		if seen.Name != name || seen.Holders[0].Token != g.Token {
			e.failf("token %d was granted, but NextChange returned %s", g.Token, describeLock(seen))
		}
		next(func() { e.a().mustRelease(g) }, 0)
		g = e.a().mustTry(e.mutexClaim(name))
		if l, err := e.c().nextChange(e.ctx, old); err != nil || len(l.Holders) != 1 {
			e.failf("a watcher that starts late: got %s, %s", describeLock(l), describeError(err))
		}
	}),
	newCase("next-change-ends", "A watch ends promptly with its context.", func(e *Env) {
		seen := e.c().mustInspect(e.lockName("m"))
		ctx, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
		defer cancel()
		start := e.now()
		_, err := e.c().nextChange(ctx, seen)
		e.requireError(err, context.DeadlineExceeded, "NextChange")
		e.requireWithin(start, e.slack, "NextChange with a deadline of 50 ms")
	}),
	newCase("next-ending", "The holder of a claim that is broken by force is notified before its next renewal, if "+
		"the store reports endings.", func(e *Env) {
		c := e.openClient()
		if !e.info.Abilities.Endings {
			e.skip("the store reports no endings; the next renewal reports the loss")
		}
		ctx, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
		_, err := c.nextEnding(ctx)
		cancel()
		e.requireError(err, context.DeadlineExceeded, "NextEnding while nothing ends")

		kept, broken := c.mustTry(e.mutexClaim(e.lockName("kept"))), c.mustTry(e.mutexClaim(e.lockName("broken")))
		e.b().mustBreak(broken.Name, e.b().refOf(broken.Claim), driver.BreakForce)
		ctx, cancel = context.WithTimeout(e.ctx, e.slack)
		defer cancel()
		end, err := c.nextEnding(ctx)
		if ctx.Err() != nil {
			e.latef("%q was broken by force, but NextEnding has not reported it within %v: %w", broken.Name, e.slack,
				err)
		}
		if err != nil || end.Name != broken.Name || end.ID != broken.ID || causeOf(end.Err) == "" {
			e.failf("%q was broken by force, but NextEnding returned %+v, %s", broken.Name, end, describeError(err))
		}
		c.mustRenew(kept)
	}),
}

package drivertest

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var watchCases = []Case{
	promise("next-change", "Whoever watches a lock is told of every way in which it stands anew, and is left alone while nothing changes.", func(e *Env) {
		watcher, ok := e.c().store.(driver.LockWatcher)
		if !ok {
			e.skip("the store is no LockWatcher; the client polls")
		}
		name := e.lock("m")
		seen := e.c().inspect(name)
		next := func(change func(), want int) {
			if e.suite.opts.lossy() {
				seen = e.c().inspect(name) // a grant whose reply was lost is confirmed by one more change
			}
			got := make(chan driver.Lock, 1)
			before := seen
			e.start(func() {
				l, err := e.nextChange(e.ctx, watcher, before)
				if err != nil {
					e.failf("NextChange: %w", err)
				}
				got <- l
			})
			select {
			case l := <-got:
				e.failf("nothing has changed, and NextChange returns %s", tell(l))
			case <-after(50 * time.Millisecond):
			}
			change()
			for deadline := after(e.slack); ; { // the change of a release may be seen in steps
				select {
				case seen = <-got:
				case <-deadline:
					e.latef("a change was not told: %s", tell(e.b().inspect(name)))
				}
				if len(seen.Holders) == want {
					return
				}
				l, err := e.nextChange(e.ctx, watcher, seen)
				if err != nil {
					e.failf("NextChange: %w", err)
				}
				got <- l
			}
		}
		var g driver.Grant
		old := seen
		next(func() { g = e.a().try(e.mutex(name)) }, 1)
		if seen.Name != name || seen.Holders[0].Token != g.Token {
			e.failf("token %d was granted, and the watcher sees %s", g.Token, tell(seen))
		}
		next(func() { e.a().release(g) }, 0)
		g = e.a().try(e.mutex(name))
		if l, err := e.nextChange(e.ctx, watcher, old); err != nil || len(l.Holders) != 1 {
			e.failf("a watcher that comes late sees %s, %s", tell(l), show(err))
		}
	}),
	promise("next-change-ends", "Watching ends promptly with its context.", func(e *Env) {
		watcher, ok := e.c().store.(driver.LockWatcher)
		if !ok {
			e.skip("the store is no LockWatcher; the client polls")
		}
		seen := e.c().inspect(e.lock("m"))
		ctx, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
		defer cancel()
		start := e.now()
		_, err := e.nextChange(ctx, watcher, seen)
		e.wants(err, context.DeadlineExceeded, "NextChange")
		e.soon(start, e.slack, "NextChange with a deadline of 50 ms")
	}),
	promise("next-ending", "A holder whose claim is broken by force hears of it without waiting for its next renewal, where the store says so.", func(e *Env) {
		c := e.open()
		watcher, ok := c.store.(driver.EndWatcher)
		if !ok {
			e.skip("the store is no EndWatcher; the next renewal tells")
		}
		ctx, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
		_, err := e.nextEnding(ctx, watcher)
		cancel()
		e.wants(err, context.DeadlineExceeded, "NextEnding while nothing ends")

		kept, broken := c.try(e.mutex(e.lock("kept"))), c.try(e.mutex(e.lock("broken")))
		e.b().breaks(broken.Name, e.b().refOf(broken.Claim), driver.BreakForce)
		ctx, cancel = context.WithTimeout(e.ctx, e.slack)
		defer cancel()
		end, err := e.nextEnding(ctx, watcher)
		if ctx.Err() != nil {
			e.latef("%q was broken by force, and NextEnding has not told of it in %v: %w", broken.Name, e.slack, err)
		}
		if err != nil || end.Name != broken.Name || end.ID != broken.ID || lossOf(end.Err) == "" {
			e.failf("%q was broken by force, and NextEnding tells %+v, %s", broken.Name, end, show(err))
		}
		c.renew(kept)
	}),
}

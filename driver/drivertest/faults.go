package drivertest

import (
	"context"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

const caseRestart = "restart"

var faultCases = []Case{
	newCase("cut", "While the store does not answer, every call returns when its context ends. An unknown outcome "+
		"is never reported as success, and a held claim never as lost.", func(e *Env) {
		c := e.openCuttable()
		g := c.mustTry(e.mutexClaim(e.lockName("m")))
		e.cutLink(c)
		ctx, cancel := context.WithTimeout(e.ctx, 200*time.Millisecond)
		defer cancel()
		start := e.now()
		e.callEverything(ctx, c, g, func(method string, err error) {
			if err == nil || causeOf(err) != "" {
				e.failf("%s over a link that is cut: got %s", method, describeError(err))
			}
			e.requireWithin(start, e.slack, "%s, which had 200 ms,", method)
			start = e.now()
		})
		e.healLink(c)
		e.waitUntil(e.slack, func() bool { return e.a().store.Release(e.ctx, g.Claim, g.Ref) != nil },
			"the claim should be gone")
	}),
	newCase("cut-renewal", "A holder that was disconnected for less than its TTL still holds the lock, under the "+
		"same token.", func(e *Env) {
		c := e.openCuttable()
		g := c.mustTry(e.mutexClaim(e.lockName("m")))
		e.cutLink(c)
		ctx, cancel := context.WithTimeout(e.ctx, 100*time.Millisecond)
		r := c.renewBatch(ctx, g)[0]
		cancel()
		if r.Err == nil || causeOf(r.Err) != "" {
			e.failf("a renewal over a link that is cut: got %s", describeError(r.Err))
		}
		e.healLink(c)
		e.requireHolder(g)
		ctx, cancel = context.WithTimeout(e.ctx, 5*e.slack)
		defer cancel()
		for r = c.renewBatch(ctx, g)[0]; r.Err != nil; r = c.renewBatch(ctx, g)[0] {
			if causeOf(r.Err) != "" {
				e.failf("a renewal after the link was restored: got %s", describeError(r.Err))
			}
			if ctx.Err() != nil {
				e.latef("%v after the link was restored, a renewal still gets %s", 5*e.slack, describeError(r.Err))
			}
			e.sleep(50 * time.Millisecond)
		}
		e.requireHolder(g)
	}),
	newCase("cut-acquire", "A claim that was being made while the link was cut exists once or not at all, and can "+
		"be cleaned up.", func(e *Env) {
		c := e.openCuttable()
		name := e.lockName("m")
		for range 5 {
			e.cutLink(c)
			cl := e.mutexClaim(name)
			ctx, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
			_, err := c.acquire(ctx, cl)
			cancel()
			if err == nil {
				e.failf("a claim was granted over a link that is cut")
			}
			e.healLink(c)
			e.waitUntil(5*e.slack, func() bool {
				err := c.store.Release(e.ctx, cl, "")
				return err == nil || causeOf(err) != "" || e.hasNoClaims(cl)
			}, "the cleanup does not succeed")
			e.requireEmpty(name, time.Second)
		}
	}),
	newCase("cut-release", "A release whose first request got no answer does not report success if an operator has "+
		"broken the claim by force meanwhile.", func(e *Env) {
		for i := range 4 { // the first try may take effect
			c := e.openCuttable()
			g := c.mustTry(e.mutexClaim(e.lockName(strconv.Itoa(i))))
			e.cutLink(c)
			answer := make(chan error, 1)
			e.runInBackground(func() { answer <- c.store.Release(e.ctx, g.Claim, g.Ref) })
			e.sleep(150 * time.Millisecond)
			broken := e.a().store.Break(e.ctx, g.Name, g.Ref, driver.Break{Mode: driver.BreakForce}) == nil
			if broken {
				e.b().mustTry(e.mutexClaim(g.Name))
			}
			e.healLink(c)
			if err := <-answer; err == nil && broken {
				e.failf("a claim was broken by force, but its release, which had no answer at first, reports success")
			}
		}
	}),
	newCase("session-lowered", "If the store keeps a session for less time than it had promised, the holder "+
		"learns of it before another claim is granted.", func(e *Env) {
		if e.harness.Lower == nil {
			e.skip("needs Harness.Lower")
		}
		less := e.minTTL
		c := e.openClient()
		g := c.mustTry(withTTL(e.mutexClaim(e.lockName("m")), 6*less))
		w := e.b().startWaiting(e.queuedClaim(g.Name)).requireQueued()
		if err := e.harness.Lower(c.opened, less); err != nil {
			e.failf("Harness.Lower: %w", err)
		}
		for lowered := e.now(); ; e.sleep(less / 10) {
			r := c.renewBatch(e.ctx, g)[0]
			if causeOf(r.Err) != "" {
				break
			}
			if r.Err == nil {
				g.Since, g.GrantedTTL = r.Since, r.GrantedTTL
			}
			if e.since(lowered) > 6*less+e.slack {
				e.latef("a session of %v was shortened to %v, and its holder was not notified within %v", g.GrantedTTL,
					less, e.since(lowered))
			}
		}
		notified := e.now()
		w.mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL))
		if before := timeBetween(w.returned, notified); before > 0 && timeBetween(g.Since, w.returned) < g.GrantedTTL {
			e.latef("the next claim was granted %v before the holder was notified", before)
		}
		c.mustBeLost(g)
		e.requireRising(g.Token, w.grant.Token)
	}),
	newCase(caseRestart, "Tokens continue to rise after a restart of the store. If the store's Info says that "+
		"claims survive it, they remain granted, and their holders can renew.", func(e *Env) {
		if e.harness.Restart == nil {
			e.skip("needs Harness.Restart")
		}
		c := e.openClient()
		g := c.mustTry(e.mutexClaim(e.lockName("m")))
		freed := c.mustTry(e.mutexClaim(e.lockName("freed")))
		c.mustRelease(freed)
		if err := e.harness.Restart(e.ctx); err != nil {
			e.failf("Harness.Restart: %w", err)
		}
		later := e.openClient()
		if e.info.TokenRegression == "" {
			e.requireRising(freed.Token, later.mustTry(e.mutexClaim(freed.Name)).Token)
		}
		if !e.info.Survives.Restart {
			return
		}
		e.requireHolder(g)
		later.mustBeHeld(e.mutexClaim(g.Name))
		e.waitUntil(10*e.slack, func() bool {
			r := c.renewBatch(e.ctx, g)[0]
			if causeOf(r.Err) != "" {
				e.failf("a renewal after a restart: got %s", describeError(r.Err))
			}
			return r.Err == nil
		}, "the holder's client cannot reach the restarted store")
		e.requireHolder(g)
	}),
}

func (e *Env) openCuttable() *client {
	if e.harness.Cut == nil || e.harness.Heal == nil {
		e.skip("needs Harness.Cut and Heal")
	}
	return e.openClient()
}

func (e *Env) cutLink(c *client) {
	if err := e.harness.Cut(c.opened); err != nil {
		e.failf("Harness.Cut: %w", err)
	}
}

func (e *Env) healLink(c *client) {
	if err := e.harness.Heal(c.opened); err != nil {
		e.failf("Harness.Heal: %w", err)
	}
}

func (e *Env) hasNoClaims(cl driver.Claim) bool {
	l := e.a().mustInspect(cl.Name)
	return len(l.Holders)+len(l.Waiters) == 0
}

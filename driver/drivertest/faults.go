package drivertest

import (
	"context"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

const caseRestart = "restart"

var faultCases = []Case{
	promise("cut", "While the store does not answer, every call ends with its context; nothing unknown is called done, and no living grant lost.", func(e *Env) {
		c := e.openCut()
		g := c.try(e.mutex(e.lock("m")))
		e.cut(c)
		ctx, cancel := context.WithTimeout(e.ctx, 200*time.Millisecond)
		defer cancel()
		start := e.now()
		e.calls(ctx, c, g, func(method string, err error) {
			if err == nil || lossOf(err) != "" {
				e.failf("%s through a link that is cut: %s", method, show(err))
			}
			e.soon(start, e.slack, "%s, which had 200 ms,", method)
			start = e.now()
		})
		e.heal(c)
		e.until(e.slack, func() bool { return e.a().store.Release(e.ctx, g.Claim, g.Ref) != nil }, "the claim should be gone")
	}),
	promise("cut-renewal", "A holder that was cut off for less than its TTL, and comes back, still holds the lock under its token.", func(e *Env) {
		c := e.openCut()
		g := c.try(e.mutex(e.lock("m")))
		e.cut(c)
		ctx, cancel := context.WithTimeout(e.ctx, 100*time.Millisecond)
		r := c.renewals(ctx, g)[0]
		cancel()
		if r.Err == nil || lossOf(r.Err) != "" {
			e.failf("a renewal through a link that is cut says %s", show(r.Err))
		}
		e.heal(c)
		e.held(g)
		ctx, cancel = context.WithTimeout(e.ctx, 5*e.slack)
		defer cancel()
		for r = c.renewals(ctx, g)[0]; r.Err != nil; r = c.renewals(ctx, g)[0] {
			if lossOf(r.Err) != "" {
				e.failf("after the link has healed a renewal says %s", show(r.Err))
			}
			if ctx.Err() != nil {
				e.latef("the link has healed, and after %v a renewal says %s", 5*e.slack, show(r.Err))
			}
			e.sleep(50 * time.Millisecond)
		}
		e.held(g)
	}),
	promise("cut-acquire", "A claim that was being made while the link was cut stands once or not at all, and can be cleaned up.", func(e *Env) {
		c := e.openCut()
		name := e.lock("m")
		for range 5 {
			e.cut(c)
			cl := e.mutex(name)
			ctx, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
			_, err := c.acquire(ctx, cl)
			cancel()
			if err == nil {
				e.failf("a claim was granted through a link that is cut")
			}
			e.heal(c)
			e.until(5*e.slack, func() bool {
				err := c.store.Release(e.ctx, cl, "")
				return err == nil || lossOf(err) != "" || e.standsNot(cl)
			}, "the clean-up does not succeed")
			e.empty(name, time.Second)
		}
	}),
	promise("cut-release", "A release whose first try had no answer does not succeed if an operator has broken the claim by force meanwhile, and somebody else was let in.", func(e *Env) {
		for i := range 4 { // the first try may take effect
			c := e.openCut()
			g := c.try(e.mutex(e.lock(strconv.Itoa(i))))
			e.cut(c)
			answer := make(chan error, 1)
			e.start(func() { answer <- c.store.Release(e.ctx, g.Claim, g.Ref) })
			e.sleep(150 * time.Millisecond)
			broken := e.a().store.Break(e.ctx, g.Name, g.Ref, driver.BreakForce) == nil
			if broken {
				e.b().try(e.mutex(g.Name))
			}
			e.heal(c)
			if err := <-answer; err == nil && broken {
				e.failf("a claim was broken by force, and its release, which had no answer at first, says that it has given it up")
			}
		}
	}),
	promise("session-lowered", "A holder whose session the store keeps for less time than it had promised is told of that before anybody else is let in.", func(e *Env) {
		if e.h.Lower == nil {
			e.skip("needs Harness.Lower")
		}
		less := e.least
		c := e.open()
		g := c.try(lasting(e.mutex(e.lock("m")), 6*less))
		w := e.b().queue(e.lined(g.Name)).stands()
		if err := e.h.Lower(c.store, less); err != nil {
			e.failf("Harness.Lower: %w", err)
		}
		for lowered := e.now(); ; e.sleep(less / 10) {
			r := c.renewals(e.ctx, g)[0]
			if lossOf(r.Err) != "" {
				break
			}
			if r.Err == nil {
				g.Since, g.GrantedTTL = r.Since, r.GrantedTTL
			}
			if e.since(lowered) > 6*less+e.slack {
				e.failf("the session of a claim of %v was lowered to %v, and its holder is not told of it in %v", g.GrantedTTL, less, e.since(lowered))
			}
		}
		told := e.now()
		w.grantedWithin(e.latest(g.GrantedTTL))
		if before := elapsed(w.returned, told); before > 0 && elapsed(g.Since, w.returned) < g.GrantedTTL {
			e.latef("the next was let in %v before the holder was told", before)
		}
		c.lost(g)
		e.rises(g.Token, w.grant.Token)
	}),
	promise(caseRestart, "What the store says that it keeps over a restart is kept: claims stand, their holders renew, and tokens go on rising.", func(e *Env) {
		if e.h.Restart == nil {
			e.skip("needs Harness.Restart")
		}
		c := e.open()
		g := c.try(e.mutex(e.lock("m")))
		freed := c.try(e.mutex(e.lock("freed")))
		c.release(freed)
		if err := e.h.Restart(e.ctx); err != nil {
			e.failf("Harness.Restart: %w", err)
		}
		later := e.open()
		if e.info.TokenRegression == "" {
			e.rises(freed.Token, later.try(e.mutex(freed.Name)).Token)
		}
		if !e.info.Survives.Restart {
			return
		}
		e.held(g)
		later.held(e.mutex(g.Name))
		e.until(10*e.slack, func() bool {
			r := c.renewals(e.ctx, g)[0]
			if lossOf(r.Err) != "" {
				e.failf("after a restart the holder is told %s", show(r.Err))
			}
			return r.Err == nil
		}, "the holder's client does not find the store again")
		e.held(g)
	}),
}

func (e *Env) openCut() *client {
	if e.h.Cut == nil || e.h.Heal == nil {
		e.skip("needs Harness.Cut and Heal")
	}
	return e.open()
}

func (e *Env) cut(c *client) {
	if err := e.h.Cut(c.store); err != nil {
		e.failf("Harness.Cut: %w", err)
	}
}

func (e *Env) heal(c *client) {
	if err := e.h.Heal(c.store); err != nil {
		e.failf("Harness.Heal: %w", err)
	}
}

func (e *Env) standsNot(cl driver.Claim) bool {
	l := e.a().inspect(cl.Name)
	return len(l.Holders)+len(l.Waiters) == 0
}

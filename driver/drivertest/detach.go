package drivertest

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var detachCases = []Case{
	detachFeature.newCase("detached", "A detached claim remains when its client is closed. It ends when its TTL has "+
		"passed, and not earlier.", func(e *Env) {
		c := e.openClient()
		cl := e.withMinTTL(e.mutexClaim(e.lockName("m")))
		cl.Detached = true
		g := c.mustTry(cl)
		c.store.Close()
		if h := e.requireHolder(g); !h.Detached {
			e.failf("it is not shown as detached: %+v", h)
		}
		var w *waitingCall
		e.whileGranted(g, func() { w = e.a().startWaiting(e.queuedClaim(g.Name)).requireQueued() })
		w.mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL))
		e.requireNotEarly(g, w.returned)
		e.requireRising(g.Token, w.grant.Token)
	}),
	detachFeature.newCase("detached-broken", "A detached claim that is broken gracefully is held until its TTL "+
		"has passed. If it is broken by force, it ends at once.", func(e *Env) {
		cl := e.withMinTTL(e.mutexClaim(e.lockName("m")))
		cl.Detached = true
		g := e.a().mustTry(cl)
		var w *waitingCall
		e.whileGranted(g, func() {
			w = e.b().startWaiting(e.queuedClaim(g.Name)).requireQueued()
			e.c().mustBreak(g.Name, e.c().refOf(cl), driver.BreakGraceful)
		})
		w.mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL))
		e.requireNotEarly(g, w.returned)

		cl = e.mutexClaim(e.lockName("forced"))
		cl.Detached = true
		g = e.a().mustTry(cl)
		e.c().mustBreak(g.Name, e.c().refOf(cl), driver.BreakForce)
		e.requireRising(g.Token, e.b().mustTry(e.mutexClaim(g.Name)).Token)
	}),
	detachFeature.newCase("detached-released", "Another client can release a detached claim by its id and ref.",
		func(e *Env) {
			c := e.openClient()
			cl := e.mutexClaim(e.lockName("m"))
			cl.Detached = true
			g := c.mustTry(cl)
			c.store.Close()
			e.requireHolder(g)
			if err := e.b().store.Release(e.ctx, g.Claim, g.Ref); err != nil {
				e.failf("releasing it: %w", err)
			}
			e.requireEmpty(g.Name, 0)
			e.requireRising(g.Token, e.c().mustTry(e.mutexClaim(g.Name)).Token)
		}),
	detachFeature.newCase("detach", "A holder can detach its claim for the time that it chooses. The claim keeps "+
		"its token and ends after that time.", func(e *Env) {
		keep := 3 * e.minTTL / 2
		c := e.openClient()
		g := c.mustTry(e.mutexClaim(e.lockName("m"))) // with a long TTL: it is shortened
		start := e.now()
		if err := c.detach(g, keep); err != nil {
			e.failf("detaching: %w", err)
		}
		c.store.Close()
		detached := g
		detached.Since, detached.GrantedTTL = start, keep
		e.whileGranted(detached, func() {
			if h := e.requireHolder(g); !h.Detached {
				e.failf("it is not shown as detached: %+v", h)
			}
		})
		w := e.a().startWaiting(e.queuedClaim(g.Name))
		w.mustBeGrantedWithin(e.latestExpiry(keep))
		if after := timeBetween(start, w.returned); after < keep {
			e.failf("detached for %v, but ended after %v", keep, after)
		}
		e.requireRising(g.Token, w.grant.Token)
	}),
	detachFeature.newCase("detach-renewed", "Another process that knows the name, id, token and ref of a detached "+
		"claim can renew it, for the same time again.", func(e *Env) {
		keep := e.minTTL
		c := e.openClient()
		g := c.mustTry(e.mutexClaim(e.lockName("m")))
		detaching := e.now()
		if err := c.detach(g, keep); err != nil {
			e.failf("detaching: %w", err)
		}
		c.store.Close()
		known := driver.Grant{Claim: driver.Claim{Name: g.Name, ID: g.ID, TTL: keep, Detached: true}, Token: g.Token,
			Ref: g.Ref, GrantedTTL: keep, Since: detaching}
		for start := e.now(); e.since(start) < 2*keep; {
			e.sleepUntil(known.Since, keep/4)
			var r driver.Renewal
			e.whileGranted(known, func() {
				if r = e.b().renewOnce(known); r.Err != nil {
					e.failf("renewing the detached claim: %w", r.Err)
				}
			})
			known.Since, known.GrantedTTL = r.Since, r.GrantedTTL
			e.whileGranted(known, func() { e.requireHolder(g) })
		}
		w := e.a().startWaiting(e.queuedClaim(g.Name))
		w.mustBeGrantedWithin(e.latestExpiry(keep))
		e.requireNotEarly(known, w.returned)
		e.requireRising(g.Token, w.grant.Token)
	}),
	detachFeature.newCase("detach-lost", "A claim that has ended cannot be detached, and the attempt does not "+
		"restore it.", func(e *Env) {
		g := e.a().mustTry(e.mutexClaim(e.lockName("m")))
		e.a().mustRelease(g)
		if err := e.a().detach(g, time.Minute); causeOf(err) == "" {
			e.failf("detaching a released claim: got %s, want a *LossError", describeError(err))
		}
		e.requireEmpty(g.Name, 0)
	}),
}

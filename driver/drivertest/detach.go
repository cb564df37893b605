package drivertest

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var detachCases = []Case{
	detached.promise("detached", "A detached claim outlives its client, even one that closes in good order, and ends when its TTL is over, not sooner.", func(e *Env) {
		c := e.open()
		cl := e.short(e.mutex(e.lock("m")))
		cl.Detached = true
		g := c.try(cl)
		c.store.Close()
		if h := e.held(g); !h.Detached {
			e.failf("it is not shown as detached: %+v", h)
		}
		w := e.a().queue(e.lined(g.Name)).stands()
		w.grantedWithin(e.latest(g.GrantedTTL))
		e.notEarly(g, w.returned)
		e.rises(g.Token, w.grant.Token)
	}),
	detached.promise("detached-broken", "A detached claim that an operator breaks stands until its TTL is over, or goes at once if it is forced.", func(e *Env) {
		cl := e.short(e.mutex(e.lock("m")))
		cl.Detached = true
		g := e.a().try(cl)
		var w *waiting
		e.while(g, func() {
			w = e.b().queue(e.lined(g.Name)).stands()
			e.c().breaks(g.Name, e.c().refOf(cl), driver.BreakGraceful)
		})
		w.grantedWithin(e.latest(g.GrantedTTL))
		e.notEarly(g, w.returned)

		cl = e.mutex(e.lock("forced"))
		cl.Detached = true
		g = e.a().try(cl)
		e.c().breaks(g.Name, e.c().refOf(cl), driver.BreakForce)
		e.rises(g.Token, e.b().try(e.mutex(g.Name)).Token)
	}),
	detached.promise("detached-released", "A detached claim can be released by another client, by its id and ref.", func(e *Env) {
		c := e.open()
		cl := e.mutex(e.lock("m"))
		cl.Detached = true
		g := c.try(cl)
		c.store.Close()
		e.held(g)
		if err := e.b().store.Release(e.ctx, g.Claim, g.Ref); err != nil {
			e.failf("releasing it: %w", err)
		}
		e.empty(g.Name, 0)
		e.rises(g.Token, e.c().try(e.mutex(g.Name)).Token)
	}),
	detached.promise("detach", "A grant can be left standing with nobody behind it, for as long as its holder says, under its own token.", func(e *Env) {
		keep := 3 * e.least / 2
		c := e.open()
		d, ok := c.store.(driver.Detacher)
		if !ok {
			e.failf("Info says that claims can outlive their client, and the store is no Detacher")
		}
		g := c.try(e.mutex(e.lock("m"))) // with a long TTL: it is shortened
		start := e.now()
		if err := e.detach(d, g, keep); err != nil {
			e.failf("detaching: %w", err)
		}
		c.store.Close()
		left := g
		left.Since, left.GrantedTTL = start, keep
		e.while(left, func() {
			if h := e.held(g); !h.Detached {
				e.failf("it is not shown as detached: %+v", h)
			}
		})
		w := e.a().queue(e.lined(g.Name))
		w.grantedWithin(e.latest(keep))
		if after := elapsed(start, w.returned); after < keep {
			e.failf("kept for %v, and over after %v", keep, after)
		}
		e.rises(g.Token, w.grant.Token)
	}),
	detached.promise("detach-renewed", "A grant that was left standing can be renewed by another process that was told its name, id, token and ref, for as long as it was left, and lives on by that.", func(e *Env) {
		keep := e.least
		c := e.open()
		g := c.try(e.mutex(e.lock("m")))
		if err := e.detach(c.store.(driver.Detacher), g, keep); err != nil {
			e.failf("detaching: %w", err)
		}
		c.store.Close()
		told := driver.Grant{Claim: driver.Claim{Name: g.Name, ID: g.ID, TTL: keep, Detached: true}, Token: g.Token, Ref: g.Ref, GrantedTTL: keep}
		start := e.now()
		for last := start; e.since(start) < 2*keep; last = told.Since {
			e.sleepUntil(last, keep/4)
			r := e.b().renewal(told)
			if r.Err != nil {
				e.latef("renewing the claim that was left: %w", r.Err)
			}
			told.Since, told.GrantedTTL = r.Since, r.GrantedTTL
			e.while(told, func() { e.held(g) })
		}
		w := e.a().queue(e.lined(g.Name))
		w.grantedWithin(e.latest(keep))
		e.notEarly(told, w.returned)
		e.rises(g.Token, w.grant.Token)
	}),
	detached.promise("detach-lost", "A grant that has ended cannot be detached, and does not come back by it.", func(e *Env) {
		d, ok := e.a().store.(driver.Detacher)
		if !ok {
			e.failf("Info says that claims can outlive their client, and the store is no Detacher")
		}
		g := e.a().try(e.mutex(e.lock("m")))
		e.a().release(g)
		if err := e.detach(d, g, time.Minute); lossOf(err) == "" {
			e.failf("detaching a released claim: got %s, want a *LossError", show(err))
		}
		e.empty(g.Name, 0)
	}),
}

package drivertest

import (
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var operatorCases = []Case{
	promise("break-mark", "A holder that an operator breaks hears of it at its next renewal, and nobody is let in before it has heard it or its TTL is over.", func(e *Env) {
		g := e.a().try(e.mutex(e.lock("m")))
		w := e.b().queue(e.lined(g.Name)).stands()
		e.c().breaks(g.Name, e.c().refOf(g.Claim), driver.BreakGraceful)
		w.stays(100 * time.Millisecond)
		e.d().held(e.mutex(g.Name))
		if h := e.held(g); !h.Broken {
			e.failf("the broken holder is not shown as broken: %+v", h)
		}
		if loss := e.a().lost(g); loss != driver.LossBroken {
			e.failf("the holder is told %q, want %q", loss, driver.LossBroken)
		}
		e.a().clean(g.Claim)
		e.rises(g.Token, w.granted().Token)
	}),
	promise("break-mark-silent", "A broken holder that does not hear of it keeps the lock until its TTL is over, and no longer.", func(e *Env) {
		holder := e.open()
		g := holder.try(e.short(e.mutex(e.lock("m"))))
		var w *waiting
		e.while(g, func() {
			w = e.b().queue(e.lined(g.Name)).stands()
			e.c().breaks(g.Name, e.c().refOf(g.Claim), driver.BreakGraceful)
		})
		w.grantedWithin(e.latest(g.GrantedTTL))
		e.notEarly(g, w.returned)
		e.rises(g.Token, w.grant.Token)
	}),
	order.promise("break-waiting", "A waiting claim that an operator breaks loses its place at once and is told so, and those behind it move up.", func(e *Env) {
		name := e.lock("m")
		g := e.a().try(e.mutex(name))
		broken := e.b().queue(e.fair(name)).stands()
		behind := e.c().queue(e.fair(name)).stands()
		e.d().breaks(name, e.d().refOf(broken.claim), driver.BreakGraceful)
		if ws := owners(e.a().inspect(name).Waiters); len(ws) != 1 || ws[0] != behind.claim.Owner {
			e.failf("%s alone should wait now, but the line is %q", behind.claim.Owner, ws)
		}
		broken.refused(driver.ErrLost)
		e.a().release(g)
		behind.granted()
		e.held(behind.grant)
		e.c().release(behind.grant)
	}),
	promise("break-force", "A forced break frees the lock at once: the next token is larger, and the old holder's renewal and release come to nothing.", func(e *Env) {
		g := e.a().try(e.mutex(e.lock("m")))
		e.c().breaks(g.Name, e.c().refOf(g.Claim), driver.BreakForce)
		e.empty(g.Name, 0)
		next := e.b().try(e.mutex(g.Name))
		e.rises(g.Token, next.Token)
		e.a().lost(g)
		e.a().gone(g.Claim)
		e.held(next)

		w := e.d().queue(e.lined(g.Name)).stands()
		e.c().breaks(g.Name, e.c().refOf(next.Claim), driver.BreakForce)
		e.rises(next.Token, w.granted().Token)
		e.b().lost(next)
		e.held(w.grant)
	}),
	promise("break-ask", "A holder that is asked to give up hears of it at its next renewal, and keeps the lock for as long as it likes.", func(e *Env) {
		g := e.a().try(e.mutex(e.lock("m")))
		if e.a().renewals(e.ctx, g)[0].ReleaseRequested {
			e.failf("nobody has asked, and the holder is told so")
		}
		e.c().breaks(g.Name, e.c().refOf(g.Claim), driver.BreakRequestRelease)
		if h := e.held(g); !h.ReleaseRequested {
			e.failf("the holder is not shown as asked: %+v", h)
		}
		r := e.a().renewals(e.ctx, g)[0]
		if r.Err != nil || !r.ReleaseRequested {
			e.failf("the holder was asked to give up, and its renewal says %s, asked: %v", show(r.Err), r.ReleaseRequested)
		}
		e.b().held(e.mutex(g.Name))
		e.held(g)
		e.a().release(g)
		next := e.b().try(e.mutex(g.Name))
		if e.b().renewals(e.ctx, next)[0].ReleaseRequested {
			e.failf("the next holder is told that it was asked, and was not")
		}
	}),
	order.promise("break-ask-waiting", "A claim that is asked to give up while it waits is told so once it holds.", func(e *Env) {
		name := e.lock("m")
		e.asksWaiting(e.mutex(name), e.fair(name))
	}),
	semaphore.promise("break-ask-waiting-permits", "That holds for a semaphore's claims, too.", func(e *Env) {
		name := e.lock("s")
		e.asksWaiting(e.permits(name, 3, 2), e.permits(name, 3, 2))
	}),
	promise("break-stale", "A break acts on the claim that it names and on no other: once that is gone it says so, and touches nobody.", func(e *Env) {
		g := e.a().try(e.mutex(e.lock("m")))
		stale := e.c().refOf(g.Claim)
		e.a().release(g)
		modes := []driver.BreakMode{driver.BreakGraceful, driver.BreakForce, driver.BreakRequestRelease}
		for _, mode := range modes {
			_, err := e.c().tryBreak(g.Name, stale, mode)
			e.wants(err, driver.ErrLost, "a break on an idle lock")
		}
		next := e.b().try(e.mutex(g.Name))
		elsewhere := e.a().try(e.mutex(e.lock("elsewhere")))
		for _, mode := range modes {
			_, err := e.c().tryBreak(g.Name, stale, mode)
			e.wants(err, driver.ErrLost, "a break of a claim that does not stand any more")
			for _, ref := range []string{e.c().refOf(elsewhere.Claim), "", "none"} {
				if _, err := e.c().tryBreak(g.Name, ref, mode); !errors.Is(err, driver.ErrInvalid) {
					e.wants(err, driver.ErrLost, "a break by the ref %q, which names nothing here", ref)
				}
			}
		}
		if h := e.held(next); h.Broken || h.ReleaseRequested {
			e.failf("the new holder was touched: %+v", h)
		}
		if r := e.b().renewals(e.ctx, next)[0]; r.Err != nil || r.ReleaseRequested {
			e.failf("the new holder was touched: %+v", r)
		}
		e.a().renew(elsewhere)
	}),
	semaphore.promise("break-one", "Of several holders a break takes the one that it names.", func(e *Env) {
		name := e.lock("s")
		one, two := e.a().try(e.permits(name, 3, 1)), e.b().try(e.permits(name, 3, 2))
		e.c().breaks(name, e.c().refOf(two.Claim), driver.BreakForce)
		e.b().lost(two)
		e.held(one)
		e.a().renew(one)
		e.d().try(e.permits(name, 3, 2))
	}),
	promise("ref-of-grant", "The ref that a holder has got with its grant serves an operator as the one that Inspect shows.", func(e *Env) {
		g := e.a().try(e.mutex(e.lock("m")))
		e.c().breaks(g.Name, g.Ref, driver.BreakRequestRelease)
		if h := e.held(g); !h.ReleaseRequested {
			e.failf("the holder is not shown as asked: %+v", h)
		}
		g = e.a().renew(g)
		e.c().breaks(g.Name, g.Ref, driver.BreakForce)
		e.a().lost(g)
		if l := e.c().inspect(g.Name); slices.Contains(owners(l.Holders), g.Owner) {
			e.failf("it stands still: %s", tell(l))
		}
	}),
}

// asksWaiting has next wait for holder, asks it to give up, and lets it in.
func (e *Env) asksWaiting(holder, next driver.Claim) {
	g := e.a().try(holder)
	w := e.b().queue(next).stands()
	e.c().breaks(next.Name, e.c().refOf(w.claim), driver.BreakRequestRelease)
	e.a().release(g)
	w.granted()
	if r := e.b().renewals(e.ctx, w.grant)[0]; r.Err != nil || !r.ReleaseRequested {
		e.failf("it was asked while it waited, and its renewal says %s, asked: %v", show(r.Err), r.ReleaseRequested)
	}
	e.b().release(w.grant)
}

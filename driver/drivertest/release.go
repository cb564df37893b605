package drivertest

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var releaseCases = []Case{
	promise("release-twice", "A release may be repeated: from the second on it says that the claim does not stand, and does nothing.", func(e *Env) {
		name := e.lock("m")
		g := e.a().try(e.mutex(name))
		e.a().release(g)
		e.a().gone(g.Claim)
		next := e.b().try(e.mutex(name))
		e.a().gone(g.Claim)
		e.held(next)
	}),
	promise("release-stale", "A release that comes late removes its own claim and never that of whoever was granted the lock since.", func(e *Env) {
		g := e.a().try(e.short(e.mutex(e.lock("m"))))
		w := e.b().queue(e.lined(g.Name)).stands()
		next := w.grantedWithin(e.latest(g.GrantedTTL))
		e.a().gone(g.Claim)
		e.held(next)
		e.b().renew(next)
		e.b().release(next)
	}),
	promise("release-unknown", "Releasing a claim that was never made says that it does not stand, and changes nothing.", func(e *Env) {
		idle := e.lock("idle")
		e.a().gone(e.mutex(idle))
		e.empty(idle, 0)
		g := e.a().try(e.mutex(e.lock("m")))
		e.a().gone(e.mutex(g.Name))
		e.b().gone(e.mutex(g.Name))
		e.held(g)
	}),
	order.promise("release-waiting", "A claim that is released while it waits leaves the line, and those behind it move up.", func(e *Env) {
		name := e.lock("line")
		g := e.a().try(e.mutex(name))
		leaver := e.b().queue(e.fair(name)).stands()
		next := e.c().queue(e.fair(name)).stands()
		leaver.cancel()
		leaver.ends(e.slack)
		if !e.b().clean(leaver.claim) {
			e.failf("the waiting claim stood in line, and its release says that it did not")
		}
		if l := e.a().inspect(name); len(l.Waiters) != 1 || l.Waiters[0].Owner != next.claim.Owner {
			e.failf("only %s should wait now, but %s", next.claim.Owner, tell(l))
		}
		e.a().release(g)
		next.granted()
	}),
	promise("release-elsewhere", "Another client can release a claim by its ref, with or without its id; if both are given both must match.", func(e *Env) {
		g := e.a().try(e.mutex(e.lock("n")))
		if err := e.b().store.Release(e.ctx, driver.Claim{Name: g.Name, TTL: g.Claim.TTL}, g.Ref); err != nil {
			e.failf("releasing by ref alone: %w", err)
		}
		e.empty(g.Name, 0)

		g = e.a().try(e.mutex(e.lock("m")))
		e.wants(e.b().store.Release(e.ctx, e.mutex(g.Name), g.Ref), driver.ErrLost, "releasing by the ref of one claim and the id of another")
		e.held(g)
		if err := e.b().store.Release(e.ctx, g.Claim, g.Ref); err != nil {
			e.failf("releasing by id and ref: %w", err)
		}
		e.empty(g.Name, 0)
		e.a().lost(g)
		next := e.c().try(e.mutex(g.Name))
		e.wants(e.b().store.Release(e.ctx, g.Claim, g.Ref), driver.ErrLost, "releasing by a stale ref")
		e.held(next)
	}),
	promise("release-wakes", "A release lets the next in at once: a waiting claim is not left to find out by itself.", func(e *Env) {
		name := e.lock("m")
		g := e.a().try(e.mutex(name))
		var worst, sum time.Duration
		n := e.times(10)
		for i := range n {
			w := e.client(i + 1).queue(e.lined(name)).stands()
			start := e.now()
			e.client(i).release(g)
			g = w.granted()
			took := elapsed(start, w.returned)
			worst, sum = max(worst, took), sum+took
		}
		e.log("%d handovers, %v each, %v at most", n, (sum / time.Duration(n)).Round(10*time.Microsecond), worst.Round(10*time.Microsecond))
	}),
}

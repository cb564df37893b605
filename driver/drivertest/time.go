package drivertest

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var timeCases = []Case{
	promise("since", "A grant counts from the start of the request that made it: not earlier than the call, not later than its return, also after a long wait.", func(e *Env) {
		name := e.lock("m")
		g := e.a().try(e.mutex(name)) // every grant is checked against its call and its return
		w := e.b().queue(e.short(e.lined(name))).stands()
		e.sleep(e.least + e.least/4)
		e.a().release(g)
		next := w.granted()
		if age := elapsed(next.Since, w.returned); age > next.GrantedTTL/2 {
			e.latef("a grant with a TTL of %v was %v old when it came", next.GrantedTTL, age)
		}
	}),
	promise("ttl-granted", "A grant lasts for at least the TTL that was asked for.", func(e *Env) {
		least, most := e.info.MinTTL, e.info.MaxTTL
		for i, ttl := range []time.Duration{least, min(least+time.Millisecond, most), min(least*5/2, most), min(time.Minute+time.Millisecond, most), most} {
			c := e.client(i)
			g := c.renew(c.try(lasting(e.mutex(e.lock("m")), ttl))) // every grant and renewal is checked against its claim
			c.release(g)
		}
	}),
	promise("silent-holder", "The claim of a holder that falls silent ends when its TTL is over, and not sooner; whoever waits or tries is then let in.", func(e *Env) {
		ttl := e.least
		onlookers := []struct {
			holder driver.Claim
			next   func(name string, g driver.Grant) driver.Grant
		}{
			{lasting(e.mutex(e.lock("waiting")), ttl), func(name string, g driver.Grant) driver.Grant {
				return e.a().queue(e.mutex(name)).grantedWithin(e.latest(g.GrantedTTL))
			}},
			{lasting(e.mutex(e.lock("in-line")), ttl), func(name string, g driver.Grant) driver.Grant {
				return e.b().queue(e.lined(name)).grantedWithin(e.latest(g.GrantedTTL))
			}},
			{lasting(e.mutex(e.lock("trying")), ttl), func(name string, g driver.Grant) driver.Grant {
				return e.c().tryFor(e.latest(g.GrantedTTL), func() driver.Claim { return e.mutex(name) })
			}},
			{lasting(e.mutex(e.lock("holder-has-a-longer-ttl")), 2*ttl), func(name string, g driver.Grant) driver.Grant {
				return e.d().queue(e.short(e.lined(name))).grantedWithin(e.latest(g.GrantedTTL))
			}},
		}
		e.together(len(onlookers), func(i int) {
			dead, o := e.open(), onlookers[i]
			g := dead.try(o.holder)
			next := o.next(g.Name, g)
			e.notEarly(g, e.now())
			e.rises(g.Token, next.Token)
			e.log("%s: %v after the end of a TTL of %v", g.Name[len(e.prefix):], (e.passed(g) - g.GrantedTTL).Round(time.Millisecond), g.GrantedTTL)
			e.held(next)
		})
	}),
	promise("last-renewal-counts", "The TTL of a holder runs from its last renewal.", func(e *Env) {
		dead := e.open()
		g := dead.try(e.short(e.mutex(e.lock("m"))))
		w := e.a().queue(e.lined(g.Name))
		e.sleepUntil(g.Since, g.GrantedTTL/2)
		g = dead.renew(g)
		w.grantedWithin(e.latest(g.GrantedTTL))
		e.notEarly(g, w.returned)
	}),
	promise("renewal-keeps", "A holder that renews keeps its place and its token for as long as it likes, however many wait or try.", func(e *Env) {
		g := e.a().try(e.short(e.mutex(e.lock("m"))))
		var w *waiting
		e.while(g, func() { w = e.b().queue(e.lined(g.Name)).stands() })
		for start := g.Since; e.since(start) < 3*e.least; {
			e.sleepUntil(g.Since, g.GrantedTTL/4)
			g = e.a().renew(g)
			e.held(g)
			e.while(g, func() { e.c().held(e.mutex(g.Name)); w.stays(0) })
		}
		e.a().release(g)
		e.rises(g.Token, w.granted().Token)
	}),
	order.promise("waiting-outlives-ttl", "A claim that waits keeps its place in line for longer than its own TTL.", func(e *Env) {
		name := e.lock("line")
		ttl := 2 * e.least // the least is soon slept through by a busy machine
		g := e.a().try(e.mutex(name))
		first := e.b().queue(lasting(e.fair(name), ttl)).stands()
		e.sleep(5 * ttl / 4)
		second := e.c().queue(lasting(e.fair(name), ttl)).stands()
		e.a().release(g)
		first.granted()
		e.while(first.grant, func() { second.stays(20 * time.Millisecond) })
		e.b().release(first.grant)
		second.granted()
	}),
}

// elapsed is the time between two instants.
func elapsed(from, to driver.Instant) time.Duration {
	return max(to.Monotonic-from.Monotonic, to.Boottime-from.Boottime)
}

// notEarly fails if somebody was let in at the given moment while g could still be believed in.
func (e *Env) notEarly(g driver.Grant, in driver.Instant) {
	if after := elapsed(g.Since, in); after < g.GrantedTTL {
		e.failf("the next was let in %v after the start of a grant of %v", after, g.GrantedTTL)
	}
}

package drivertest

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var timeCases = []Case{
	newCase("since", "A grant counts from the start of the request that made it: not earlier than the call, not "+
		"later than its return, also after a long wait.", func(e *Env) {
		name := e.lockName("m")
		g := e.a().mustTry(e.mutexClaim(name)) // every grant is checked against its call and its return
		w := e.b().startWaiting(e.withMinTTL(e.queuedClaim(name))).requireQueued()
		e.sleep(e.minTTL + e.minTTL/4)
		e.a().mustRelease(g)
		next := w.mustBeGranted()
		if age := timeBetween(next.Since, w.returned); age > next.GrantedTTL/2 {
			e.latef("a grant with a TTL of %v was %v old when Acquire returned", next.GrantedTTL, age)
		}
	}),
	newCase("ttl-granted", "A grant lasts at least as long as the TTL that was requested.", func(e *Env) {
		minTTL, maxTTL := e.info.MinTTL, e.info.MaxTTL
		for i, ttl := range []time.Duration{minTTL, min(minTTL+time.Millisecond, maxTTL), min(minTTL*5/2, maxTTL),
			min(time.Minute+time.Millisecond, maxTTL), maxTTL} {
			c := e.client(i)
			// every grant and renewal is checked against its claim
			g := c.mustRenew(c.mustTry(withTTL(e.mutexClaim(e.lockName("m")), ttl)))
			c.mustRelease(g)
		}
	}),
	newCase("holder-stops-renewing", "The claim of a holder that stops renewing ends when its TTL has passed, and "+
		"not earlier. Then a claim that waits, or that tries, is granted.", func(e *Env) {
		ttl := e.minTTL
		claimants := []struct {
			holder driver.Claim
			next   func(name string, g driver.Grant) driver.Grant
		}{
			{withTTL(e.mutexClaim(e.lockName("waiting")), ttl), func(name string, g driver.Grant) driver.Grant {
				return e.a().startWaiting(e.mutexClaim(name)).mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL))
			}},
			{withTTL(e.mutexClaim(e.lockName("in-line")), ttl), func(name string, g driver.Grant) driver.Grant {
				return e.b().startWaiting(e.queuedClaim(name)).mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL))
			}},
			{withTTL(e.mutexClaim(e.lockName("trying")), ttl), func(name string, g driver.Grant) driver.Grant {
				return e.c().mustTryWithin(e.latestExpiry(g.GrantedTTL),
					func() driver.Claim { return e.mutexClaim(name) })
			}},
			{withTTL(e.mutexClaim(e.lockName("holder-has-a-longer-ttl")), 2*ttl), func(name string,
				g driver.Grant) driver.Grant {
				w := e.d().startWaiting(e.withMinTTL(e.queuedClaim(name)))
				return w.mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL))
			}},
		}
		e.runConcurrently(len(claimants), func(i int) {
			dead, o := e.openClient(), claimants[i]
			g := dead.mustTry(o.holder)
			next := o.next(g.Name, g)
			e.requireNotEarly(g, e.now())
			e.requireRising(g.Token, next.Token)
			e.logRemark("%s: %v after the end of a TTL of %v", g.Name[len(e.prefix):],
				(e.sinceGrant(g) - g.GrantedTTL).Round(time.Millisecond), g.GrantedTTL)
			e.requireHolder(next)
		})
	}),
	newCase("last-renewal-counts", "The TTL of a holder counts from its last renewal.", func(e *Env) {
		dead := e.openClient()
		g := dead.mustTry(e.withMinTTL(e.mutexClaim(e.lockName("m"))))
		w := e.a().startWaiting(e.queuedClaim(g.Name))
		e.sleepUntil(g.Since, g.GrantedTTL/2)
		g = dead.mustRenew(g)
		w.mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL))
		e.requireNotEarly(g, w.returned)
	}),
	newCase("renewal-keeps-claim", "A holder that renews keeps its claim and its token as long as it wants, "+
		"however many other claims wait or try.", func(e *Env) {
		g := e.a().mustTry(e.withMinTTL(e.mutexClaim(e.lockName("m"))))
		var w *waitingCall
		e.whileGranted(g, func() { w = e.b().startWaiting(e.queuedClaim(g.Name)).requireQueued() })
		for start := g.Since; e.since(start) < 3*e.minTTL; {
			e.sleepUntil(g.Since, g.GrantedTTL/4)
			g = e.a().mustRenew(g)
			e.requireHolder(g)
			e.whileGranted(g, func() { e.c().mustBeHeld(e.mutexClaim(g.Name)); w.requireWaiting(0) })
		}
		e.a().mustRelease(g)
		e.requireRising(g.Token, w.mustBeGranted().Token)
	}),
	fairFeature.newCase("waiting-outlives-ttl", "A waiting claim keeps its place in the queue for longer than its "+
		"own TTL.", func(e *Env) {
		name := e.lockName("line")
		ttl := 2 * e.minTTL // the minimal TTL passes too easily on a busy machine
		g := e.a().mustTry(e.mutexClaim(name))
		first := e.b().startWaiting(withTTL(e.fairClaim(name), ttl)).requireQueued()
		e.sleep(5 * ttl / 4)
		second := e.c().startWaiting(withTTL(e.fairClaim(name), ttl)).requireQueued()
		e.a().mustRelease(g)
		first.mustBeGranted()
		e.whileGranted(first.grant, func() { second.requireWaiting(20 * time.Millisecond) })
		e.b().mustRelease(first.grant)
		second.mustBeGranted()
	}),
}

// timeBetween is the time between two instants.
func timeBetween(from, to driver.Instant) time.Duration {
	return max(to.Monotonic-from.Monotonic, to.Boottime-from.Boottime)
}

// requireNotEarly fails if another claim was granted at the given instant while the TTL of g had not passed.
func (e *Env) requireNotEarly(g driver.Grant, in driver.Instant) {
	if after := timeBetween(g.Since, in); after < g.GrantedTTL {
		e.failf("the next claim was granted %v after the start of a grant of %v", after, g.GrantedTTL)
	}
}

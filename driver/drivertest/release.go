package drivertest

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var releaseCases = []Case{
	newCase("release-twice", "A release may be repeated: from the second time on, it reports that the claim does "+
		"not exist, and does nothing.", func(e *Env) {
		name := e.lockName("m")
		g := e.a().mustTry(e.mutexClaim(name))
		e.a().mustRelease(g)
		e.a().mustBeGone(g.Claim)
		next := e.b().mustTry(e.mutexClaim(name))
		e.a().mustBeGone(g.Claim)
		e.requireHolder(next)
	}),
	newCase("release-stale", "A late release affects only its own claim, and never that of a later holder.",
		func(e *Env) {
			g := e.a().mustTry(e.withMinTTL(e.mutexClaim(e.lockName("m"))))
			var w *waitingCall
			e.whileGranted(g, func() { w = e.b().startWaiting(e.queuedClaim(g.Name)).requireQueued() })
			next := w.mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL))
			e.a().mustBeGone(g.Claim)
			e.requireHolder(next)
			e.b().mustRenew(next)
			e.b().mustRelease(next)
		}),
	newCase("release-unknown", "The release of a claim that was never made reports that it does not exist, and "+
		"changes nothing.", func(e *Env) {
		idle := e.lockName("idle")
		e.a().mustBeGone(e.mutexClaim(idle))
		e.requireEmpty(idle, 0)
		g := e.a().mustTry(e.mutexClaim(e.lockName("m")))
		e.a().mustBeGone(e.mutexClaim(g.Name))
		e.b().mustBeGone(e.mutexClaim(g.Name))
		e.requireHolder(g)
	}),
	fairFeature.newCase("release-waiting", "A claim that is released while it waits leaves the queue, and the "+
		"claims behind it move up.", func(e *Env) {
		name := e.lockName("queue")
		g := e.a().mustTry(e.mutexClaim(name))
		leaver := e.b().startWaiting(e.fairClaim(name)).requireQueued()
		next := e.c().startWaiting(e.fairClaim(name)).requireQueued()
		leaver.cancel()
		leaver.awaitReturn(e.slack)
		if !e.b().releaseIfHeld(leaver.claim) {
			e.failf("the waiting claim was in the queue, but its release reports that it was not")
		}
		// A server of a cluster may show a moment later what another one has acknowledged.
		var l driver.Lock
		e.waitUntil(e.slack, func() bool {
			l = e.a().mustInspect(name)
			return len(l.Waiters) == 1 && l.Waiters[0].Owner == next.claim.Owner
		}, "only %s should wait now, but %s", next.claim.Owner, lazyString(func() string { return describeLock(l) }))
		e.a().mustRelease(g)
		next.mustBeGranted()
	}),
	newCase("release-from-another-client", "Another client can release a claim by its ref, with or without its "+
		"id. If both are given, both must match.", func(e *Env) {
		g := e.a().mustTry(e.mutexClaim(e.lockName("n")))
		if err := e.b().store.Release(e.ctx, driver.Claim{Name: g.Name, TTL: g.Claim.TTL}, g.Ref); err != nil {
			e.failf("releasing by ref alone: %w", err)
		}
		e.requireEmpty(g.Name, 0)

		g = e.a().mustTry(e.mutexClaim(e.lockName("m")))
		e.requireError(e.b().store.Release(e.ctx, e.mutexClaim(g.Name), g.Ref), driver.ErrLost,
			"releasing by the ref of one claim and the id of another")
		e.requireHolder(g)
		if err := e.b().store.Release(e.ctx, g.Claim, g.Ref); err != nil {
			e.failf("releasing by id and ref: %w", err)
		}
		e.requireEmpty(g.Name, 0)
		e.a().mustBeLost(g)
		next := e.c().mustTry(e.mutexClaim(g.Name))
		e.requireError(e.b().store.Release(e.ctx, g.Claim, g.Ref), driver.ErrLost, "releasing by a stale ref")
		e.requireHolder(next)
	}),
	newCase("release-grants-next", "A release lets the next claim be granted at once: a waiting claim is "+
		"notified, and does not have to poll.", func(e *Env) {
		name := e.lockName("m")
		g := e.a().mustTry(e.mutexClaim(name))
		var worst, sum time.Duration
		n := e.scaleEffort(10)
		for i := range n {
			w := e.client(i + 1).startWaiting(e.queuedClaim(name)).requireQueued()
			start := e.now()
			e.client(i).mustRelease(g)
			g = w.mustBeGranted()
			took := timeBetween(start, w.returned)
			worst, sum = max(worst, took), sum+took
		}
		e.logRemark("%d handovers, %v each, %v at most", n, (sum / time.Duration(n)).Round(10*time.Microsecond),
			worst.Round(10*time.Microsecond))
	}),
}

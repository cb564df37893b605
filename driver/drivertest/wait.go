package drivertest

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var waitCases = []Case{
	fairFeature.newCase("dead-waiter", "A client that dies while it waits delays the claims behind it by at most "+
		"the confirm window, and not by its TTL.", func(e *Env) {
		e.checkDeadWaiters(1)
	}),
	fairFeature.newCase("dead-waiters", "Ten clients that die while they wait delay the claims behind them by far "+
		"less than ten confirm windows.", func(e *Env) {
		e.checkDeadWaiters(min(10, e.info.MaxWaiters-1))
	}),
	newCase("dead-holder-and-queue", "When a holder dies, the first claim in the queue is granted, and then the "+
		"next one: the queue moves on as after a release.", func(e *Env) {
		dead := e.openClient()
		g := dead.mustTry(e.withMinTTL(e.mutexClaim(e.lockName("m"))))
		first := e.a().startWaiting(e.queuedClaim(g.Name))
		first.mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL))
		e.requireNotEarly(g, first.returned)
		second := e.b().startWaiting(e.queuedClaim(g.Name)).requireQueued()
		e.a().mustRelease(first.grant)
		e.requireRising(g.Token, first.grant.Token, second.mustBeGranted().Token)
	}),
	newCase("killed-holder", "The claim of a killed process blocks other claims for no longer than the store's Info "+
		"says.",
		func(e *Env) {
			if e.harness.Kill == nil {
				e.skip("needs Harness.Kill")
			}
			c := e.openClient()
			bound := e.info.DeadHolderTimeout
			cl := e.mutexClaim(e.lockName("m"))
			if bound == 0 {
				cl = e.withMinTTL(cl)
			}
			g := c.mustTry(cl)
			if bound == 0 {
				bound = e.latestExpiry(g.GrantedTTL)
			}
			var w *waitingCall
			e.whileGranted(g, func() { w = e.a().startWaiting(e.queuedClaim(g.Name)).requireQueued() })
			start := e.now()
			e.killClient(c)
			e.requireRising(g.Token, w.mustBeGrantedWithin(bound+e.slack).Token)
			e.logRemark("%v after the kill", timeBetween(start, w.returned).Round(time.Millisecond))
		}),
}

// checkDeadWaiters lets n clients die in the queue behind a holder, and checks for how long they delay the claim
// behind them when the holder releases.
func (e *Env) checkDeadWaiters(n int) {
	name := e.lockName("queue")
	g := e.a().mustTry(e.mutexClaim(name))
	cl := func() driver.Claim { return e.fairClaim(name) }
	window := e.confirmWindow(e.longTTL())
	if e.hasSessions() { // a waiting claim exists until its session ends
		cl = func() driver.Claim { return e.withMinTTL(e.fairClaim(name)) }
		probe := e.b().mustTry(e.withMinTTL(e.mutexClaim(e.lockName("session-time"))))
		window = e.latestExpiry(probe.GrantedTTL)
	}
	dead := e.openClient()
	for range n {
		dead.startWaiting(cl()).requireQueued()
	}
	w := e.b().startWaiting(e.fairClaim(name)).requireQueued()
	e.killClient(dead)
	start := e.now()
	e.a().mustRelease(g)
	bound := window
	if n > 1 && !e.hasSessions() {
		bound = time.Duration(n) * window / 2
	}
	ctx, cancel := context.WithTimeout(e.ctx, bound+2*e.slack)
	defer cancel()
	select {
	case <-w.done:
	case <-ctx.Done():
	}
	took := e.since(start)
	if took > bound+e.slack {
		e.latef("%d dead waiters delayed the next claim for %v or more, with a confirm window of %v", n,
			took.Round(time.Millisecond), window)
	}
	w.mustBeGranted()
	e.logRemark("%d dead waiters delayed the next claim for %v, with a confirm window of %v", n,
		took.Round(time.Millisecond), window.Round(time.Millisecond))
}

package drivertest

import (
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var orderCases = []Case{
	fairFeature.newCase("first-come-first-served", "Queued claims are granted in the order of their arrival, "+
		"whichever clients they come from.", func(e *Env) {
		e.checkArrivalOrder(func(name string) driver.Claim { return e.fairClaim(name) })
		if e.info.NativeQueue {
			e.checkArrivalOrder(func(name string) driver.Claim { return e.mutexClaim(name) })
		}
	}),
	fairFeature.newCase("newcomer-never-first", "A lock that is released repeatedly is never granted to a "+
		"newcomer before a claim that was already waiting.", func(e *Env) {
		name := e.lockName("queue")
		g, holder := e.a().mustTry(e.mutexClaim(name)), e.a()
		next := e.b().startWaiting(e.fairClaim(name)).requireQueued()
		for i := range e.scaleEffort(15) {
			newcomer := e.client(i + 2)
			_ = newcomer.mustBeHeld(e.mutexClaim(name))
			late := newcomer.startWaiting(e.fairClaim(name)).requireQueued()
			holder.mustRelease(g)
			g, holder = next.mustBeGranted(), next.c
			late.requireWaiting(0)
			next = late
		}
	}),
	newestFeature.newCase("newest-only", "A waiting claim that is newest-only gives up when another one has begun to wait "+
		"behind it, in whatever client. One that was granted does not, and other claims are not concerned.", func(e *Env) {
		name := e.lockName("queue")
		newest := func() driver.Claim {
			c := e.fairClaim(name)
			c.ID = driver.MarkNewestOnly(c.ID)
			return c
		}
		g, holder := e.a().mustTry(newest()), e.a() // granted at once
		first := e.b().startWaiting(newest()).requireQueued()
		plain := e.c().startWaiting(e.fairClaim(name)).requireQueued()
		first.requireWaiting(0)
		second := e.client(3).startWaiting(newest()).requireQueued()
		first.mustFail(driver.ErrSuperseded)
		third := e.b().startWaiting(newest()).requireQueued() // of a client that has given up before
		second.mustFail(driver.ErrSuperseded)
		e.requireHolder(g)
		holder.mustRelease(g)
		g = plain.mustBeGranted()
		// Its turn comes when a newer one has come, and before it can have looked for that.
		fourth := e.client(3).startWaiting(newest()).requireQueued()
		plain.c.mustRelease(g)
		third.mustFail(driver.ErrSuperseded)
		g = fourth.mustBeGranted()
		fourth.c.mustRelease(g)
		e.requireEmpty(name, e.slack)
	}),
}

// checkArrivalOrder queues claims one after the other, and checks that they are granted in that order.
func (e *Env) checkArrivalOrder(claim func(name string) driver.Claim) {
	name := e.lockName("queue")
	g, holder := e.a().mustTry(e.mutexClaim(name)), e.a()
	var queue []*waitingCall
	var owners []string
	for i := range min(8, e.info.MaxWaiters) {
		w := e.client(i * 3).startWaiting(claim(name)).requireQueued()
		queue, owners = append(queue, w), append(owners, w.claim.Owner)
	}
	var shown []string
	for _, s := range e.a().mustInspect(name).Waiters {
		shown = append(shown, s.Owner)
	}
	if !slices.Equal(shown, owners) {
		e.failf("the claims arrived in the order %q, but are queued in the order %q", owners, shown)
	}
	tokens := []int64{g.Token}
	for i, w := range queue {
		holder.mustRelease(g)
		g, holder = w.mustBeGranted(), w.c
		tokens = append(tokens, g.Token)
		for _, behind := range queue[i+1:] {
			behind.requireWaiting(time.Millisecond)
		}
	}
	holder.mustRelease(g)
	e.requireRising(tokens...)
	e.requireEmpty(name, 0)
}

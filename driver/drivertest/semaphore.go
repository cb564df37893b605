package drivertest

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

var semaphoreCases = []Case{
	semaphoreFeature.newCase("semaphore-limit", "A semaphore grants exactly as much weight as its limit: all of "+
		"it, and never more.", func(e *Env) {
		name := e.lockName("s")
		var last = e.a().mustTry(e.semaphoreClaim(name, 5, 1))
		for i := range 4 {
			e.client(i).mustTry(e.semaphoreClaim(name, 5, 1))
		}
		e.a().mustBeHeld(e.semaphoreClaim(name, 5, 1))
		w := e.b().startWaiting(e.semaphoreClaim(name, 5, 1)).requireQueued().requireWaiting(50 * time.Millisecond)
		e.a().mustRelease(last)
		w.mustBeGranted()
		e.c().mustBeHeld(e.semaphoreClaim(name, 5, 1))
	}),
	semaphoreFeature.newCase("semaphore-weight", "A claim takes as much of a semaphore's limit as its weight, and "+
		"its release returns as much.", func(e *Env) {
		name := e.lockName("s")
		three := e.a().mustTry(e.semaphoreClaim(name, 5, 3))
		e.b().mustBeHeld(e.semaphoreClaim(name, 5, 3))
		e.b().mustTry(e.semaphoreClaim(name, 5, 2))
		e.c().mustBeHeld(e.semaphoreClaim(name, 5, 1))
		e.a().mustRelease(three)
		e.c().mustBeHeld(e.semaphoreClaim(name, 5, 4))
		e.c().mustTry(e.semaphoreClaim(name, 5, 3))
		e.d().mustBeHeld(e.semaphoreClaim(name, 5, 1))
	}),
	semaphoreFeature.newCase("semaphore-big-claim", "Small claims do not starve a big one: later claims wait "+
		"behind it, even if they would fit.", func(e *Env) {
		name := e.lockName("s")
		one, two := e.a().mustTry(e.semaphoreClaim(name, 3, 1)), e.b().mustTry(e.semaphoreClaim(name, 3, 1))
		big := e.c().startWaiting(e.semaphoreClaim(name, 3, 3)).requireQueued()
		small := e.d().startWaiting(e.semaphoreClaim(name, 3, 1)).requireQueued()
		e.d().mustBeHeld(e.semaphoreClaim(name, 3, 1))
		small.requireWaiting(50 * time.Millisecond)
		e.a().mustRelease(one)
		small.requireWaiting(50 * time.Millisecond)
		e.b().mustRelease(two)
		big.mustBeGranted()
		small.requireWaiting(50 * time.Millisecond)
		e.c().mustRelease(big.grant)
		small.mustBeGranted()
	}),
	semaphoreFeature.newCase("semaphore-grants-all-that-fit", "A release lets all waiting claims that fit be "+
		"granted, not only the first.", func(e *Env) {
		name := e.lockName("s")
		all := e.a().mustTry(e.semaphoreClaim(name, 3, 3))
		w1, w2, w3, w4 := e.b().startWaiting(e.semaphoreClaim(name, 3,
			1)).requireQueued(), e.c().startWaiting(e.semaphoreClaim(name, 3, 1)).requireQueued(),
			e.d().startWaiting(e.semaphoreClaim(name, 3, 1)).requireQueued(), e.b().startWaiting(e.semaphoreClaim(name,
				3,
				1)).requireQueued()
		e.a().mustRelease(all)
		w1.mustBeGranted()
		w2.mustBeGranted()
		w3.mustBeGranted()
		w4.requireWaiting(50 * time.Millisecond)
	}),
	semaphoreFeature.newCase("semaphore-contended", "However many claims contend, the weight of those that are "+
		"granted never exceeds the limit.", func(e *Env) {
		name := e.lockName("s")
		const limit = 5
		var inside, maxInside, todo atomic.Int64
		todo.Store(int64(e.scaleEffort(60)))
		e.runConcurrently(2*sharedClients, func(i int) {
			c := e.client(i)
			for todo.Add(-1) >= 0 {
				cl := e.semaphoreClaim(name, limit, 1+rand.Int64N(3))
				g := c.mustAcquire(cl)
				n := inside.Add(cl.Weight)
				maxInside.Store(max(maxInside.Load(), n))
				if n > limit {
					e.failf("a weight of %d is granted, but the limit is %d", n, limit)
				}
				e.sleep(500 * time.Microsecond)
				inside.Add(-cl.Weight)
				c.mustRelease(g)
			}
		})
		e.logRemark("a weight of up to %d of %d was granted", maxInside.Load(), limit)
		e.requireEmpty(name, 0)
	}),
	semaphoreFeature.newCase("dead-permits", "When a holder of a semaphore stops renewing, its weight becomes "+
		"available after its TTL, and not earlier. The other holders keep theirs.", func(e *Env) {
		dead := e.openClient()
		g := dead.mustTry(e.withMinTTL(e.semaphoreClaim(e.lockName("s"), 3, 2)))
		living := e.a().mustTry(e.semaphoreClaim(g.Name, 3, 1))
		w := e.b().startWaiting(e.semaphoreClaim(g.Name, 3, 2))
		e.whileGranted(g, func() { w.requireQueued() })
		w.mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL))
		e.requireNotEarly(g, w.returned)
		e.a().mustRenew(living)
		e.c().mustBeHeld(e.semaphoreClaim(g.Name, 3, 1))
	}),
}

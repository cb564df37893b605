package drivertest

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// requirePermits fails unless each of some holders of a semaphore has as many permits as its weight, and none of
// another's.
func (e *Env) requirePermits(holders ...driver.Grant) {
	taken := map[int64]bool{}
	for _, g := range holders {
		if int64(len(g.Permits)) != g.Weight || !slices.IsSorted(g.Permits) {
			e.failf("a claim with weight %d has the permits %v", g.Weight, g.Permits)
		}
		for _, n := range g.Permits {
			if n < 0 || n >= g.Limit || taken[n] {
				e.failf("permit %d, of %d, is held twice, or does not exist", n, g.Limit)
			}
			taken[n] = true
		}
	}
}

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
	permitsFeature.newCase("permits", "The permits of a semaphore have numbers below its limit: a claim has as many as "+
		"its weight, no other claim has one of them before it ends, and then they are free.", func(e *Env) {
		name := e.lockName("s")
		one := e.a().mustTry(e.semaphoreClaim(name, 5, 1))
		three := e.b().mustTry(e.semaphoreClaim(name, 5, 3))
		e.requirePermits(one, three)
		w := e.c().startWaiting(e.semaphoreClaim(name, 5, 2)).requireQueued()
		if e.info.Abilities.Detach {
			if err := e.a().detach(one, min(10*time.Minute, e.info.MaxTTL)); err != nil {
				e.failf("detaching a holder: %w", err)
			}
		}
		again := e.b().mustTry(three.Claim) // as a client does after a lost reply
		if !slices.Equal(again.Permits, three.Permits) {
			e.failf("a claim has the permits %v, and had %v", again.Permits, three.Permits)
		}
		if err := e.b().setWeight(again, 1); !errors.Is(err, driver.ErrUnsupported) {
			e.failf("changing the weight of a holder of a semaphore: %s", describeError(err))
		}
		e.b().mustRelease(again)
		two := w.mustBeGranted()
		e.requirePermits(one, two, e.d().mustTry(e.semaphoreClaim(name, 5, 2)))
		e.b().mustBeHeld(e.semaphoreClaim(name, 5, 1))
		e.a().mustRelease(one)

		// A claim that is too heavy has none, and takes none from others.
		name = e.lockName("large")
		heavy := e.a().mustTry(e.semaphoreClaim(name, driver.MaxLimit, driver.MaxLimit/2))
		less := e.b().mustTry(e.semaphoreClaim(name, driver.MaxLimit, driver.MaxPermits+1))
		if heavy.Permits != nil || less.Permits != nil {
			e.failf("claims with weights of %d and %d have %d and %d permits with numbers", heavy.Weight, less.Weight,
				len(heavy.Permits), len(less.Permits))
		}
		e.requirePermits(e.c().mustTry(e.semaphoreClaim(name, driver.MaxLimit, driver.MaxPermits)),
			e.d().mustTry(e.semaphoreClaim(name, driver.MaxLimit, 1)))
	}),
	permitsFeature.newCase("permits-contended", "However many claims contend, no two that are granted at the same time "+
		"have the same permit.", func(e *Env) {
		name := e.lockName("s")
		const limit = 5
		var mu sync.Mutex
		holders := map[string]driver.Grant{}
		var todo atomic.Int64
		todo.Store(int64(e.scaleEffort(40)))
		e.runConcurrently(sharedClients, func(i int) {
			c := e.client(i)
			for todo.Add(-1) >= 0 {
				g := c.mustAcquire(e.semaphoreClaim(name, limit, 1+rand.Int64N(3)))
				mu.Lock()
				holders[g.ID] = g
				e.requirePermits(slices.Collect(maps.Values(holders))...)
				mu.Unlock()
				e.sleep(500 * time.Microsecond)
				mu.Lock()
				delete(holders, g.ID)
				mu.Unlock()
				c.mustRelease(g)
			}
		})
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

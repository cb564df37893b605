package drivertest

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

var semaphoreCases = []Case{
	semaphore.promise("semaphore-limit", "A semaphore grants exactly as much weight as its limit: all of it, and never more.", func(e *Env) {
		name := e.lock("s")
		var last = e.a().try(e.permits(name, 5, 1))
		for i := range 4 {
			e.client(i).try(e.permits(name, 5, 1))
		}
		e.a().held(e.permits(name, 5, 1))
		w := e.b().queue(e.permits(name, 5, 1)).stands().stays(50 * time.Millisecond)
		e.a().release(last)
		w.granted()
		e.c().held(e.permits(name, 5, 1))
	}),
	semaphore.promise("semaphore-weight", "A claim takes as much of a semaphore as it weighs, and gives back as much.", func(e *Env) {
		name := e.lock("s")
		three := e.a().try(e.permits(name, 5, 3))
		e.b().held(e.permits(name, 5, 3))
		e.b().try(e.permits(name, 5, 2))
		e.c().held(e.permits(name, 5, 1))
		e.a().release(three)
		e.c().held(e.permits(name, 5, 4))
		e.c().try(e.permits(name, 5, 3))
		e.d().held(e.permits(name, 5, 1))
	}),
	semaphore.promise("semaphore-big-claim", "A big claim is not starved by small ones: what comes after it waits behind it, even where it would fit.", func(e *Env) {
		name := e.lock("s")
		one, two := e.a().try(e.permits(name, 3, 1)), e.b().try(e.permits(name, 3, 1))
		big := e.c().queue(e.permits(name, 3, 3)).stands()
		small := e.d().queue(e.permits(name, 3, 1)).stands()
		e.d().held(e.permits(name, 3, 1))
		small.stays(50 * time.Millisecond)
		e.a().release(one)
		small.stays(50 * time.Millisecond)
		e.b().release(two)
		big.granted()
		small.stays(50 * time.Millisecond)
		e.c().release(big.grant)
		small.granted()
	}),
	semaphore.promise("semaphore-lets-in-all", "A release lets in everybody who fits, not just the first.", func(e *Env) {
		name := e.lock("s")
		all := e.a().try(e.permits(name, 3, 3))
		w1, w2, w3, w4 := e.b().queue(e.permits(name, 3, 1)).stands(), e.c().queue(e.permits(name, 3, 1)).stands(),
			e.d().queue(e.permits(name, 3, 1)).stands(), e.b().queue(e.permits(name, 3, 1)).stands()
		e.a().release(all)
		w1.granted()
		w2.granted()
		w3.granted()
		w4.stays(50 * time.Millisecond)
	}),
	semaphore.promise("semaphore-contended", "However many contend, the weight of those inside never exceeds the limit.", func(e *Env) {
		name := e.lock("s")
		const limit = 5
		var inside, most, todo atomic.Int64
		todo.Store(int64(e.times(60)))
		e.together(2*sharedClients, func(i int) {
			c := e.client(i)
			for todo.Add(-1) >= 0 {
				cl := e.permits(name, limit, 1+rand.Int64N(3))
				g := c.lock(cl)
				n := inside.Add(cl.Weight)
				most.Store(max(most.Load(), n))
				if n > limit {
					e.failf("a weight of %d is inside, and the limit is %d", n, limit)
				}
				e.sleep(500 * time.Microsecond)
				inside.Add(-cl.Weight)
				c.release(g)
			}
		})
		e.log("a weight of up to %d of %d inside", most.Load(), limit)
		e.empty(name, 0)
	}),
	semaphore.promise("dead-permits", "When a holder of a semaphore falls silent its weight comes back after its TTL, not sooner, and the others keep theirs.", func(e *Env) {
		dead := e.open()
		g := dead.try(e.short(e.permits(e.lock("s"), 3, 2)))
		living := e.a().try(e.permits(g.Name, 3, 1))
		w := e.b().queue(e.permits(g.Name, 3, 2))
		e.while(g, func() { w.stands() })
		w.grantedWithin(e.latest(g.GrantedTTL))
		e.notEarly(g, w.returned)
		e.a().renew(living)
		e.c().held(e.permits(g.Name, 3, 1))
	}),
}

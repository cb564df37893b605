package drivertest

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var exclusionCases = []Case{
	newCase("mutex-contended", "However many clients contend for a mutex, only one at a time holds it: no update "+
		"made under the lock is lost.", func(e *Env) {
		name := e.lockName("counter")
		e.countUnderLock(sharedClients, 1, 60, func() driver.Claim { return e.mutexClaim(name) })
	}),
	fairFeature.newCase("fair-contended", "A fair mutex excludes as a plain one does, and its tokens rise in the "+
		"order of the grants.", func(e *Env) {
		name := e.lockName("counter")
		e.countUnderLock(sharedClients, min(3, e.info.MaxWaiters/sharedClients), 60,
			func() driver.Claim { return e.fairClaim(name) })
	}),
	newCase("one-client-two-claims", "Two claims of one client on one lock exclude each other as those of two "+
		"clients do.", func(e *Env) {
		name := e.lockName("twice")
		g := e.a().mustTry(e.mutexClaim(name))
		e.a().mustBeHeld(e.mutexClaim(name))
		w := e.a().startWaiting(e.queuedClaim(name)).requireQueued().requireWaiting(50 * time.Millisecond)
		e.a().mustRelease(g)
		e.requireRising(g.Token, w.mustBeGranted().Token)
		e.requireHolder(w.grant)
	}),
	newCase("try-refused", "A try on a held lock is refused at once. The error names the holder, and nothing is "+
		"left of the try.", func(e *Env) {
		name := e.lockName("held")
		g := e.a().mustTry(e.mutexClaim(name))
		for _, c := range []*client{e.a(), e.b()} {
			start := e.now()
			err := c.mustBeHeld(e.mutexClaim(name))
			e.requireWithin(start, e.slack, "the refusal")
			if len(err.Holders) != 1 || err.Holders[0].Owner != g.Owner {
				e.failf("the refusal should name %s as the holder, but it is %q", g.Owner, err)
			}
			if err.Waiting != 0 {
				e.failf("the refusal counts %d waiting claims, but there are none", err.Waiting)
			}
		}
		e.requireHolder(g)
		if l := e.a().mustInspect(name); len(l.Waiters) != 0 {
			e.failf("the refused try left a trace: %s", describeLock(l))
		}
		e.a().mustRelease(g)
		e.sleep(20 * time.Millisecond)
		e.requireEmpty(name, 0)
	}),
	semaphoreFeature.newCase("try-never-overtakes", "A claim that does not wait never overtakes a waiting claim, "+
		"even if it would fit.", func(e *Env) {
		name := e.lockName("queue")
		g := e.a().mustTry(e.semaphoreClaim(name, 3, 2))
		w := e.b().startWaiting(e.semaphoreClaim(name, 3, 2)).requireQueued()
		err := e.c().mustBeHeld(e.semaphoreClaim(name, 3, 1))
		if err.Waiting != 1 {
			e.failf("the refusal should count 1 waiting claim, not %d", err.Waiting)
		}
		w.giveUp()
		e.c().mustRelease(e.c().mustTry(e.semaphoreClaim(name, 3, 1)))
		e.a().mustRelease(g)
	}),
	fairFeature.newCase("plain-never-overtakes-fair", "A plain waiting claim never overtakes a fair claim that "+
		"entered the queue before it.", func(e *Env) {
		for range 3 {
			name := e.lockName("queue")
			g := e.a().mustTry(e.mutexClaim(name))
			fair := e.b().startWaiting(e.fairClaim(name)).requireQueued()
			plain := e.c().startWaiting(e.mutexClaim(name)).requireQueued()
			e.a().mustRelease(g)
			fair.mustBeGranted()
			plain.requireWaiting(30 * time.Millisecond)
			e.b().mustRelease(fair.grant)
			e.c().mustRelease(plain.mustBeGranted())
		}
	}),
	newCase("context-bounds-the-call", "The context of an Acquire bounds the call and not the grant: when it ends "+
		"later, the claim remains granted.", func(e *Env) {
		short := e.openClient()
		cl := e.mutexClaim(e.lockName("kept"))
		g := short.mustAcquire(cl)
		waited := e.lockName("kept-after-waiting")
		first := e.a().mustTry(e.mutexClaim(waited))
		w := short.startWaiting(e.queuedClaim(waited)).requireQueued()
		e.a().mustRelease(first)
		w.mustBeGranted()
		w.cancel()
		short.endCalls()
		e.sleep(100 * time.Millisecond)
		e.requireHolder(g)
		e.requireHolder(w.grant)
	}),
}

// countUnderLock lets workers of several clients count under a lock, each reading and writing in two steps. It checks
// that no count is lost, that two workers never hold the lock at the same time, and that tokens rise.
func (e *Env) countUnderLock(clients, workers, rounds int, claim func() driver.Claim) {
	var todo, inside, count atomic.Int64
	rounds = e.scaleEffort(rounds)
	todo.Store(int64(rounds))
	var mu sync.Mutex
	var tokens []int64
	start := e.now()
	e.runConcurrently(clients*workers, func(i int) {
		c := e.client(i)
		for todo.Add(-1) >= 0 {
			g := c.mustAcquire(claim())
			if n := inside.Add(1); n != 1 {
				e.failf("%d claims hold the lock at the same time", n)
			}
			seen := count.Load()
			runtime.Gosched()
			e.sleep(100 * time.Microsecond)
			count.Store(seen + 1)
			mu.Lock()
			tokens = append(tokens, g.Token)
			mu.Unlock()
			inside.Add(-1)
			c.mustRelease(g)
		}
	})
	if n := count.Load(); n != int64(rounds) {
		e.failf("%d of %d updates were lost", int64(rounds)-n, rounds)
	}
	e.requireRising(tokens...)
	e.logRemark("%d grants to %d workers of %d clients in %v", rounds, clients*workers, clients,
		e.since(start).Round(time.Millisecond))
}

package drivertest

import (
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var tokenCases = []Case{
	newCase("token-rises", "The token of a grant is larger than every token that was granted before on its lock, "+
		"by whichever client.", func(e *Env) {
		name := e.lockName("m")
		var tokens []int64
		for i := range 12 {
			c := e.client(i)
			g := c.mustTry(e.mutexClaim(name))
			tokens = append(tokens, g.Token)
			e.requireRising(tokens...)
			c.mustRelease(g)
		}
	}),
	newCase("token-rises-after-expiry", "The token of a grant is larger than that of a holder that stopped renewing.",
		func(e *Env) {
			name := e.lockName("m")
			dead := e.openClient()
			g := dead.mustTry(e.withMinTTL(e.mutexClaim(name)))
			w := e.a().startWaiting(e.queuedClaim(name))
			e.requireRising(g.Token, w.mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL)).Token)
		}),
	newCase("token-rises-after-idle", "Tokens continue to rise after a lock was idle, even if it is then used as "+
		"another kind.", func(e *Env) {
		name := e.lockName("m")
		var tokens []int64
		claims := []driver.Claim{e.mutexClaim(name)}
		if slices.Contains(e.info.Kinds, driver.KindSemaphore) {
			claims = append(claims, e.semaphoreClaim(name, 5, 2))
		}
		if slices.Contains(e.info.Kinds, driver.KindRW) {
			claims = append(claims, e.writerClaim(name))
		}
		for i, cl := range append(claims, e.mutexClaim(name)) {
			g := e.client(i).mustTry(cl)
			tokens = append(tokens, g.Token)
			e.requireRising(tokens...)
			e.client(i).mustRelease(g)
			e.requireEmpty(name, 0)
			e.sleep(300 * time.Millisecond)
		}
	}),
	newCase("token-kept", "A claim keeps its token as long as it is held, and Inspect shows this token.", func(e *Env) {
		g := e.a().mustTry(e.mutexClaim(e.lockName("m")))
		for range 3 {
			g = e.a().mustRenew(g)
			e.requireHolder(g)
			if l := e.b().mustInspect(g.Name); l.Token != 0 && l.Token != g.Token {
				e.failf("the lock's largest token is shown as %d, but %d was granted last", l.Token, g.Token)
			}
		}
	}),
	newTokenFloorCase("token-floor", "No token is smaller than the floor that the store told before.", func(e *Env) {
		floor := e.a().mustReadTokenFloor()
		g := e.b().mustTry(e.mutexClaim(e.lockName("m")))
		if floor.Token < 1 || g.Token < floor.Token {
			e.failf("the floor was %d, and the token granted next is %d", floor.Token, g.Token)
		}
	}),
	newTokenFloorCase("token-raised", "An operator can raise the tokens of a lock, or is told what to do instead. The holder keeps "+
		"its token. The next token is at least as large as was asked for, even if the lock was idle.", func(e *Env) {
		name := e.lockName("m")
		g := e.a().mustTry(e.mutexClaim(name))
		raised := g.Token + time.Minute.Microseconds()
		if e.b().raiseToken(name, raised) {
			g = e.a().mustRenew(g)
			e.requireHolder(g)
			e.b().raiseToken(name, raised-1)
			e.a().mustRelease(g)
			e.requireEmpty(name, 0)
			g = e.c().mustTry(e.mutexClaim(name))
			e.requireRising(raised-1, g.Token)
			e.c().mustRelease(g)
			idle := e.lockName("idle")
			e.b().raiseToken(idle, raised)
			e.requireRising(raised-1, e.c().mustTry(e.mutexClaim(idle)).Token)
			return
		}
		e.refused.Store(true)
		e.b().raiseToken(name, 1) // is so already
		e.a().mustRelease(g)
		e.requireRising(g.Token, e.c().mustTry(e.mutexClaim(name)).Token)
	}),
	semaphoreFeature.newCase("token-unique", "Claims that hold a lock together each have a token of their own, "+
		"and later claims have larger ones.", func(e *Env) {
		name := e.lockName("s")
		var mu sync.Mutex
		var tokens []int64
		e.runConcurrently(8, func(i int) {
			g := e.client(i).mustAcquire(e.semaphoreClaim(name, 8, 1))
			mu.Lock()
			defer mu.Unlock()
			tokens = append(tokens, g.Token)
		})
		slices.Sort(tokens)
		e.requireRising(tokens...)
	}),
}

// newTokenFloorCase returns a case for the stores that can tell how small the tokens to come can be.
func newTokenFloorCase(name, text string, run func(e *Env)) Case {
	return newCase(name, text, func(e *Env) {
		c := e.a()
		c.mustRelease(c.mustTry(e.mutexClaim(e.lockName("first")))) // some stores come into being with their first lock
		if !e.info.Abilities.Tokens {
			e.refused.Store(true)
			return
		}
		run(e)
	})
}

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
	newCase("token-rises-after-idle", "Tokens continue to rise after a lock was idle, also if it is then used as "+
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

package drivertest

import (
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var tokenCases = []Case{
	promise("token-rises", "The token of a grant is larger than every token granted before on its lock, whoever held it.", func(e *Env) {
		name := e.lock("m")
		var tokens []int64
		for i := range 12 {
			c := e.client(i)
			g := c.try(e.mutex(name))
			tokens = append(tokens, g.Token)
			e.rises(tokens...)
			c.release(g)
		}
	}),
	promise("token-rises-after-expiry", "The token of a grant is larger than that of a holder who fell silent.", func(e *Env) {
		name := e.lock("m")
		dead := e.open()
		g := dead.try(e.short(e.mutex(name)))
		w := e.a().queue(e.lined(name))
		e.rises(g.Token, w.grantedWithin(e.latest(g.GrantedTTL)).Token)
	}),
	promise("token-rises-after-idle", "Tokens go on rising when a lock stood idle, also when it is then used as another kind.", func(e *Env) {
		name := e.lock("m")
		var tokens []int64
		claims := []driver.Claim{e.mutex(name)}
		if slices.Contains(e.info.Kinds, driver.KindSemaphore) {
			claims = append(claims, e.permits(name, 5, 2))
		}
		if slices.Contains(e.info.Kinds, driver.KindRW) {
			claims = append(claims, e.writer(name))
		}
		for i, cl := range append(claims, e.mutex(name)) {
			g := e.client(i).try(cl)
			tokens = append(tokens, g.Token)
			e.rises(tokens...)
			e.client(i).release(g)
			e.empty(name, 0)
			e.sleep(300 * time.Millisecond)
		}
	}),
	promise("token-kept", "A claim keeps its token for as long as it is held, and the lock shows it.", func(e *Env) {
		g := e.a().try(e.mutex(e.lock("m")))
		for range 3 {
			g = e.a().renew(g)
			e.held(g)
			if l := e.b().inspect(g.Name); l.Token != 0 && l.Token != g.Token {
				e.failf("the lock says that its largest token is %d, where %d was granted last", l.Token, g.Token)
			}
		}
	}),
	semaphore.promise("token-unique", "Claims that hold a lock side by side have a token each, and later ones have larger ones.", func(e *Env) {
		name := e.lock("s")
		var mu sync.Mutex
		var tokens []int64
		e.together(8, func(i int) {
			g := e.client(i).lock(e.permits(name, 8, 1))
			mu.Lock()
			defer mu.Unlock()
			tokens = append(tokens, g.Token)
		})
		slices.Sort(tokens)
		e.rises(tokens...)
	}),
}

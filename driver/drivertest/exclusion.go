package drivertest

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var exclusionCases = []Case{
	promise("mutex-contended", "However many clients contend for a mutex, one at a time holds it: no update made under it is lost.", func(e *Env) {
		name := e.lock("counter")
		e.contend(sharedClients, 1, 60, func() driver.Claim { return e.mutex(name) })
	}),
	order.promise("fair-contended", "A fair mutex excludes as a plain one does, and its tokens rise in the order of the grants.", func(e *Env) {
		name := e.lock("counter")
		e.contend(sharedClients, min(3, e.info.MaxWaiters/sharedClients), 60, func() driver.Claim { return e.fair(name) })
	}),
	promise("one-client-two-claims", "Two claims of one client on one lock exclude each other like those of two clients.", func(e *Env) {
		name := e.lock("twice")
		g := e.a().try(e.mutex(name))
		e.a().held(e.mutex(name))
		w := e.a().queue(e.lined(name)).stands().stays(50 * time.Millisecond)
		e.a().release(g)
		e.rises(g.Token, w.granted().Token)
		e.held(w.grant)
	}),
	promise("try-refused", "A try on a held lock is refused at once, names the holder, and leaves no trace.", func(e *Env) {
		name := e.lock("held")
		g := e.a().try(e.mutex(name))
		for _, c := range []*client{e.a(), e.b()} {
			start := e.now()
			err := c.held(e.mutex(name))
			e.soon(start, e.slack, "the refusal")
			if len(err.Holders) != 1 || err.Holders[0].Owner != g.Owner {
				e.failf("the refusal should name %s as the holder, but says %q", g.Owner, err)
			}
			if err.Waiting != 0 {
				e.failf("the refusal counts %d waiting claims where none waits", err.Waiting)
			}
		}
		e.held(g)
		if l := e.a().inspect(name); len(l.Waiters) != 0 {
			e.failf("the refused try left a trace: %s", tell(l))
		}
		e.a().release(g)
		e.sleep(20 * time.Millisecond)
		e.empty(name, 0)
	}),
	semaphore.promise("try-passes-nobody", "A claim that does not want to wait never passes one that waits, even where it would fit.", func(e *Env) {
		name := e.lock("line")
		g := e.a().try(e.permits(name, 3, 2))
		w := e.b().queue(e.permits(name, 3, 2)).stands()
		err := e.c().held(e.permits(name, 3, 1))
		if err.Waiting != 1 {
			e.failf("the refusal should count 1 waiting claim, not %d", err.Waiting)
		}
		w.leaves()
		e.c().release(e.c().try(e.permits(name, 3, 1)))
		e.a().release(g)
	}),
	order.promise("plain-passes-no-fair", "A plain claim that waits never passes a fair one that stood in line before it.", func(e *Env) {
		for range 3 {
			name := e.lock("line")
			g := e.a().try(e.mutex(name))
			fair := e.b().queue(e.fair(name)).stands()
			plain := e.c().queue(e.mutex(name)).stands()
			e.a().release(g)
			fair.granted()
			plain.stays(30 * time.Millisecond)
			e.b().release(fair.grant)
			e.c().release(plain.granted())
		}
	}),
	promise("context-bounds-the-call", "The context of an Acquire bounds the call, not the grant: when it ends later, the grant stands.", func(e *Env) {
		short := e.open()
		cl := e.mutex(e.lock("kept"))
		g := short.lock(cl)
		waited := e.lock("kept-after-waiting")
		first := e.a().try(e.mutex(waited))
		w := short.queue(e.lined(waited)).stands()
		e.a().release(first)
		w.granted()
		w.cancel()
		short.drop()
		e.sleep(100 * time.Millisecond)
		e.held(g)
		e.held(w.grant)
	}),
}

// contend lets workers of several clients count under a lock, each one reading and writing in two steps, and looks
// whether a count is lost, whether two were ever inside, and whether tokens rise from grant to grant.
func (e *Env) contend(clients, workers, rounds int, claim func() driver.Claim) {
	var todo, inside, count atomic.Int64
	rounds = e.times(rounds)
	todo.Store(int64(rounds))
	var mu sync.Mutex
	var tokens []int64
	start := e.now()
	e.together(clients*workers, func(i int) {
		c := e.client(i)
		for todo.Add(-1) >= 0 {
			g := c.lock(claim())
			if n := inside.Add(1); n != 1 {
				e.failf("%d hold the lock at a time", n)
			}
			seen := count.Load()
			runtime.Gosched()
			e.sleep(100 * time.Microsecond)
			count.Store(seen + 1)
			mu.Lock()
			tokens = append(tokens, g.Token)
			mu.Unlock()
			inside.Add(-1)
			c.release(g)
		}
	})
	if n := count.Load(); n != int64(rounds) {
		e.failf("%d of %d updates were lost", int64(rounds)-n, rounds)
	}
	e.rises(tokens...)
	e.log("%d grants to %d workers of %d clients in %v", rounds, clients*workers, clients, e.since(start).Round(time.Millisecond))
}

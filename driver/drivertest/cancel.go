package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var cancelCases = []Case{
	promise("cancel-waiting", "A wait that is given up returns at once with the context's error, and after its clean-up nothing is left of it.", func(e *Env) {
		name := e.lock("m")
		g := e.a().try(e.mutex(name))
		for _, cl := range []driver.Claim{e.mutex(name), e.lined(name)} {
			w := e.b().queue(cl).stands()
			start := e.now()
			w.leaves()
			var held *driver.HeldError
			if errors.As(w.err, &held) && (len(held.Holders) != 1 || held.Holders[0].Owner != g.Owner) {
				e.failf("it waited in vain for %s, and is told: %q", g.Owner, w.err)
			}
			e.soon(start, e.slack, "giving up and cleaning up")
			if l := e.a().inspect(name); len(l.Waiters) != 0 {
				e.failf("the cancelled claim is left: %s", tell(l))
			}
		}
		e.a().release(g)
		e.sleep(20 * time.Millisecond)
		e.empty(name, 0)
	}),
	promise("deadline-waiting", "A wait with a deadline returns when it has passed, and says so.", func(e *Env) {
		name := e.lock("m")
		e.a().try(e.mutex(name))
		start := e.now()
		ctx, cancel := context.WithTimeout(e.ctx, 100*time.Millisecond)
		defer cancel()
		cl := e.lined(name)
		cl.Wait = true
		_, err := e.b().acquire(ctx, cl)
		e.wants(err, context.DeadlineExceeded, "a wait whose deadline has passed")
		if took := e.since(start); took < 90*time.Millisecond {
			e.failf("a deadline of 100 ms was over after %v", took)
		}
		e.soon(start, 100*time.Millisecond+e.slack, "a wait with a deadline of 100 ms")
		e.b().clean(cl)
		e.c().held(e.mutex(name))
	}),
	promise("cancel-before", "A claim under a context that has already ended is not granted, and after its clean-up nothing is left of it.", func(e *Env) {
		ctx, cancel := context.WithCancel(e.ctx)
		cancel()
		name := e.lock("m")
		for _, wait := range []bool{false, true} {
			cl := e.lined(name)
			cl.Wait = wait
			_, err := e.a().acquire(ctx, cl)
			e.wants(err, context.Canceled, "a claim under an ended context (wait: %v)", wait)
			e.a().clean(cl)
			e.empty(name, 0)
		}
	}),
	promise("cancel-at-random", "Claims that are given up at any moment, and cleaned up, are gone within a second: no orphan stands in the way.", func(e *Env) {
		start := e.now()
		e.a().release(e.a().try(e.mutex(e.lock("measure"))))
		usual := max(e.since(start), 100*time.Microsecond)
		held := e.lock("held")
		g := e.d().try(e.mutex(held))
		free := []string{e.lock("free-1"), e.lock("free-2")}
		n := e.times(200)
		var after, todo atomic.Int64
		todo.Store(int64(n))
		e.together(sharedClients, func(i int) {
			for k := todo.Add(-1); k >= 0; k = todo.Add(-1) {
				c, cl, stood := e.client(i), e.lined(held), false
				switch {
				case k%2 == 0:
					cl = e.lined(free[k/2%2])
					stood = e.cancelled(c, cl, rand.N(2*usual))
				case k%4 == 1 || !e.standsInLine(cl):
					stood = e.cancelled(c, cl, rand.N(10*usual))
				default: // that it stands is not left to the pace of the machine
					c.queue(cl).stands().leaves()
					stood = true
				}
				if stood {
					after.Add(1)
				}
			}
		})
		for _, name := range free {
			e.empty(name, time.Second)
		}
		e.held(g)
		if l := e.a().inspect(held); len(l.Waiters) != 0 {
			e.failf("orphans are left: %s", tell(l))
		}
		e.d().release(g)
		e.empty(held, time.Second)
		e.log("%d of %d cancels fell after the claim had come to stand", after.Load(), n)
	}),
	promise("acquire-again", "Asking again for a claim that was granted gives the same grant: the same token, renewed.", func(e *Env) {
		cl := e.mutex(e.lock("m"))
		g := e.a().try(cl)
		again := e.a().try(cl)
		waited := e.a().lock(cl)
		if again.Token != g.Token || waited.Token != g.Token {
			e.failf("token %d became %d and %d", g.Token, again.Token, waited.Token)
		}
		e.held(g)
		e.a().renew(g)
		e.a().release(g)
		e.empty(cl.Name, 0)
	}),
	promise("acquire-again-after-cancel", "A claim whose wait was given up can be asked for again under its id, and stands once.", func(e *Env) {
		name := e.lock("m")
		g := e.a().try(e.mutex(name))
		w := e.b().queue(e.lined(name)).stands()
		w.cancel()
		w.refused(context.Canceled)
		again := e.b().queue(w.claim).stands()
		if l := e.a().inspect(name); e.standsInLine(w.claim) && len(l.Waiters) != 1 {
			e.failf("one claim should wait, but %s", tell(l))
		}
		e.a().release(g)
		e.held(again.granted())
		e.b().release(again.grant)
		e.empty(name, 0)
	}),
}

// cancelled makes a claim, gives it up after d, cleans up as a caller does, and reports whether it had come to stand.
func (e *Env) cancelled(c *client, cl driver.Claim, d time.Duration) bool {
	cl.Wait = true
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	var at atomic.Pointer[driver.Instant]
	timer := time.AfterFunc(d, func() {
		now := e.now()
		at.Store(&now)
		cancel()
	})
	defer timer.Stop()
	g, err := c.acquire(ctx, cl)
	returned := e.now()
	if err == nil {
		c.release(g)
		return true
	}
	if !errors.Is(err, context.Canceled) && !errors.Is(err, driver.ErrQueueFull) {
		panic(failure{fmt.Errorf("a claim given up after %v: got %w, want the context's error", d, err)})
	}
	if t := at.Load(); t != nil && elapsed(*t, returned) > e.slack {
		e.latef("a claim that was given up returned after %v", elapsed(*t, returned))
	}
	return c.clean(cl)
}

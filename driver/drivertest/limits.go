package drivertest

import (
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var limitCases = []Case{
	semaphore.promise("mismatch", "A lock in use as one kind, or with one limit, refuses claims of another kind or limit, and the error names both.", func(e *Env) {
		name := e.lock("m")
		names := func(err error, words ...string) {
			for _, w := range words {
				if !strings.Contains(strings.ReplaceAll(err.Error(), name, ""), w) {
					e.failf("the error does not name %s: %q", w, err)
				}
			}
		}
		g := e.a().try(e.mutex(name))
		names(e.b().refused(e.permits(name, 7001, 1), driver.ErrMismatch), "mutex", "semaphore")
		e.held(g)
		e.a().release(g)

		g = e.a().try(e.permits(name, 7001, 1))
		names(e.b().refused(e.permits(name, 8002, 1), driver.ErrMismatch), "7001", "8002")
		names(e.b().refused(e.mutex(name), driver.ErrMismatch), "mutex", "semaphore")
		e.held(g)
		if l := e.c().inspect(name); len(l.Waiters) != 0 {
			e.failf("a refused claim left a trace: %s", tell(l))
		}
	}),
	semaphore.promise("idle-takes-any", "An idle lock takes the kind and limit of its next claim.", func(e *Env) {
		name := e.lock("m")
		for _, cl := range []driver.Claim{e.mutex(name), e.permits(name, 7, 3), e.permits(name, 9, 9), e.mutex(name)} {
			g := e.a().try(cl)
			if l := e.b().inspect(name); l.Kind != cl.Kind || l.Limit != cl.Limit {
				e.failf("claimed as %s of %d, and shown as %s of %d", cl.Kind, cl.Limit, l.Kind, l.Limit)
			}
			e.a().release(g)
		}
		if l := e.b().inspect(name); l.Kind != "" || l.Limit != 0 {
			e.failf("idle, and shown as %s of %d", l.Kind, l.Limit)
		}
	}),
	order.promise("queue-full", "A line that is as long as the store allows takes no more claims, says so, and does so again when one has left; one who only tries is told that the lock is held.", func(e *Env) {
		n := e.info.MaxWaiters
		if n > 300 {
			e.skip("%d claims may wait, too many to try", n)
		}
		name := e.lock("line")
		g := e.a().try(e.mutex(name))
		line := make([]*waiting, n)
		for i := range line {
			line[i] = e.client(i).queue(e.fair(name))
		}
		e.until(15*e.slack, func() bool { return len(e.a().inspect(name).Waiters) == n }, "%d claims should wait", n)
		w := e.b().queue(e.fair(name))
		w.refused(driver.ErrQueueFull)
		e.b().clean(w.claim)
		e.d().held(e.mutex(name)) // who does not want to wait needs no place in line
		line[n/2].leaves()
		again := e.c().queue(e.fair(name)).stands()
		e.held(g)
		again.leaves()
	}),
	semaphore.promise("holders-full", "As many claims hold a lock side by side as the store says; one more is refused.", func(e *Env) {
		n := e.info.MaxHolders
		if n > 300 {
			e.skip("%d claims may hold a lock, too many to try", n)
		}
		name := e.lock("s")
		for range n {
			e.a().try(e.permits(name, int64(n)+1, 1))
		}
		l := e.b().inspect(name)
		if len(l.Holders) != n {
			e.failf("%d claims were granted, and %d are shown", n, len(l.Holders))
		}
		w := e.b().queue(e.permits(name, int64(n)+1, 1))
		w.refused(driver.ErrQueueFull)
		e.b().clean(w.claim)
		e.c().breaks(name, l.Holders[0].Ref, driver.BreakForce)
		e.b().try(e.permits(name, int64(n)+1, 1))
	}),
	promise("ttl-bounds", "A TTL outside of the store's bounds is refused as invalid, and not changed in silence.", func(e *Env) {
		for _, ttl := range []time.Duration{e.info.MinTTL - time.Millisecond, e.info.MaxTTL + time.Millisecond} {
			name := e.lock("m")
			e.a().refused(lasting(e.mutex(name), ttl), driver.ErrInvalid)
			e.empty(name, 0)
		}
	}),
	promise("notes", "Owner and note of a claim are shown exactly as they were given, up to the store's limit.", func(e *Env) {
		for i, meta := range []string{"", "{\"a\": [1]}\n\t'\\\"", "🔒 é ü %00 %s $1 :x \x01", strings.Repeat("m", e.info.MaxMeta)} {
			cl := e.mutex(e.lock(fmt.Sprint(i)))
			cl.Meta = meta[:min(len(meta), e.info.MaxMeta)]
			cl.Owner += " 🔒 \"o'wner\" | a,b;c=d"
			e.a().try(cl)
			if h := e.b().inspect(cl.Name).Holders; len(h) != 1 || h[0].Owner != cl.Owner || h[0].Meta != cl.Meta {
				e.failf("claimed with owner %q and note %q, and shown as %+v", cl.Owner, cl.Meta, h)
			}
		}
	}),
}

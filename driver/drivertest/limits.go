package drivertest

import (
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var limitCases = []Case{
	semaphoreFeature.newCase("mismatch", "A lock that is in use as one kind or with one limit refuses claims of "+
		"another kind or limit, and the error names both.", func(e *Env) {
		name := e.lockName("m")
		names := func(err error, words ...string) {
			for _, w := range words {
				if !strings.Contains(strings.ReplaceAll(err.Error(), name, ""), w) {
					e.failf("the error does not name %s: %q", w, err)
				}
			}
		}
		g := e.a().mustTry(e.mutexClaim(name))
		names(e.b().mustBeRefused(e.semaphoreClaim(name, 7001, 1), driver.ErrMismatch), "mutex", "semaphore")
		e.requireHolder(g)
		e.a().mustRelease(g)

		g = e.a().mustTry(e.semaphoreClaim(name, 7001, 1))
		names(e.b().mustBeRefused(e.semaphoreClaim(name, 8002, 1), driver.ErrMismatch), "7001", "8002")
		names(e.b().mustBeRefused(e.mutexClaim(name), driver.ErrMismatch), "mutex", "semaphore")
		e.requireHolder(g)
		if l := e.c().mustInspect(name); len(l.Waiters) != 0 {
			e.failf("a refused claim left a trace: %s", describeLock(l))
		}
	}),
	semaphoreFeature.newCase("idle-lock-takes-any-kind", "An idle lock takes the kind and limit of its next claim.",
		func(e *Env) {
			name := e.lockName("m")
			for _, cl := range []driver.Claim{e.mutexClaim(name), e.semaphoreClaim(name, 7, 3),
				e.semaphoreClaim(name, 9, 9),
				e.mutexClaim(name)} {
				g := e.a().mustTry(cl)
				if l := e.b().mustInspect(name); l.Kind != cl.Kind || l.Limit != cl.Limit {
					e.failf("claimed as a %s of limit %d, but shown as a %s of limit %d", cl.Kind, cl.Limit, l.Kind,
						l.Limit)
				}
				e.a().mustRelease(g)
			}
			if l := e.b().mustInspect(name); l.Kind != "" || l.Limit != 0 {
				e.failf("the lock is idle, but shown as a %s of limit %d", l.Kind, l.Limit)
			}
		}),
	fairFeature.newCase("queue-full", "When a queue is as long as the store allows, further claims are refused "+
		"with ErrQueueFull until a claim has left it, and nothing is left of them. A claim that does not wait is "+
		"refused because the lock is held.", func(e *Env) {
		n := e.info.MaxWaiters
		if n > 300 {
			e.skip("%d claims may wait, too many to try", n)
		}
		name := e.lockName("queue")
		g := e.a().mustTry(e.mutexClaim(name))
		queue := make([]*waitingCall, n)
		for i := range queue {
			queue[i] = e.client(i).startWaiting(e.fairClaim(name))
		}
		e.waitUntil(15*e.slack, func() bool { return len(e.a().mustInspect(name).Waiters) == n },
			"%d claims should wait", n)
		w := e.b().startWaiting(e.fairClaim(name))
		w.mustFail(driver.ErrQueueFull)
		e.b().mustBeGone(w.claim)
		e.d().mustBeHeld(e.mutexClaim(name)) // a claim that does not wait needs no place in queue
		queue[n/2].giveUp()
		again := e.c().startWaiting(e.fairClaim(name)).requireQueued()
		e.requireHolder(g)
		again.giveUp()
	}),
	semaphoreFeature.newCase("holders-full", "A lock can have as many holders as the store's Info says. One more is "+
		"refused.", func(e *Env) {
		n := e.info.MaxHolders
		if n > 300 {
			e.skip("%d claims may hold a lock, too many to try", n)
		}
		name := e.lockName("s")
		for range n {
			e.a().mustTry(e.semaphoreClaim(name, int64(n)+1, 1))
		}
		l := e.b().mustInspect(name)
		if len(l.Holders) != n {
			e.failf("%d claims were granted, but %d are shown", n, len(l.Holders))
		}
		w := e.b().startWaiting(e.semaphoreClaim(name, int64(n)+1, 1))
		w.mustFail(driver.ErrQueueFull)
		e.b().mustBeGone(w.claim)
		e.c().mustBreak(name, l.Holders[0].Ref, driver.BreakForce)
		e.b().mustTry(e.semaphoreClaim(name, int64(n)+1, 1))
	}),
	newCase("ttl-bounds", "A TTL outside the store's bounds is refused as invalid, and is not changed silently.",
		func(e *Env) {
			for _, ttl := range []time.Duration{e.info.MinTTL - time.Millisecond, e.info.MaxTTL + time.Millisecond} {
				name := e.lockName("m")
				e.a().mustBeRefused(withTTL(e.mutexClaim(name), ttl), driver.ErrInvalid)
				e.requireEmpty(name, 0)
			}
		}),
	newCase("owner-and-meta", "The owner and the meta text of a claim are shown exactly as they were given, up to "+
		"the store's limit.", func(e *Env) {
		for i, meta := range []string{"", "{\"a\": [1]}\n\t'\\\"", "🔒 é ü %00 %s $1 :x \x01", strings.Repeat("m",
			e.info.MaxMeta)} {
			cl := e.mutexClaim(e.lockName(fmt.Sprint(i)))
			cl.Meta = meta[:min(len(meta), e.info.MaxMeta)]
			cl.Owner += " 🔒 \"o'wner\" | a,b;c=d"
			e.a().mustTry(cl)
			if h := e.b().mustInspect(cl.Name).Holders; len(h) != 1 || h[0].Owner != cl.Owner || h[0].Meta != cl.Meta {
				e.failf("claimed with owner %q and meta %q, but shown as %+v", cl.Owner, cl.Meta, h)
			}
		}
	}),
}

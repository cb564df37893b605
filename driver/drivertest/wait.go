package drivertest

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var waitCases = []Case{
	order.promise("dead-waiter", "A client that died while it waited in line holds up those behind it for the confirm window at most, not for its TTL.", func(e *Env) {
		e.deadWaiters(1)
	}),
	order.promise("dead-waiters", "Ten clients that died while they waited hold up those behind them for far less than ten confirm windows.", func(e *Env) {
		e.deadWaiters(min(10, e.info.MaxWaiters-1))
	}),
	promise("dead-holder-and-line", "When a holder dies the first in line is let in, and then the next: the line moves on as after a release.", func(e *Env) {
		dead := e.open()
		g := dead.try(e.short(e.mutex(e.lock("m"))))
		first := e.a().queue(e.lined(g.Name))
		first.grantedWithin(e.latest(g.GrantedTTL))
		e.notEarly(g, first.returned)
		second := e.b().queue(e.lined(g.Name)).stands()
		e.a().release(first.grant)
		e.rises(g.Token, first.grant.Token, second.granted().Token)
	}),
	promise("killed-holder", "The claim of a killed process stands in the way for no longer than the store says.", func(e *Env) {
		if e.h.Kill == nil {
			e.skip("needs Harness.Kill")
		}
		c := e.open()
		bound := e.info.DeadHolderTimeout
		cl := e.mutex(e.lock("m"))
		if bound == 0 {
			cl = e.short(cl)
		}
		g := c.try(cl)
		if bound == 0 {
			bound = e.latest(g.GrantedTTL)
		}
		var w *waiting
		e.while(g, func() { w = e.a().queue(e.lined(g.Name)).stands() })
		start := e.now()
		e.kill(c)
		e.rises(g.Token, w.grantedWithin(bound+e.slack).Token)
		e.log("%v after the kill", elapsed(start, w.returned).Round(time.Millisecond))
	}),
}

// deadWaiters lets n clients die in line behind a holder, and looks how long that holds up the one behind them when the
// holder goes.
func (e *Env) deadWaiters(n int) {
	name := e.lock("line")
	g := e.a().try(e.mutex(name))
	cl := func() driver.Claim { return e.fair(name) }
	window := e.window(e.long())
	if e.sessions() { // a waiting claim stands there until its session ends
		cl = func() driver.Claim { return e.short(e.fair(name)) }
		probe := e.b().try(e.short(e.mutex(e.lock("session-time"))))
		window = e.latest(probe.GrantedTTL)
	}
	dead := e.open()
	for range n {
		dead.queue(cl()).stands()
	}
	w := e.b().queue(e.fair(name)).stands()
	e.kill(dead)
	start := e.now()
	e.a().release(g)
	bound := window
	if n > 1 && !e.sessions() {
		bound = time.Duration(n/2) * window
	}
	ctx, cancel := context.WithTimeout(e.ctx, bound+2*e.slack)
	defer cancel()
	select {
	case <-w.done:
	case <-ctx.Done():
	}
	took := e.since(start)
	if took > bound+e.slack {
		e.latef("%d dead waiters held up the next for %v and more, with a confirm window of %v", n, took.Round(time.Millisecond), window)
	}
	w.granted()
	e.log("%d dead waiters held up the next for %v, with a confirm window of %v", n, took.Round(time.Millisecond), window.Round(time.Millisecond))
}

package drivertest

import (
	"context"
	"errors"

	"github.com/holdfast-go/holdfast/driver"
)

var renewCases = []Case{
	promise("renew-ended", "The renewal of a claim that was released or taken says that it is lost, and never brings it back.", func(e *Env) {
		name := e.lock("released")
		g := e.a().try(e.mutex(name))
		e.a().release(g)
		e.a().lost(g)
		e.empty(name, 0)
		next := e.b().try(e.mutex(name))
		e.a().lost(g)
		e.held(next)
		e.b().release(next)
		e.a().lost(g)
		e.empty(name, 0)
	}),
	promise("renew-taken", "A holder whose TTL has passed, and whose lock somebody else was granted, learns at its next renewal that it is lost.", func(e *Env) {
		g := e.a().try(e.short(e.mutex(e.lock("taken"))))
		next := e.b().queue(e.lined(g.Name)).grantedWithin(e.latest(g.GrantedTTL))
		e.a().lost(g)
		e.held(next)
		e.b().release(next)
		e.a().lost(g)
		e.empty(g.Name, 0)
	}),
	promise("renew-late", "A renewal after the TTL has passed is either lost for good, or proves that nobody was let in meanwhile.", func(e *Env) {
		g := e.a().try(e.short(e.mutex(e.lock("late"))))
		e.sleepUntil(g.Since, g.GrantedTTL+driver.Margin(g.GrantedTTL))
		if r := e.a().renewals(e.ctx, g)[0]; r.Err == nil {
			g.Since, g.GrantedTTL = r.Since, r.GrantedTTL
			e.kept(e.a(), g, func() {
				e.held(g)
				e.b().held(e.mutex(g.Name))
			})
			return
		} else if lossOf(r.Err) == "" {
			e.failf("a late renewal says %s, want success or a *LossError", show(r.Err))
		}
		next := e.b().tryFor(e.latest(g.GrantedTTL), func() driver.Claim { return e.mutex(g.Name) })
		e.a().lost(g)
		e.held(next)
	}),
	promise("renew-stale-token", "A renewal counts only with the claim's own token.", func(e *Env) {
		g := e.a().try(e.mutex(e.lock("m")))
		stale := g
		stale.Token--
		e.a().lost(stale)
		e.held(g)
		e.a().renew(g)
	}),
	promise("renew-elsewhere", "A grant can be renewed by another process that was told its name, id, token, ref and TTL, or that is refused where sessions end with their client.", func(e *Env) {
		g := e.a().try(e.short(e.mutex(e.lock("m"))))
		told := driver.Grant{Claim: driver.Claim{Name: g.Name, ID: g.ID, TTL: g.Claim.TTL}, Token: g.Token, Ref: g.Ref, GrantedTTL: g.GrantedTTL}
		for start := g.Since; e.since(start) < 2*g.GrantedTTL; {
			e.sleepUntil(g.Since, g.GrantedTTL/4)
			r := e.b().renewal(told)
			if errors.Is(r.Err, driver.ErrUnsupported) && !e.info.Detached {
				return // a session is kept up by its own client alone
			}
			if r.Err != nil {
				e.while(g, func() { e.failf("renewing the grant of another client: %w", r.Err) })
			}
			g.Since, g.GrantedTTL = r.Since, r.GrantedTTL
			e.held(g)
		}
		told.Token--
		if err := e.b().renewals(e.ctx, told)[0].Err; lossOf(err) == "" {
			e.failf("renewing the grant of another client under a wrong token: got %s, want a *LossError", show(err))
		}
	}),
	promise("renew-unknown", "The renewal of a claim that was never made says that it is lost, and makes none.", func(e *Env) {
		g := e.a().try(e.mutex(e.lock("mine")))
		other := g
		other.Claim = e.mutex(e.lock("never"))
		e.a().lost(other)
		e.empty(other.Name, 0)
		other.Claim = e.mutex(g.Name)
		e.a().lost(other)
		e.held(g)
	}),
	promise("renew-batch", "In a batch of renewals each grant gets its own answer, once, whatever becomes of the others.", func(e *Env) {
		e.a().renewals(e.ctx) // an empty one
		var gs []driver.Grant
		for i := range 12 {
			g := e.a().try(e.mutex(e.lock(string(rune('a' + i)))))
			if i%3 == 1 {
				e.a().release(g)
			}
			if i%3 == 2 {
				e.b().breaks(g.Name, e.b().refOf(g.Claim), driver.BreakForce)
			}
			gs = append(gs, g)
		}
		for i, r := range e.a().renewals(e.ctx, gs...) {
			if living := i%3 == 0; living != (r.Err == nil) || !living && lossOf(r.Err) == "" {
				e.failf("grant %d (living: %v) was answered %s", i, living, show(r.Err))
			}
		}
	}),
	promise("renew-without-time", "A renewal whose context has ended answers each grant promptly, and with nothing but the truth: unknown is not lost.", func(e *Env) {
		g := e.a().try(e.mutex(e.lock("m")))
		ctx, cancel := context.WithCancel(e.ctx)
		cancel()
		start := e.now()
		for _, r := range e.a().renewals(ctx, g, g) {
			if lossOf(r.Err) != "" {
				e.failf("a living grant was called lost: %v", r.Err)
			}
		}
		e.soon(start, e.slack, "a renewal without time")
		e.held(g)
		e.a().renew(g)
	}),
}

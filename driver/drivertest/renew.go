package drivertest

import (
	"context"
	"errors"

	"github.com/holdfast-go/holdfast/driver"
)

var renewCases = []Case{
	newCase("renew-ended", "The renewal of a claim that was released or taken reports that it is lost, and never "+
		"restores it.", func(e *Env) {
		name := e.lockName("released")
		g := e.a().mustTry(e.mutexClaim(name))
		e.a().mustRelease(g)
		e.a().mustBeLost(g)
		e.requireEmpty(name, 0)
		next := e.b().mustTry(e.mutexClaim(name))
		e.a().mustBeLost(g)
		e.requireHolder(next)
		e.b().mustRelease(next)
		e.a().mustBeLost(g)
		e.requireEmpty(name, 0)
	}),
	newCase("renew-taken", "A holder whose TTL has passed, and whose lock was granted to another claim, learns at "+
		"its next renewal that its claim is lost.", func(e *Env) {
		g := e.a().mustTry(e.withMinTTL(e.mutexClaim(e.lockName("taken"))))
		next := e.b().startWaiting(e.queuedClaim(g.Name)).mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL))
		e.a().mustBeLost(g)
		e.requireHolder(next)
		e.b().mustRelease(next)
		e.a().mustBeLost(g)
		e.requireEmpty(g.Name, 0)
	}),
	newCase("renew-late", "A renewal after the TTL has passed either reports that the claim is lost, or succeeds "+
		"because no other claim was granted meanwhile.", func(e *Env) {
		g := e.a().mustTry(e.withMinTTL(e.mutexClaim(e.lockName("late"))))
		e.sleepUntil(g.Since, g.GrantedTTL+driver.Margin(g.GrantedTTL))
		if r := e.a().renewBatch(e.ctx, g)[0]; r.Err == nil {
			g.Since, g.GrantedTTL = r.Since, r.GrantedTTL
			e.whileRenewed(e.a(), g, func() {
				e.requireHolder(g)
				e.b().mustBeHeld(e.mutexClaim(g.Name))
			})
			return
		} else if causeOf(r.Err) == "" {
			e.failf("a late renewal: got %s, want success or a *LossError", describeError(r.Err))
		}
		next := e.b().mustTryWithin(e.latestExpiry(g.GrantedTTL), func() driver.Claim { return e.mutexClaim(g.Name) })
		e.a().mustBeLost(g)
		e.requireHolder(next)
	}),
	newCase("renew-stale-token", "A renewal is valid only with the claim's own token.", func(e *Env) {
		g := e.a().mustTry(e.mutexClaim(e.lockName("m")))
		stale := g
		stale.Token--
		e.a().mustBeLost(stale)
		e.requireHolder(g)
		e.a().mustRenew(g)
	}),
	newCase("renew-from-another-process", "Another process that knows the name, id, token, ref and TTL of a claim "+
		"can renew it. Where sessions end with their client, that is refused.", func(e *Env) {
		g := e.a().mustTry(e.withMinTTL(e.mutexClaim(e.lockName("m"))))
		known := driver.Grant{Claim: driver.Claim{Name: g.Name, ID: g.ID, TTL: g.Claim.TTL}, Token: g.Token, Ref: g.Ref,
			GrantedTTL: g.GrantedTTL}
		for start := g.Since; e.since(start) < 2*g.GrantedTTL; {
			e.sleepUntil(g.Since, g.GrantedTTL/4)
			r := e.b().renewOnce(known)
			if errors.Is(r.Err, driver.ErrUnsupported) && !e.info.Abilities.Detach {
				return // only its own client can keep a session alive
			}
			if r.Err != nil {
				e.whileGranted(g, func() { e.failf("renewing the grant of another client: %w", r.Err) })
			}
			g.Since, g.GrantedTTL = r.Since, r.GrantedTTL
			e.requireHolder(g)
		}
		known.Token--
		if err := e.b().renewBatch(e.ctx, known)[0].Err; causeOf(err) == "" {
			e.failf("renewing the grant of another client under a wrong token: got %s, want a *LossError",
				describeError(err))
		}
	}),
	newCase("renew-unknown", "The renewal of a claim that was never made reports that it is lost, and does not "+
		"create it.", func(e *Env) {
		g := e.a().mustTry(e.mutexClaim(e.lockName("mine")))
		other := g
		other.Claim = e.mutexClaim(e.lockName("never"))
		e.a().mustBeLost(other)
		e.requireEmpty(other.Name, 0)
		other.Claim = e.mutexClaim(g.Name)
		e.a().mustBeLost(other)
		e.requireHolder(g)
	}),
	newCase("renew-batch", "In a batch of renewals, each grant gets its own answer exactly once, whatever happens "+
		"to the others.", func(e *Env) {
		e.a().renewBatch(e.ctx) // an empty one
		var gs []driver.Grant
		for i := range 12 {
			g := e.a().mustTry(e.mutexClaim(e.lockName(string(rune('a' + i)))))
			if i%3 == 1 {
				e.a().mustRelease(g)
			}
			if i%3 == 2 {
				e.b().mustBreak(g.Name, e.b().refOf(g.Claim), driver.BreakForce)
			}
			gs = append(gs, g)
		}
		for i, r := range e.a().renewBatch(e.ctx, gs...) {
			if held := i%3 == 0; held != (r.Err == nil) || !held && causeOf(r.Err) == "" {
				e.failf("grant %d (held: %v): got %s", i, held, describeError(r.Err))
			}
		}
	}),
	newCase("renew-without-time", "A renewal whose context has ended answers each grant promptly and correctly: "+
		"an unknown outcome is not reported as lost.", func(e *Env) {
		g := e.a().mustTry(e.mutexClaim(e.lockName("m")))
		ctx, cancel := context.WithCancel(e.ctx)
		cancel()
		start := e.now()
		for _, r := range e.a().renewBatch(ctx, g, g) {
			if causeOf(r.Err) != "" {
				e.failf("a grant that is held was reported as lost: %v", r.Err)
			}
		}
		e.requireWithin(start, e.slack, "a renewal under an ended context")
		e.requireHolder(g)
		e.a().mustRenew(g)
	}),
}

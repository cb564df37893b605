package drivertest

import (
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var operatorCases = []Case{
	newCase("break-graceful", "When an operator breaks a claim gracefully, its holder learns of it at its next "+
		"renewal. No other claim is granted before that, or before the TTL of the claim has "+
		"passed.", func(e *Env) {
		g := e.a().mustTry(e.mutexClaim(e.lockName("m")))
		w := e.b().startWaiting(e.queuedClaim(g.Name)).requireQueued()
		e.c().mustBreak(g.Name, e.c().refOf(g.Claim), driver.BreakGraceful)
		w.requireWaiting(100 * time.Millisecond)
		e.d().mustBeHeld(e.mutexClaim(g.Name))
		if h := e.requireHolder(g); !h.Broken {
			e.failf("the broken holder is not shown as broken: %+v", h)
		}
		if loss := e.a().mustBeLost(g); loss != driver.LossBroken {
			e.failf("the holder got %q, want %q", loss, driver.LossBroken)
		}
		e.a().releaseIfHeld(g.Claim)
		e.requireRising(g.Token, w.mustBeGranted().Token)
	}),
	newCase("break-graceful-expired", "A gracefully broken claim whose holder does not renew is held until its "+
		"TTL has passed, and no longer.", func(e *Env) {
		holder := e.openClient()
		g := holder.mustTry(e.withMinTTL(e.mutexClaim(e.lockName("m"))))
		var w *waitingCall
		e.whileGranted(g, func() {
			w = e.b().startWaiting(e.queuedClaim(g.Name)).requireQueued()
			e.c().mustBreak(g.Name, e.c().refOf(g.Claim), driver.BreakGraceful)
		})
		w.mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL))
		e.requireNotEarly(g, w.returned)
		e.requireRising(g.Token, w.grant.Token)
	}),
	fairFeature.newCase("break-waiting", "When an operator breaks a waiting claim, it loses its place at once and "+
		"its call returns an error. The claims behind it move up.", func(e *Env) {
		name := e.lockName("m")
		g := e.a().mustTry(e.mutexClaim(name))
		broken := e.b().startWaiting(e.fairClaim(name)).requireQueued()
		behind := e.c().startWaiting(e.fairClaim(name)).requireQueued()
		e.d().mustBreak(name, e.d().refOf(broken.claim), driver.BreakGraceful)
		if ws := ownersOf(e.a().mustInspect(name).Waiters); len(ws) != 1 || ws[0] != behind.claim.Owner {
			e.failf("only %s should wait now, but the queue is %q", behind.claim.Owner, ws)
		}
		broken.mustFail(driver.ErrLost)
		e.a().mustRelease(g)
		behind.mustBeGranted()
		e.requireHolder(behind.grant)
		e.c().mustRelease(behind.grant)
	}),
	newCase("break-force", "When a claim is broken by force, the lock is free at once. The next token is larger, "+
		"and the renewal and release of the broken claim fail without effect.", func(e *Env) {
		g := e.a().mustTry(e.mutexClaim(e.lockName("m")))
		e.c().mustBreak(g.Name, e.c().refOf(g.Claim), driver.BreakForce)
		e.requireEmpty(g.Name, 0)
		next := e.b().mustTry(e.mutexClaim(g.Name))
		e.requireRising(g.Token, next.Token)
		e.a().mustBeLost(g)
		var loss *driver.LossError
		if errors.As(e.a().renewOnce(g).Err, &loss) && loss.StaysHeld {
			e.failf("the loss says that the claim keeps others out, and it is gone")
		}
		e.a().mustBeGone(g.Claim)
		e.requireHolder(next)

		w := e.d().startWaiting(e.queuedClaim(g.Name)).requireQueued()
		e.c().mustBreak(g.Name, e.c().refOf(next.Claim), driver.BreakForce)
		e.requireRising(next.Token, w.mustBeGranted().Token)
		e.b().mustBeLost(next)
		e.requireHolder(w.grant)
	}),
	newCase("break-reason", "If a store can pass the reason of a break on, the client of the claim learns it: at "+
		"its next renewal, or while it waits. A store with a queue that answers quickly passes it on, and any "+
		"other either this text or none.", func(e *Env) {
		if !e.info.Abilities.Reasons {
			e.refused.Store(true)
			return
		}
		e.requireReason("a renewal after a graceful break", func(reason string) error {
			g := e.a().mustTry(e.mutexClaim(e.lockName("graceful")))
			e.c().mustBreakWith(g.Name, e.c().refOf(g.Claim),
				driver.Break{Mode: driver.BreakGraceful, Reason: reason})
			err := e.a().renewOnce(g).Err
			e.a().releaseIfHeld(g.Claim)
			return err
		})
		e.requireReason("a renewal after a break by force", func(reason string) error {
			g := e.a().mustTry(e.mutexClaim(e.lockName("force")))
			e.c().mustBreakWith(g.Name, e.c().refOf(g.Claim),
				driver.Break{Mode: driver.BreakForce, Reason: reason})
			return e.a().renewOnce(g).Err
		})
		if e.info.Order == driver.OrderNone {
			return
		}
		e.requireReason("a claim that waits", func(reason string) error {
			g := e.a().mustTry(e.mutexClaim(e.lockName("waiting")))
			w := e.b().startWaiting(e.fairClaim(g.Name)).requireQueued()
			e.c().mustBreakWith(g.Name, e.c().refOf(w.claim),
				driver.Break{Mode: driver.BreakGraceful, Reason: reason})
			w.mustFail(driver.ErrLost)
			e.a().mustRelease(g)
			return w.err
		})
	}),
	newCase("request-release", "When the release of a claim is requested, its holder learns of it at its next "+
		"renewal, and may keep the lock as long as it wants.", func(e *Env) {
		g := e.a().mustTry(e.mutexClaim(e.lockName("m")))
		if e.a().renewOnce(g).ReleaseRequested {
			e.failf("no release was requested, but the renewal reports a request")
		}
		e.c().mustBreak(g.Name, e.c().refOf(g.Claim), driver.BreakRequestRelease)
		if h := e.requireHolder(g); !h.ReleaseRequested {
			e.failf("the holder is not shown with ReleaseRequested: %+v", h)
		}
		r := e.a().renewOnce(g)
		if r.Err != nil || !r.ReleaseRequested {
			e.failf("the release was requested, but the renewal returned %s, ReleaseRequested: %v",
				describeError(r.Err),
				r.ReleaseRequested)
		}
		e.b().mustBeHeld(e.mutexClaim(g.Name))
		e.requireHolder(g)
		e.a().mustRelease(g)
		next := e.b().mustTry(e.mutexClaim(g.Name))
		if e.b().renewOnce(next).ReleaseRequested {
			e.failf("the next holder's renewal reports a request that was made to the previous holder")
		}
	}),
	fairFeature.newCase("request-release-waiting", "When the release of a waiting claim is requested, its client "+
		"learns of it once the claim is granted.", func(e *Env) {
		name := e.lockName("m")
		e.requestWhileWaiting(e.mutexClaim(name), e.fairClaim(name))
	}),
	semaphoreFeature.newCase("request-release-waiting-semaphore", "When the release of a semaphore's waiting claim "+
		"is requested, its client learns of it once the claim is granted.", func(e *Env) {
		name := e.lockName("s")
		e.requestWhileWaiting(e.semaphoreClaim(name, 3, 2), e.semaphoreClaim(name, 3, 2))
	}),
	newCase("break-stale", "A break affects only the claim that it names. If that claim has ended, the break "+
		"returns ErrLost and changes nothing.", func(e *Env) {
		g := e.a().mustTry(e.mutexClaim(e.lockName("m")))
		stale := e.c().refOf(g.Claim)
		e.a().mustRelease(g)
		modes := []driver.BreakMode{driver.BreakGraceful, driver.BreakForce, driver.BreakRequestRelease}
		for _, mode := range modes {
			_, err := e.c().tryBreak(g.Name, stale, driver.Break{Mode: mode})
			e.requireError(err, driver.ErrLost, "a break on an idle lock")
		}
		next := e.b().mustTry(e.mutexClaim(g.Name))
		elsewhere := e.a().mustTry(e.mutexClaim(e.lockName("elsewhere")))
		for _, mode := range modes {
			_, err := e.c().tryBreak(g.Name, stale, driver.Break{Mode: mode})
			e.requireError(err, driver.ErrLost, "a break of a claim that does not exist any more")
			for _, ref := range []string{e.c().refOf(elsewhere.Claim), "", "none"} {
				if _, err := e.c().tryBreak(g.Name, ref, driver.Break{Mode: mode}); !errors.Is(err, driver.ErrInvalid) {
					e.requireError(err, driver.ErrLost, "a break by the ref %q, which names no claim on this lock", ref)
				}
			}
		}
		if h := e.requireHolder(next); h.Broken || h.ReleaseRequested {
			e.failf("the break has changed the new holder: %+v", h)
		}
		if r := e.b().renewOnce(next); r.Err != nil || r.ReleaseRequested {
			e.failf("the break has changed the new holder: %+v", r)
		}
		e.a().mustRenew(elsewhere)
	}),
	semaphoreFeature.newCase("break-one", "Of several holders, a break affects only the one that it names.",
		func(e *Env) {
			name := e.lockName("s")
			one, two := e.a().mustTry(e.semaphoreClaim(name, 3, 1)), e.b().mustTry(e.semaphoreClaim(name, 3, 2))
			e.c().mustBreak(name, e.c().refOf(two.Claim), driver.BreakForce)
			e.b().mustBeLost(two)
			e.requireHolder(one)
			e.a().mustRenew(one)
			e.d().mustTry(e.semaphoreClaim(name, 3, 2))
		}),
	newCase("ref-of-grant", "The ref in a grant identifies the claim, as the ref does that Inspect shows.",
		func(e *Env) {
			g := e.a().mustTry(e.mutexClaim(e.lockName("m")))
			e.c().mustBreak(g.Name, g.Ref, driver.BreakRequestRelease)
			if h := e.requireHolder(g); !h.ReleaseRequested {
				e.failf("the holder is not shown with ReleaseRequested: %+v", h)
			}
			g = e.a().mustRenew(g)
			e.c().mustBreak(g.Name, g.Ref, driver.BreakForce)
			e.a().mustBeLost(g)
			if l := e.c().mustInspect(g.Name); slices.Contains(ownersOf(l.Holders), g.Owner) {
				e.failf("it still exists: %s", describeLock(l))
			}
		}),
}

// requireReason breaks a claim for a reason, and checks the loss that its client gets.
func (e *Env) requireReason(what string, breakClaim func(reason string) error) {
	reason := "alice@host, for " + what
	err := breakClaim(reason)
	var loss *driver.LossError
	switch {
	case !errors.As(err, &loss) || loss.Cause != driver.LossBroken:
		e.failf("%s: got %s, want a *LossError with the cause %q", what, describeError(err), driver.LossBroken)
	case loss.Err == nil && e.info.Order != driver.OrderNone:
		// A client waits for the reason only briefly, since a loss must be told soon.
		e.overrunf("%s: the reason %q is not passed on", what, reason)
	case loss.Err != nil && loss.Err.Error() != reason:
		e.failf("%s: the reason was %q, and is passed on as %q", what, reason, loss.Err)
	}
}

// requestWhileWaiting lets next wait for holder, requests its release, and lets it be granted.
func (e *Env) requestWhileWaiting(holder, next driver.Claim) {
	g := e.a().mustTry(holder)
	w := e.b().startWaiting(next).requireQueued()
	e.c().mustBreak(next.Name, e.c().refOf(w.claim), driver.BreakRequestRelease)
	e.a().mustRelease(g)
	w.mustBeGranted()
	if r := e.b().renewOnce(w.grant); r.Err != nil || !r.ReleaseRequested {
		e.failf("its release was requested while it waited, but the renewal returned %s, ReleaseRequested: %v",
			describeError(r.Err), r.ReleaseRequested)
	}
	e.b().mustRelease(w.grant)
}

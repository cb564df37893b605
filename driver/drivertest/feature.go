package drivertest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// newCase returns a case that every store has to pass.
func newCase(name, text string, run func(e *Env)) Case {
	return Case{Name: name, Promise: text, Run: func(_ context.Context, e *Env) error {
		run(e)
		return nil
	}}
}

// feature is something that a store's Info may declare as supported. A store that does not support it must refuse it.
type feature struct {
	isSupported  func(i driver.Info) bool
	checkRefusal func(e *Env)
}

// newCase returns a case for the stores that support the feature. On the others it checks the refusal.
func (f feature) newCase(name, text string, run func(e *Env)) Case {
	return newCase(name, text, func(e *Env) {
		if f.isSupported(e.info) {
			run(e)
			return
		}
		f.checkRefusal(e)
		e.refused.Store(true)
	})
}

func kindFeature(k driver.Kind, limit int64) feature {
	return feature{
		isSupported: func(i driver.Info) bool { return slices.Contains(i.Kinds, k) },
		checkRefusal: func(e *Env) {
			name := e.lockName("refused")
			e.a().mustBeRefused(e.newClaim(name, k, limit, 1), driver.ErrUnsupported)
			e.requireEmpty(name, e.slack)
		},
	}
}

var (
	rwFeature        = kindFeature(driver.KindRW, driver.RWLimit)
	semaphoreFeature = kindFeature(driver.KindSemaphore, 3)

	permitsFeature = feature{
		isSupported: func(i driver.Info) bool { return i.Abilities.Permits && semaphoreFeature.isSupported(i) },
		checkRefusal: func(e *Env) {
			if !semaphoreFeature.isSupported(e.info) {
				semaphoreFeature.checkRefusal(e)
				return
			}
			g := e.a().mustTry(e.semaphoreClaim(e.lockName("unnumbered"), 3, 1))
			if g.Permits != nil {
				e.failf("Info says that permits have no numbers, and a claim has the permits %v", g.Permits)
			}
		},
	}

	fairFeature = feature{
		isSupported: func(i driver.Info) bool { return i.Order != driver.OrderNone },
		checkRefusal: func(e *Env) {
			name := e.lockName("refused")
			e.a().mustBeRefused(e.fairClaim(name), driver.ErrUnsupported)
			e.requireEmpty(name, e.slack)
		},
	}

	newestFeature = feature{ // what a store without it does with the mark is up to the store: it is a part of an id
		isSupported:  func(i driver.Info) bool { return i.Abilities.NewestOnly && i.Order != driver.OrderNone },
		checkRefusal: func(*Env) {},
	}

	detachFeature = feature{
		isSupported: func(i driver.Info) bool { return i.Abilities.Detach },
		checkRefusal: func(e *Env) {
			name := e.lockName("refused")
			cl := e.mutexClaim(name)
			cl.Detached = true
			e.a().mustBeRefused(cl, driver.ErrUnsupported)
			e.requireEmpty(name, e.slack)
			g := e.a().mustTry(e.mutexClaim(name))
			e.requireError(e.a().store.Detach(e.ctx, g, time.Minute), driver.ErrUnsupported, "detaching")
			e.requireHolder(g)
		},
	}
)

var abilityCases = []Case{
	newCase("abilities", "A store refuses as unsupported what its Info says that it cannot do, and nothing else.", func(e *Env) {
		c := e.a()
		a := e.info.Abilities
		check := func(call string, able bool, err error) {
			if refused := errors.Is(err, driver.ErrUnsupported); refused == able {
				e.failf("Info says of %s: %v; the call: %s", call, able, describeError(err))
			}
		}
		cl := e.mutexClaim(e.lockName("m"))
		if slices.Contains(e.info.Kinds, driver.KindRW) {
			cl = e.writerClaim(cl.Name)
		}
		g := c.mustTry(cl)
		if a.SetWeight {
			check("SetWeight", true, c.setWeight(g, g.Weight))
		} else {
			check("SetWeight", false, c.store.SetWeight(e.ctx, g, g.Weight))
		}
		check("Detach", a.Detach, c.detach(g, e.minTTL))
		c.releaseIfHeld(g.Claim)
		if !a.Endings {
			_, err := c.store.NextEnding(e.ctx)
			check("NextEnding", false, err)
		}
		check("Forget", a.Forget, e.retryIfLossy(e.ctx, func() error { return c.store.Forget(e.ctx, e.lockName("never-used")) }))
		check("ReadTokenFloor", a.Tokens, e.retryIfLossy(e.ctx, func() error {
			_, err := c.store.ReadTokenFloor(e.ctx)
			return err
		}))
		if !a.Tokens {
			check("RaiseToken", false, c.store.RaiseToken(e.ctx, cl.Name, 1))
		}
		file, err := c.store.LivenessFile()
		if err == nil {
			file.Close()
		}
		if !a.LivenessFile { // one that has it elsewhere may lack it on this machine
			check("LivenessFile", false, err)
		}
		l := e.openLedger(c)
		if (l != nil) != a.Ledger {
			e.failf("Info says of OpenLedger: %v; it was opened: %v", a.Ledger, l != nil)
		}
		if l != nil {
			_ = l.store.Close()
		}
	}),
}

package drivertest

import (
	"context"
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

	fairFeature = feature{
		isSupported: func(i driver.Info) bool { return i.Order != driver.OrderNone },
		checkRefusal: func(e *Env) {
			name := e.lockName("refused")
			e.a().mustBeRefused(e.fairClaim(name), driver.ErrUnsupported)
			e.requireEmpty(name, e.slack)
		},
	}

	detachFeature = feature{
		isSupported: func(i driver.Info) bool { return i.Detached },
		checkRefusal: func(e *Env) {
			name := e.lockName("refused")
			cl := e.mutexClaim(name)
			cl.Detached = true
			e.a().mustBeRefused(cl, driver.ErrUnsupported)
			e.requireEmpty(name, e.slack)
			if d, ok := e.a().store.(driver.Detacher); ok {
				g := e.a().mustTry(e.mutexClaim(name))
				e.requireError(d.Detach(e.ctx, g, time.Minute), driver.ErrUnsupported, "detaching")
				e.requireHolder(g)
			}
		},
	}
)

package drivertest

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// promise makes a case that every store has to pass.
func promise(name, text string, run func(e *Env)) Case {
	return Case{Name: name, Promise: text, Run: func(_ context.Context, e *Env) error {
		run(e)
		return nil
	}}
}

// feature is what a store may or may not carry, as its Info says. What it does not carry it has to refuse.
type feature struct {
	carried func(i driver.Info) bool
	refuses func(e *Env)
}

// promise makes a case for the stores that carry the feature; on the others it checks the refusal.
func (f feature) promise(name, text string, run func(e *Env)) Case {
	return promise(name, text, func(e *Env) {
		if f.carried(e.info) {
			run(e)
			return
		}
		f.refuses(e)
		e.refused.Store(true)
	})
}

func kind(k driver.Kind, limit int64) feature {
	return feature{
		carried: func(i driver.Info) bool { return slices.Contains(i.Kinds, k) },
		refuses: func(e *Env) {
			name := e.lock("refused")
			e.a().refused(e.claim(name, k, limit, 1), driver.ErrUnsupported)
			e.empty(name, e.slack)
		},
	}
}

var (
	readWrite = kind(driver.KindRW, driver.RWLimit)
	semaphore = kind(driver.KindSemaphore, 3)

	order = feature{
		carried: func(i driver.Info) bool { return i.Order != driver.OrderNone },
		refuses: func(e *Env) {
			name := e.lock("refused")
			e.a().refused(e.fair(name), driver.ErrUnsupported)
			e.empty(name, e.slack)
		},
	}

	detached = feature{
		carried: func(i driver.Info) bool { return i.Detached },
		refuses: func(e *Env) {
			name := e.lock("refused")
			cl := e.mutex(name)
			cl.Detached = true
			e.a().refused(cl, driver.ErrUnsupported)
			e.empty(name, e.slack)
			if d, ok := e.a().store.(driver.Detacher); ok {
				g := e.a().try(e.mutex(name))
				e.wants(d.Detach(e.ctx, g, time.Minute), driver.ErrUnsupported, "detaching")
				e.held(g)
			}
		},
	}
)

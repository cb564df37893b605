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

var loadCases = []Case{
	newCase("mixed-load", "With many kinds of calls at the same time, on many locks and from all clients, each "+
		"lock has one holder at a time, its tokens rise, and nothing is left at the end.", func(e *Env) {
		type guarded struct {
			name   string
			inside atomic.Int64
			token  int64 // of the last holder; the lock guards it
		}
		locks := make([]*guarded, 12)
		for i := range locks {
			locks[i] = &guarded{name: e.lockName(fmt.Sprint(i))}
		}
		var grants, refusals, cancels, todo atomic.Int64
		todo.Store(int64(e.scaleEffort(600)))
		e.runConcurrently(24, func(i int) {
			c := e.client(i)
			for todo.Add(-1) >= 0 && e.ctx.Err() == nil {
				l := locks[rand.N(len(locks))]
				cl := e.mutexClaim(l.name)
				if e.info.Order != driver.OrderNone {
					cl.Fair = rand.N(2) == 0
				}
				cl.Wait = cl.Fair
				ctx, cancel := context.WithTimeout(e.ctx, rand.N(e.slack/50))
				g, err := c.acquire(ctx, cl)
				cancel()
				switch {
				case err == nil:
					grants.Add(1)
					if n := l.inside.Add(1); n != 1 {
						e.failf("%d claims hold %q at the same time", n, l.name)
					}
					e.requireRising(atomic.SwapInt64(&l.token, g.Token), g.Token)
					if rand.N(4) == 0 {
						g = c.mustRenew(g)
					}
					if rand.N(8) == 0 {
						e.requireHolder(g)
					}
					l.inside.Add(-1)
					c.mustRelease(g)
				case errors.Is(err, context.DeadlineExceeded), errors.Is(err, driver.ErrQueueFull):
					cancels.Add(1) // checked before ErrHeld: the error may also name the holder
					c.releaseIfHeld(cl)
				case errors.Is(err, driver.ErrHeld):
					refusals.Add(1)
				default:
					e.failf("a claim on %q: %w", l.name, err)
				}
			}
		})
		for _, l := range locks {
			e.requireEmpty(l.name, time.Second)
		}
		if grants.Load() == 0 {
			e.overrunf("no claim was granted within %v, so this shows nothing", e.slack/50)
		}
		e.logRemark("%d grants, %d refusals, %d canceled waits", grants.Load(), refusals.Load(), cancels.Load())
	}),
}

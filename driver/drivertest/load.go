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
	promise("crowd", "With everything going on at once, on many locks, from all clients: each lock is held by one at a time, its tokens rise, and nothing is left.", func(e *Env) {
		type guarded struct {
			name   string
			inside atomic.Int64
			token  int64 // of the last holder; the lock guards it
		}
		locks := make([]*guarded, 12)
		for i := range locks {
			locks[i] = &guarded{name: e.lock(fmt.Sprint(i))}
		}
		var grants, refusals, cancels, todo atomic.Int64
		todo.Store(int64(e.times(600)))
		e.together(24, func(i int) {
			c := e.client(i)
			for todo.Add(-1) >= 0 && e.ctx.Err() == nil {
				l := locks[rand.N(len(locks))]
				cl := e.mutex(l.name)
				if e.info.Order != driver.OrderNone {
					cl.Fair = rand.N(2) == 0
				}
				cl.Wait = cl.Fair
				ctx, cancel := context.WithTimeout(e.ctx, rand.N(20*time.Millisecond))
				g, err := c.acquire(ctx, cl)
				cancel()
				switch {
				case err == nil:
					grants.Add(1)
					if n := l.inside.Add(1); n != 1 {
						e.failf("%d hold %q at a time", n, l.name)
					}
					e.rises(atomic.SwapInt64(&l.token, g.Token), g.Token)
					if rand.N(4) == 0 {
						g = c.renew(g)
					}
					if rand.N(8) == 0 {
						e.held(g)
					}
					l.inside.Add(-1)
					c.release(g)
				case errors.Is(err, context.DeadlineExceeded), errors.Is(err, driver.ErrQueueFull):
					cancels.Add(1) // first, for it may also say who held the lock
					c.clean(cl)
				case errors.Is(err, driver.ErrHeld):
					refusals.Add(1)
				default:
					e.failf("a claim on %q: %w", l.name, err)
				}
			}
		})
		for _, l := range locks {
			e.empty(l.name, time.Second)
		}
		e.log("%d grants, %d refusals, %d waits given up", grants.Load(), refusals.Load(), cancels.Load())
	}),
}

package record

import (
	"context"
	"errors"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// maxRenewWorkers is how many locks of one batch are renewed at a time. A request that hangs blocks only its own
// worker.
const maxRenewWorkers = 256

// Renew costs one swap per lock if the row is as this client last saw it. Grants on the same lock share a swap. A
// refused swap is tried again at once, without a pause: a renewal goes before new claims, which do pause.
func (e *engine) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	ctx, stop := e.life.Bind(ctx)
	defer stop()
	byName := map[string][]int{}
	for i := range grants {
		byName[grants[i].Name] = append(byName[grants[i].Name], i)
	}
	work := make(chan []int)
	var workers sync.WaitGroup
	for range min(maxRenewWorkers, len(byName)) {
		workers.Go(func() {
			for which := range work {
				e.renewLock(ctx, grants, which, done)
			}
		})
	}
	for _, which := range byName {
		work <- which
	}
	close(work)
	workers.Wait()
}

// renewLock renews the grants of one lock. which has their indexes in grants.
func (e *engine) renewLock(ctx context.Context, grants []driver.Grant, which []int, done func(int, driver.Renewal)) {
	name := grants[which[0]].Name
	answers := make([]driver.Renewal, len(which))
	finish := func(err error) {
		for i, w := range which {
			if answers[i].Err == nil && err != nil {
				answers[i] = driver.Renewal{Err: err}
			}
			done(w, answers[i])
		}
	}
	row, rec := e.recallRow(name)
	if e.clockRefresher != nil && e.clockRefresher.ClockIsStale() {
		rec = nil // load first: the reply improves the estimate, and the new ends will not be later than necessary
	}
	var err error
	fresh := false
	for {
		if rec == nil {
			if row, rec, err = e.loadRecord(ctx, name); err != nil {
				finish(err)
				return
			}
			fresh = true
		}
		since := e.clock.Now()
		in := e.stepInput(row)
		next := rec.clone()
		living := 0
		for i, w := range which {
			answers[i] = renewGrant(next, grants[w], since, in)
			if answers[i].Err == nil {
				living++
			}
		}
		if !fresh && living < len(which) { // a remembered row is no proof of a loss
			clear(answers)
			rec = nil
			continue
		}
		if living == 0 {
			finish(nil)
			return
		}
		row, rec, err = e.swapRecord(ctx, row, next, false)
		if err == nil {
			finish(nil)
			return
		}
		if !errors.Is(err, ErrConflict) {
			finish(driverutil.Uncertain(err))
			return
		}
		if ctx.Err() != nil {
			finish(e.errorOrClosed(ctx.Err()))
			return
		}
		fresh = rec != nil
	}
}

// renewGrant makes the step of one grant. since is when the attempt was started: the lease is renewed from then.
func renewGrant(rec *Record, g driver.Grant, since driver.Instant, in StepInput) driver.Renewal {
	c, err := rec.Renew(g.ID, g.Token, in)
	if err != nil {
		return driver.Renewal{Err: err}
	}
	return driver.Renewal{Since: since, GrantedTTL: c.TTL, ReleaseRequested: c.ReleaseRequested}
}

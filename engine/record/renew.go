package record

import (
	"context"
	"errors"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
)

// maxRenewWorkers is how many locks of one batch are renewed at a time, so that one that hangs keeps only its own worker.
const maxRenewWorkers = 256

// Renew is one swap a lock where the row is as this client saw it last. Grants on the same lock go in one swap. A refused
// swap is tried again at once: a renewal goes before those who want to come in, and they do pause.
func (e *engine) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	ctx, stop := e.bindContext(ctx)
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

// renewLock renews the grants of one lock.
func (e *engine) renewLock(ctx context.Context, grants []driver.Grant, which []int, done func(int, driver.Renewal)) {
	name := grants[which[0]].Name
	answers := make([]driver.Renewal, len(which))
	tell := func(err error) {
		for i, w := range which {
			if answers[i].Err == nil && err != nil {
				answers[i] = driver.Renewal{Err: err}
			}
			done(w, answers[i])
		}
	}
	row, rec := e.recallRow(name)
	if e.clockRefresher != nil && e.clockRefresher.ClockIsStale() {
		rec = nil // the ends that would be written are later than need be: a reply tells the time
	}
	var err error
	fresh := false
	for {
		if rec == nil {
			if row, rec, err = e.loadRecord(ctx, name); err != nil {
				tell(err)
				return
			}
			fresh = true
		}
		since := e.clock.Now()
		m := e.stepInput(row)
		next := rec.clone()
		living := 0
		for i, w := range which {
			answers[i] = renewGrant(next, grants[w], since, m)
			if answers[i].Err == nil {
				living++
			}
		}
		if !fresh && living < len(which) { // what was remembered is no proof of a loss
			clear(answers)
			rec = nil
			continue
		}
		if living == 0 {
			tell(nil)
			return
		}
		row, rec, err = e.swapRecord(ctx, row, next, false)
		if err == nil {
			tell(nil)
			return
		}
		if !errors.Is(err, ErrConflict) {
			tell(driver.Uncertain(err))
			return
		}
		if ctx.Err() != nil {
			tell(e.errorOrClosed(ctx.Err()))
			return
		}
		fresh = rec != nil
	}
}

func renewGrant(rec *Record, g driver.Grant, since driver.Instant, m StepInput) driver.Renewal {
	c, err := rec.Renew(g.ID, g.Token, m)
	if err != nil {
		return driver.Renewal{Err: err}
	}
	return driver.Renewal{Since: since, GrantedTTL: c.TTL, ReleaseRequested: c.ReleaseRequested}
}

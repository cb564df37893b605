package record

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// maxRenewWorkers is how many locks of one batch are renewed at a time. Of more requests at a time, a busy store would
// answer none before their timeouts, and each would be made again. With fewer, a batch of 4,096 would take longer than
// its 10 s on a store that needs 300 ms for a request. Batches do not wait for each other: requests that hang keep only
// other leases of their batch waiting.
const maxRenewWorkers = 128

// Renew costs one swap per lock if the row is as this client last saw it. Grants on the same lock share a swap. A
// refused swap is tried again at once, without a pause: a renewal goes before new claims, which do pause.
func (e *engine) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	ctx, stop := e.life.Bind(ctx)
	defer stop()
	// Sorted and not in a map by name: there may be thousands, and all of a client's leases may be due at once.
	byName := make([]int, len(grants))
	for i := range byName {
		byName[i] = i
	}
	slices.SortFunc(byName, func(i, j int) int { return cmp.Compare(grants[i].Name, grants[j].Name) })
	work := make(chan []int)
	var workers sync.WaitGroup
	for range min(maxRenewWorkers, len(byName)) {
		workers.Go(func() {
			for which := range work {
				e.renewLock(ctx, grants, which, done)
			}
		})
	}
	for len(byName) > 0 {
		n := 1
		for n < len(byName) && grants[byName[n]].Name == grants[byName[0]].Name {
			n++
		}
		work <- byName[:n]
		byName = byName[n:]
	}
	close(work)
	workers.Wait()
}

// renewLock renews the grants of one lock. which has their indexes in grants.
func (e *engine) renewLock(ctx context.Context, grants []driver.Grant, which []int, done func(int, driver.Renewal)) {
	name := grants[which[0]].Name
	r := &renewal{grants: grants, which: which, answers: make([]driver.Renewal, len(which))}
	r.own = groupStep{urgent: true, call: r}
	finish := func(err error) {
		for i, w := range which {
			if r.answers[i].Err == nil && err != nil {
				r.answers[i] = driver.Renewal{Err: err}
			}
			done(w, r.answers[i])
		}
	}
	row, rec := e.recallRow(name)
	if e.isClockStale() {
		rec = nil // load first: the reply improves the estimate, and the new ends will not be later than necessary
	}
	var err error
	fresh := false
	for {
		// A swap that cannot be sent any more would only make the row's outcome unknown, and cost a load later.
		if ctx.Err() != nil {
			finish(e.errorOrClosed(ctx.Err()))
			return
		}
		if rec == nil {
			if row, rec, err = e.loadRecord(ctx, name); err != nil {
				finish(err)
				return
			}
			fresh = true
		}
		since := e.clock.Now()
		next := rec.cloneWithRoom(0)
		living := renewGrants(next, grants, which, r.answers, e.stepInput(row, rec))
		if !fresh && living < len(which) { // a remembered row is no proof of a loss
			clear(r.answers)
			rec = nil
			continue
		}
		if living == 0 {
			finish(nil)
			return
		}
		r.shared = nil
		o := e.writeStep(ctx, &r.own, snapshot{row: row, rec: rec}, next, since)
		if o.made && o.err == nil {
			r.useWritten(o.since)
			finish(nil)
			return
		}
		if o.made && !errors.Is(o.err, ErrConflict) {
			finish(driverutil.Uncertain(o.err))
			return
		}
		row, rec, fresh = o.row, o.rec, o.rec != nil
	}
}

// renewal is the renewal of the grants of one lock.
type renewal struct {
	grants  []driver.Grant
	which   []int // their indexes in grants
	answers []driver.Renewal
	own     groupStep        // what it hands in to the lock's writer
	shared  []driver.Renewal // the answers on the record of a swap that it shared with other steps
}

// stepFunc returns the step. Its answers are for the call to read with the outcome: a call that has gone has given its
// own.
func (r *renewal) stepFunc() stepFunc {
	return func(rec *Record, in StepInput) bool {
		r.shared = make([]driver.Renewal, len(r.which))
		return renewGrants(rec, r.grants, r.which, r.shared, in) > 0
	}
}

// useWritten takes the answers of an acknowledged swap. The leases are renewed from its start.
func (r *renewal) useWritten(since driver.Instant) {
	if r.shared != nil {
		r.answers = r.shared
	}
	for i := range r.answers {
		if r.answers[i].Err == nil {
			r.answers[i].Since = since
		}
	}
}

// renewGrants makes the step of each grant. It returns how many are still held. The answers lack the time from which
// the leases are renewed: the start of the attempt.
func renewGrants(rec *Record, grants []driver.Grant, which []int, answers []driver.Renewal, in StepInput) (living int) {
	for i, w := range which {
		answers[i] = driver.Renewal{}
		c, err := rec.Renew(grants[w].ID, grants[w].Token, in)
		if err != nil {
			answers[i].Err = err
			continue
		}
		answers[i].GrantedTTL, answers[i].ReleaseRequested = c.TTL, c.ReleaseRequested
		living++
	}
	return living
}

package record

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// The records of idle locks are kept for a while for their tokens, then removed. Nobody is in charge of that: a client
// that lives long sweeps once in a while after a release, sooner again if it was not done in time; and one in closeSweeps
// does so when it closes, so that a machine on which only short-lived commands run is swept as well.
const (
	sweepEvery  = time.Hour
	sweepAgain  = time.Minute
	sweepFor    = 5 * time.Second
	closeSweeps = 32
	closeFor    = 250 * time.Millisecond
)

// idleKeep is how long the record of an idle lock is kept: until tokens made from the store's clock are surely larger
// than the one in it, many times over.
func (e *engine) idleKeep() time.Duration { return 10*time.Minute + 10*e.info.TokenGap }

func (e *engine) sweepSometimes() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.life.Err() != nil || e.swept {
		return
	}
	first := e.nextSweep == driver.Instant{}
	if !first && e.clock.Since(e.nextSweep) < 0 {
		return
	}
	e.nextSweep = e.clock.Now().Add(sweepEvery/2 + randomPart(sweepEvery/2))
	if first {
		return
	}
	e.inBackground.Go(func() {
		ctx, cancel := context.WithTimeout(e.life, sweepFor)
		defer cancel()
		if !e.sweep(ctx) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.nextSweep = e.clock.Now().Add(sweepAgain)
		}
	})
}

func (e *engine) sweepAtClose() {
	if !e.swept && rand.N(closeSweeps) == 0 {
		ctx, cancel := context.WithTimeout(e.life, closeFor)
		defer cancel()
		e.sweep(ctx)
	}
}

// sweep removes what has been idle for long, and reports whether it has seen everything. What it cannot read it leaves.
func (e *engine) sweep(ctx context.Context) bool {
	now, off := e.table.Now()
	before := now - (off.Abs() + e.idleKeep()).Microseconds()
	for row, err := range e.table.List(ctx, "") {
		if err != nil {
			if row.Name == "" {
				return false
			}
			continue
		}
		if rec, err := read(row); err != nil || !rec.forgettable(before) {
			continue
		}
		if e.table.Delete(ctx, row) == nil {
			e.forget(row.Name)
		}
	}
	return ctx.Err() == nil
}

// forgettable reports whether nothing in a record is of use to anybody: nobody stands on the lock, nobody has since that time, and
// no note is kept for longer.
func (r *Record) forgettable(before int64) bool {
	return len(r.Claims) == 0 && r.Foreign == 0 && r.Idle <= before && r.Untold <= before &&
		!slices.ContainsFunc(r.Ended, func(n Ended) bool { return n.Until > before })
}

func randomPart(d time.Duration) time.Duration { return rand.N(max(d, 1)) }

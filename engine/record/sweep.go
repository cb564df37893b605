package record

import (
	"cmp"
	"context"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// The records of idle locks are kept for a while for their tokens, then removed. Nobody is in charge of that: a client
// that lives long sweeps once in a while after a release, sooner again if it was not done in time; and one in closeSweeps
// does so when it closes, so that a machine on which only short-lived commands run is swept as well.
const (
	sweepInterval   = time.Hour
	resweepDelay    = time.Minute
	sweepLimit      = 5 * time.Second
	closeSweepOdds  = 32
	closeSweepLimit = 250 * time.Millisecond
)

// idleKeep is how long the record of an idle lock is kept: until tokens made from the store's clock are surely larger
// than the one in it, many times over.
func (e *engine) idleKeep() time.Duration { return 10*time.Minute + 10*e.info.TokenGap }

func (e *engine) sweepIfDue() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.life.Err() != nil || e.storeExpiresIdle {
		return
	}
	first := e.nextSweep == driver.Instant{}
	if !first && e.clock.Since(e.nextSweep) < 0 {
		return
	}
	e.nextSweep = e.clock.Now().Add(sweepInterval/2 + randomPart(sweepInterval/2))
	if first {
		return
	}
	e.background.Go(func() {
		ctx, cancel := context.WithTimeout(e.life, sweepLimit)
		defer cancel()
		if !e.sweepIdle(ctx) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.nextSweep = e.clock.Now().Add(resweepDelay)
		}
	})
}

func (e *engine) sweepAtClose() {
	if !e.storeExpiresIdle && rand.N(closeSweepOdds) == 0 {
		ctx, cancel := context.WithTimeout(e.life, closeSweepLimit)
		defer cancel()
		e.sweepIdle(ctx)
	}
}

// sweepIdle removes what has been idle for long, and reports whether it has seen everything, together with the sweeps before it that
// were cut short. What it cannot read it leaves.
//
// Where many locks are held it may never come to the end in its time. So it goes on where the last one stopped, if the table can; the
// first begins anywhere, since those of short-lived clients are all cut short.
func (e *engine) sweepIdle(ctx context.Context) (all bool) {
	table, ok := e.table.(ResumableLister)
	if !ok {
		_, err := e.sweepRows(ctx, e.table.List(ctx, ""))
		return err == nil
	}
	at := e.sweepStart()
	for {
		last, err := e.sweepRows(ctx, table.ListAfter(ctx, at.after))
		switch {
		case err != nil:
			at.after = cmp.Or(last, at.after)
			e.saveSweepPlace(at)
			return false
		case at.fromFront:
			e.saveSweepPlace(sweepPlace{fromFront: true})
			return true
		}
		at = sweepPlace{fromFront: true}
	}
}

func (e *engine) sweepStart() sweepPlace {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sweepResume == nil {
		return sweepPlace{after: e.randomStart()}
	}
	return *e.sweepResume
}

func (e *engine) saveSweepPlace(at sweepPlace) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sweepResume = &at
}

// sweepPlace is where a sweep begins.
type sweepPlace struct {
	after     string
	fromFront bool // the sweeps up to here have seen all that comes before
}

// randomStart is a text by which to begin: the beginning of a name that is known, and something behind it. It is called with mu held.
func (e *engine) randomStart() string {
	for name := range e.rows.byName {
		return strings.ToValidUTF8(name[:rand.N(len(name)+1)], "") + string(rune('0'+rand.N('z'-'0')))
	}
	return ""
}

// sweepRows removes what may be removed, and gives the last name that it has seen.
func (e *engine) sweepRows(ctx context.Context, list iter.Seq2[Row, error]) (last string, err error) {
	now, off := e.table.Now()
	before := now - (off.Abs() + e.idleKeep()).Microseconds()
	for row, err := range list {
		if err != nil && row.Name == "" {
			return last, err
		}
		last = row.Name
		if err != nil {
			continue
		}
		if rec, err := decodeRow(row); err != nil || !rec.isForgettable(before) {
			continue
		}
		if e.table.Delete(ctx, row) == nil {
			e.forgetRow(row.Name)
		}
	}
	return last, ctx.Err()
}

// isForgettable reports whether nothing in a record is of use to anybody: nobody stands on the lock, nobody has since that time, and
// no note is kept for longer.
func (r *Record) isForgettable(before int64) bool {
	return len(r.Claims) == 0 && r.Foreign == 0 && r.Idle <= before && r.NotesDroppedUntil <= before &&
		!slices.ContainsFunc(r.Ended, func(n EndedClaim) bool { return n.Until > before })
}

func randomPart(d time.Duration) time.Duration { return rand.N(max(d, 1)) }

package record

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// The records of idle locks are kept for a while because of their tokens, and then deleted. Any client may do that. A
// client that lives long sweeps after a release about once per sweepInterval, and sooner if its last sweep was cut
// short. When a client is closed it sweeps with a probability of one in closeSweepOdds, so that records are also
// deleted where only short-lived commands run.
const (
	sweepInterval   = time.Hour
	resweepDelay    = time.Minute
	sweepLimit      = 5 * time.Second
	closeSweepOdds  = 32
	closeSweepLimit = 250 * time.Millisecond
)

// idleKeep is how long the record of an idle lock is kept: until tokens that are made from the store's clock are
// certainly larger than the one in the record. Then nothing is lost with the record.
func (e *engine) idleKeep() time.Duration { return 10*time.Minute + 10*e.info.TokenGap }

// sweepIfDue starts a sweep in the background if it is time for one; now may be the time at which the caller's call has
// begun. The first call only sets the time, so that clients that live for one lock do not sweep.
func (e *engine) sweepIfDue(now driver.Instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.traits.ExpiresIdle {
		return
	}
	first := e.nextSweep == driver.Instant{}
	if !first && now.Since(e.nextSweep) < 0 {
		return
	}
	e.nextSweep = now.Add(sweepInterval/2 + randomPart(sweepInterval/2))
	if first {
		return
	}
	e.life.Go(func() {
		ctx, cancel := context.WithTimeout(e.life, sweepLimit)
		defer cancel()
		if !e.sweepIdle(ctx) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.nextSweep = e.clock.Now().Add(resweepDelay)
		}
	})
}

// sweepAtClose removes idle rows at one of many closes, so that a store whose clients live for a moment only, such
// as commands, is swept too.
func (e *engine) sweepAtClose() {
	if !e.traits.ExpiresIdle && rand.N(closeSweepOdds) == 0 {
		ctx, cancel := context.WithTimeout(e.life, closeSweepLimit)
		defer cancel()
		e.sweepIdle(ctx)
	}
}

// sweepIdle deletes the records of locks that have been idle for long. It reports whether it has seen all records,
// together with the sweeps before it that were cut short. It leaves records that it cannot read.
//
// In a store with very many records one sweep may never reach the end in its time. So a sweep continues where the
// last one stopped, if the table can do that. The first sweep of a client begins at a random place, because those of
// short-lived clients are all cut short, and would otherwise all see the same records.
func (e *engine) sweepIdle(ctx context.Context) (all bool) {
	if !e.traits.ListsInOrder {
		_, err := e.sweepRows(ctx, e.table.List(ctx, "", ""))
		return err == nil
	}
	at := e.sweepStart()
	for {
		last, err := e.sweepRows(ctx, e.table.List(ctx, "", at.after))
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

// sweepStart is where the next sweep begins: where the last one stopped, or at a random place, so that processes
// do not sweep the same rows.
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

// sweepPlace is where a sweep begins in the order of the table.
type sweepPlace struct {
	after     string
	fromFront bool // this sweep, or those that it continues, began at the very front
}

// randomStart is a text at which a sweep may begin: a part of a name that this client knows, and a random character.
// It is called with mu held.
func (e *engine) randomStart() string {
	for name := range e.rows.byName {
		return strings.ToValidUTF8(name[:rand.N(len(name)+1)], "") + string(rune('0'+rand.N('z'-'0')))
	}
	return ""
}

// errNoStoreTime ends a sweep: without the store's time nobody knows what is old.
var errNoStoreTime = errors.New("the store's time is not known")

// sweepRows deletes the rows that may be deleted, and returns the last name that it has seen.
func (e *engine) sweepRows(ctx context.Context, list iter.Seq2[Row, error]) (last string, err error) {
	if err := e.refreshReading(ctx); err != nil {
		return "", err
	}
	now := e.storeTime()
	if !now.Known {
		return "", errNoStoreTime
	}
	before := now.Early - e.idleKeep().Microseconds()
	for row, err := range list {
		if err != nil && row.Name == "" {
			return last, err
		}
		last = row.Name
		if err != nil {
			continue
		}
		if key, _, isPage := strings.Cut(row.Name, pageMark); isPage && e.keepsRuns {
			e.deleteOrphanPage(ctx, row, key)
			continue
		}
		rec, err := decodeRow(row)
		if err != nil || !rec.isForgettable(before) {
			continue
		}
		if e.table.Delete(ctx, row) == nil { // first: no run can have begun
			e.forgetRow(row.Name)
			_ = e.deletePages(ctx, row.Name, rec.Runs, rec.Token) // a later sweep removes what is left
		}
	}
	return last, ctx.Err()
}

// isForgettable reports whether nobody has needed a record since before.
func (r *Record) isForgettable(before int64) bool {
	at, ok := r.neededUntil()
	return ok && at <= before
}

// neededUntil returns the time of the store's clock, in microseconds, from which nobody needs a record any more: there
// are no claims, no note and no history is kept for longer, and tokens that are made from the clock are larger than the
// last one. It returns false if the record is needed forever, or as long as it has a claim.
func (r *Record) neededUntil() (at int64, ok bool) {
	if len(r.Claims) > 0 || r.Foreign != 0 {
		return 0, false
	}
	at = max(r.Idle, r.Token, r.NotesDroppedUntil)
	for _, n := range r.Ended {
		at = max(at, n.Until)
	}
	if r.Runs != nil && len(r.Runs.Runs) > 0 {
		at = max(at, r.Runs.ForgetAt)
		return at, r.Runs.ForgetAt != 0
	}
	return at, true
}

// keepUntil returns until when the store keeps a row that nobody needs from a time on; 0, which is forever, if the
// store removes no rows, or if its clock is not known.
func (e *engine) keepUntil(neededUntil int64) int64 {
	if !e.traits.ExpiresIdle {
		return 0
	}
	early, late, known := e.storeBounds()
	if !known {
		return 0
	}
	return max(late, neededUntil+late-early) + e.idleKeep().Microseconds()
}

// randomPart returns a random part of d, so that clients that do the same do not do it at the same time.
func randomPart(d time.Duration) time.Duration { return rand.N(max(d, 1)) }

package record

import (
	"cmp"
	"context"
	"errors"

	"github.com/holdfast-go/holdfast/driver"
)

// Release is one swap where the row is as this client saw it last. A first look that does not find the claim is proof
// that it ended before, if the look was fresh. After a swap of unknown outcome the swap took effect, unless a note in the
// record says that somebody else has ended the claim.
func (e *engine) Release(ctx context.Context, c driver.Claim, ref string) error {
	if c.ID != "" && ref != "" && c.ID != ref {
		return &driver.LossError{Cause: driver.LossGone} // no claim is both
	}
	ctx, stop := e.bindContext(ctx)
	defer stop()
	r := &release{engine: e, claim: c, id: cmp.Or(c.ID, ref), started: e.clock.Now()}
	r.row, r.rec = e.recallRow(c.Name)
	for tries := 0; ; tries++ {
		over, err := r.step(ctx)
		switch {
		case over || driver.IsFinal(err):
			return err
		case err == nil && ctx.Err() == nil:
			continue
		case ctx.Err() != nil:
			return e.errorOrClosed(driver.Uncertain(ctx.Err()))
		case e.clock.Since(r.started) > driver.UnreachableTimeout(c.TTL) && !errors.Is(err, ErrConflict):
			return e.errorOrClosed(driver.Uncertain(err))
		}
		if errors.Is(err, ErrConflict) {
			_, err = e.pauseAfterConflict(ctx, tries/4, r.claims) // those who leave go before those who want to come in
		} else {
			err = e.pauseAfterFailure(ctx, tries/4)
		}
		if err != nil {
			return e.errorOrClosed(driver.Uncertain(err))
		}
	}
}

// release is one Release under way.
type release struct {
	*engine
	claim   driver.Claim
	id      string
	row     Row
	rec     *Record // nil: to be loaded
	fresh   bool    // loaded in this call, not remembered
	claims  int     // how many the record has that was tried
	started driver.Instant
	unsure  bool // a swap of this call had an unknown outcome
}

// step loads the row or writes it without the claim. Without an error and not over, it is to be called again at once.
func (r *release) step(ctx context.Context) (over bool, err error) {
	if r.rec == nil {
		if r.row, r.rec, err = r.loadRecord(ctx, r.claim.Name); err != nil {
			return false, err
		}
		r.fresh = true
	}
	next := r.rec.clone()
	m := r.stepInput(r.row)
	there, past := next.Release(r.id, m)
	switch {
	case there:
	case !r.fresh:
		r.rec = nil
		return false, nil
	case r.mayStillArrive():
		next.Token++ // any change will do: what is under way was made for the version that stands, and is refused then
		next.expireAndPromote(m, "")
	default:
		return true, r.outcomeIfAbsent(m)
	}
	r.claims = len(next.Claims)
	if r.row, r.rec, err = r.swapRecord(ctx, r.row, next, false); err == nil {
		r.forgetPending()
		r.sweepIfDue()
		if past {
			return true, &driver.LossError{Cause: driver.LossExpired}
		}
		return true, nil
	}
	r.fresh = r.rec != nil
	r.unsure = r.unsure || !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUnsent) && !driver.IsFinal(err)
	return false, err
}

// outcomeIfAbsent is that of a release whose claim does not stand.
func (r *release) outcomeIfAbsent(m StepInput) error {
	loss := r.rec.notedCause(r.id)
	switch {
	case loss == "" && !r.unsure:
		return &driver.LossError{Cause: driver.LossGone}
	case loss != "":
		return &driver.LossError{Cause: loss}
	case r.rec.Foreign != 0:
		return driver.Uncertain(errors.New("a foreign client holds the lock: it may have taken it after this release or before"))
	case r.tracelessRelease:
		return driver.Uncertain(errors.New("nothing is left of a lock that is free: somebody else may have ended the claim before this release"))
	case r.rec.NotesDroppedUntil != 0 && !m.hasPassed(r.rec.NotesDroppedUntil):
		return driver.Uncertain(errors.New("so many claims were ended by others that there is no telling whether this one was"))
	case r.clock.Since(r.started) > driver.UnreachableTimeout(r.claim.TTL): // a note is kept for that long beyond the claim's own time
		return driver.Uncertain(errors.New("it was asked for so long ago that a note of the claim's end may be gone"))
	default:
		return nil
	}
}

// mayStillArrive reports whether a swap by which the claim would come is still under way: its Acquire did not learn the
// outcome, and the row is as that swap expects it. Requests can overtake one another.
func (r *release) mayStillArrive() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, ok := r.pending.byClaim[r.id]
	if ok && f.replaces != r.row.Version {
		delete(r.pending.byClaim, r.id)
		return false
	}
	return ok
}

// forgetPending forgets what was under way: the row has changed, so it can't take effect any more.
func (r *release) forgetPending() {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending.byClaim, r.id)
	r.pending.trimSwaps(r.clock.Now())
}

package record

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Release removes a claim. It costs one swap if the row is as this client last saw it.
//
// If the first load does not find the claim, the claim ended before this call. If it is not found after a swap of
// unknown outcome, that swap took effect, unless a note in the record says that somebody else has ended the claim.
func (e *engine) Release(ctx context.Context, c driver.Claim, ref string) error {
	if c.ID != "" && ref != "" && c.ID != ref {
		return &driver.LossError{Cause: driver.LossGone} // the id is the ref: no claim has both
	}
	ctx, stop := e.life.Bind(ctx)
	defer stop()
	r := &release{engine: e, claim: c, id: cmp.Or(c.ID, ref), ttl: c.TTL, started: e.clock.Now()}
	r.loop = e.newRetryLoop(driver.UnreachableTimeout(c.TTL))
	r.own = groupStep{urgent: true, call: r}
	r.recall()
	for tries := 0; ; tries++ {
		done, err := r.step(ctx)
		switch {
		case done:
			return err
		case err == nil:
			err = r.loop.End(ctx.Err())
		case errors.Is(err, ErrConflict):
			r.loop.NoteAnswer()
			// A release goes before new claims: it makes room for them.
			_, err = e.pauseAfterConflict(ctx, tries/4, r.claims)
			err = r.loop.End(err)
		default:
			err = r.loop.PauseAfterFailure(ctx, err, false) // step has noted what was sent
		}
		if err != nil {
			return e.errorOrClosed(err)
		}
	}
}

// release is one call of Release.
type release struct {
	*engine
	claim   driver.Claim
	id      string
	row     Row
	rec     *Record       // nil: must be loaded
	fresh   bool          // the row was loaded in this call, not remembered
	claims  int           // how many claims the last attempt's record had
	ttl     time.Duration // of the claim as last seen: that of a detached one is the time for which it was left
	started driver.Instant
	own     groupStep            // what it hands in to the lock's writer
	bars    bool                 // it also writes a record without the claim, so that a pending swap is refused
	loop    driverutil.RetryLoop // Uncertain: a swap of this call had an unknown outcome
	late    bool                 // the claim had expired when such a swap was made

	// What the last step has found.
	removed bool // the claim, in the record
	expired bool // and it had expired
}

// recall begins with the row as this client last saw it, unless it saw the claim there too long ago. The claim may have
// ended since, and the note of its end may have been dropped. Then nobody could tell whether a swap of unknown outcome
// has ended it. A note is kept for the claim's TTL and more after its end. Half of the TTL allows for the time between
// the moment of the read and its reply. The age is that at the start of this call, because outcomeIfAbsent counts what
// passes after that.
func (r *release) recall() {
	s, ok := r.knownRow(r.claim.Name)
	if !ok {
		r.row, r.rec = Row{Name: r.claim.Name}, &Record{}
		return
	}
	r.row, r.rec = s.row, s.rec
	if c := s.rec.findClaim(r.id); c != nil && (r.started.Since(s.seenAt) > c.TTL/2 || r.keepsRuns && r.isReadingStale()) {
		r.rec = nil
	}
}

// step loads the row, or writes it without the claim. If it is not done and has no error, it is called again at once.
func (r *release) step(ctx context.Context) (done bool, err error) {
	if r.rec == nil {
		if r.row, r.rec, err = r.loadForStep(ctx, r.claim.Name); err != nil {
			return false, err
		}
		r.fresh = true
	}
	seen := snapshot{row: r.row, rec: r.rec}
	r.claims, r.bars = len(r.rec.Claims), r.fresh && r.mayStillArrive()
	var o stepOutcome
	if !r.fresh && r.isShared(r.claim.Name) {
		o = r.shareStep(ctx, &r.own, r.claim.Name)
	} else {
		next, in := r.rec.clone(), r.stepInput(r.row, r.rec)
		switch {
		case r.removeClaim(next, in):
		case !r.fresh:
			r.rec = nil
			return false, nil
		default:
			return true, r.outcomeIfAbsent(in)
		}
		o = r.writeStep(ctx, &r.own, seen, next, r.started) // no lease is counted from then
	}
	r.row, r.rec, r.fresh = o.row, o.rec, o.rec != nil
	switch {
	case !o.made:
		return false, nil
	case o.err != nil:
		if errors.Is(o.err, ErrConflict) || errors.Is(o.err, ErrUnsent) || driverutil.IsFinal(o.err) {
			return false, o.err
		}
		r.loop.Uncertain = true
		if ctx.Err() == nil { // otherwise the call may have left the swap, which goes on and may be making the step just now
			r.late = r.late || r.expired
		}
		return false, o.err
	case !r.removed && o.replaces != seen.row.Version:
		return false, nil // the pending swap was made or refused before: look again
	}
	r.forgetPending()
	r.sweepIfDue(r.started)
	if r.expired {
		return true, &driver.LossError{Cause: driver.LossExpired}
	}
	return true, nil
}

// stepFunc returns the step. It tells the call what it has found, for the call to read with the outcome.
func (r *release) stepFunc() stepFunc { return r.removeClaim }

// removeClaim makes the step on a record, and reports whether there is anything to write.
func (r *release) removeClaim(rec *Record, in StepInput) bool {
	if c := rec.findClaim(r.id); c != nil {
		r.ttl = c.TTL
	}
	remove := rec.Release
	if r.claim.Withdrawn {
		remove = rec.Withdraw
	}
	if r.removed, r.expired = remove(r.id, in); !r.removed && r.bars {
		rec.Token++ // any change will do: the pending swap expects the current version, and will be refused
		rec.expireAndPromote(in, "")
	}
	return r.removed || r.bars
}

// outcomeIfAbsent is the result of a release whose claim is not in the record. It is nil only if this release must have
// removed the claim.
func (r *release) outcomeIfAbsent(in StepInput) error {
	loss := r.rec.notedCause(r.id)
	switch {
	case loss == "" && !r.loop.Uncertain:
		return &driver.LossError{Cause: driver.LossGone}
	case loss == driver.LossBroken:
		return driverutil.BrokenError(r.rec.notedReason(r.id))
	case loss != "":
		return &driver.LossError{Cause: loss}
	case r.late: // whether this release has removed it or somebody else
		return &driver.LossError{Cause: driver.LossExpired}
	case r.rec.Foreign != 0:
		return driverutil.Uncertain(errors.New(
			"a foreign client holds the lock, and may have taken it before or after this release"))
	case r.traits.Traceless:
		return driverutil.Uncertain(errors.New(
			"this store remembers nothing about a free lock, so another client may have ended the claim first"))
	case r.rec.NotesDroppedUntil != 0 && !in.hasPassed(r.rec.NotesDroppedUntil):
		return driverutil.Uncertain(errors.New("too many claims were ended by others to tell whether this one was"))
	case r.clock.Since(r.started) > driver.UnreachableTimeout(r.ttl):
		// A note is kept for that long after the TTL that the claim had when it ended.
		return driverutil.Uncertain(errors.New(
			"the release took so long that a note of the claim's end may have been removed"))
	default:
		return nil
	}
}

// mayStillArrive reports whether a swap that adds the claim may still be on its way: its Acquire did not learn the
// outcome, and the row has the version that the swap expects. Requests can overtake one another, so the claim could be
// added after this release.
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

// forgetPending forgets the claim's pending swap: the row has changed, so the swap cannot take effect any more.
func (r *release) forgetPending() {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending.byClaim, r.id)
	r.pending.trimSwaps(r.started)
}

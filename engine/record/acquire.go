package record

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Acquire takes a lock in one round trip where the row is as this client saw it last, else in two.
func (e *engine) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := c.Check(e.info); err != nil {
		return driver.Grant{}, err
	}
	ctx, done := e.bindContext(ctx)
	defer done()
	a := &acquire{engine: e, claim: c, queue: c.Wait && (c.Fair || c.Kind != driver.KindMutex)}
	a.row, a.rec = e.recallRow(c.Name)
	if e.clockRefresher != nil && e.clockRefresher.ClockIsStale() {
		if err := a.loadRow(ctx); err != nil {
			return driver.Grant{}, a.finalError(ctx, err)
		}
	}
	for {
		grant, over, err := a.step(ctx)
		if over || err != nil {
			return grant, a.finalError(ctx, err)
		}
	}
}

// acquire is one Acquire under way.
type acquire struct {
	*engine
	claim driver.Claim
	queue bool // the claim stands in line while it waits

	row   Row
	rec   *Record
	fresh bool // row was loaded in this call, not remembered

	unsure     bool           // a swap had an unknown outcome, and may have taken effect or do so yet
	unsureOver string         // the version that it would replace
	unwritten  bool           // the last swap did not get to the store
	unknowns   int64          // how many swaps had an unknown outcome
	wrote      driver.Instant // when the claim's last sign of life was started, if it stands in line
	beat       int64          // and what it was
	conflicts  int            // swaps refused in a row
	failures   int            // requests without an answer in a row
	idle       int            // how many looks in vain came before the next wait
	aside      int            // looks in a row at which it gave way
	paced      int            // times in a row that it kept the pace
	doubted    bool           // it has waited once for what was in doubt
	silence    driver.Outage
}

// step looks at the row and does one thing about it: writes, loads, or waits.
//
// A grant is confirmed by a swap that was acknowledged, and by nothing else. A claim that is read as granted, after a swap
// whose reply was lost, is written once more: what can be read need not last yet. A database shows a commit that its standbys
// have not got, once the connection that waited for them is broken.
func (a *acquire) step(ctx context.Context) (grant driver.Grant, over bool, err error) {
	since := a.clock.Now()
	m := a.stepInput(a.row)
	next := a.rec.clone()
	mine, err := next.Acquire(a.ownClaim(), a.claim.Kind, a.claim.Limit, a.queue, a.info, m)
	switch {
	case err != nil && !a.fresh:
		return grant, false, a.loadRow(ctx)
	case errors.Is(err, driver.ErrHeld) && a.claim.Wait:
		return grant, false, a.waitForChange(ctx, "")
	case errors.Is(err, driver.ErrHeld) && a.mayExpireSoon():
		return grant, false, a.loadAfterDoubt(ctx)
	case err != nil:
		return grant, false, err
	case mine.State != Granted && !a.mustWrite(next):
		if !a.fresh {
			return grant, false, a.loadRow(ctx)
		}
		return grant, false, a.waitForChange(ctx, a.claim.ID)
	case mine.State != Granted && a.mustYield():
		return grant, false, a.yieldToRenewal(ctx)
	case a.claim.Wait && a.rec.findClaim(a.claim.ID) == nil && a.paced < maxPacedWaits && a.writeDelay(a.claim.Name) > 0:
		return grant, false, a.waitForWriteInterval(ctx)
	}
	mine.Beat += a.unknowns // so that no two tries could be taken for each other
	row, rec, err := a.swapRecord(ctx, a.row, next, a.rec.findClaim(a.claim.ID) == nil)
	switch {
	case err == nil:
		a.row, a.rec, a.fresh, a.conflicts, a.unsure = row, rec, true, 0, false
		a.unwritten = false
		a.noteAnswer()
		a.wrote, a.beat = since, mine.Beat
		if mine.State == Granted {
			return a.newGrant(mine, since), true, nil
		}
		a.observeClaims(row.Name, rec)
		return grant, false, nil
	case errors.Is(err, ErrConflict):
		a.unwritten = false
		return grant, false, a.handleConflict(ctx, row, rec)
	case driver.IsFinal(err):
		return grant, false, err
	case errors.Is(err, ErrUnsent):
		a.unwritten = true
		return grant, false, a.retryLater(ctx, err)
	default:
		a.unsure, a.unsureOver = true, a.row.Version
		a.unknowns++
		return grant, false, a.retryLater(ctx, err)
	}
}

// maxYields is how often in a row a claim gives way: long enough for a renewal that needs some tries, and no more, since a
// holder that does not renew may be dead.
const maxYields = 8

// mustYield reports whether this claim should let a renewal go first: it wants to enter the line or to show that it is
// there, without having been called, and a holder is due to renew. Of hundreds that write at once to a store that is far
// away one gets through in each round trip, and the holder's renewal would be refused again and again.
func (a *acquire) mustYield() bool {
	mine := a.rec.findClaim(a.claim.ID)
	if mine != nil && mine.State == Promoted || a.aside >= maxYields || !a.isRenewalDue(a.row, a.rec) {
		a.aside = 0
		return false
	}
	return true
}

func (a *acquire) yieldToRenewal(ctx context.Context) error {
	a.aside++
	if err := a.sleepFor(ctx, a.roundTrip()+randomPart(a.roundTrip())); err != nil {
		return err
	}
	return a.loadRow(ctx)
}

// maxPacedWaits is how often in a row a claim keeps the pace of the store: it may never be long enough since the last write, since
// those who try do not wait.
const maxPacedWaits = 8

// waitForWriteInterval lets time pass since the lock's last write, and some more, so that not all come at once who have seen it. Once is
// enough if nobody has come or gone meanwhile: where several hold the lock and renew it, it is written all the time.
func (a *acquire) waitForWriteInterval(ctx context.Context) error {
	if err := a.sleepFor(ctx, a.writeDelay(a.claim.Name)+randomPart(a.info.WriteInterval/2)); err != nil {
		return err
	}
	before := a.rec
	if err := a.loadRow(ctx); err != nil {
		return err
	}
	a.paced++
	if a.rec.Token == before.Token && slices.EqualFunc(a.rec.Claims, before.Claims, func(c, b Claim) bool { return c.ID == b.ID }) {
		a.paced = maxPacedWaits
	}
	return nil
}

// maxDoubtWait bounds how long an attempt lasts that does not want to wait.
const maxDoubtWait = 2 * time.Second

// mayExpireSoon reports whether a claim that stands in the way may be over already, and will surely be in a moment, where the
// store's clock is known roughly.
func (a *acquire) mayExpireSoon() bool {
	_, early, late, _ := a.readStoreClock()
	left, ok := a.nextExpiry(a.claim.Name, a.rec)
	return ok && !a.doubted && left > 0 && left <= min(time.Duration(late-early)*time.Microsecond, maxDoubtWait)
}

func (a *acquire) loadAfterDoubt(ctx context.Context) error {
	a.doubted = true
	left, _ := a.nextExpiry(a.claim.Name, a.rec)
	if err := a.sleepFor(ctx, max(left, 0)+time.Millisecond); err != nil {
		return err
	}
	return a.loadRow(ctx)
}

// maxDefaultWindow is the longest confirm window that a client does not ask for: others, who are nearer to the store, give two seconds and a
// little. One who is so far away that he needs longer would be passed over each time.
const maxDefaultWindow = 4 * time.Second

// ownClaim is the claim as it comes to the lock. Its beat goes on from the last one written, so that nobody takes a claim
// that has lost its place and comes again for one that has been silent all the time.
func (a *acquire) ownClaim() Claim {
	c := a.claim
	session := ""
	if a.liveness != nil && !c.Detached {
		session = a.liveness.Session()
	}
	var window time.Duration
	if w := a.confirmWindow(); w > maxDefaultWindow {
		window = w
	}
	return Claim{ConfirmWindow: window, ID: c.ID, Session: session, Owner: c.Owner, Meta: c.Meta, Weight: c.Weight, TTL: c.TTL,
		Beat: a.beat, Detached: c.Detached}
}

// mustWrite reports whether a step that grants nothing is worth a write: the claim enters the line, is called, or has to
// show that it is alive; or others have to be removed or called.
func (a *acquire) mustWrite(next *Record) bool {
	mine := a.rec.findClaim(a.claim.ID)
	if mine == nil || mine.State == Promoted || a.clock.Since(a.wrote) >= a.claim.TTL/3 {
		return true
	}
	if len(next.Claims) != len(a.rec.Claims) {
		return true
	}
	for i := range next.Claims {
		if next.Claims[i].State != a.rec.Claims[i].State {
			return true
		}
	}
	return false
}

func (a *acquire) newGrant(mine *Claim, since driver.Instant) driver.Grant {
	return driver.Grant{Claim: a.claim, Token: mine.Token, Since: since, GrantedTTL: a.claim.TTL, Ref: a.claim.ID}
}

// loadRow loads the row.
func (a *acquire) loadRow(ctx context.Context) error {
	row, rec, err := a.loadRecord(ctx, a.claim.Name)
	if err != nil {
		if errors.Is(err, driver.ErrCorrupt) {
			return err
		}
		return a.retryLater(ctx, err)
	}
	a.useRow(row, rec)
	if !a.unsure && !a.unwritten { // a store may answer reads and take no writes
		a.noteAnswer()
	}
	return nil
}

// useRow makes a row that was just read the one to look at. A swap of unknown outcome is void when the claim does not
// stand and another version has come: it can't take effect any more.
func (a *acquire) useRow(row Row, rec *Record) {
	a.row, a.rec, a.fresh = row, rec, true
	if a.unsure && row.Version != a.unsureOver && rec.findClaim(a.claim.ID) == nil {
		a.unsure = false
	}
	a.observeClaims(row.Name, rec)
}

// handleConflict goes on from the row that another's write has left.
func (a *acquire) handleConflict(ctx context.Context, row Row, rec *Record) error {
	a.noteAnswer()
	a.paced = 0
	tries := a.conflicts
	if mine := a.rec.findClaim(a.claim.ID); mine != nil && mine.State == Promoted {
		tries /= 4 // it is this claim's turn: the others pause
	}
	paused, err := a.pauseAfterConflict(ctx, tries, len(a.rec.Claims))
	if err != nil {
		return err
	}
	a.conflicts++
	if rec == nil || paused { // what the refusal brought is old
		return a.loadRow(ctx)
	}
	a.useRow(row, rec)
	return nil
}

// retryLater bears with a store that does not answer, for a while. What stands there is not known then: the row is loaded.
func (a *acquire) retryLater(ctx context.Context, err error) error {
	if over := a.silence.RequestFailed(a.clock, driver.UnreachableTimeout(a.claim.TTL)); over || driver.IsFinal(err) || ctx.Err() != nil {
		return err
	}
	a.failures++
	if err := a.pauseAfterFailure(ctx, a.failures+2); err != nil {
		return err
	}
	return a.loadRow(ctx)
}

func (a *acquire) noteAnswer() {
	a.silence.RequestAnswered()
	a.failures = 0
}

// finalError gives an error its final form.
func (a *acquire) finalError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case a.life.Err() != nil:
		err = driver.ErrClosed
	case ctx.Err() != nil && !driver.IsFinal(err):
		err = a.waitError(ctx.Err())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded): // the store's own, not the caller's
		err = fmt.Errorf("the store did not answer in time: %v", err)
	}
	if !a.unsure {
		return err
	}
	a.mu.Lock()
	a.pending.addSwap(a.claim.ID, a.unsureOver, a.claim.TTL, a.clock.Now())
	a.mu.Unlock()
	return fmt.Errorf("%w: %w", driver.ErrUncertain, err)
}

// waitError says for whom a wait has ended in vain, as far as was seen.
func (a *acquire) waitError(err error) error {
	if a.rec == nil || a.rec.count(true) == 0 || !a.fresh {
		return err
	}
	return fmt.Errorf("%w; %w", err, a.rec.heldError(a.stepInput(a.row)))
}

// waitForChange blocks until there may be something to do, and then looks at the row that is there. mine is the claim's id if it
// stands in line: it then has to give signs of life. All else is told by the lock's lookout.
func (a *acquire) waitForChange(ctx context.Context, mine string) error {
	limit := driver.UnreachableTimeout(a.claim.TTL) / 2
	if mine != "" {
		limit = max(a.claim.TTL/3-a.clock.Since(a.wrote), 0)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	a.noteAnswer() // what the store has said leaves nothing to ask for
	a.paced = 0
	seat, leave := a.subscribe(a.row, a.rec, a.idle, driver.UnreachableTimeout(a.claim.TTL), a.isAffected)
	defer leave()
	select {
	case s := <-seat.updates:
		if s.err != nil {
			return s.err
		}
		a.idle = 0
		a.useRow(s.row, s.rec)
		return nil
	case <-timer.C:
		a.idle = maxIdleLoads
		leave()
		a.silence = seat.outage
		return a.loadRow(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// isAffected reports whether a change of the lock is this claim's affair: it is let in or called, it has lost its place,
// or it is the next after those that are called. The others in line sleep on.
func (a *acquire) isAffected(rec *Record) bool {
	mine := rec.findClaim(a.claim.ID)
	switch {
	case !a.queue:
		return len(rec.Claims) == 0 || rec.totalWeight()+a.claim.Weight <= rec.Limit || rec.Kind != a.claim.Kind
	case mine == nil || mine.State != Waiting:
		return true
	}
	for i := range rec.Claims {
		if rec.Claims[i].State == Waiting {
			return rec.Claims[i].ID == a.claim.ID
		}
	}
	return false
}

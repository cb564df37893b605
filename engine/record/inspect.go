package record

import (
	"context"
	"errors"
	"iter"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Inspect costs one load. It leaves out claims that have expired, although they remain in the record until the next
// write.
func (e *engine) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	row, rec, err := e.loadRecord(ctx, name)
	if err != nil {
		return driver.Lock{}, err
	}
	return e.describeRow(row, rec), nil
}

// List shows each lock as Inspect does, without the idle locks.
func (e *engine) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		for row, err := range e.table.List(ctx, prefix, "") {
			lock := driver.Lock{Name: row.Name}
			if err == nil {
				var rec *Record
				if rec, err = decodeRow(row); err == nil {
					lock = e.describeRow(row, rec)
				}
			}
			if err == nil && len(lock.Holders)+len(lock.Waiters) == 0 {
				continue
			}
			if !yield(lock, e.errorOrClosed(err)) || err != nil && row.Name == "" {
				return
			}
		}
	}
}

// Break costs one load and one swap. After a swap of unknown outcome the claim may be absent because of this same call;
// then the note of it says so. The claims of a full record must still be renewed, and broken: if there is no room for
// the reason, all reasons are dropped.
func (e *engine) Break(ctx context.Context, name, ref string, b driver.Break) error {
	return e.applyStep(ctx, name, false, func(rec *Record, in StepInput, again bool) error {
		err := rec.Break(ref, b, in)
		if again && errors.Is(err, driver.ErrLost) && rec.notedCause(ref) == driver.LossBroken {
			return errDone
		}
		if err == nil && b.Reason != "" {
			if data, err := Encode(rec); err != nil || e.checkRoom(rec, len(data)) != nil {
				rec.dropReasons()
			}
		}
		return err
	})
}

// Detach costs one load and one swap.
func (e *engine) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	return e.applyStep(ctx, g.Name, false, func(rec *Record, in StepInput, again bool) error {
		if c := rec.findClaim(g.ID); again && c != nil && c.Detached && c.Token == g.Token {
			return errDone // a swap of unknown outcome was made: also if the claim has expired since, as it was to
		}
		return rec.Detach(g.ID, g.Token, keep, in)
	})
}

// SetWeight costs one load and one swap.
func (e *engine) SetWeight(ctx context.Context, g driver.Grant, weight int64) error {
	return e.applyStep(ctx, g.Name, false, func(rec *Record, in StepInput, _ bool) error {
		return rec.SetWeight(g.ID, g.Token, weight, in)
	})
}

// ReadTokenFloor costs one load, of a row that never exists. Each client makes tokens by its own estimate of the
// store's clock, so the floor is below this client's.
func (e *engine) ReadTokenFloor(ctx context.Context) (driver.TokenFloor, error) {
	ctx, stop := e.life.Bind(ctx)
	defer stop()
	if _, err := e.table.Load(ctx, pageMark); err != nil {
		return driver.TokenFloor{}, e.errorOrClosed(err)
	}
	floor := e.table.TokenFloor()
	if early, _, known := e.storeBounds(); known {
		floor = min(floor, early)
	}
	return driver.TokenFloor{Token: max(floor-e.info.TokenGap.Microseconds(), 1), ByClock: true}, nil
}

// RaiseToken costs one load and one swap. A store that removes idle records itself would forget the token.
func (e *engine) RaiseToken(ctx context.Context, name string, atLeast int64) error {
	if name == "" || e.traits.ExpiresIdle {
		return driverutil.CheckTokenFloor(ctx, e, atLeast)
	}
	return e.applyStep(ctx, name, false, func(rec *Record, in StepInput, _ bool) error {
		return rec.RaiseToken(atLeast, in)
	})
}

// errDone is returned by a step that finds its work done already. If that was by an earlier swap of the same call,
// whose reply was lost, then the record is written once more as it is.
var errDone = errors.New("already done")

// maxSettleTime is how long a step is tried while the store gives no answer.
const maxSettleTime = 10 * time.Second

// newRetryLoop makes the loop of one call.
func (e *engine) newRetryLoop(limit time.Duration) driverutil.RetryLoop {
	return driverutil.RetryLoop{Clock: e.clock, Limit: limit, Pause: e.retryPause}
}

// applyStep loads the row, makes one step, and swaps, until the step has succeeded or was refused. The step must be
// one that may be made twice without harm: after a swap whose reply was lost it is made again, with again set, and
// the result of that is the outcome.
//
// If recalled is true, the first attempt is made on the row as this client last saw it, which saves the load. A refusal
// is never based on that row.
func (e *engine) applyStep(
	ctx context.Context, name string, recalled bool, step func(rec *Record, in StepInput, again bool) error,
) error {
	ctx, stop := e.life.Bind(ctx)
	defer stop()
	loop := e.newRetryLoop(maxSettleTime)
	for tries := 0; ; tries++ {
		t := &stepAttempt{again: loop.Uncertain, recalled: recalled && tries == 0}
		err := e.attemptStep(ctx, name, t, step)
		switch {
		case t.decided:
			return err
		case errors.Is(err, ErrConflict):
			loop.NoteAnswer()
			_, err = e.pauseAfterConflict(ctx, tries, t.claims)
			err = loop.End(err)
		default:
			err = loop.PauseAfterFailure(ctx, err, t.unsure)
		}
		if err != nil {
			return e.errorOrClosed(err)
		}
	}
}

// stepAttempt is one attempt of applyStep.
type stepAttempt struct {
	again    bool // an earlier attempt had an unknown outcome
	recalled bool // the row is not loaded but recalled
	decided  bool // it was written, or refused by the step
	unsure   bool // it may have been written
	claims   int  // how many claims its record had
}

// attemptStep makes one attempt at a step: it reads the row, or recalls what this process knows of it, and swaps
// in what the step makes. A decision that rests on a recalled row is not believed: it is ErrConflict, and the next
// attempt reads. In t it says whether the step is decided, and whether the swap may have taken effect without a
// reply.
func (e *engine) attemptStep(
	ctx context.Context, name string, t *stepAttempt, step func(*Record, StepInput, bool) error,
) error {
	var err error
	row, rec := e.recallRow(name)
	t.recalled = t.recalled && !e.isReadingStale()
	if !t.recalled {
		if row, rec, err = e.loadForStep(ctx, name); err != nil {
			return err
		}
	}
	next := rec.clone()
	t.claims = len(next.Claims)
	if err := step(next, e.stepInput(row, rec), t.again); err != nil {
		done := errors.Is(err, errDone)
		switch {
		case t.recalled:
			return ErrConflict
		case done && t.again: // a failover may take back what a read shows, but not what an acknowledged swap has written
		default:
			if t.decided = true; done {
				return nil
			}
			return err
		}
	}
	_, _, err = e.swapRecord(ctx, snapshot{row: row, rec: rec}, next, false)
	t.decided = err == nil
	t.unsure = err != nil && !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUnsent) && !driverutil.IsFinal(err)
	return err
}

// describeRow shows a lock without the claims that have expired. Expiry writes nothing, so it is added to the revision:
// otherwise a client that waits for a change would not notice it.
func (e *engine) describeRow(row Row, rec *Record) driver.Lock {
	in := e.stepInput(row, rec)
	shown := *rec
	shown.Claims = aliveClaims(rec.Claims, in)
	shown.Foreign = in.foreignEnd(rec)
	lock := shown.describeLock(row.Name, in)
	expired := len(rec.Claims) - len(shown.Claims)
	if shown.Foreign != rec.Foreign {
		expired++
	}
	if lock.Revision = row.Version; expired > 0 {
		lock.Revision += "-" + strconv.Itoa(expired)
	}
	return lock
}

// aliveClaims returns the claims that have not expired at the time of the step.
func aliveClaims(claims []Claim, in StepInput) (left []Claim) {
	for i := range claims {
		if in.judgeClaim(&claims[i]) == Alive {
			left = append(left, claims[i])
		}
	}
	return left
}

// describeLock shows a record to users.
func (r *Record) describeLock(name string, in StepInput) driver.Lock {
	l := driver.Lock{Name: name, Token: r.Token}
	if len(r.Claims) > 0 {
		l.Kind, l.Limit = r.Kind, r.Limit
	}
	if r.Foreign != 0 {
		l.Kind, l.Limit = driver.KindMutex, 1
		l.Holders = append(l.Holders, driver.ClaimInfo{
			Ref: r.foreignRef(), Owner: "a foreign client", Weight: 1, Foreign: true,
			Remaining: in.timeUntil(r.Foreign),
		})
	}
	for i := range r.Claims {
		c := &r.Claims[i]
		s := driver.ClaimInfo{
			Ref: c.ID, Owner: c.Owner, Meta: c.Meta, Weight: c.Weight, Token: c.Token, TTL: c.TTL,
			Since: wallTime(c.Since), Remaining: in.remainingTime(c),
			Detached: c.Detached, ReleaseRequested: c.ReleaseRequested, Broken: c.Broken,
		}
		if c.State == Granted {
			l.Holders = append(l.Holders, s)
		} else {
			l.Waiters = append(l.Waiters, s)
		}
	}
	return l
}

// remainingTime is how long a claim certainly remains if it is not renewed; 0 if the store's clock cannot tell.
func (in StepInput) remainingTime(c *Claim) time.Duration {
	if c.ExpiresAt == 0 {
		return 0
	}
	return in.timeUntil(c.ExpiresAt)
}

// timeUntil is how long it certainly is until a time of the store's clock; 0 if that is not known, or never comes.
func (in StepInput) timeUntil(at int64) time.Duration {
	if !in.ClockTrusted || at == NoEnd {
		return 0
	}
	return max(microsToDuration(at-in.Latest), 0)
}

// wallTime converts a time of the store's clock; 0 becomes the zero time.
func wallTime(n int64) time.Time {
	if n <= 0 {
		return time.Time{}
	}
	return time.UnixMicro(n)
}

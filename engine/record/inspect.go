package record

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Inspect is one load. Claims that are over are left out, though they stand until somebody's next write.
func (e *engine) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	row, rec, err := e.loadRecord(ctx, name)
	if err != nil {
		return driver.Lock{}, err
	}
	return e.describeRow(row, rec), nil
}

// List shows what Inspect would show, without the idle locks.
func (e *engine) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		for row, err := range e.table.List(ctx, prefix) {
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

// Break is one load and one swap. After a swap of unknown outcome the claim may be gone by this very break: a note says so.
func (e *engine) Break(ctx context.Context, name, ref string, mode driver.BreakMode) error {
	return e.applyStep(ctx, name, func(rec *Record, m StepInput, again bool) error {
		err := rec.Break(ref, mode, m)
		if again && errors.Is(err, driver.ErrLost) && rec.notedCause(ref) == driver.LossBroken {
			return errDone
		}
		return err
	})
}

// Detach is one load and one swap.
func (e *engine) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	return e.applyStep(ctx, g.Name, func(rec *Record, m StepInput, _ bool) error { return rec.Detach(g.ID, g.Token, keep, m) })
}

// SetWeight is one load and one swap.
func (e *engine) SetWeight(ctx context.Context, g driver.Grant, weight int64) error {
	return e.applyStep(ctx, g.Name, func(rec *Record, m StepInput, _ bool) error { return rec.SetWeight(g.ID, g.Token, weight, m) })
}

// errDone is for a step that finds its work done, by a swap whose reply was lost.
var errDone = errors.New("done before")

// maxSettleTime is how long it is tried to learn the outcome of a swap whose reply was lost.
const maxSettleTime = 10 * time.Second

// applyStep makes one step that may be made twice without harm, until it has succeeded or was refused. After a swap whose reply was
// lost it makes the step again: what that finds and writes is the outcome.
func (e *engine) applyStep(ctx context.Context, name string, step func(rec *Record, m StepInput, again bool) error) error {
	ctx, stop := e.bindContext(ctx)
	defer stop()
	unsure := false
	var silence driver.Outage
	for tries := 0; ; tries++ {
		t := &stepAttempt{again: unsure}
		err := e.attemptStep(ctx, name, t, step)
		switch {
		case t.decided:
			return err
		case errors.Is(err, ErrConflict):
			silence.RequestAnswered()
			_, err = e.pauseAfterConflict(ctx, tries, t.claims)
		case t.unsure || unsure:
			unsure = true
			if !driver.IsFinal(err) && !silence.RequestFailed(e.clock, maxSettleTime) {
				err = e.pauseAfterFailure(ctx, tries)
			}
		}
		if err != nil {
			if unsure {
				err = fmt.Errorf("%w: %w", driver.ErrUncertain, err)
			}
			return e.errorOrClosed(err)
		}
	}
}

// stepAttempt is one try of a write.
type stepAttempt struct {
	again   bool // a try before it had an unknown outcome
	decided bool // it was made, or refused by the step
	unsure  bool // it may have been made
	claims  int  // how many the record has that was tried
}

func (e *engine) attemptStep(ctx context.Context, name string, t *stepAttempt, step func(*Record, StepInput, bool) error) error {
	row, rec, err := e.loadRecord(ctx, name)
	if err != nil {
		return err
	}
	next := rec.clone()
	t.claims = len(next.Claims)
	if err := step(next, e.stepInput(row), t.again); err != nil {
		t.decided = true
		if errors.Is(err, errDone) {
			return nil
		}
		return err
	}
	_, _, err = e.swapRecord(ctx, row, next, false)
	t.decided = err == nil
	t.unsure = err != nil && !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUnsent) && !driver.IsFinal(err)
	return err
}

func (e *engine) describeRow(row Row, rec *Record) driver.Lock {
	m := e.stepInput(row)
	shown := *rec
	shown.Claims = aliveClaims(rec.Claims, m)
	shown.Foreign = m.foreignEnd(rec)
	lock := shown.describeLock(row.Name, m)
	over := len(rec.Claims) - len(shown.Claims)
	if shown.Foreign != rec.Foreign {
		over++
	}
	if lock.Revision = row.Version; over > 0 { // that changes no record
		lock.Revision += "-" + strconv.Itoa(over)
	}
	return lock
}

func aliveClaims(claims []Claim, m StepInput) (left []Claim) {
	for i := range claims {
		if m.judgeClaim(&claims[i]) == Alive {
			left = append(left, claims[i])
		}
	}
	return left
}

// describeLock is a record as others see it.
func (r *Record) describeLock(name string, m StepInput) driver.Lock {
	l := driver.Lock{Name: name, Token: r.Token}
	if len(r.Claims) > 0 {
		l.Kind, l.Limit = r.Kind, r.Limit
	}
	if r.Foreign != 0 {
		l.Kind, l.Limit = driver.KindMutex, 1
		l.Holders = append(l.Holders, driver.ClaimInfo{Ref: r.foreignRef(), Owner: "a foreign client", Weight: 1, Foreign: true,
			Remaining: m.timeUntil(r.Foreign)})
	}
	for i := range r.Claims {
		c := &r.Claims[i]
		s := driver.ClaimInfo{
			Ref: c.ID, Owner: c.Owner, Meta: c.Meta, Weight: c.Weight, Token: c.Token, TTL: c.TTL,
			Since: wallTime(c.Since), Remaining: m.remainingTime(c), Detached: c.Detached, ReleaseRequested: c.ReleaseRequested, Broken: c.Broken,
		}
		if c.State == Granted {
			l.Holders = append(l.Holders, s)
		} else {
			l.Waiters = append(l.Waiters, s)
		}
	}
	return l
}

// remainingTime is how long a claim surely stands if it stays silent, where the store's clock can tell.
func (m StepInput) remainingTime(c *Claim) time.Duration {
	if c.ExpiresAt == 0 {
		return 0
	}
	return m.timeUntil(c.ExpiresAt)
}

// timeUntil is how long it surely is to a time of the store's clock; 0: not known, or for ever.
func (m StepInput) timeUntil(at int64) time.Duration {
	if !m.ClockTrusted || at == NoEnd {
		return 0
	}
	return max(microsToDuration(at-m.Latest), 0)
}

// wallTime is a time of the store's clock, or none.
func wallTime(n int64) time.Time {
	if n <= 0 {
		return time.Time{}
	}
	return time.UnixMicro(n)
}

package record

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// RunLog is the history of a key in a ledger: see [NewLedger]. A Record with a RunLog is not that of a lock.
//
// A run is started in the step that grants its claim, and gets its last state in the step that removes that claim. So
// a run is started exactly as long as its claim exists, and no run is changed after it has ended. The only later note
// is the late report of a worker whose run was ended by somebody else.
type RunLog struct {
	// Runs are the latest runs, the last one at the end. Older ones are in pages: see makeRoomForRuns.
	Runs []driver.Run
	// Pages is how many pages were written, from the first on. The first Dropped of them have been removed again.
	Pages, Dropped int64
	// RetryAfter is the attempt after which an operator lets one more run begin; 0 if there is none.
	RetryAfter int64
	// KeepFor is how long the history is kept after the end of its last run, as that run was begun; 0: forever.
	KeepFor time.Duration
	// ForgetAt is the store's clock, in microseconds, after which the whole history may be removed; 0: never.
	ForgetAt int64
}

func (l *RunLog) clone() *RunLog {
	if l == nil {
		return nil
	}
	c := *l
	c.Runs = slices.Clone(l.Runs)
	return &c
}

// lastRun returns the last run, or a zero Run if there was none.
func (l *RunLog) lastRun() driver.Run {
	if l == nil || len(l.Runs) == 0 {
		return driver.Run{}
	}
	return l.Runs[len(l.Runs)-1]
}

// firstToken returns the token of the first run that is kept here, or 0 if there is none.
func (l *RunLog) firstToken() int64 {
	if l == nil || len(l.Runs) == 0 {
		return 0
	}
	return l.Runs[0].Token
}

// firstAttempt returns the number of the first run that is kept here, or 0 if there is none.
func (l *RunLog) firstAttempt() int64 {
	if len(l.Runs) == 0 {
		return 0
	}
	return l.Runs[0].Attempt
}

// findRun returns the run of a grant, or nil.
func (l *RunLog) findRun(id string, token int64) *driver.Run {
	if l == nil {
		return nil
	}
	for i := len(l.Runs) - 1; i >= 0; i-- {
		if l.Runs[i].ID == id && l.Runs[i].Token == token {
			return &l.Runs[i]
		}
	}
	return nil
}

// Begin is the step of a claim that wants to run its key: it is the Acquire of a mutex, if the history allows another
// run. Together with the grant it starts the run.
func (r *Record) Begin(c Claim, terms driver.RunTerms, info driver.Info, in StepInput) (*Claim, error) {
	r.expireAndPromote(in, c.ID)
	if r.findClaim(c.ID) == nil {
		if err := r.refuseRun(terms, in); err != nil {
			return nil, err
		}
	}
	mine, err := r.Acquire(c, driver.KindMutex, 1, false, info, in)
	if err != nil {
		return nil, err
	}
	if r.Runs.findRun(mine.ID, mine.Token) == nil {
		r.startRun(mine, terms, in)
	}
	return mine, nil
}

// errNoPauses refuses a run: nobody could tell when the pause after the run before has passed.
var errNoPauses = fmt.Errorf("%w: the store does not tell its time, so no pause between runs can be kept",
	driver.ErrUnsupported)

// refuseRun returns a *driver.RunError if the history does not allow another run now.
func (r *Record) refuseRun(terms driver.RunTerms, in StepInput) error {
	last := r.Runs.lastRun()
	retryAllowed := r.Runs != nil && r.Runs.RetryAfter == last.Attempt
	refused := terms.Refuse(last, retryAllowed, time.UnixMicro(in.StoreTime.Early))
	switch {
	case terms.Pause > 0 && !in.StoreTime.Known && (refused == nil || refused.Reason == driver.ErrTooSoon):
		return errNoPauses // the other answers need no clock
	case refused == nil:
		return nil // and not a nil *driver.RunError, which is an error
	case refused.Reason == driver.ErrInProgress:
		l := r.describeLock("", in)
		refused.Held = &driver.HeldError{Holders: l.Holders, Waiting: len(l.Waiters)}
	}
	return refused
}

// startRun adds the run of a claim that was just granted.
func (r *Record) startRun(c *Claim, terms driver.RunTerms, in StepInput) {
	if r.Runs == nil {
		r.Runs = &RunLog{}
	}
	last := r.Runs.lastRun()
	fingerprint := cmp.Or(terms.Fingerprint, last.Fingerprint)
	r.Runs.Runs = append(r.Runs.Runs, driver.Run{
		Attempt: last.Attempt + 1, State: driver.RunStarted, ID: c.ID, Token: c.Token, Owner: c.Owner, Meta: c.Meta,
		Fingerprint: fingerprint, StartedAt: time.UnixMicro(in.Now),
	})
	r.Runs.KeepFor, r.Runs.ForgetAt = terms.KeepFor, 0
}

// endRun gives the run of a claim that is being removed its last state. For a lock it does nothing.
func (r *Record) endRun(c *Claim, state driver.RunState, why string, in StepInput) {
	if run := r.Runs.findRun(c.ID, c.Token); run != nil && run.State == driver.RunStarted {
		run.State, run.Error = state, why
		ended := in.Now
		if state == driver.RunAbandoned && c.ExpiresAt > 0 {
			ended = min(ended, c.ExpiresAt)
		}
		if started := run.StartedAt.UnixMicro(); !in.StoreTime.Known || started <= in.StoreTime.Late {
			ended = max(ended, started)
		} // else its worker did not know the store's time
		run.EndedAt = time.UnixMicro(ended)
		if r.Runs.KeepFor > 0 && in.StoreTime.Known { // otherwise the history is kept
			r.Runs.ForgetAt = in.StoreTime.Late + r.Runs.KeepFor.Microseconds()
		}
	}
}

// Finish is the step of a worker that reports the outcome of its run. The report counts only while the run's claim
// exists under its token and has not expired. A graceful break does not refuse it: nobody else can have begun.
//
// changed says whether the record must be written, which may be the case even if there is an error: the report of a
// worker that comes too late is noted.
func (r *Record) Finish(id string, token int64, o driver.RunOutcome, in StepInput) (changed bool, err error) {
	run, c := r.Runs.findRun(id, token), r.findClaim(id)
	if run != nil && run.State == o.State && run.Error == o.Error && bytes.Equal(run.Result, o.Result) {
		return false, nil // this report, whose reply was lost
	}
	if c != nil && in.isExpiredHolder(c) { // the run is abandoned, and this step is the first to say so
		r.expireAndPromote(in, "")
		c = r.findClaim(id)
	}
	if c == nil || c.State != Granted || c.Token != token {
		if run != nil && run.State != driver.RunStarted && run.LateReport == "" {
			run.LateReport, changed = o.State, true
		}
		return changed, r.lossError(id, token)
	}
	r.endRun(c, o.State, o.Error, in)
	run.Result = o.Result
	r.Release(id, in)
	return true, nil
}

// AllowRetry is the step of an operator who lets one more run begin.
func (r *Record) AllowRetry(in StepInput) error {
	r.expireAndPromote(in, "")
	last := r.Runs.lastRun()
	switch last.State {
	case "":
		return fmt.Errorf("%w: the key was never run", driver.ErrInvalid)
	case driver.RunSucceeded:
		return &driver.RunError{Reason: driver.ErrSucceeded, Run: last}
	case driver.RunStarted:
		return &driver.RunError{Reason: driver.ErrInProgress, Run: last}
	}
	r.Runs.RetryAfter = last.Attempt
	return nil
}

// checkRuns reports what is wrong with the history of a record.
func (r *Record) checkRuns() error {
	if r.Runs == nil {
		return nil
	}
	pages, dropped, first := r.Runs.Pages, r.Runs.Dropped, r.Runs.firstAttempt()
	if dropped < 0 || dropped > pages || pages > 0 && (first < 1 || pages > (first-1)/runsPerPage) {
		return fmt.Errorf("%d pages of runs, %d of them removed, before run %d", pages, dropped, first)
	}
	var before driver.Run
	for i, run := range r.Runs.Runs {
		c := r.findClaim(run.ID)
		hasClaim := c != nil && c.Token == run.Token
		switch {
		case run.Attempt < 1 || i > 0 && run.Attempt != before.Attempt+1:
			return fmt.Errorf("run %d follows run %d", run.Attempt, before.Attempt)
		case run.Token <= before.Token:
			return fmt.Errorf("run %d has token %d, and the run before it %d", run.Attempt, run.Token, before.Token)
		case before.State == driver.RunSucceeded:
			return fmt.Errorf("run %d follows one that has succeeded", run.Attempt)
		case (run.State == driver.RunStarted) != hasClaim:
			return fmt.Errorf("run %d is %s, and its claim exists: %t", run.Attempt, run.State, hasClaim)
		case run.State == driver.RunStarted && i != len(r.Runs.Runs)-1:
			return fmt.Errorf("run %d is started, and is not the last", run.Attempt)
		}
		before = run
	}
	return nil
}

// size is about how much memory a history takes.
func (l *RunLog) size() (n int) {
	const fixed = 256
	if l == nil {
		return 0
	}
	for i := range l.Runs {
		n += fixed + len(l.Runs[i].Result) + len(l.Runs[i].Error)
	}
	return n
}

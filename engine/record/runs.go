package record

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// RunLog is the history of a key in a ledger: see [NewLedger]. A Record with a RunLog is not that of a lock.
//
// A run is started in the step that grants its claim, and gets its last state in the step that removes that claim. So
// a run is started exactly as long as its claim exists, and no run is changed after it has ended. The only later note
// is the late report of a worker whose run was ended by somebody else. A run that nobody was told of is taken out
// together with its claim.
type RunLog struct {
	// Runs are the latest runs, the last one at the end. Older ones are in pages: see runRoom.
	Runs []driver.Run
	// Pages is how many pages were written, from the first on. The first Dropped of them have been removed again.
	Pages, Dropped int64
	// RetryAfter is the attempt after which an operator lets one more run begin; 0 if there is none.
	RetryAfter int64
	// KeepFor is how long the history is kept after the end of its last run, as that run was begun; 0: forever.
	KeepFor time.Duration
	// ForgetAt is the store's clock, in microseconds, after which the whole history may be removed, if no run is in
	// progress; 0: never.
	ForgetAt int64
}

// clone copies the log so far that a step may change it.
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
	r.Runs.KeepFor = terms.KeepFor
}

// maxStartError is by how many microseconds the start of a run may be wrong, if its worker knew the store's time: it
// is an estimate.
const maxStartError = 10e6

// endRun gives the run of a claim that is being removed its last state. For a lock it does nothing.
func (r *Record) endRun(c *Claim, state driver.RunState, why string, in StepInput) {
	if run := r.Runs.findRun(c.ID, c.Token); run != nil && run.State == driver.RunStarted {
		run.State, run.Error = state, why
		ended := in.Now
		if state == driver.RunAbandoned && c.ExpiresAt > 0 {
			ended = min(ended, c.ExpiresAt)
		}
		if started := run.StartedAt.UnixMicro(); !in.StoreTime.Known || started <= in.StoreTime.Late+maxStartError {
			ended = max(ended, started)
		} // else its worker did not know the store's time
		run.EndedAt = time.UnixMicro(ended)
		r.Runs.ForgetAt = 0
		if r.Runs.KeepFor > 0 && in.StoreTime.Known { // otherwise the history is kept
			r.Runs.ForgetAt = in.StoreTime.Late + r.Runs.KeepFor.Microseconds()
		}
	}
}

// Withdraw is the Release of a claim whose owner was never told of it. Its run is taken out of the history. All else is
// as it was before the run began: also ForgetAt, which has no effect while there is a claim.
//
// If the record has no run before that one, although there was one, the run ends as failed. So it is only if a
// program of format 1 has left a run before it that is too large to stay in the record.
func (r *Record) Withdraw(id string, in StepInput) (existed, expired bool) {
	c, last := r.findClaim(id), r.Runs.lastRun()
	if c != nil && last.ID == id && last.Token == c.Token && (last.Attempt == 1 || len(r.Runs.Runs) > 1) {
		r.Runs.Runs = r.Runs.Runs[:len(r.Runs.Runs)-1]
	}
	return r.Release(id, in)
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
	if dropped < 0 || dropped > pages || pages > 0 && pages >= first { // each has a run
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

// runRoom says how many bytes each part of a record of a ledger may take as it is stored. A run begins only if its
// claim and its texts keep to a share of the record, so that there is room for whatever becomes of it. What the runs
// before it have left cannot take that room: they had the same share, and all but one can move to a page.
type runRoom struct {
	share  int // a run with its claim and the text of its error; and as much for the run before
	result int // a result, which is in base64
	ended  int // all ended runs
}

const (
	minLedgerRecord = 4 << 10  // bytes of the smallest record in which there can be a run
	maxRunShare     = 24 << 10 // in JSON a text can take six times its length
	maxEndedRuns    = 8 << 10
	recordReserve   = 1 << 10 // for what is in a record besides runs, the room of its claim to grow included
)

// newRunRoom divides a record of a ledger: a share for what the current run says of itself, room for its result,
// which is kept free from the beginning, and the rest for ended runs.
func newRunRoom(maxRecord int) runRoom {
	m := runRoom{share: min(maxRunShare, maxRecord/3)}
	left := maxRecord - recordReserve - m.share
	m.result = min(base64.StdEncoding.EncodedLen(driver.MaxRunResult), max(0, left-m.share))
	m.ended = min(maxEndedRuns, left-m.result)
	return m
}

// maxResult is the size of the largest result.
func (m runRoom) maxResult() int { return min(driver.MaxRunResult, m.result/4*3) }

// maxMeta is the size of the largest note for which there is room if the other texts are short.
func (m runRoom) maxMeta() int { return max(0, (m.textRoom()-runFixed)/4) }

// runFixed is about what a run and its claim take without texts.
const runFixed = 640

// errorRoom is what the text of an error may take, and textRoom what is left of a share.
func (m runRoom) errorRoom() int { return m.share / 4 }
func (m runRoom) textRoom() int  { return m.share - m.errorRoom() }

// checkRun refuses a run that is about to begin if its end might have no room.
func (m runRoom) checkRun(r *Record) error {
	if m.share == maxRunShare {
		return nil // there is room for all that is allowed
	}
	const growth = 128 // a state, an end, a late report
	last := r.Runs.lastRun()
	if size := jsonSize(encodeClaim(r.findClaim(last.ID))) + jsonSize(encodeRun(last)) + growth; size > m.textRoom() {
		return fmt.Errorf("%w: the owner, the note (Meta) and the fingerprint of this run take %d bytes in the store, whose "+
			"records have room for %d: use shorter ones", driver.ErrInvalid, size, m.textRoom())
	}
	return nil
}

// cutError shortens the text of an error to what there is room for.
func (m runRoom) cutError(text string) string {
	for text != "" {
		over := jsonSize(text) - m.errorRoom()
		if over <= 0 {
			break
		}
		text = strings.ToValidUTF8(text[:len(text)-(over+5)/6], "")
	}
	return text
}

// countOld returns how many of the runs of a record, in which the last one begins, have to move to a page. If there are
// too many for their room, about half of it is left free, so that not each run writes a page.
//
// The oldest runs are taken, until they fill half of the room. So the page is the same whatever the newest runs are,
// and whether a late report was noted: a slow client, whose record is not of today, may write the page over one that
// counts.
func (m runRoom) countOld(runs []driver.Run) int {
	ended := runs[:len(runs)-1]
	rest := 0
	for _, r := range ended {
		rest += jsonSize(encodeRun(r))
	}
	switch {
	case rest <= m.ended:
		return 0
	case len(ended) == 0 || jsonSize(encodeRun(ended[len(ended)-1])) > m.share: // of format 1: see Withdraw
		return len(ended)
	}
	old := 0
	for page := 0; old < len(ended)-1 && (page < m.ended/2 || rest > m.ended); old++ {
		rest -= jsonSize(encodeRun(ended[old]))
		moved := ended[old]
		moved.LateReport = ""
		page += jsonSize(encodeRun(moved))
	}
	return old
}

// jsonSize is the number of bytes of the stored form.
func jsonSize(v any) int {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // there are only texts and numbers
	}
	return len(data)
}

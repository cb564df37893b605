package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"
)

// Ledger keeps the runs of keys. Each key is run until a run has succeeded.
//
// A ledger is a Store whose locks are its keys. A run in progress is the grant of a mutex on its key: Acquire begins
// it, Renew keeps it, and it ends by FinishRun, by Release, or as that of a holder that stopped renewing. So a run is
// granted, expired and fenced by the rules of a lock. In the same step as the claim, the ledger changes the history of
// the key.
//
// Acquire takes only claims with Run set. It returns a [*RunError] if the history refuses another run, and ErrInvalid
// if the store has no room for this one: a run that has begun can always be ended, with a result of any size up to
// [Info].MaxRunResult. A run whose claim was ended by somebody else is [RunAbandoned]. Release ends a run that has no
// outcome, as [RunFailed]. If Claim.Withdrawn is set, it takes the run out of the history instead.
type Ledger interface {
	Store

	// FinishRun ends a run with an outcome, in one step, if the grant still exists under its token. It returns nil only
	// if the history shows this outcome for this run, so it can be repeated after an unknown outcome. If the run was
	// ended by somebody else, the error matches ErrLost; the ledger then notes the report and changes no run. Other
	// errors: ErrInvalid (the result is too large; the run goes on), ErrUncertain, ErrDenied, ErrCorrupt, ErrClosed,
	// the context's.
	FinishRun(ctx context.Context, g Grant, o RunOutcome) error

	// ReadRuns reads the history of one key: its runs from the first to the last. If last is not 0, only that many
	// runs are needed, the last ones, and older ones may be left out. A key that was never run has none, which is not
	// an error.
	ReadRuns(ctx context.Context, key string, last int) (RunHistory, error)

	// ListRuns yields the keys that start with prefix, each with its last run only, in no particular order. A key that
	// cannot be read is yielded with its name and an error; an error with an empty key ends the listing.
	ListRuns(ctx context.Context, prefix string) iter.Seq2[RunHistory, error]

	// RetryRun lets one more run of the key begin, whatever the pause and the number of attempts. It is an operator's
	// decision, so it changes no run. The error matches ErrSucceeded or ErrInProgress if the last run is in such a
	// state, and ErrInvalid if there was none.
	RetryRun(ctx context.Context, key string) error

	// ForgetRuns removes the history of a key, so that it can be run from the beginning. It refuses a key whose run is
	// in progress with an error that matches ErrInProgress.
	ForgetRuns(ctx context.Context, key string) error

	// ReadClock asks the store what time it is, so that clients whose own clocks differ agree on the time slot of a
	// job. At some moment during the call, the store's clock showed a time within maxError of now. Nothing is
	// promised of how two readings differ: somebody may set the store's clock, and another server may answer the next
	// time. Errors: ErrUnsupported if the store does not tell the time (the text says why), ErrDenied, ErrClosed, the
	// context's, and those of the store.
	ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error)
}

// RunState says how far a run has come. The values are stored, so they never change.
type RunState string

// A run is started, and then has one of the three other states forever.
const (
	RunStarted   RunState = "started"
	RunSucceeded RunState = "succeeded" // it reported success: the key is never run again
	RunFailed    RunState = "failed"    // it reported failure, or ended without an outcome
	RunAbandoned RunState = "abandoned" // its worker stopped renewing it, or an operator broke it
)

// Bounds of what a run stores.
const (
	MaxRunResult      = 64 << 10 // bytes; less on some stores: see Info.MaxRunResult
	MaxRunError       = 1 << 10  // bytes; longer texts are cut
	MaxRunFingerprint = 256      // bytes
)

// Run is one attempt to run a key.
type Run struct {
	Attempt     int64 // 1 for the first
	State       RunState
	ID          string // the claim's
	Token       int64  // the claim's: larger than those of all runs of the key before
	Owner, Meta string // as the claim said
	Fingerprint string // as its RunTerms said
	StartedAt   time.Time
	EndedAt     time.Time // zero while it is started
	Error       string    // why it failed or was abandoned
	Result      []byte    // of a run that has succeeded
	LateReport  RunState  // what its worker reported after the run had been ended by somebody else; else empty
}

// RunHistory is what a ledger keeps of one key.
type RunHistory struct {
	Key  string
	Runs []Run // from the first to the last; older ones may have been removed
	// RetryAllowed says that an operator lets one more run begin: see Ledger.RetryRun.
	RetryAllowed bool
}

// RunTerms are the conditions under which a claim begins a run.
type RunTerms struct {
	// Fingerprint describes the payload, in UTF-8 without NUL bytes. If the last run has another one, the claim is
	// refused with ErrMismatch; an empty one matches all.
	Fingerprint string
	// MaxAttempts is how many runs a key may have; 0: no limit.
	MaxAttempts int64
	// Pause is the least time from the end of a run to the start of the next, by the store's clock.
	Pause time.Duration
	// KeepRuns is how many runs of the key are kept at least, besides the one that begins; older ones may be removed.
	// 0: all.
	KeepRuns int64
	// KeepFor is how long the history of the key is kept after the end of its last run; it may be kept longer. If the
	// key has many runs, the older ones may be removed when they ended that long ago. 0: forever.
	KeepFor time.Duration
}

// Check reports what is wrong with the terms.
func (t RunTerms) Check() error {
	if err := checkText("a fingerprint", t.Fingerprint, MaxRunFingerprint); err != nil {
		return fmt.Errorf("%w; use a hash in hex or base64", err)
	}
	switch {
	case t.MaxAttempts < 0:
		return invalid("the number of attempts must not be negative")
	case t.Pause < 0:
		return invalid("the pause between attempts must not be negative")
	case t.KeepRuns < 0 || t.KeepFor < 0:
		return invalid("what is kept of the history must not be negative")
	}
	return nil
}

// Refuse says why no run may begin after the last one of a key, as a [*RunError] without Held; nil if one may. last is
// the zero Run if there was none. retryAllowed says that an operator lets one more run begin. now is the store's clock.
func (t RunTerms) Refuse(last Run, retryAllowed bool, now time.Time) *RunError {
	if last.Attempt == 0 {
		return nil
	}
	refused := &RunError{Run: last}
	endedFor := now.Sub(last.EndedAt)
	switch {
	case t.Fingerprint != "" && last.Fingerprint != "" && t.Fingerprint != last.Fingerprint:
		refused.Reason = ErrMismatch
	case last.State == RunSucceeded:
		refused.Reason = ErrSucceeded
	case last.State == RunStarted:
		refused.Reason = ErrInProgress
	case retryAllowed:
		return nil
	case t.MaxAttempts > 0 && last.Attempt >= t.MaxAttempts:
		refused.Reason = ErrAttemptsUsed
	case t.Pause > 0 && endedFor < t.Pause:
		refused.Reason, refused.RetryAfter = ErrTooSoon, min(t.Pause-endedFor, t.Pause)
	default:
		return nil
	}
	return refused
}

// RunOutcome is what a worker reports at the end of its run.
type RunOutcome struct {
	State  RunState // RunSucceeded or RunFailed
	Error  string   // for RunFailed
	Result []byte   // for RunSucceeded; at most Info.MaxRunResult bytes
}

// Check reports what is wrong with the outcome, in a ledger with these bounds, and returns it as it is stored: with a
// text of at most MaxRunError bytes of UTF-8.
func (o RunOutcome) Check(info Info) (RunOutcome, error) {
	switch most := cmp.Or(info.MaxRunResult, MaxRunResult); {
	case o.State != RunSucceeded && o.State != RunFailed:
		return o, invalid("no run ends as %q", o.State)
	case o.State == RunFailed && len(o.Result) > 0:
		return o, invalid("a run that has failed has no result")
	case len(o.Result) > most:
		return o, invalid("the result has %d bytes, and a run in this store keeps at most %d: store it elsewhere, and its name here",
			len(o.Result), most)
	}
	o.Error = cutText(o.Error, MaxRunError)
	return o, nil
}

// cutText shortens a text to at most n bytes without cutting a character in two.
func cutText(text string, n int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "")
}

// Errors of a ledger that are not those of locks. A refusal is a [*RunError], which matches one of them.
var (
	// ErrSucceeded is returned if a run of the key has succeeded.
	ErrSucceeded = errors.New("the key has succeeded")
	// ErrInProgress is returned if a run of the key is in progress. Such an error matches ErrHeld as well.
	ErrInProgress = errors.New("a run of the key is in progress")
	// ErrTooSoon is returned if the pause since the last run has not passed.
	ErrTooSoon = errors.New("the pause since the last run has not passed")
	// ErrAttemptsUsed is returned if the key has had as many runs as it may have.
	ErrAttemptsUsed = errors.New("all attempts are used")
)

// RunError says why no run of a key can begin, and which run is the reason.
type RunError struct {
	Reason     error         // ErrSucceeded, ErrInProgress, ErrTooSoon, ErrAttemptsUsed or ErrMismatch
	Run        Run           // the last run
	RetryAfter time.Duration // for ErrTooSoon: how long until the pause has passed
	Held       *HeldError    // for ErrInProgress
}

// Error says which run is in the way, and what the caller can do.
func (e *RunError) Error() string {
	switch e.Reason {
	case ErrSucceeded:
		return fmt.Sprintf("%v in attempt %d", e.Reason, e.Run.Attempt)
	case ErrInProgress:
		return fmt.Sprintf("%v: attempt %d by %s", e.Reason, e.Run.Attempt, e.Run.Owner)
	case ErrTooSoon:
		return fmt.Sprintf("%v: attempt %d has %s; try again in %v", e.Reason, e.Run.Attempt, e.Run.State,
			e.RetryAfter.Round(time.Millisecond))
	case ErrMismatch:
		return fmt.Sprintf("the key was run with another payload: attempt %d has the fingerprint %q; "+
			"give each payload a key of its own", e.Run.Attempt, e.Run.Fingerprint)
	case ErrAttemptsUsed:
		return fmt.Sprintf("%v: attempt %d has %s", e.Reason, e.Run.Attempt, e.Run.State)
	}
	return e.Reason.Error()
}

// Unwrap returns the reason and, if a run is in progress, who holds its claim.
func (e *RunError) Unwrap() []error {
	if e.Held != nil {
		return []error{e.Reason, e.Held}
	}
	return []error{e.Reason}
}

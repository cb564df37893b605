package holdfast

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// The errors that callers can tell apart with errors.Is. Every error that a client or a lease returns wraps one of
// them, or the error of the caller's own context, or says in words what went wrong with the store.
var (
	// ErrHeld is returned by the Try methods when the lock is held. errors.As finds a [*HeldError] that says by whom.
	ErrHeld = driver.ErrHeld
	// ErrLost is returned when a lease ended before its holder released it. errors.As finds a [*LossError] with the
	// cause.
	ErrLost = driver.ErrLost
	// ErrReleased is returned when the holder has already released or detached the lease, or ended the run.
	ErrReleased = driver.ErrReleased
	// ErrQueueFull is returned when the lock has as many claims as its store allows; nothing is left of the one that
	// was refused. Try again later. A claim of a plain mutex that waits is not refused, but goes on waiting outside
	// of the queue: only if an empty lock has no room for it either does it get this error.
	ErrQueueFull = driver.ErrQueueFull
	// ErrSuperseded is returned when a claim that waited gave up because a newer one waits: see LockOptions.NewestOnly.
	// Nothing is left of it.
	ErrSuperseded = driver.ErrSuperseded
	// ErrMismatch is returned when the lock is in use with another kind or limit. All users of a name must agree on
	// both.
	ErrMismatch = driver.ErrMismatch
	// ErrUncertain is returned when a step may or may not have taken effect, and the store could not be asked. What may
	// be left in the store is cleaned up in the background, and expires with its TTL at the latest.
	ErrUncertain = driver.ErrUncertain
	// ErrDenied is returned when the store refuses this user, or has no room. Waiting does not help.
	ErrDenied = driver.ErrDenied
	// ErrUnsupported is returned when the store, or the layout that it is used with, cannot do what was asked.
	ErrUnsupported = driver.ErrUnsupported
	// ErrCorrupt is returned when the data that the store keeps under the lock's name cannot be understood. It is left
	// as it is.
	ErrCorrupt = driver.ErrCorrupt
	// ErrClosed is returned after the client was closed.
	ErrClosed = driver.ErrClosed
	// ErrInvalid is returned when an argument is wrong; the text says which one, and what would be right.
	ErrInvalid = driver.ErrInvalid
)

// HeldError says who holds a lock that could not be acquired. errors.Is(err, ErrHeld) is true for it.
type HeldError struct {
	Holders []ClaimInfo // as far as they are known; may be empty
	Waiting int         // how many claims wait in the store
}

// Error names up to three holders.
func (e *HeldError) Error() string { return describeHeld(e.Holders) }

// Is makes errors.Is(err, ErrHeld) true.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// describeHeld names the first few holders.
func describeHeld(holders []ClaimInfo) string {
	const shown = 3
	if len(holders) == 0 {
		return ErrHeld.Error()
	}
	var owners []string
	for _, h := range holders[:min(shown, len(holders))] {
		owners = append(owners, h.Owner)
	}
	if more := len(holders) - shown; more > 0 {
		owners = append(owners, fmt.Sprintf("%d more", more))
	}
	return ErrHeld.Error() + " by " + strings.Join(owners, ", ")
}

// LossCause is why a lease ended before its holder released it: a short code that never changes, fit for logs and JSON.
// [LossCause.Description] is the sentence for people.
type LossCause string

const (
	LossExpired LossCause = "expired" // the TTL passed without a renewal
	// the claim no longer exists in the store, for a reason that is not known
	LossGone           LossCause = "gone"
	LossTaken          LossCause = "taken"           // another claim was granted the lock
	LossBroken         LossCause = "broken"          // an operator broke the claim: see Client.Break
	LossSessionExpired LossCause = "session-expired" // the store ended the client's session
	LossUnreachable    LossCause = "unreachable"     // the TTL passed while renewals failed or had no answer
	LossMaxHold        LossCause = "max-hold"        // the lease reached its LockOptions.MaxHold
	LossNoProgress     LossCause = "no-progress"     // its holder noted no progress for LockOptions.Progress
)

// Description says what the code means, in a few words for people. The words may change.
func (c LossCause) Description() string { return driver.LossCause(c).Description() }

// LossError says why a lease was lost. errors.Is(err, ErrLost) is true for it.
type LossError struct {
	Cause LossCause
	Err   error // what the store said last, if that is why; may be nil

	// StaysHeld says that the claim was still in the store when the loss was found, and keeps others out until its
	// TTL has passed: it was broken gracefully. False if the store does not know.
	StaysHeld bool
}

// Error describes the cause, and what the store answered.
func (e *LossError) Error() string {
	s := ErrLost.Error() + ": " + e.Cause.Description()
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Is makes errors.Is(err, ErrLost) true.
func (e *LossError) Is(target error) bool { return target == ErrLost }

// As lets errors.As find a *driver.LossError as well, for tools that are written for both packages.
func (e *LossError) As(target any) bool {
	t, ok := target.(**driver.LossError)
	if ok {
		*t = &driver.LossError{Cause: driver.LossCause(e.Cause), Err: e.Err, StaysHeld: e.StaysHeld}
	}
	return ok
}

// Unwrap returns what the store said last, or nil.
func (e *LossError) Unwrap() error { return e.Err }

// Error is the type of all errors that clients and leases return (those of [LeaseGroup] and of the Do methods may join
// several). Test what it wraps with errors.Is: one of the sentinels above, or context.Canceled or
// context.DeadlineExceeded when the caller's own context ended; errors.As finds a [*HeldError] or a [*LossError].
type Error struct {
	Op      string      // what was tried: "lock", "try lock", "release", ...
	Lock    string      // the lock's name; empty if it was not about one lock
	Store   string      // the store, fit to be shown: it contains no secret
	Holders []ClaimInfo // who held the lock that could not be acquired, as far as it is known
	// Silent is for how long the store had not answered when the call ended; 0 if it had. If there are Holders as well,
	// the lock was busy when the store answered last.
	Silent time.Duration
	Err    error // the reason
}

// Error says what was tried, on which lock and store, what happened, who holds the lock, and whether the store is
// silent.
func (e *Error) Error() string {
	s := "holdfast: " + e.Op
	if e.Lock != "" {
		s += fmt.Sprintf(" %q", e.Lock)
	}
	if e.Store != "" {
		s += " on " + strings.TrimSuffix(e.Store, ":")
	}
	s += ": " + e.Err.Error()
	if len(e.Holders) > 0 && !errors.Is(e.Err, ErrHeld) {
		s += "; " + describeHeld(e.Holders)
	}
	if e.Silent > 0 {
		words := "; the store has not answered for "
		if findReason(e.Err) != nil {
			words = "; no request to the store has succeeded for "
		}
		s += words + shortDuration(e.Silent)
	}
	return s
}

// shortDuration is d for people: in seconds to a tenth, or if it is less than one, in milliseconds.
func shortDuration(d time.Duration) string {
	unit := 100 * time.Millisecond
	if d < time.Second {
		unit = time.Millisecond
	}
	return d.Round(unit).String()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// As lets errors.As find a [*HeldError] or a [*LossError] where the store has reported one of its own types.
func (e *Error) As(target any) bool {
	switch t := target.(type) {
	case **HeldError:
		*t = findHeldError(e.Err)
		return *t != nil
	case **LossError:
		*t = findLossError(e.Err)
		return *t != nil
	}
	return false
}

// newInvalidError is an ErrInvalid that says what to do.
func newInvalidError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

var (
	errNilClient   = newInvalidError("the client is nil: make one with Open or New")
	errNilContext  = newInvalidError("the context is nil: pass context.Background() if there is no other")
	errNilFunction = newInvalidError("the function to run is nil")
)

// checkCall reports as ErrInvalid what would make a call panic: a nil client or a nil context.
func checkCall(c *Client, ctx context.Context) error {
	switch {
	case c == nil:
		return errNilClient
	case ctx == nil:
		return errNilContext
	}
	return nil
}

// waitEndedError is a wait that the caller's context has ended, with the holders that were known then, with the
// time for which the store had not answered, and with what it had said instead.
type waitEndedError struct {
	err     error
	holders []ClaimInfo
	silent  time.Duration
	reason  error // may be nil
}

// newWaitEndedError is for a wait that ctx has ended, and in which err was the store's last error.
func newWaitEndedError(ctx context.Context, err error) *waitEndedError {
	ended := &waitEndedError{err: contextError(ctx), silent: silenceIn(err), reason: findReason(err)}
	if held := findHeldError(err); held != nil {
		ended.holders = held.Holders
	}
	return ended
}

// minSilence is the shortest silence that is worth a word where the holders are known: a request takes its time.
const minSilence = time.Second

// silenceIn is for how long the store had not answered, by an error of the store or of this package.
func silenceIn(err error) time.Duration {
	var silent *driver.SilentError
	var own *Error
	switch {
	case errors.As(err, &own):
		return own.Silent
	case errors.As(err, &silent):
		return silent.For
	}
	return 0
}

// Error is the error of the context, and what the store said last instead of doing what it was asked for.
func (e *waitEndedError) Error() string {
	if e.reason != nil {
		return e.err.Error() + "; the last request: " + e.reason.Error()
	}
	return e.err.Error()
}

func (e *waitEndedError) Unwrap() error { return e.err }

// As lets errors.As find a *driver.SilentError.
func (e *waitEndedError) As(target any) bool {
	t, ok := target.(**driver.SilentError)
	if ok = ok && e.silent > 0; ok {
		*t = &driver.SilentError{For: e.silent, Reason: e.reason, Err: e.err}
	}
	return ok
}

// findReason returns what the store said, or why it could not be reached, when the last requests of a call failed.
func findReason(err error) error {
	var silent *driver.SilentError
	if errors.As(err, &silent) {
		return silent.Reason
	}
	return nil
}

// contextError is why ctx ended: its error, and its cause if that is another one.
func contextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// mayExist reports whether a claim whose Acquire failed with err may exist in the store nevertheless.
func mayExist(err error) bool {
	if isOneOf(err, ErrUncertain, context.Canceled, context.DeadlineExceeded) {
		return true // whatever else it says, such as who holds the lock
	}
	return !isOneOf(err, ErrHeld, ErrQueueFull, ErrSuperseded, ErrMismatch, ErrInvalid, ErrUnsupported, ErrDenied,
		ErrSucceeded, ErrTooSoon, ErrAttemptsUsed)
}

// isOneOf reports whether err is one of the targets, as errors.Is says.
func isOneOf(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// wrapError makes the Error of a client or a lease.
func (c *Client) wrapError(op, lock string, err error) error {
	e := &Error{Op: op, Lock: lock, Err: err}
	if c != nil {
		e.Store = c.store.Info().Store
	}
	var ended *waitEndedError
	if errors.As(err, &ended) {
		if e.Err = ended.err; ended.reason != nil {
			e.Err = ended
		}
		e.Holders, e.Silent = ended.holders, ended.silent
	} else {
		if held := findHeldError(err); held != nil {
			e.Holders = held.Holders
		}
		e.Silent = silenceIn(err)
	}
	if len(e.Holders) > 0 && e.Silent < minSilence {
		e.Silent = 0
	}
	return e
}

package holdfast

import (
	"context"
	"errors"
)

// FailureReason is why a lock was not acquired, or a run not begun. Its values are codes, fit for logs, metrics and
// JSON; they never change.
type FailureReason string

const (
	FailureHeld         FailureReason = "held"          // a Try found the lock held
	FailureTimeout      FailureReason = "timeout"       // the caller's deadline passed
	FailureCanceled     FailureReason = "canceled"      // the caller gave up
	FailureClosed       FailureReason = "closed"        // the client was closed
	FailureQueueFull    FailureReason = "queue-full"    // ErrQueueFull
	FailureSuperseded   FailureReason = "superseded"    // ErrSuperseded
	FailureMismatch     FailureReason = "mismatch"      // ErrMismatch
	FailureInvalid      FailureReason = "invalid"       // ErrInvalid
	FailureUnsupported  FailureReason = "unsupported"   // ErrUnsupported
	FailureDenied       FailureReason = "denied"        // ErrDenied
	FailureCorrupt      FailureReason = "corrupt"       // ErrCorrupt
	FailureLost         FailureReason = "lost"          // an operator removed the waiting claim
	FailureUncertain    FailureReason = "uncertain"     // ErrUncertain: the store gave no answer
	FailureStore        FailureReason = "store-error"   // any other error of the store
	FailureSucceeded    FailureReason = "succeeded"     // ErrSucceeded: of runs only, as are the next four
	FailureInProgress   FailureReason = "in-progress"   // ErrInProgress
	FailureTooSoon      FailureReason = "too-soon"      // ErrTooSoon
	FailureAttemptsUsed FailureReason = "attempts-used" // ErrAttemptsUsed
	FailureMissed       FailureReason = "missed"        // ErrMissed
)

// IsStoreFailure reports whether the store is the reason: it could not be reached, refused, or answered nonsense.
func (r FailureReason) IsStoreFailure() bool {
	switch r {
	case FailureDenied, FailureCorrupt, FailureUncertain, FailureStore:
		return true
	}
	return false
}

// isUsual is true for what happens all the time in a sound program.
func (r FailureReason) isUsual() bool {
	switch r {
	case FailureHeld, FailureTimeout, FailureCanceled, FailureClosed, FailureSuperseded, FailureSucceeded, FailureInProgress, FailureTooSoon:
		return true
	}
	return false
}

// failureReasons are in the order in which they are looked for: an error may match several.
var failureReasons = []struct {
	err    error
	reason FailureReason
}{
	{ErrClosed, FailureClosed},
	{ErrMissed, FailureMissed},
	{ErrSucceeded, FailureSucceeded},
	{ErrInProgress, FailureInProgress},
	{ErrTooSoon, FailureTooSoon},
	{ErrAttemptsUsed, FailureAttemptsUsed},
	{ErrQueueFull, FailureQueueFull},
	{ErrSuperseded, FailureSuperseded},
	{ErrMismatch, FailureMismatch},
	{ErrInvalid, FailureInvalid},
	{ErrUnsupported, FailureUnsupported},
	{ErrDenied, FailureDenied},
	{ErrCorrupt, FailureCorrupt},
	{ErrUncertain, FailureUncertain},
	{ErrLost, FailureLost},
	{ErrHeld, FailureHeld},
}

// FailureReasonOf is why a call has failed, by its error: the reason that the event of a lock or a run has for it. It
// is for what shows the errors of calls as codes, also of those that acquire nothing, such as Inspect. There it
// cannot tell the end of the caller's context from a timeout of the store's client: both are [FailureTimeout]. It is
// [FailureStore] for errors that it does not know, and "" for nil.
func FailureReasonOf(err error) FailureReason {
	if err == nil {
		return ""
	}
	switch reason := failureReasonOf(err); {
	case reason != FailureStore:
		return reason
	case errors.Is(err, context.DeadlineExceeded):
		return FailureTimeout
	case errors.Is(err, context.Canceled):
		return FailureCanceled
	}
	return FailureStore
}

// failureReasonOf is for an error of claimInTurn or claimAtStore. That the caller's context has ended is told there
// by a type: a store may have a deadline of its own for a request.
func failureReasonOf(err error) FailureReason {
	var ended *waitEndedError
	if errors.As(err, &ended) {
		if errors.Is(ended, context.DeadlineExceeded) {
			return FailureTimeout
		}
		return FailureCanceled
	}
	for _, f := range failureReasons {
		if errors.Is(err, f.err) {
			return f.reason
		}
	}
	return FailureStore
}

package holdfast

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// The errors that callers can tell apart with errors.Is.
var (
	// ErrHeld: the lock is held, and the caller did not want to wait. The error says who holds it, as far as known.
	ErrHeld = driver.ErrHeld
	// ErrLost: the lease ended before its holder gave it up. errors.As finds a [*LossError] with the cause.
	ErrLost = driver.ErrLost
	// ErrReleased: the lease was given up by its holder before.
	ErrReleased = driver.ErrReleased
	// ErrQueueFull: as many claims stand on the lock as its store carries. Try again later.
	ErrQueueFull = driver.ErrQueueFull
	// ErrMismatch: the lock is in use with another kind or limit. All users of a name must agree on both.
	ErrMismatch = driver.ErrMismatch
	// ErrUncertain: a step may or may not have taken effect, and the store could not be asked. What was left behind is
	// cleaned up in the background, and ends with its TTL at the latest.
	ErrUncertain = driver.ErrUncertain
	// ErrDenied: the store refuses this user, or has no room. Waiting does not help.
	ErrDenied = driver.ErrDenied
	// ErrUnsupported: this store, or the layout it is used with, cannot do that.
	ErrUnsupported = driver.ErrUnsupported
	// ErrCorrupt: what the store keeps under the lock's name cannot be understood. It is left as it is.
	ErrCorrupt = driver.ErrCorrupt
	// ErrClosed: the client was closed.
	ErrClosed = driver.ErrClosed
	// ErrInvalid: an argument is wrong; the text says which, and what would be right.
	ErrInvalid = driver.ErrInvalid
)

// What the contract with stores and the API for users have in common, under names that need no second import.
type (
	// Lock is how a lock stands, at one moment: who holds it and who waits.
	Lock = driver.Lock
	// ClaimInfo is one claim on a lock as others see it.
	ClaimInfo = driver.ClaimInfo
	// Kind says what a lock is used as.
	Kind = driver.Kind
	// Info is what a store promises, and its bounds.
	Info = driver.Info
	// HeldError says who holds the lock that could not be had. It Is ErrHeld.
	HeldError = driver.HeldError
	// LossError says why a lease was lost. It Is ErrLost.
	LossError = driver.LossError
	// LossCause is why a lease ended before its holder gave it up.
	LossCause = driver.LossCause
	// BreakMode says how hard Client.Break acts.
	BreakMode = driver.BreakMode
)

// The values of these types; see there.
const (
	KindMutex     = driver.KindMutex
	KindRW        = driver.KindRW
	KindSemaphore = driver.KindSemaphore

	LossExpired        = driver.LossExpired
	LossGone           = driver.LossGone
	LossTaken          = driver.LossTaken
	LossBroken         = driver.LossBroken
	LossSessionExpired = driver.LossSessionExpired
	LossUnreachable    = driver.LossUnreachable
	LossMaxHold        = driver.LossMaxHold

	BreakGraceful = driver.BreakGraceful
	BreakForce    = driver.BreakForce
	BreakAsk      = driver.BreakRequestRelease
)

// Error is the one type of error that clients and leases return. Look at what it wraps with errors.Is: one of the
// sentinels above, or context.Canceled or context.DeadlineExceeded when the caller's own context ended.
type Error struct {
	Op      string      // what was tried: "lock", "try lock", "unlock", ...
	Lock    string      // the lock's name; empty if it was not about one
	Store   string      // where, fit to be shown
	Holders []ClaimInfo // who stood in the way, as far as known
	Err     error
}

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
		s += "; " + (&HeldError{Holders: e.Holders}).Error()
	}
	return s
}

// Unwrap gives the reason.
func (e *Error) Unwrap() error { return e.Err }

// invalid is an ErrInvalid that says what to do.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// waitEnded is a wait that the caller's context ended, with who was then known to hold the lock.
type waitEnded struct {
	err     error
	holders []ClaimInfo
}

func (e *waitEnded) Error() string { return e.err.Error() }
func (e *waitEnded) Unwrap() error { return e.err }

// contextError is why ctx ended: its error, and its cause if that is another one.
func contextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// mayStand reports whether a claim whose Acquire failed with err may stand at the store all the same.
func mayStand(err error) bool {
	if isOneOf(err, ErrUncertain, context.Canceled, context.DeadlineExceeded) {
		return true // whatever else it says, such as who holds the lock
	}
	return !isOneOf(err, ErrHeld, ErrMismatch, ErrInvalid, ErrUnsupported, ErrDenied)
}

func isOneOf(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// asLoss makes a LossError of an error that Is ErrLost.
func asLoss(err error) *LossError {
	var loss *LossError
	if errors.As(err, &loss) {
		return loss
	}
	return &LossError{Cause: LossExpired, Err: err}
}

// wrap is the only place where an Error is made.
func (c *Client) wrap(op, lock string, err error) error {
	e := &Error{Op: op, Lock: lock, Store: c.store.Info().Store, Err: err}
	var held *HeldError
	var ended *waitEnded
	switch {
	case errors.As(err, &ended):
		e.Err, e.Holders = ended.err, ended.holders
	case errors.As(err, &held):
		e.Holders = held.Holders
	}
	return e
}

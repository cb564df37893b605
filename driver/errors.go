package driver

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The errors that callers can tell apart with errors.Is. Package holdfast offers the same values under the same names.
var (
	// ErrHeld is returned if the lock is held and the caller did not want to wait. The error is a *HeldError.
	ErrHeld = errors.New("the lock is held")
	// ErrLost is returned if the lease ended before its holder released it, or if the claim does not exist. The error
	// is often a *LossError.
	ErrLost = errors.New("the lock is lost")
	// ErrReleased is returned if the holder has released the lease before.
	ErrReleased = errors.New("the lock was released before")
	// ErrQueueFull is returned if the lock has as many claims as it may have, and nothing is left of this one. Try
	// again later.
	ErrQueueFull = errors.New("the lock has too many claims")
	// ErrSuperseded is returned to a claim that is newest-only, when another one has begun to wait behind it. Nothing
	// is left of the claim.
	ErrSuperseded = errors.New("a newer one waits for the lock")
	// ErrMismatch is returned if the lock is in use with another kind or limit. All users of a name must agree on both.
	ErrMismatch = errors.New("the lock is in use with another kind or limit")
	// ErrUncertain is returned if a write may or may not have taken effect, and the store could not be asked.
	ErrUncertain = errors.New("the outcome is not known")
	// ErrDenied is returned if the store refuses access: credentials, permissions, a read-only store, a full disk.
	// Waiting does not help.
	ErrDenied = errors.New("the store denies access")
	// ErrUnsupported is returned if this store, or this layout, cannot do what was asked.
	ErrUnsupported = errors.New("not supported by this store")
	// ErrCorrupt is returned if what the store keeps under the lock's name cannot be understood. It is left as it is.
	ErrCorrupt = errors.New("the stored lock cannot be read")
	// ErrClosed is returned if the client or the store was closed.
	ErrClosed = errors.New("closed")
	// ErrInvalid is returned if an argument is wrong. The text says which, and what would be right.
	ErrInvalid = errors.New("invalid argument")
)

// HeldError says who holds the lock. It matches ErrHeld.
type HeldError struct {
	Holders []ClaimInfo // as far as known; may be empty
	Waiting int         // how many claims wait
}

// Error names up to three holders.
func (e *HeldError) Error() string {
	if len(e.Holders) == 0 {
		return ErrHeld.Error()
	}
	owners := make([]string, 0, 3)
	for i, h := range e.Holders {
		if i == 3 {
			owners = append(owners, fmt.Sprintf("%d more", len(e.Holders)-i))
			break
		}
		owners = append(owners, h.Owner)
	}
	return ErrHeld.Error() + " by " + strings.Join(owners, ", ")
}

// Is makes errors.Is(err, ErrHeld) true.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// SilentError is the error of a call whose last requests had no success when it ended: they had no answer, or one that
// may pass. Its text is Err's: the caller knows best where the time fits in.
type SilentError struct {
	For    time.Duration // since the first of these requests began
	Reason error         // what the store said, or why it could not be reached; nil if there was no answer
	Err    error         // the error of the call
}

func (e *SilentError) Error() string { return e.Err.Error() }

// Unwrap gives the error of the call.
func (e *SilentError) Unwrap() error { return e.Err }

// LossCause is why a lease ended before its holder released it: a short code that never changes, fit for logs and JSON.
// [LossCause.Description] is the sentence for people.
type LossCause string

const (
	LossExpired LossCause = "expired" // the TTL passed without a renewal
	// the claim no longer exists in the store, for a reason that is not known
	LossGone           LossCause = "gone"
	LossTaken          LossCause = "taken"           // another claim was granted the lock
	LossBroken         LossCause = "broken"          // an operator broke the claim
	LossSessionExpired LossCause = "session-expired" // the store ended the session that the claim belonged to
	LossUnreachable    LossCause = "unreachable"     // the TTL passed while renewals failed or had no answer
	LossMaxHold        LossCause = "max-hold"        // the lease reached its MaxHold; only the client returns it
	LossNoProgress     LossCause = "no-progress"     // no progress was noted for its Progress; only the client returns it
)

var lossDescriptions = map[LossCause]string{
	LossExpired:        "its TTL passed without a renewal",
	LossGone:           "the claim no longer exists in the store",
	LossTaken:          "another claim was granted the lock",
	LossBroken:         "an operator broke it",
	LossSessionExpired: "the store ended the session",
	LossUnreachable:    "the store could not be reached in time",
	LossMaxHold:        "it was held for as long as its MaxHold allows",
	LossNoProgress:     "no progress was noted for as long as its Progress allows",
}

// Description says what the code means, in a few words for people. The words may change. An unknown code describes
// itself.
func (c LossCause) Description() string { return describe(lossDescriptions, c) }

// describe is the description of a code, or the code where there is none.
func describe[Code ~string](descriptions map[Code]string, c Code) string {
	if text, ok := descriptions[c]; ok {
		return text
	}
	return string(c)
}

// LossError says why a lease was lost. errors.Is(err, ErrLost) is true for it.
type LossError struct {
	Cause LossCause
	Err   error // what the store said last, if that is why; may be nil

	// StaysHeld says that the claim was still in the store when the loss was found, and keeps others out until its
	// TTL has passed: it was broken gracefully. A store that does not know leaves it false.
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

// Unwrap gives what the store said last.
func (e *LossError) Unwrap() error { return e.Err }

package driverutil

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Outage measures for how long a store has left one call without an answer, to be compared with
// driver.UnreachableTimeout. It begins with the first request that fails, not with the last one that was answered,
// since a waiter may ask nothing for a long time. The zero Outage says that the store answers. It is not safe for
// use by several goroutines.
type Outage struct {
	lasts bool
	since driver.Instant
	asked bool           // a request is under way, or the last one got no answer
	from  driver.Instant // when the first of these requests began

	reason error // why the last request failed that no context has ended
}

// RequestStarted notes that a request begins at the given time. If the request before did not fail, it was answered.
func (o *Outage) RequestStarted(at driver.Instant) {
	if !o.lasts {
		o.asked, o.from = true, at
	}
}

// RequestFailed notes a request that got no answer, and reports whether the outage has lasted for longer than limit.
func (o *Outage) RequestFailed(c driver.Clock, limit time.Duration) (exceeded bool) {
	now := c.Now()
	if !o.asked {
		o.asked, o.from = true, now
	}
	if !o.lasts {
		o.lasts, o.since = true, now
	}
	return now.Since(o.since) > limit
}

// RequestAnswered notes that the store has answered, which ends the outage.
func (o *Outage) RequestAnswered() { *o = Outage{} }

// NoteReason notes why a request failed that was made under ctx. If the end of ctx has cut it off, that says nothing.
func (o *Outage) NoteReason(ctx context.Context, err error) {
	switch {
	case !isContextError(err):
		o.reason = err
	case ctx.Err() == nil: // its own time was up: the store says nothing any more
		o.reason = nil
	}
}

// Explain makes the error with which the call ends one that says for how long the store has not answered, if a request
// is without an answer. What the store has said is returned as it is, unless the caller's context has ended since.
// The reason is the one that was noted last, or else err. That time was up is no reason: it says that there was no
// answer.
func (o *Outage) Explain(c driver.Clock, err error) error {
	if err == nil || !o.asked || IsFinal(err) && !isContextError(err) {
		return err
	}
	reason := cmp.Or(o.reason, err)
	var limit interface{ Timeout() bool }
	if isContextError(reason) || errors.As(reason, &limit) && limit.Timeout() {
		reason = nil
	}
	return &driver.SilentError{For: c.Since(o.from), Reason: reason, Err: err}
}

// CallWithTimeout makes one request of a store and gives it up after d, so that the store can be asked again, or the
// outcome looked up. The error is the context's only if ctx itself has ended: a timeout of the store's code must not
// look like the caller's. store names the store in the error.
func CallWithTimeout(ctx context.Context, d time.Duration, store string, request func(context.Context) error) error {
	short, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	err := request(short)
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		return noAnswerError{fmt.Sprintf("no answer from %s: %v", store, err)}
	}
	return err
}

// finalErrors say what is so, not that something went wrong.
var finalErrors = []error{
	driver.ErrDenied, driver.ErrCorrupt, driver.ErrClosed, driver.ErrUnsupported, driver.ErrInvalid,
	driver.ErrHeld, driver.ErrMismatch, driver.ErrQueueFull, driver.ErrLost, driver.ErrSuperseded,
	driver.ErrSucceeded, driver.ErrInProgress, driver.ErrTooSoon, driver.ErrAttemptsUsed,
}

// IsFinal reports whether asking a store again cannot help: the error says what is so, not that something went wrong.
func IsFinal(err error) bool {
	for _, final := range finalErrors {
		if errors.Is(err, final) {
			return true
		}
	}
	return false
}

// Uncertain wraps the error of a write of which it is not known whether it was done in driver.ErrUncertain. It returns
// a final error, one that it has wrapped before, and nil, unchanged.
func Uncertain(err error) error {
	if IsFinal(err) {
		return err
	}
	return Unresolved(err)
}

// Unresolved wraps an error in driver.ErrUncertain even if it is final: a request that was sent before may have taken
// effect, or a claim that the call has made may exist. It returns an error that was wrapped before, and nil, unchanged.
func Unresolved(err error) error {
	if err == nil || errors.Is(err, driver.ErrUncertain) {
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrUncertain, err)
}

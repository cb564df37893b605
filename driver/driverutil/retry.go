package driverutil

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// RetryLoop decides how often a call sends a request again whose outcome it must know. It ends with a final error,
// with the call's context, and when the store has given no answer for Limit. Everything else is tried again. The
// request must be one that may be made twice without harm. It is not safe for use by several goroutines.
//
// Renewals do not use it: their client repeats them. Nor may a step whose second time would mean more than its first.
type RetryLoop struct {
	// Clock is the store's clock.
	Clock driver.Clock
	// Limit is how long the store may give no answer before the call is given up.
	Limit time.Duration
	// Pause waits between two requests. tries counts the pauses since the loop began, or since NoteAnswer, from 0. It
	// returns an error if ctx has ended or the store was closed meanwhile.
	Pause func(ctx context.Context, tries int) error
	// Uncertain says that a request without an answer may have taken effect, or may still do so.
	Uncertain bool

	tries  int
	outage Outage
}

// Restart makes the limit count from now on, whether or not a request fails. Without it, the limit counts
// from the first failed request.
func (l *RetryLoop) Restart() {
	l.NoteAnswer()
	l.outage.RequestFailed(l.Clock, l.Limit)
}

// NoteAnswer notes that the store has answered. The limit and the pauses begin again.
func (l *RetryLoop) NoteAnswer() {
	l.tries = 0
	l.outage.RequestAnswered()
}

// RequestStarted notes that a request begins at the given time, so that the error of the call can say for how long the
// store has not answered. It changes nothing else.
func (l *RetryLoop) RequestStarted(at driver.Instant) { l.outage.RequestStarted(at) }

// PauseAfterAnswer pauses after an answer that leaves something to do. It returns Pause's error, as End does.
func (l *RetryLoop) PauseAfterAnswer(ctx context.Context) error {
	l.outage.RequestAnswered()
	return l.End(l.pause(ctx))
}

// PauseAfterFailure pauses after a request without an answer, and returns nil if the request is to be sent again.
// Otherwise it returns the error with which the call ends, as End does: err, if it is final or the limit is reached, or
// else Pause's. sent says that the store may have received the request.
func (l *RetryLoop) PauseAfterFailure(ctx context.Context, err error, sent bool) error {
	final := IsFinal(err)
	l.outage.NoteReason(ctx, err)
	l.Uncertain = l.Uncertain || sent && !final
	if final || ctx.Err() == nil && l.outage.RequestFailed(l.Clock, l.Limit) {
		return l.End(HideContextError(err))
	}
	ended := l.pause(ctx)
	switch {
	case ended == nil || IsFinal(ended):
	case l.outage.reason != nil: // also if the end of ctx has cut off one more request, which says nothing
		ended = fmt.Errorf("%w; the last request: %w", ended, l.outage.reason)
	case errors.Is(err, ended): // and maybe it says why there was no answer
		ended = err
	default:
		ended = fmt.Errorf("%w; the last request: %w", ended, HideContextError(err))
	}
	return l.End(ended)
}

// End returns the error with which the call ends. If a request of the call may have taken effect, that is ErrUncertain,
// even if the store now refuses everything: a caller who took the refusal for the outcome would leave a claim behind.
// A store that was closed says only that. If a request is without an answer, the error says since when: see
// [Outage.Explain].
func (l *RetryLoop) End(err error) error {
	if err == nil || errors.Is(err, driver.ErrClosed) {
		return err
	}
	if err = l.outage.Explain(l.Clock, err); !l.Uncertain {
		return err
	}
	return Unresolved(err)
}

func (l *RetryLoop) pause(ctx context.Context) error {
	tries := l.tries
	l.tries++
	return l.Pause(ctx, tries)
}

// HideContextError replaces an error of a context. It came from the limit of one request; callers would take it for the
// end of their own context.
func HideContextError(err error) error {
	if isContextError(err) {
		return noAnswerError{fmt.Sprintf("the store gave no answer: %v", err)}
	}
	return err
}

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// noAnswerError is the end of a request's own time limit. It does not match the errors of contexts.
type noAnswerError struct{ text string }

func (e noAnswerError) Error() string { return e.text }

// Timeout says that it is an error as those of package net are after a time limit.
func (e noAnswerError) Timeout() bool { return true }

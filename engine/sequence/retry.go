package sequence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// requestContext limits ctx to the time for one request.
func requestContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, requestTimeout)
}

// retryLoop decides whether a failed request is tried again. It ends the loop on an error that another try cannot
// mend, when the context or the store ends, and when the store has not answered for unreachableTimeout. Between tries
// it backs off.
type retryLoop struct {
	e                  *Engine
	ctx                context.Context
	ttl                time.Duration // of the claim, as the caller knows it
	unreachableTimeout time.Duration
	startedAt          driver.Instant // when the call began
	outage             driverutil.Outage
	failures           int  // in a row
	writeUnresolved    bool // a write of this call had an unknown outcome
}

func (e *Engine) newRetryLoop(ctx context.Context, ttl time.Duration) *retryLoop {
	return &retryLoop{e: e, ctx: ctx, ttl: ttl, unreachableTimeout: driver.UnreachableTimeout(ttl),
		startedAt: e.clock.Now()}
}

// noteAnswer is called when the store has answered every request of one try. One of several is not enough: a store that
// answers reads but not writes counts as unreachable.
func (retry *retryLoop) noteAnswer() {
	retry.outage.RequestAnswered()
	retry.failures = 0
}

// noteFailure is called when a request has failed. It reports whether the store counts as unreachable now.
func (retry *retryLoop) noteFailure() bool {
	retry.failures++
	return retry.outage.RequestFailed(retry.e.clock, retry.unreachableTimeout)
}

// waitAndRetry waits before the next try and returns nil, or returns the error with which the call ends. That is
// ErrUncertain if the outcome of the last request is not known.
func (retry *retryLoop) waitAndRetry(err error) error {
	return driverutil.Uncertain(retry.waitToSend(err))
}

// waitToSend is waitAndRetry without that: nothing was sent, or the caller says what is uncertain.
func (retry *retryLoop) waitToSend(err error) error {
	switch {
	case retry.e.life.Err() != nil:
		return driver.ErrClosed
	case driverutil.IsFinal(err):
		return err
	case retry.ctx.Err() != nil:
		return retry.ctx.Err()
	case retry.noteFailure():
		return hideContextError(err)
	}
	return retry.e.life.Sleep(retry.ctx, rand.N(10*time.Millisecond<<min(retry.failures, 6)))
}

// contextError is the error of a call whose context has ended. Contexts that are bound to the engine end with Close as
// well, and for a caller whose own context goes on, the error of a context would be wrong.
func (e *Engine) contextError(ctx context.Context) error {
	if e.life.Err() != nil {
		return driver.ErrClosed
	}
	return ctx.Err()
}

// readError turns the error of a read into the one that the call returns.
func (e *Engine) readError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case e.life.Err() == nil && ctx.Err() != nil && errors.Is(err, ctx.Err()): // and maybe says why there was no answer
		return err
	case ctx.Err() != nil:
		return e.contextError(ctx)
	case e.life.Err() != nil:
		return driver.ErrClosed
	}
	return hideContextError(err)
}

// hideContextError replaces an error of a context. It came from our own limit for one request; callers would take it
// for the end of their own context.
func hideContextError(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return noAnswerError{err}
	}
	return err
}

// noAnswerError is the end of a request's own time limit. It does not match the errors of contexts, so that a caller
// does not take it for the end of its own context.
type noAnswerError struct{ cause error }

func (e noAnswerError) Error() string { return fmt.Sprintf("the store gave no answer: %v", e.cause) }

// Timeout says that it is an error as those of package net are after a time limit.
func (e noAnswerError) Timeout() bool { return true }

package sequence

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// requestContext limits ctx to the time for one request.
func requestContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, requestTimeout)
}

// retryLoop is the loop of one call: see driverutil.RetryLoop. Its Uncertain says that a write of this call had an
// unknown outcome.
type retryLoop struct {
	driverutil.RetryLoop
	e         *Engine
	ctx       context.Context
	ttl       time.Duration  // of the claim, as the caller knows it
	startedAt driver.Instant // when the call began

	lostBefore *driver.LossError // of a release: why its claim was lost before it began; nil: it was not
}

func (e *Engine) newRetryLoop(ctx context.Context, ttl time.Duration) *retryLoop {
	return &retryLoop{e: e, ctx: ctx, ttl: ttl, startedAt: e.clock.Now(),
		RetryLoop: driverutil.RetryLoop{Clock: e.clock, Limit: driver.UnreachableTimeout(ttl), Pause: e.retryPause}}
}

// pauseAfterFailure waits before the next try. NoteAnswer is called when the store has answered every request of one
// try. One of several is not enough: a store that answers reads but not writes counts as unreachable.
func (e *Engine) pauseAfterFailure(ctx context.Context, failures int) error {
	return e.life.Sleep(ctx, rand.N(20*time.Millisecond<<min(failures, 5)))
}

// noteWrite is called with the error of a request that changes something. It may have done so if the store did not
// refuse it.
func (retry *retryLoop) noteWrite(err error) {
	refused := driverutil.IsFinal(err) || errors.Is(err, ErrSessionExpired)
	retry.Uncertain = retry.Uncertain || err != nil && !refused
}

// waitAndRetry waits before the next try and returns nil, or returns the error with which the call ends. That is
// ErrUncertain if a write of this call had an unknown outcome.
func (retry *retryLoop) waitAndRetry(err error) error {
	if retry.e.life.Err() != nil {
		return driver.ErrClosed
	}
	return retry.PauseAfterFailure(retry.ctx, err, false)
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
	return driverutil.HideContextError(err)
}

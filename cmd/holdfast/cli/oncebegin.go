package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/acquire"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/failure"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
)

// beginRun begins a run of the key. If one is in progress it waits, with --wait. The wait began at began: the time that
// it took to open the store counts.
func (j *onceJob) beginRun(
	ctx context.Context, ledger *holdfast.Ledger, key string, began time.Time, rec *runRecord,
) (*holdfast.Run, error) {
	opts := &holdfast.RunOptions{Fingerprint: j.fingerprint}
	run, err := ledger.Begin(ctx, key, opts)
	late := false
	if j.waits && errors.Is(err, holdfast.ErrInProgress) {
		rec.addEvent(eventRunWaiting, nil)
		run, err = j.waitForRun(ctx, ledger, key, began)
		// The wait itself does not say whether a run was in progress at its end.
		if late = errors.Is(err, errWaitLimit); late {
			limited, cancel := context.WithTimeoutCause(ctx, inspectTimeout, errNoAnswer)
			defer cancel()
			run, err = ledger.Begin(limited, key, opts)
		}
	}
	if err != nil {
		return nil, j.explainRefusal(key, err, late)
	}
	return run, nil
}

// waitForRun waits until no run is in progress, and returns errWaitLimit if that takes longer than --wait.
func (j *onceJob) waitForRun(
	ctx context.Context, ledger *holdfast.Ledger, key string, began time.Time,
) (*holdfast.Run, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	shown := j.messages.noteWaiting(ctx, "waiting for the end of a run", func(ctx context.Context) (waitView, error) {
		return j.viewRunInProgress(ctx, ledger, key)
	})
	defer func() {
		cancel(nil)
		guard.WaitWithTimeout(shown, maxMessageTime)
	}()
	if j.waitLimit.limited {
		timer := time.AfterFunc(j.waitLimit.limit-time.Since(began), func() { cancel(errWaitLimit) })
		defer timer.Stop()
	}
	return acquire.Begin(ctx, ledger, key, &holdfast.RunOptions{Fingerprint: j.fingerprint, Wait: true})
}

// viewRunInProgress looks for the run that this program waits for.
func (j *onceJob) viewRunInProgress(ctx context.Context, ledger *holdfast.Ledger, key string) (waitView, error) {
	runs, err := ledger.LastRuns(ctx, key, 1)
	if err != nil || len(runs) == 0 || runs[0].State != holdfast.RunStarted {
		return waitView{}, err
	}
	refused := &holdfast.RunError{Reason: holdfast.ErrInProgress, Run: runs[0]}
	return waitView{held: fmt.Sprintf(": %s", j.explainRefusal(key, refused, false)),
		state: fmt.Sprint(runs[0].Attempt)}, nil
}

// ledgerFlag is what another command needs to find this ledger, if that is not the default.
func (j *onceJob) ledgerFlag() string {
	if j.ledger == defaultLedger {
		return ""
	}
	return " --ledger " + quoteName(j.ledger)
}

// checkSelfWait refuses a key that is being run around this program: it would wait for itself. As in checkSelfDeadlock,
// the name of the store is only a hint.
func (j *onceJob) checkSelfWait(ctx context.Context, store string, ledger *holdfast.Ledger, key string) error {
	around := inheritedRuns(j.ledger + "/" + key)
	if len(around) == 0 {
		return nil
	}
	ctx, cancel := j.limitCall(ctx)
	defer cancel()
	runs, err := ledger.LastRuns(ctx, key, 1)
	switch {
	case err != nil && isNamed(around, store):
		return ledgerError(err)
	case err != nil || len(runs) == 0 || runs[0].State != holdfast.RunStarted:
		return nil
	}
	if slices.ContainsFunc(around, func(h heldLock) bool { return h.ref == runs[0].ID && h.token == runs[0].Token }) {
		return usageError("%s is already being run by an enclosing holdfast once", quoteName(key))
	}
	return nil
}

// explainRefusal says in this command's words why no run began. late is whether all of --wait has passed.
func (j *onceJob) explainRefusal(key string, err error, late bool) error {
	var refused *holdfast.RunError
	name := quoteName(key)
	if !errors.As(err, &refused) {
		if errors.Is(err, holdfast.ErrLost) { // it was waiting, and had begun nothing
			return &exitError{code: exitNotAcquired, outcome: outcomeNotAcquired, reason: holdfast.FailureLost,
				err: fmt.Errorf("the wait for %s was ended by an operator", name)}
		}
		return ledgerError(err)
	}
	run := refused.Run
	last := fmt.Sprintf("attempt %d by %s", run.Attempt, printableText(run.Owner))
	means := failure.Of(refused.Reason)
	e := &exitError{code: means.Exit, outcome: outcomeNotAcquired, reason: means.Reason, run: &run}
	switch refused.Reason {
	case holdfast.ErrSucceeded:
		e.code, e.outcome = j.doneCode, outcomeDone
		e.err = fmt.Errorf("%s is not run again: it has succeeded, in %s, at %s", name, last, formatTime(run.EndedAt))
	case holdfast.ErrInProgress:
		e.err = fmt.Errorf("a run of %s is in progress: %s since %s", name, last, formatTime(run.StartedAt))
		if late {
			e.reason = holdfast.FailureTimeout
			e.err = fmt.Errorf("%w; it has not ended within %v", e.err, j.waitLimit.limit)
		}
	case holdfast.ErrTooSoon:
		e.err = fmt.Errorf("%s is not run yet: %s has %s, and the pause after it ends in %v", name, last, run.State,
			refused.RetryAfter.Round(time.Millisecond))
	case holdfast.ErrAttemptsUsed:
		e.outcome = outcomeAttemptsUsed
		e.err = fmt.Errorf("%s is not run again: all attempts are used, and %s has %s (%s); to allow one more, use: "+
			"holdfast ledger retry%s %s", name, last, run.State, printableText(run.Error), j.ledgerFlag(), name)
	case holdfast.ErrMismatch:
		e.outcome = outcomeUsage
		e.err = fmt.Errorf("%s was run with another --fingerprint, %s, in %s; give each payload a key of its own",
			name, printableText(run.Fingerprint), last)
	default:
		return ledgerError(err)
	}
	return e
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/acquire"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/failure"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
)

// beginRun begins a run of the key. If one is in progress it waits, with --wait. If another slot of the job is run, it
// waits while the slot lasts. The wait began at began: the time that it took to open the store counts.
func (j *onceJob) beginRun(ctx context.Context, ledger *holdfast.Ledger, key string, opts *holdfast.RunOptions,
	began time.Time, events *eventFile,
) (*holdfast.Run, error) {
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if j.waitLimit.limited {
		timer := time.AfterFunc(j.waitLimit.limit-time.Since(began), func() {
			if opts.Slot != nil { // cut off in its first requests, Begin could not say what it was to wait for
				select {
				case <-j.waitsForSlot:
				case <-waiting.Done():
				case <-time.After(inspectTimeout):
				}
			}
			cancel(errWaitLimit)
		})
		defer timer.Stop()
	}
	try := ctx
	if opts.Slot != nil { // then it may wait for another slot
		try = waiting
	}
	run, err := acquire.Begin(try, ledger, key, opts)
	if j.waits && errors.Is(err, holdfast.ErrInProgress) {
		events.addEvent(eventRunWaiting, nil)
		run, err = j.waitForRun(waiting, ledger, key, opts)
	}
	late := errors.Is(err, errWaitLimit)
	if late && j.otherSlot.Load() == nil { // the wait itself does not say whether a run was in progress at its end
		limited, cancel := context.WithTimeoutCause(ctx, inspectTimeout, errNoAnswer)
		defer cancel()
		run, err = ledger.Begin(limited, key, opts)
	}
	if other := j.otherSlot.Load(); other != nil && (errors.Is(err, errWaitLimit) || late && errors.Is(err, errNoAnswer)) {
		return nil, &exitError{code: exitNotAcquired, outcome: outcomeNotAcquired, reason: holdfast.FailureTimeout,
			err: fmt.Errorf("%s is not run: %s, and that has not ended within %v", quoteName(key), *other, j.waitLimit.limit)}
	}
	if err != nil {
		return nil, j.explainRefusal(key, err, late)
	}
	return run, nil
}

// waitForRun waits until no run is in progress, or ctx ends.
func (j *onceJob) waitForRun(
	ctx context.Context, ledger *holdfast.Ledger, key string, opts *holdfast.RunOptions,
) (*holdfast.Run, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	shown := j.messages.noteWaiting(ctx, "waiting for the end of a run", func(ctx context.Context) (waitView, error) {
		return j.viewRunInProgress(ctx, ledger, key)
	})
	defer func() {
		cancel(nil)
		guard.WaitWithTimeout(shown, maxMessageTime)
	}()
	withWait := *opts
	withWait.Wait = true
	return acquire.Begin(ctx, ledger, key, &withWait)
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
	around := inheritedRuns(func(name string) bool {
		outer, ok := strings.CutPrefix(name, j.ledger+"/")
		return ok && (outer == key || j.isOtherSlot(outer))
	})
	ctx, cancel := j.limitCall(ctx)
	defer cancel()
	for _, h := range around {
		outer := strings.TrimPrefix(h.name, j.ledger+"/")
		runs, err := ledger.LastRuns(ctx, outer, 1)
		switch {
		case err != nil && h.store == store:
			return ledgerError(err)
		case err != nil || len(runs) == 0 || runs[0].State != holdfast.RunStarted || h.ref != runs[0].ID || h.token != runs[0].Token:
		case outer != key:
			return usageError("%s, another slot of it, is being run by an enclosing holdfast once, which this one would wait for",
				quoteName(outer))
		default:
			return usageError("%s is already being run by an enclosing holdfast once", quoteName(key))
		}
	}
	return nil
}

// isOtherSlot reports whether this job must not overlap with a key, because that is a slot of the job.
func (j *onceJob) isOtherSlot(key string) bool {
	start, ok := strings.CutPrefix(key, j.key+"@")
	if _, err := time.Parse(time.RFC3339Nano, start); err != nil {
		return false
	}
	return ok && j.schedule != nil && !j.allowOverlap
}

// explainRefusal says in this command's words why no run began. late is whether all of --wait has passed.
func (j *onceJob) explainRefusal(key string, err error, late bool) error {
	var refused *holdfast.RunError
	name := quoteName(key)
	if !errors.As(err, &refused) {
		if errors.Is(err, holdfast.ErrMissed) {
			return j.slotMissed(key, err)
		}
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

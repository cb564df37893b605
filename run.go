package holdfast

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Run is one run of a key in a [Ledger]. It is a lease on the key: it is renewed in the background and ends with
// Succeed, Fail or Withdraw, by loss, or when its client is closed. A run that is never ended is renewed for as long
// as its client lives, so call Succeed or Fail on every path, or use [Ledger.Do]. All methods may be called from any
// goroutine.
type Run struct {
	ledger *Ledger
	key    string
	lease  *Lease
	held   runHold
	job    *Lease // the lock of its job; nil without RunOptions.Slot
}

// runHold is what a run lasts as long as: its lease, or a LeaseGroup that has the lock of its job as well.
type runHold interface {
	Context() context.Context
	Remaining() time.Duration
	Err() error
}

// Key returns the key.
func (r *Run) Key() string { return r.key }

// Attempt returns the number of the run: 1 for the first run of its key.
func (r *Run) Attempt() int64 { return r.lease.hold.extras.attempt }

// ID returns the run's own id, which no other run or claim ever has.
func (r *Run) ID() string { return r.lease.ID() }

// Token returns the fencing token: positive, below 2^53, and larger than those of all runs of the key before. Pass it
// to the resources that the run writes to: they reject a worker whose run was taken over.
func (r *Run) Token() int64 { return r.lease.Token() }

// Context returns a context that ends when the run does: see [Lease.Context]. With RunOptions.Slot it also ends when
// the lock of the job is lost. So do Valid, Remaining and Err.
func (r *Run) Context() context.Context { return r.held.Context() }

// Valid reports whether the run is valid, by the clock and at this moment: see [Lease.Valid].
func (r *Run) Valid() bool { return r.Remaining() > 0 }

// Remaining is how long the run stays valid if no renewal succeeds any more: see [Lease.Remaining].
func (r *Run) Remaining() time.Duration { return r.held.Remaining() }

// Progress notes that the work gets on, and reports whether the run is valid: see [Lease.Progress] and
// LedgerOptions.Progress.
func (r *Run) Progress() bool { return r.lease.Progress() && r.Valid() }

// Err is nil while the run is valid, then the reason why it ended: a [*LossError], [ErrReleased] after Succeed, Fail
// or Withdraw, or [ErrClosed].
func (r *Run) Err() error { return r.held.Err() }

// String shows the run for logs.
func (r *Run) String() string {
	state := "valid"
	if err := r.Err(); err != nil {
		state = err.Error()
	}
	return fmt.Sprintf("run %d of %q, token %d: %s", r.Attempt(), r.ledger.recordKey(r.key), r.Token(), state)
}

// Succeed ends the run as succeeded, so that the key is never run again, and stores the result, at most [MaxRunResult]
// bytes, or fewer where Info.MaxRunResult says so; nil is a result, too. It returns nil if and only if the ledger
// shows the success.
//
// If the run was lost, Succeed still reports to the ledger. It returns nil if nobody has ended the run there, and
// otherwise [ErrLost]: then the history of the abandoned run notes that its worker reported too late. If the store
// cannot be reached before ctx ends, Succeed returns [ErrUncertain], and the client goes on reporting in the
// background for as long as the TTL. A result that is too large is ErrInvalid, and the run goes on. A second call
// returns [ErrReleased].
func (r *Run) Succeed(ctx context.Context, result []byte) error {
	o, err := driver.RunOutcome{State: driver.RunSucceeded, Result: result}.Check(r.lease.hold.client.store.Info())
	if err != nil {
		return r.ledger.wrapError("succeed", r.key, err)
	}
	return r.finish(ctx, "succeed", o)
}

// Fail ends the run as failed, with the text of an error, which is cut after 1 KiB. The next Begin gets the key, after
// the ledger's pause and while attempts remain. It returns the errors of Succeed.
func (r *Run) Fail(ctx context.Context, reason error) error {
	text := "failed"
	if reason != nil {
		text = reason.Error()
	}
	return r.finish(ctx, "fail", driver.RunOutcome{State: driver.RunFailed, Error: text})
}

// Withdraw ends the run as if it had not begun: it leaves nothing in the history, uses up no attempt and starts no
// pause. Programs that begin runs for others call it when they find that the worker was never told of its run. If
// work may have begun, use Fail. It returns the errors of Succeed. In the events the run has failed.
//
// A program of an earlier version may have left a run that is too large to stay in the record. A run that follows it
// cannot be withdrawn: it ends as failed, and uses up an attempt.
func (r *Run) Withdraw(ctx context.Context) error {
	return r.finish(ctx, "withdraw", driver.RunOutcome{})
}

// finish ends the lease by an outcome, in place of a release. The zero outcome withdraws the run.
func (r *Run) finish(ctx context.Context, op string, o driver.RunOutcome) error {
	h := r.lease.hold
	if ctx == nil {
		return r.ledger.wrapError(op, r.key, errNilContext)
	}
	h.mu.Lock()
	grant := h.currentGrant()
	h.mu.Unlock()
	outcome := &runOutcome{o.State, func(ctx context.Context) (err error) {
		if o.State == "" {
			err = h.client.withdrawalOf(grant.Claim)(ctx)
		} else {
			err = h.client.runs.FinishRun(ctx, grant, o)
		}
		if err == nil {
			h.mu.Lock()
			h.extras.reported = true
			h.mu.Unlock()
		}
		return err
	}}
	err := r.lease.giveUp(ctx, op, ending{outcome: outcome})
	h.mu.Lock()
	lost := h.state == stateLost
	h.mu.Unlock()
	if lost {
		if err = r.reportLate(ctx, outcome); err != nil {
			err = r.ledger.wrapError(op, r.key, err)
		}
	}
	if r.job != nil { // after the report: the next slot sees what has become of this one
		r.releaseJob(ctx)
		_ = r.held.Err() // ends the context now
	}
	return err
}

// reportLate reports the outcome of a run that is lost. The ledger decides whether somebody else has ended it. If not,
// the report counts, and the run is ended as by a report in time.
func (r *Run) reportLate(ctx context.Context, outcome *runOutcome) error {
	h := r.lease.hold
	if !h.client.inflight.enterHeld() {
		return r.lease.errAfterClose()
	}
	defer h.client.inflight.exit()
	h.mu.Lock()
	first, reported := h.takeCleanUp(), h.extras.reported
	err := h.err()
	h.mu.Unlock()
	switch {
	case reported:
		return ErrReleased
	case !first:
		return err
	}
	if err = outcome.report(ctx); err != nil && !errors.Is(err, ErrLost) && !isOneOf(err, lastingErrors...) {
		h.client.cleanUp(h.asked.TTL, outcome.report)
		err = h.uncertainEnd(err)
	}
	if err == nil {
		h.client.emitEvent(outcomeEvent(outcome.state), h, eventDetails{late: true})
	}
	return err
}

// endRun ends the run of a Do, whose context may have ended. Nothing is wrong if its function has ended it.
func endRun[T any](r *Run, finish func(context.Context, T) error, outcome T) error {
	ctx, cancel := context.WithTimeout(context.Background(), driver.UnreachableTimeout(r.lease.hold.asked.TTL))
	defer cancel()
	if err := finish(ctx, outcome); !errors.Is(err, ErrReleased) {
		return err
	}
	return nil
}

package holdfast

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Event is something that happened to a lock or a run of a client. See Options.OnEvent. It contains no secrets.
//
// Fields without a kind next to them are set for all kinds, as far as they are known: Token and Ref are known from the
// grant on.
type Event struct {
	Kind EventKind
	Time time.Time
	// Context is the one that was given to Lock, for its values: a parent of spans, for example. It may have ended. It
	// may be nil.
	Context context.Context

	// Lock is the lock's name. Of a run it is the ledger's name, a slash and the key; of the lock of a job (see
	// RunOptions.Slot) a slash, the ledger's name, a slash and the job.
	Lock     string
	LockKind Kind          // what the lock is used as; of a run, KindMutex
	ID       string        // the claim's own id; all events of one lease have the same
	Owner    string        // LockOptions.Owner or Options.Owner
	Ref      string        // Lease.Ref
	Token    int64         // the fencing token
	Weight   int64         // how much of the limit the claim takes
	Limit    int64         // the lock's limit
	TTL      time.Duration // as claimed
	Attempt  int64         // Run.Attempt; 0 for locks, and for runs that have not started
	// Expected is LockOptions.Expected.
	Expected time.Duration
	// Wait says that the caller is ready to wait for this lock: false for the Try methods, and where a LockAll over
	// several clients tries a lock while it holds another one.
	Wait bool

	// Waited is how long the caller has waited: of grants and failures.
	Waited time.Duration
	// Held is the time since the grant. Events up to the grant have none.
	Held time.Duration
	// RoundTrip is how long the answer of the store to a renewal took.
	RoundTrip time.Duration
	// Remaining is how long the lease remains valid if no other renewal succeeds: of renewals.
	Remaining time.Duration
	// Reason is a code: of failures a FailureReason, of losses a LossCause.
	Reason string
	// Err is, of a loss, a *LossError; of a failure and a failing renewal, why; of an end, why the store has not
	// confirmed it, or nil: an EventRunSucceeded with an Err that matches ErrUncertain was reported, and it is not
	// known whether the ledger shows it.
	Err     error
	Late    bool // EventRunSucceeded, EventRunFailed: the run was lost before its worker reported
	Dropped int  // how many events were dropped before this one because the receivers were too slow
}

// String shows the event for logs.
func (e Event) String() string {
	s := fmt.Sprintf("%s %q, token %d", e.Kind, e.Lock, e.Token)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// deliverEvent calls the receivers.
func (c *Client) deliverEvent(e *Event) {
	if c.opts.OnEvent != nil {
		c.opts.OnEvent(*e)
	}
	if c.opts.Logger != nil {
		logEvent(c.opts.Logger, e)
	}
}

// eventDetails is what an event of a hold has besides what the hold knows.
type eventDetails struct {
	start                time.Time // of a grant: when the attempt began
	roundTrip, remaining time.Duration
	err                  error
	late                 bool
}

// emitEvent queues an event of a hold. It never blocks, and calls no code of the user. It may be called with the mutex
// of the hold or the renewer held. kind is one of a lock, or the outcome of a run.
func (c *Client) emitEvent(kind EventKind, h *hold, d eventDetails) {
	if c.events == nil {
		return
	}
	claim := h.claim()
	e := newEvent(kind, time.Now(), h.firstLease.values, &claim, h.isRun)
	if h.isRun {
		e.Attempt = h.extras.attempt
	}
	e.Ref, e.Token, e.Expected, e.Err = h.ref, h.token, h.expected, d.err
	e.RoundTrip, e.Remaining, e.Late = d.roundTrip, d.remaining, d.late
	if kind.Phase() == PhaseGrant {
		e.Waited = e.Time.Sub(d.start)
	} else {
		e.Held = c.clock.Since(h.startedAt)
	}
	if kind.Phase() == PhaseLoss {
		e.Reason = string(lossOf(d.err).Cause)
	}
	c.events.addEvent(&e)
}

// emitAttempt queues the event of a caller that begins to acquire a lock.
func (c *Client) emitAttempt(ctx context.Context, claim *driver.Claim, o *LockOptions, start time.Time) {
	if c.events == nil {
		return
	}
	e := newEvent(EventAttempt, start, ctx, claim, claim.Run != nil && !claim.Withdrawn)
	e.Expected = o.Expected
	c.events.addEvent(&e)
}

// emitFailure queues the event of a claim that was not granted.
func (c *Client) emitFailure(ctx context.Context, claim *driver.Claim, o *LockOptions, start time.Time, err error) {
	if c.events == nil {
		return
	}
	e := newEvent(EventFailed, time.Now(), ctx, claim, claim.Run != nil && !claim.Withdrawn)
	e.Expected, e.Waited, e.Reason, e.Err = o.Expected, e.Time.Sub(start), string(failureReasonOf(err)), err
	c.events.addEvent(&e)
}

// newEvent fills in what all events of a claim have. A run of a ledger has kinds of its own.
func newEvent(kind EventKind, at time.Time, ctx context.Context, claim *driver.Claim, isRun bool) Event {
	if isRun {
		kind = cmp.Or(kind.row().onRun, kind)
	}
	return Event{Kind: kind, Time: at, Context: ctx, Lock: claim.Name, LockKind: claim.Kind, ID: claim.ID,
		Owner: claim.Owner, Weight: claim.Weight, Limit: claim.Limit, TTL: claim.TTL, Wait: claim.Wait}
}

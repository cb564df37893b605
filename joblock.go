package holdfast

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
)

// The lock of a job keeps its slots apart. It is a claim in the store of the runs, on a name that no key has. So it
// needs nothing of the store that a run does not need, is renewed in the same requests, ends with a process that dies
// as its run does, and is in nobody's way who locks the name of the job. It leaves nothing in the history, because it
// is always withdrawn.
//
// The run begins first, and then takes the lock. So what refuses a run costs no more than before, and of many machines
// that begin a slot one waits for the slot before. Until the run has the lock it counts as unused: whatever ends it
// withdraws it.
//
// Rejected: a lock of the client's own store. It would need a second connection and a second session on some stores,
// and a guard that keeps two liveness files. Rejected: an option of LedgerOptions. A ledger has keys with and without
// slots, and a key does not say where the job's name ends. Rejected: a slot that is refused at once, as Wait could
// decide. Then each job that is late by a second would miss its next slot, and the caller would have to try again by
// a clock of its own.

// jobLockPrefix begins the names of the locks of jobs in the store of the runs. No ledger has an empty name.
const jobLockPrefix = "/"

// jobOf is the job whose slot a key belongs to.
func (l *Ledger) jobOf(key string, slot *Slot) (string, error) {
	job, ok := strings.CutSuffix(key, slot.Key(""))
	switch {
	case !ok || job == "":
		return "", newInvalidError("the key %q is none of the slot that starts at %v: make it with Slot.Key of "+
			"RunOptions.Slot", key, slot.Start)
	case len(l.client.store.Info().Kinds) == 0:
		return "", fmt.Errorf("%w: the layout has no locks, so the slots of a job could overlap; set no RunOptions.Slot if "+
			"they may, or keep the runs in another layout", ErrUnsupported)
	}
	return job, nil
}

// enterJob takes the lock of a run's job. From then on the run ends with either of them. After an error there is no
// run.
func (l *Ledger) enterJob(ctx context.Context, c *Client, run *Run, job string, slot *Slot) error {
	lg := newLeaseGroup(ctx)
	lg.addLease(run.lease, false)
	err := l.lockJob(ctx, c, lg, run.key, job, slot)
	if lost := lg.Err(); lost != nil {
		err = lost
	}
	if err != nil {
		lg.releaseUnused(ctx)
		return err
	}
	lg.markUsed()
	run.held, run.job = lg, lg.leases[1]
	ends := run.lease.Context()
	context.AfterFunc(ends, func() {
		lg.end(run.lease, context.Cause(ends)) // first, so that the cause names the run
		run.job.hold.loseWith(context.Cause(ends))
	})
	return nil
}

// loseWith ends the lock of a job if the reason why its run has ended is a loss. The claim is not renewed any more, and
// keeps the next slot out until the worker reports, or until the claim's TTL has passed: the worker may hang.
func (h *hold) loseWith(cause error) {
	if !errors.Is(cause, ErrLost) {
		return
	}
	if loss := lossOf(cause); h.endAs(stateLost, loss) {
		h.client.renewer.removeHold(h)
		h.cancelContexts(loss)
	}
}

// releaseJob releases the lock of a run's job, after the run has ended.
func (r *Run) releaseJob(ctx context.Context) {
	_ = r.job.ReleaseContext(ctx)
	r.job.hold.cleanUpLost()
}

// lockJob adds the lock of a job to a group that has the run. It waits while another run has the lock and the slot
// lasts, by the store's clock.
func (l *Ledger) lockJob(ctx context.Context, c *Client, lg *LeaseGroup, key, job string, slot *Slot) error {
	claim, err := c.newClaim(lockSpec{client: c, name: jobLockPrefix + l.recordKey(job), kind: KindMutex, limit: 1, weight: 1,
		opts: LockOptions{TTL: l.opts.TTL, Owner: l.opts.Owner, Meta: cutMeta(key, c.store.Info())}})
	if err != nil {
		return err
	}
	claim.Run, claim.Withdrawn = &driver.RunTerms{KeepRuns: 1, KeepFor: l.opts.KeepFor}, true
	lease, err := c.beginRun(ctx, &claim, &LockOptions{})
	switch {
	case err == nil:
		lg.addLease(lease, false)
		return nil
	case !errors.Is(err, ErrInProgress):
		return err
	}
	missed := ErrMissed
	if held := findHeldError(err); held != nil {
		missed = fmt.Errorf("%w: %w", ErrMissed, held)
	}
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(lg.ctx, func() { cancel(context.Cause(lg.ctx)) })()
	hasEnded := func() bool { return false }
	if !slot.End.IsZero() {
		asked := c.clock.Now()
		left, err := c.timeUntil(waiting, slot.End)
		if err != nil {
			return err
		}
		hasEnded = func() bool { return errors.Is(context.Cause(waiting), ErrMissed) || c.clock.Since(asked) >= left }
		defer time.AfterFunc(left, func() { cancel(ErrMissed) }).Stop()
	}
	claim.Wait = true
	if lease, err = c.beginRun(waiting, &claim, &LockOptions{}); err == nil {
		lg.addLease(lease, false)
	}
	if hasEnded() { // also if the lock was granted: this machine may have slept
		return missed
	}
	return err
}

// timeUntil is how long it takes until the store's clock shows a time.
func (c *Client) timeUntil(ctx context.Context, at time.Time) (time.Duration, error) {
	ctx, end := c.untilClosed(ctx)
	defer end()
	now, _, err := c.runs.ReadClock(ctx)
	return at.Sub(now), c.orClosed(err)
}

// cutMeta is a text as a note that the store has room for.
func cutMeta(text string, info driver.Info) string {
	text = text[:min(len(text), info.MaxMeta)]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text
}

package dynamodb

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// putEnd writes the row that ends a run, unless there is one. Then the error is errRefused.
func (l *ledger) putEnd(ctx context.Context, key string, start int64, end *rowRun) error {
	status := statusFailed
	if end.State == driver.RunSucceeded {
		status = statusSucceeded
	}
	it := l.rowKey(key, start+1)
	it[statusAttribute], it[createdAttribute] = textValue(status), textValue(l.storeTime().UTC().Format(createdTimeFormat))
	it[counterAttribute], it[beforeAttribute] = numberValue(1), numberValue(0)
	it[idAttribute], it[runAttribute] = textValue(end.ID), end.encode()
	_, err := callServer(ctx, l.tableClient, l.client.PutItem, &sdk.PutItemInput{
		TableName: &l.tableName, Item: it, ConditionExpression: new("attribute_not_exists(#k)"),
		ExpressionAttributeNames: map[string]string{"#k": l.partitionKey},
	})
	return refusedOr(err)
}

// endOf returns the end of a run, for its row.
func (l *ledger) endOf(run *rowRun, state driver.RunState, text string) rowRun {
	end := *run
	now := l.clock.TokenFloor()
	end.State, end.Error, end.EndedAt, end.ExpiresAt = state, text, max(now, run.StartedAt), 0
	end.Report = rand.Text()
	return end
}

// FinishRun is one conditional put. If the lease may have run out, it reads the heartbeat first: a run that has expired
// is abandoned, even if nobody else has noticed.
func (l *ledger) FinishRun(ctx context.Context, g driver.Grant, o driver.RunOutcome) error {
	o, err := o.Check(l.Info())
	if err != nil {
		return err
	}
	key, start, err := l.locate(g)
	if err != nil {
		return err
	}
	loop := l.newLoop(g.TTL)
	for {
		err := l.finishOnce(ctx, loop, key, start, g, o)
		if err != nil && !errors.Is(err, driver.ErrLost) {
			err = loop.PauseAfterFailure(ctx, err, false) // noteWrite has noted what was sent
			if err == nil {
				continue
			}
		}
		if err == nil || driverutil.IsFinal(err) {
			l.forgetRun(g.ID)
		}
		return err
	}
}

// noteWrite returns the error of a write, and notes in the loop of its call if the write may have been made.
func noteWrite(loop *driverutil.RetryLoop, err error) error {
	refused := errors.Is(err, errRefused) || errors.Is(err, record.ErrUnsent) || driverutil.IsFinal(err)
	loop.Uncertain = loop.Uncertain || err != nil && !refused
	return err
}

// finishOnce makes one attempt to write the end of a run. If the run may have expired, it is abandoned first, and
// the outcome becomes a late report.
func (l *ledger) finishOnce(
	ctx context.Context, loop *driverutil.RetryLoop, key string, start int64, g driver.Grant, o driver.RunOutcome,
) error {
	run, err := l.runOf(ctx, key, start, g.ID)
	if err != nil {
		return err
	}
	if l.clock.Clock.SinceAtLeast(g.Since) > g.GrantedTTL {
		if err := l.endIfExpired(ctx, loop, key, start, run); err != nil {
			return err
		}
	}
	end := l.endOf(run, o.State, o.Error)
	end.Result = o.Result
	if err := noteWrite(loop, l.putEnd(ctx, key, start, &end)); !errors.Is(err, errRefused) {
		return err
	}
	return l.compareEnd(ctx, key, start, &end)
}

// endIfExpired abandons the run of a worker that reports after its lease has run out.
func (l *ledger) endIfExpired(
	ctx context.Context, loop *driverutil.RetryLoop, key string, start int64, run *rowRun,
) error {
	h, err := l.readHeartbeat(ctx, key)
	if err != nil {
		return err
	}
	if cause := l.endCause(run, h); cause != "" {
		err := noteWrite(loop, l.abandon(ctx, key, start, run, h, cause))
		if err != nil && !errors.Is(err, errRefused) {
			return err
		}
	}
	return nil
}

// compareEnd returns nil if the end that is in the table says the same. Otherwise the run is lost, and the report is
// noted.
func (l *ledger) compareEnd(ctx context.Context, key string, start int64, end *rowRun) error {
	it, err := l.readItem(ctx, key, start+1)
	if err != nil {
		return err
	}
	if len(it) > 0 {
		row, err := decodeRow(key, it)
		if err != nil {
			return err
		}
		if is := row.run; is != nil && is.ID == end.ID && is.Token == end.Token && is.State == end.State &&
			is.Error == end.Error && bytes.Equal(is.Result, end.Result) {
			return nil
		}
	}
	if err := l.noteLateReport(ctx, key, start, end.State); err != nil {
		return err
	}
	if len(it) == 0 { // an operator has forgotten the key
		return &driver.LossError{Cause: driver.LossGone}
	}
	return lossOfRow(key, it, end.ID, driver.LossGone)
}

// abandon ends a run whose worker is gone: see ledger.
func (l *ledger) abandon(
	ctx context.Context, key string, start int64, run *rowRun, h heartbeat, cause driver.LossCause) error {
	if err := l.sealRun(ctx, key, run, h, cause); err != nil {
		return err
	}
	end := l.abandonedEnd(run, h, cause)
	return l.putEnd(ctx, key, start, &end)
}

// abandonedEnd returns the end of a run whose worker is gone. If its lease has expired, that is when it ended.
func (l *ledger) abandonedEnd(run *rowRun, h heartbeat, cause driver.LossCause) rowRun {
	end := l.endOf(run, driver.RunAbandoned, cause.Description())
	end.Cause = cause
	if cause == driver.LossExpired {
		expired := run.ExpiresAt
		if h.token == run.Token {
			expired = h.expiresAt
		}
		end.EndedAt = max(run.StartedAt, min(end.EndedAt, expired))
	}
	return end
}

// endNewestIfExpired ends the newest run if its worker is gone. It reports whether it did, and the heartbeat as far
// as it was read.
func (l *ledger) endNewestIfExpired(ctx context.Context, key string, st *keyState) (ended bool, h heartbeat, err error) {
	if !st.newest.isStarted() {
		return false, h, nil
	}
	if st.newest.run == nil {
		if !l.isTooOld(&st.newest) {
			return false, h, nil
		}
		return true, h, l.endForeign(ctx, key, st, fmt.Sprintf("no end was written in %v", l.startedAge))
	}
	run := st.newest.run
	if early, _, _ := l.clock.Bounds(); early <= run.ExpiresAt {
		return false, h, nil // it needs no renewal yet
	}
	if h, err = l.readHeartbeat(ctx, key); err != nil {
		return false, h, err
	}
	cause := l.endCause(run, h)
	if cause == "" {
		return false, h, nil
	}
	return true, h, l.abandon(ctx, key, st.newest.sequence, run, h, cause)
}

// isTooOld reports whether the start of a plain worker is so old that the user lets another run begin.
func (l *ledger) isTooOld(row *ledgerRow) bool {
	if l.startedAge == 0 {
		return false
	}
	created, ok := latestCreatedTime(row.createdAt)
	early, _, _ := l.clock.Bounds()
	return ok && time.UnixMicro(early).Sub(created) > l.startedAge
}

// endForeign writes the end of a plain worker's run.
func (l *ledger) endForeign(ctx context.Context, key string, st *keyState, why string) error {
	end := l.endOf(&rowRun{ID: st.last.ID, Attempt: st.last.Attempt, Owner: st.last.Owner,
		StartedAt: max(0, st.last.StartedAt.UnixMicro()), MaxToken: max(1, st.maxToken), First: st.first,
		WithdrawnRuns: st.withdrawnRuns},
		driver.RunAbandoned, why)
	return l.putEnd(ctx, key, st.newest.sequence, &end)
}

// Release ends a run as failed, or withdraws it.
func (l *ledger) Release(ctx context.Context, c driver.Claim, ref string) error {
	key, err := l.partitionOf(c.Name)
	if err != nil {
		return err
	}
	report := rand.Text()
	loop := l.newLoop(c.TTL)
	loop.Restart()
	for {
		var err error
		if ref == "" {
			ref, err = l.findClaim(ctx, loop, key, c) // once: after a lost reply, others may have begun the next run
		}
		if err == nil {
			err = l.releaseOnce(ctx, loop, key, c, ref, report)
		}
		if err == nil || errors.Is(err, driver.ErrLost) {
			l.forgetRun(c.ID)
			return err
		}
		if err := loop.PauseAfterFailure(ctx, err, false); err != nil { // noteWrite has noted what was sent
			return err
		}
	}
}

// findClaim returns the ref of the run that a claim has begun. The error is ErrLost if there is none, and none can
// begin any more.
func (l *ledger) findClaim(ctx context.Context, loop *driverutil.RetryLoop, key string, c driver.Claim) (
	ref string, err error) {
	st, err := l.readState(ctx, key)
	if err != nil {
		return "", err
	}
	if run := st.newest.run; run == nil || run.ID != c.ID || run.Withdrawn != 0 {
		if c.Withdrawn {
			err = noteWrite(loop, l.takePlace(ctx, key, c.ID, &st))
		}
		return "", cmp.Or[error](err, &driver.LossError{Cause: driver.LossGone})
	}
	start := st.newest.sequence
	if !st.newest.isStarted() {
		start--
	}
	return refOf(start, c.ID), nil
}

// releaseOnce writes the end of a run. report is in the row that this call writes.
func (l *ledger) releaseOnce(
	ctx context.Context, loop *driverutil.RetryLoop, key string, c driver.Claim, ref, report string,
) error {
	start, refID, ok := parseRef(ref)
	switch {
	case !ok:
		return fmt.Errorf("%w: %q is not a ref of this store", driver.ErrInvalid, ref)
	case c.ID != "" && c.ID != refID:
		return &driver.LossError{Cause: driver.LossGone} // no claim has both
	}
	run, err := l.runOf(ctx, key, start, refID)
	if err != nil {
		return err
	}
	end := l.endOf(run, driver.RunFailed, "it was released without an outcome")
	if c.Withdrawn {
		if end, err = l.withdrawnEnd(ctx, key, start, run); err != nil {
			return err
		}
	}
	end.Report = report
	if err := noteWrite(loop, l.putEnd(ctx, key, start, &end)); !errors.Is(err, errRefused) {
		return err
	}
	it, err := l.readItem(ctx, key, start+1)
	if err != nil {
		return err
	}
	if row, err := decodeRow(key, it); err == nil && row.run != nil && row.run.Report == report {
		return nil
	}
	return lossOfRow(key, it, refID, driver.LossGone)
}

// takePlace makes sure that a start which may still be on its way does not begin a run that nobody ends. If its place
// is free, it sends the start again: whichever of the two comes first, the next look at the key finds the run. nil
// means that the start can begin nothing any more.
func (l *ledger) takePlace(ctx context.Context, key, id string, st *keyState) error {
	l.mu.Lock()
	s, ok := l.unsure[id]
	l.mu.Unlock()
	if !ok || st.newest.sequence >= s.sequence {
		return nil
	}
	switch counter, err := l.sendStart(ctx, key, s.sequence, &s.run); {
	case err != nil:
		return err // also errRefused: somebody has taken the place
	case counter != "1":
		return nil
	}
	l.rememberRun(s.run)
	return errRefused // there is a run to end now
}

// withdrawnEnd returns the end of a run that nobody was told of: see ledger.
func (l *ledger) withdrawnEnd(ctx context.Context, key string, start int64, run *rowRun) (end rowRun, err error) {
	rows, err := l.readRows(ctx, key, 2*rowsPerRun, func(r *ledgerRow) bool { return r.run != nil && r.sequence < start })
	if err != nil {
		return end, err
	}
	st := stateOf(slices.DeleteFunc(rows, func(r ledgerRow) bool { return r.sequence >= start }))
	before := st.last
	if before.Attempt == 0 {
		end = l.endOf(run, driver.RunFailed, "no worker was told of it")
		end.First, end.WithdrawnRuns = start+rowsPerRun, 0
		return end, nil
	}
	if before.State == driver.RunStarted {
		endWithoutRow(&before)
	}
	return rowRun{
		ID: before.ID, Attempt: before.Attempt, Token: before.Token, Owner: before.Owner, Meta: before.Meta,
		Fingerprint: before.Fingerprint, StartedAt: max(0, before.StartedAt.UnixMicro()), MaxToken: run.MaxToken,
		First: run.First, WithdrawnRuns: run.WithdrawnRuns + 1,
		State: before.State, EndedAt: before.EndedAt.UnixMicro(), Error: before.Error,
		Withdrawn: st.retrySequence(),
	}, nil
}

package dynamodb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Acquire begins a run: one read, and one write if a run may begin.
func (l *ledger) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := l.checkClaim(c); err != nil {
		return driver.Grant{}, err
	}
	key, err := l.partitionOf(c.Name)
	if err != nil {
		return driver.Grant{}, err
	}
	b := &beginning{ledger: l, claim: c, key: key}
	loop := l.newLoop(c.TTL)
	for {
		loop.RequestStarted(l.clock.Clock.Now())
		g, err := b.try(ctx)
		loop.Uncertain = b.uncertainAt != 0 // a start may still take effect
		switch {
		case err == nil:
			return g, nil
		case errors.Is(err, errRefused), c.Wait && errors.Is(err, driver.ErrInProgress):
			err = loop.PauseAfterAnswer(ctx)
		case ctx.Err() == nil && !driverutil.IsFinal(err):
			err = loop.PauseAfterFailure(ctx, err, false) // try has noted what was sent
		}
		if err != nil {
			return driver.Grant{}, loop.End(b.finalError(ctx, err))
		}
	}
}

// beginning is one Acquire.
type beginning struct {
	*ledger
	claim       driver.Claim
	key         string
	inProgress  *driver.RunError // what was in the way last
	uncertainAt int64            // the sequence of a start whose outcome is not known; 0: there is none
}

// finalError names the run that is in progress in the error of an Acquire whose ctx has ended.
func (b *beginning) finalError(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, driver.ErrClosed) {
		err = ctx.Err()
		if b.inProgress != nil {
			err = fmt.Errorf("%w; %w", err, b.inProgress.Held)
		}
	}
	if b.uncertainAt == 0 {
		b.forgetRun(b.claim.ID)
	}
	return err
}

// try reads the key, and does one thing about it. errRefused means that somebody else was faster.
func (b *beginning) try(ctx context.Context) (driver.Grant, error) {
	st, err := b.readState(ctx, b.key)
	if err != nil {
		return driver.Grant{}, err
	}
	if st.newest.sequence >= b.uncertainAt {
		b.uncertainAt = 0 // the start has found its place, or it is taken
	}
	if run := st.newest.run; st.newest.isStarted() && run != nil && run.ID == b.claim.ID {
		return b.confirm(ctx, &st)
	}
	ended, h, err := b.endNewestIfExpired(ctx, b.key, &st)
	switch {
	case err != nil:
		return driver.Grant{}, err
	case ended:
		return driver.Grant{}, errRefused // read the row of its end
	}
	early, _, _ := b.clock.Bounds()
	if refused := b.claim.Run.Refuse(st.last, false, time.UnixMicro(early)); refused != nil {
		return b.refuse(ctx, &st, h, refused)
	}
	return b.start(ctx, &st)
}

// refuse returns the refusal, unless an operator lets the key run once more.
func (b *beginning) refuse(ctx context.Context, st *keyState, h heartbeat, refused *driver.RunError) (
	driver.Grant, error) {
	switch {
	case errors.Is(refused.Reason, driver.ErrInProgress):
		refused.Held = &driver.HeldError{Holders: []driver.ClaimInfo{b.claimInfo(st, h)}}
		b.inProgress = refused
	case errors.Is(refused.Reason, driver.ErrAttemptsUsed), errors.Is(refused.Reason, driver.ErrTooSoon):
		h, err := b.readHeartbeat(ctx, b.key)
		if err != nil {
			return driver.Grant{}, err
		}
		if h.retry == st.retrySequence() {
			return b.start(ctx, st)
		}
	}
	return driver.Grant{}, refused
}

// start sends the start. Only the client whose counter is 1 has begun the run.
func (b *beginning) start(ctx context.Context, st *keyState) (driver.Grant, error) {
	sequence := max(st.newest.sequence+1, firstSequence)
	since := b.clock.Clock.Now()
	now := b.clock.TokenFloor()
	run := rowRun{
		ID: b.claim.ID, Attempt: st.last.Attempt + 1, Token: max(now, st.maxToken+1),
		Owner: b.claim.Owner, Meta: b.claim.Meta,
		Fingerprint: cmp.Or(b.claim.Run.Fingerprint, st.last.Fingerprint), StartedAt: now,
		TTL: b.claim.TTL.Milliseconds(), ExpiresAt: b.latestEnd(b.claim.TTL),
		First:         firstToKeep(st, sequence, b.claim.Run.KeepRuns),
		WithdrawnRuns: st.withdrawnRuns,
	}
	run.MaxToken = run.Token
	counter, err := b.sendStart(ctx, b.key, sequence, &run)
	switch {
	case errors.Is(err, errRefused):
		return driver.Grant{}, errRefused
	case err != nil:
		if !driverutil.IsFinal(err) && !errors.Is(err, record.ErrUnsent) {
			b.uncertainAt = sequence
			b.rememberStart(unsureStart{sequence, run})
		}
		return driver.Grant{}, err
	case counter != "1":
		return driver.Grant{}, errRefused
	}
	b.uncertainAt = 0
	for end := run.First - 1; end > st.first; end -= rowsPerRun {
		withdrawn, err := b.deleteEnd(ctx, b.key, end)
		if err != nil {
			break // it is not shown any more; the run goes on
		}
		if withdrawn && run.WithdrawnRuns > 0 {
			run.WithdrawnRuns-- // the row that ends the run will say so
		}
	}
	b.rememberRun(run)
	return b.newGrant(&run, sequence, since), nil
}

// newGrant is the grant of a run.
func (b *beginning) newGrant(run *rowRun, start int64, since driver.Instant) driver.Grant {
	return driver.Grant{Claim: b.claim, Token: run.Token, Since: since, GrantedTTL: b.claim.TTL, Attempt: run.Attempt,
		Ref: refOf(start, run.ID)}
}

// confirm renews a run that this claim has begun before, in a start whose reply was lost. The lease counts from the
// renewal. If the service refuses that for any other reason than a loss, the run is there nevertheless.
func (b *beginning) confirm(ctx context.Context, st *keyState) (driver.Grant, error) {
	g := b.newGrant(st.newest.run, st.newest.sequence, driver.Instant{})
	renewed := b.renewRun(ctx, g)
	if errors.Is(renewed.Err, driver.ErrLost) {
		return driver.Grant{}, renewed.Err
	}
	if renewed.Err != nil {
		return driver.Grant{}, driverutil.Unresolved(renewed.Err)
	}
	b.rememberRun(*st.newest.run)
	g.Since = renewed.Since
	return g, nil
}

// sendStart sends the start of the layout, with our attributes. It returns the counter. The condition keeps it away
// from a row that a claim of ours has written, and from a row that ends a run.
func (l *ledger) sendStart(ctx context.Context, key string, sequence int64, run *rowRun) (counter string, err error) {
	it, err := l.updateRow(ctx, key, sequence,
		"SET #status = :started, #created = if_not_exists(#created, :now), #id = :id, #run = :run, "+
			"#before = if_not_exists(#counter, :zero) ADD #counter :one",
		"attribute_not_exists(#id) AND (attribute_not_exists(#status) OR #status = :started)",
		map[string]string{"#status": statusAttribute, "#created": createdAttribute, "#id": idAttribute,
			"#run": runAttribute, "#before": beforeAttribute, "#counter": counterAttribute},
		item{":started": textValue(statusStarted), ":now": textValue(l.storeTime().UTC().Format(createdTimeFormat)),
			":id": textValue(run.ID), ":run": run.encode(), ":zero": numberValue(0), ":one": numberValue(1)})
	return numberOf(it[counterAttribute]), err
}

// How many rows a run has, and of how many runs a new one removes the rows that end them.
const (
	rowsPerRun    = 2
	removedPerRun = 4
)

// firstToKeep is the sequence with which the history begins when a new run starts. That run does not count: it may be
// withdrawn. Nor do the runs that were.
func firstToKeep(st *keyState, start, keep int64) int64 {
	if keep <= 0 {
		return st.first
	}
	return max(st.first, min(start-rowsPerRun*(keep+st.withdrawnRuns), st.first+rowsPerRun*removedPerRun))
}

// deleteEnd removes the row that ended a run, and reports whether that run was withdrawn. A start stays: see ledger.
func (l *ledger) deleteEnd(ctx context.Context, key string, sequence int64) (withdrawn bool, err error) {
	out, err := callServer(ctx, l.tableClient, l.client.DeleteItem, &sdk.DeleteItemInput{
		TableName: &l.tableName, Key: l.rowKey(key, sequence), ConditionExpression: new("#status <> :started"),
		ExpressionAttributeNames:  map[string]string{"#status": statusAttribute},
		ExpressionAttributeValues: item{":started": textValue(statusStarted)}, ReturnValues: types.ReturnValueAllOld,
	})
	if err = refusedOr(err); errors.Is(err, errRefused) {
		return false, nil
	}
	if err != nil || len(out.Attributes) == 0 {
		return false, err
	}
	row, unreadable := decodeRow(key, out.Attributes)
	return unreadable == nil && row.run != nil && row.run.Withdrawn != 0, nil
}

// rememberRun keeps what the row of the end needs.
func (l *ledger) rememberRun(r rowRun) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetOldLocked()
	l.runs[r.ID] = r
	delete(l.unsure, r.ID)
}

// rememberStart keeps what the withdrawal of a run needs that may still begin.
func (l *ledger) rememberStart(s unsureStart) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetOldLocked()
	l.unsure[s.run.ID] = s
}

// forgetOldLocked forgets the starts that nobody has withdrawn, and the runs that nobody has ended. A run that was
// renewed since is read from the table when it ends.
func (l *ledger) forgetOldLocked() {
	now := l.clock.TokenFloor()
	maps.DeleteFunc(l.unsure, func(_ string, o unsureStart) bool { return o.run.ExpiresAt < now })
	maps.DeleteFunc(l.runs, func(_ string, r rowRun) bool { return r.ExpiresAt < now })
}

func (l *ledger) forgetRun(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.runs, id)
	delete(l.unsure, id)
}

// runOf returns the run that begins in a row: from memory, or else from the table.
func (l *ledger) runOf(ctx context.Context, key string, start int64, id string) (*rowRun, error) {
	l.mu.Lock()
	known, ok := l.runs[id]
	l.mu.Unlock()
	if ok {
		return &known, nil
	}
	it, err := l.readItem(ctx, key, start)
	if err != nil {
		return nil, err
	}
	if len(it) > 0 {
		row, err := decodeRow(key, it)
		if err != nil {
			return nil, err
		}
		if row.run != nil && row.run.ID == id {
			return row.run, nil
		}
	}
	return nil, &driver.LossError{Cause: driver.LossGone}
}

// claimInfo shows the run that is in progress.
func (l *ledger) claimInfo(st *keyState, h heartbeat) driver.ClaimInfo {
	info := driver.ClaimInfo{Ref: refOf(st.newest.sequence, st.last.ID), Owner: st.last.Owner, Meta: st.last.Meta,
		Weight: 1, Token: st.last.Token, Since: st.last.StartedAt, Foreign: st.newest.run == nil}
	if run := st.newest.run; run != nil {
		expires := run.ExpiresAt
		if h.token == run.Token {
			expires = h.expiresAt
		}
		_, late, _ := l.clock.Bounds()
		info.TTL = time.Duration(run.TTL) * time.Millisecond
		info.Remaining = max(0, time.Duration(expires-late)*time.Microsecond)
		info.Broken = h.isMarked(markBroken, run.Token)
		info.ReleaseRequested = h.isMarked(markReleaseRequested, run.Token)
	}
	return info
}

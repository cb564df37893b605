package dynamodb

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// ReadRuns is one query for each page of rows, and one for the heartbeat and late reports if they matter. The oldest
// row that it needs is one of ours, because rows of plain workers do not say which attempt they are.
func (l *ledger) ReadRuns(ctx context.Context, name string, last int) (driver.RunHistory, error) {
	h := driver.RunHistory{Key: name}
	key, err := l.partitionOf(name)
	if err != nil {
		return h, err
	}
	first, count := int64(firstSequence), 0
	pageSize := int32(min(last, 500) * rowsPerRun)
	rows, err := l.readRows(ctx, key, pageSize, func(r *ledgerRow) bool {
		count++
		if r.run != nil && r.run.Withdrawn != 0 {
			count -= rowsPerRun
		}
		if r.run != nil {
			first = max(first, r.run.First)
		}
		return r.sequence <= first || last > 0 && count/rowsPerRun >= last && r.run != nil
	})
	if err != nil || len(rows) == 0 {
		return h, err
	}
	return l.showRuns(ctx, key, rows, first)
}

// showRuns makes the history of a key of its rows. A run whose lease has run out is shown as abandoned, although its
// end was not written yet.
func (l *ledger) showRuns(ctx context.Context, key string, rows []ledgerRow, first int64) (driver.RunHistory, error) {
	h := driver.RunHistory{Key: l.nameOf(key)}
	runs := foldRows(rows, first)
	newest := &rows[len(rows)-1]
	needsControl := len(runs) > 0 && newest.status != statusSucceeded
	for i := range runs {
		needsControl = needsControl || runs[i].State == driver.RunAbandoned
	}
	var beat heartbeat
	var late map[int64]driver.RunState
	if needsControl {
		var err error
		if beat, late, err = l.controlItems(ctx, key); err != nil {
			return h, err
		}
		h.RetryAllowed = beat.retry == (&keyState{newest: *newest}).retrySequence()
	}
	for i := range runs {
		runs[i].LateReport = late[runs[i].sequence]
		h.Runs = append(h.Runs, runs[i].Run)
	}
	if newest.isStarted() && newest.run != nil && len(h.Runs) > 0 {
		if cause := l.endCause(newest.run, beat); cause != "" {
			last := &h.Runs[len(h.Runs)-1]
			end := l.abandonedEnd(newest.run, beat, cause)
			last.State, last.Error, last.EndedAt = end.State, end.Error, microsToTime(end.EndedAt)
		}
	}
	return h, nil
}

// ListRuns scans the table. The items of one partition key are kept together, in the order of their sequence
// (Developer Guide, "Core components of Amazon DynamoDB"), so each key is shown when its last row was read.
func (l *ledger) ListRuns(ctx context.Context, prefix string) iter.Seq2[driver.RunHistory, error] {
	return func(yield func(driver.RunHistory, error) bool) {
		for k, err := range l.scanKeys(ctx, prefix) {
			if err == nil {
				err = k.err
			}
			h := driver.RunHistory{Key: l.nameOf(k.key)}
			if err == nil {
				h, err = l.showRuns(ctx, k.key, k.rows, k.first)
			}
			switch {
			case k.key == "":
				yield(driver.RunHistory{}, err)
				return
			case err == nil && len(h.Runs) == 0:
				continue
			case err == nil:
				h.Runs = h.Runs[len(h.Runs)-1:]
			}
			if !yield(h, err) {
				return
			}
		}
	}
}

// scannedKey is a key with its last rows, from the last row of ours on.
type scannedKey struct {
	key   string
	rows  []ledgerRow
	first int64
	err   error // a row cannot be understood
}

// scanKeys yields the keys under a prefix. An error ends it.
func (l *ledger) scanKeys(ctx context.Context, prefix string) iter.Seq2[scannedKey, error] {
	return func(yield func(scannedKey, error) bool) {
		in := &sdk.ScanInput{TableName: &l.tableName, ConsistentRead: new(true)}
		switch keyPrefix, ok := strings.CutPrefix(prefix, l.name+"/"); {
		case ok && keyPrefix != "":
			in.FilterExpression, in.ExpressionAttributeNames = new("begins_with(#k, :p)"), map[string]string{"#k": l.partitionKey}
			in.ExpressionAttributeValues = item{":p": textValue(keyPrefix)}
		case !ok && strings.Contains(prefix, "/"):
			yield(scannedKey{}, l.errOtherLedger(prefix))
			return
		case !ok && !strings.HasPrefix(l.name, prefix):
			return
		}
		var k scannedKey
		for first := true; first || len(in.ExclusiveStartKey) > 0; first = false {
			page, err := sendRead(ctx, l.tableClient, l.client.Scan, in)
			if err != nil {
				yield(scannedKey{}, err)
				return
			}
			for _, it := range page.Items {
				key := stringOf(it[l.partitionKey])
				if strings.HasPrefix(key, controlPrefix) {
					continue
				}
				if key != k.key && k.key != "" && !yield(k, nil) {
					return
				}
				if key != k.key {
					k = scannedKey{key: key, first: firstSequence}
				}
				k.addRow(it)
			}
			in.ExclusiveStartKey = page.LastEvaluatedKey
		}
		if k.key != "" {
			yield(k, nil)
		}
	}
}

// addRow adds the next row of a key.
func (k *scannedKey) addRow(it item) {
	row, err := decodeRow(k.key, it)
	if err != nil {
		k.err = err
		return
	}
	if row.run == nil {
		k.rows = append(k.rows, row)
		return
	}
	k.rows, k.first = append(k.rows[:0], row), max(k.first, row.run.First)
}

// settle reads a key, and ends its newest run if the worker is gone.
func (l *ledger) settle(ctx context.Context, key string) (keyState, error) {
	for {
		st, err := l.readState(ctx, key)
		if err != nil {
			return st, err
		}
		ended, _, err := l.endNewestIfExpired(ctx, key, &st)
		if err != nil && !errors.Is(err, errRefused) || err == nil && !ended {
			return st, err
		}
	}
}

// RetryRun sends two requests.
func (l *ledger) RetryRun(ctx context.Context, name string) error {
	key, err := l.partitionOf(name)
	if err != nil {
		return err
	}
	st, err := l.settle(ctx, key)
	switch {
	case err != nil:
		return err
	case st.last.State == "":
		return fmt.Errorf("%w: the key was never run", driver.ErrInvalid)
	case st.last.State == driver.RunSucceeded:
		return &driver.RunError{Reason: driver.ErrSucceeded, Run: st.last}
	case st.last.State == driver.RunStarted:
		return &driver.RunError{Reason: driver.ErrInProgress, Run: st.last}
	}
	_, err = l.updateRow(ctx, controlPrefix+key, heartbeatSequence, "SET #retry = :retry", "", heartbeatNames,
		item{":retry": numberValue(st.retrySequence())})
	return driverutil.Uncertain(err)
}

const (
	// forgetTTL bounds how long a client that dies while it forgets a key keeps others from running it.
	forgetTTL = driver.MinTTL
	// forgetOwner is the owner of the run that a client makes to forget a key.
	forgetOwner = "an operator who forgets the key"
)

// ForgetRuns begins a run like any other, so that nobody else runs the key meanwhile, and ends it with a row that says
// that the history begins after it. To plain workers the key has failed. Then it removes the rows that ended the runs
// before, with their results.
//
// If it finds such a run in progress, somebody else is forgetting the key, or it has itself begun that run with a
// request that had no reply. It waits until the run has ended or expired.
func (l *ledger) ForgetRuns(ctx context.Context, name string) error {
	key, err := l.partitionOf(name)
	if err != nil {
		return err
	}
	loop := l.newLoop(driver.MaxTTL)
	var hidden int64 // where the history begins if what this call has sent took effect
	for {
		st, err := l.settle(ctx, key)
		switch {
		case err != nil:
		case hidden > 0 && st.first >= hidden, st.last.State == "":
			if err = l.deleteEndsBefore(ctx, key, st.first); err == nil {
				return nil
			}
		case st.last.State == driver.RunStarted && st.last.Owner == forgetOwner:
			err = errRefused
		case st.last.State == driver.RunStarted:
			return &driver.RunError{Reason: driver.ErrInProgress, Run: st.last}
		default:
			hidden = st.newest.sequence + 1 + rowsPerRun
			if err = noteWrite(loop, l.hideHistory(ctx, key, &st)); err == nil {
				continue
			}
		}
		if errors.Is(err, errRefused) {
			err = loop.PauseAfterAnswer(ctx)
		} else {
			err = loop.PauseAfterFailure(ctx, err, false) // noteWrite has noted what was sent
		}
		if err != nil {
			return err
		}
	}
}

// hideHistory makes the history of a key that is not running begin again with its first run. errRefused means that the
// key has changed.
func (l *ledger) hideHistory(ctx context.Context, key string, st *keyState) error {
	start := st.newest.sequence + 1
	now := l.clock.TokenFloor()
	run := rowRun{ID: strings.ToLower(rand.Text()), Attempt: st.last.Attempt + 1, Token: max(now, st.maxToken+1),
		Owner: forgetOwner, StartedAt: now, ExpiresAt: l.latestEnd(forgetTTL),
		TTL: forgetTTL.Milliseconds(), First: st.first, WithdrawnRuns: st.withdrawnRuns}
	run.MaxToken = run.Token
	counter, err := l.sendStart(ctx, key, start, &run)
	if err != nil {
		return err
	}
	if counter != "1" {
		return errRefused
	}
	end := l.endOf(&run, driver.RunFailed, "the key was forgotten")
	end.First, end.WithdrawnRuns = start+rowsPerRun, 0
	return l.putEnd(ctx, key, start, &end)
}

// deleteEndsBefore removes what is hidden of a history, as far as it may be removed.
func (l *ledger) deleteEndsBefore(ctx context.Context, key string, first int64) error {
	var ends []int64
	for it, err := range l.query(ctx, key, 0) {
		if err != nil {
			return err
		}
		row, err := decodeRow(key, it)
		if err != nil {
			return err
		}
		if row.sequence < first-1 && !row.isStarted() { // the newest row, which hides the others, stays
			ends = append(ends, row.sequence)
		}
	}
	for _, sequence := range ends {
		if _, err := l.deleteEnd(ctx, key, sequence); err != nil {
			return err
		}
	}
	return nil
}

// Inspect shows the run that is in progress as the holder of a lock.
func (l *ledger) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	key, err := l.partitionOf(name)
	if err != nil {
		return driver.Lock{}, err
	}
	st, err := l.readState(ctx, key)
	if err != nil {
		return driver.Lock{}, err
	}
	return l.toLock(ctx, key, &st)
}

// toLock shows the state of a key as a lock. It reads the heartbeat of a run of ours.
func (l *ledger) toLock(ctx context.Context, key string, st *keyState) (driver.Lock, error) {
	lock := driver.Lock{Name: l.nameOf(key), Token: st.maxToken,
		Revision: fmt.Sprint(st.newest.sequence, st.newest.status)}
	if !st.newest.isStarted() || st.last.Attempt == 0 {
		return lock, nil
	}
	var h heartbeat
	if st.newest.run != nil {
		var err error
		if h, err = l.readHeartbeat(ctx, key); err != nil {
			return lock, err
		}
		if l.endCause(st.newest.run, h) != "" {
			lock.Revision += " expired"
			return lock, nil
		}
	}
	lock.Kind, lock.Limit, lock.Holders = driver.KindMutex, 1, []driver.ClaimInfo{l.claimInfo(st, h)}
	lock.Revision += " " + h.mark
	return lock, nil
}

// List shows the keys whose run is in progress.
func (l *ledger) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		for k, err := range l.scanKeys(ctx, prefix) {
			if err == nil {
				err = k.err
			}
			lock := driver.Lock{Name: l.nameOf(k.key)}
			if err == nil {
				st := k.state()
				lock, err = l.toLock(ctx, k.key, &st)
			}
			switch {
			case k.key == "":
				yield(driver.Lock{}, err)
				return
			case err == nil && len(lock.Holders) == 0:
				continue
			}
			if !yield(lock, err) {
				return
			}
		}
	}
}

// state is what readState would return.
func (k *scannedKey) state() keyState { return stateOf(k.rows) }

// Break ends or marks the run that is in progress. A plain worker's run can only be ended by force.
func (l *ledger) Break(ctx context.Context, name, ref string, b driver.Break) error {
	key, err := l.partitionOf(name)
	if err != nil {
		return err
	}
	start, id, ok := parseRef(ref)
	if !ok {
		return fmt.Errorf("%w: %q is not a ref of this store", driver.ErrInvalid, ref)
	}
	loop := l.newLoop(driver.MaxTTL)
	for {
		st, err := l.readState(ctx, key)
		switch gone := !st.newest.isStarted() || st.newest.sequence != start || st.last.ID != id; {
		case err != nil:
		case gone && loop.Uncertain && b.Mode != driver.BreakRequestRelease:
			return nil // a request of unknown outcome has ended it; one for a release ends nothing
		case gone:
			return fmt.Errorf("no such run is in progress: %w", driver.ErrLost)
		case st.newest.run == nil && b.Mode != driver.BreakForce:
			return fmt.Errorf("%w: a plain worker cannot be notified; remove its claim by force", driver.ErrUnsupported)
		default:
			if err = l.breakRun(ctx, loop, key, &st, b.Mode); err == nil {
				return nil
			}
		}
		if errors.Is(err, errRefused) {
			err = loop.PauseAfterAnswer(ctx)
		} else {
			err = loop.PauseAfterFailure(ctx, err, false) // breakRun has noted what was sent
		}
		if err != nil {
			return err
		}
	}
}

// NextChange reads the key about once per second.
func (l *ledger) NextChange(ctx context.Context, seen driver.Lock) (driver.Lock, error) {
	return driver.PollChange(ctx, seen, l.Inspect)
}

// breakRun breaks the newest run, as mode says. A run that another program has written has no heartbeat, so it is
// ended at once.
func (l *ledger) breakRun(
	ctx context.Context, loop *driverutil.RetryLoop, key string, st *keyState, mode driver.BreakMode,
) error {
	run := st.newest.run
	switch {
	case run == nil:
		return noteWrite(loop, l.endForeign(ctx, key, st, driver.LossBroken.Description()))
	case mode == driver.BreakGraceful:
		return noteWrite(loop, l.markRun(ctx, key, run.Token, markBroken))
	case mode == driver.BreakRequestRelease:
		return noteWrite(loop, l.markRun(ctx, key, run.Token, markReleaseRequested))
	}
	h, err := l.readHeartbeat(ctx, key)
	if err != nil {
		return err
	}
	return noteWrite(loop, l.abandon(ctx, key, st.newest.sequence, run, h, driver.LossBroken))
}

package dynamodb

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/driver"
)

// The attributes of a row. The first four are the layout's, the others ours: see ledger.
const (
	counterAttribute  = "atomic_counter"
	statusAttribute   = "exec_status"
	createdAttribute  = "created_at"
	idAttribute       = "holdfast_id"
	beforeAttribute   = "holdfast_before"
	runAttribute      = "holdfast_run"
	statusStarted     = "started"
	statusSucceeded   = "succeeded"
	statusFailed      = "failed"
	firstSequence     = 1
	foreignOwner      = "a plain worker"
	createdTimeFormat = "2006-01-02T15:04:05.000000Z"
)

// rowRun is what a row of ours says of its run.
type rowRun struct {
	ID          string `json:"id"`
	Attempt     int64  `json:"attempt"`
	Token       int64  `json:"token"` // 0 for the run of a plain worker, of which we have written the end
	Owner       string `json:"owner,omitempty"`
	Meta        string `json:"meta,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
	StartedAt   int64  `json:"started_us,omitempty"`
	TTL         int64  `json:"ttl_ms,omitempty"`
	ExpiresAt   int64  `json:"expires_us,omitempty"` // unless the run is renewed, by the latest the clock can be
	MaxToken    int64  `json:"max_token"`            // the largest token of the key
	First       int64  `json:"first,omitempty"`      // the sequence with which the history begins
	// WithdrawnRuns is how many runs since First were withdrawn: their rows count for nothing when runs are kept. It is
	// at least that many, or 0 if an older program has written the row.
	WithdrawnRuns int64 `json:"withdrawn_runs,omitempty"`

	// Of the row that ends a run.
	State   driver.RunState  `json:"state,omitempty"`
	EndedAt int64            `json:"ended_us,omitempty"`
	Error   string           `json:"error,omitempty"`
	Cause   driver.LossCause `json:"cause,omitempty"` // why it was abandoned
	Result  []byte           `json:"result,omitempty"`
	Report  string           `json:"report,omitempty"` // unique to the call that has written the row
	// Withdrawn says that the run of these two rows was withdrawn, and that the row has the run before it instead. It
	// is the sequence of the row in which that run had ended.
	Withdrawn int64 `json:"withdrawn,omitempty"`
}

// toRun shows the run.
func (r *rowRun) toRun() driver.Run {
	run := driver.Run{
		Attempt: r.Attempt, State: cmp.Or(r.State, driver.RunStarted), ID: r.ID, Token: r.Token,
		Owner: r.Owner, Meta: r.Meta,
		Fingerprint: r.Fingerprint, StartedAt: microsToTime(r.StartedAt), EndedAt: microsToTime(r.EndedAt), Error: r.Error,
		Result: r.Result,
	}
	return run
}

func microsToTime(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros)
}

// ledgerRow is one row of a key, of a plain worker or ours.
type ledgerRow struct {
	sequence  int64
	status    string
	createdAt string
	run       *rowRun // nil if a plain worker has written the row
}

// decodeRow reads a row. A row that cannot be understood makes its key corrupt: who may run it is not guessed.
func decodeRow(key string, it item) (ledgerRow, error) {
	r := ledgerRow{status: stringOf(it[statusAttribute]), createdAt: stringOf(it[createdAttribute])}
	r.sequence, _ = strconv.ParseInt(numberOf(it[sortKey]), 10, 64)
	wrong := func(what string, args ...any) error {
		return fmt.Errorf("%w: the row %s of the key %q has %s: correct the row, or remove it", driver.ErrCorrupt,
			numberOf(it[sortKey]), key, fmt.Sprintf(what, args...))
	}
	counter, hasCounter := it[counterAttribute]
	switch {
	case strconv.FormatInt(r.sequence, 10) != numberOf(it[sortKey]):
		return r, wrong("a sequence that is not a whole number")
	case hasCounter && numberOf(counter) == "":
		return r, wrong("the attribute %s in another type than number (N)", counterAttribute)
	case !slices.Contains([]string{statusStarted, statusSucceeded, statusFailed}, r.status):
		return r, wrong("%s %q, and not %s, %s or %s", statusAttribute, r.status, statusStarted, statusSucceeded,
			statusFailed)
	}
	if stringOf(it[idAttribute]) == "" || numberOf(it[beforeAttribute]) != "0" {
		return r, nil
	}
	r.run = &rowRun{}
	if err := json.Unmarshal([]byte(stringOf(it[runAttribute])), r.run); err != nil {
		return r, wrong("a %s that cannot be read (%v)", runAttribute, err)
	}
	if r.run.Attempt < 1 || r.run.MaxToken < 1 {
		return r, wrong("a %s without an attempt or a token", runAttribute)
	}
	return r, nil
}

func (r *ledgerRow) isStarted() bool { return r.status == statusStarted }

// keyState is what the newest rows say of a key.
type keyState struct {
	newest   ledgerRow
	last     driver.Run // the last run; its attempt is 0 if there is none
	maxToken int64
	first    int64 // the sequence with which the history begins

	withdrawnRuns int64 // since then
}

// retrySequence is the sequence after which an operator lets one more run begin: that of the row in which the last
// run has ended.
func (st *keyState) retrySequence() int64 {
	if run := st.newest.run; run != nil && run.Withdrawn != 0 {
		return run.Withdrawn
	}
	return st.newest.sequence
}

// readState is one request if the newest row is ours. Otherwise it reads on, down to the last row of ours: there are
// the number of its run and its token.
func (l *ledger) readState(ctx context.Context, key string) (keyState, error) {
	rows, err := l.readRows(ctx, key, 1, func(r *ledgerRow) bool { return r.run != nil })
	return stateOf(rows), err
}

// stateOf makes the state of the newest rows, of which at most the first is ours.
func stateOf(rows []ledgerRow) keyState {
	if len(rows) == 0 {
		return keyState{first: firstSequence}
	}
	st := keyState{newest: rows[len(rows)-1], first: firstSequence}
	if oldest := rows[0].run; oldest != nil {
		st.maxToken, st.first = oldest.MaxToken, max(oldest.First, firstSequence)
		st.withdrawnRuns = oldest.WithdrawnRuns
	}
	if runs := foldRows(rows, st.first); len(runs) > 0 {
		st.last = runs[len(runs)-1].Run
	}
	return st
}

// readRows reads rows from the newest down to one that is enough, and returns them in ascending order.
func (l *ledger) readRows(ctx context.Context, key string, limit int32, isEnough func(*ledgerRow) bool) (
	[]ledgerRow, error) {
	var rows []ledgerRow
	for it, err := range l.query(ctx, key, limit) {
		if err != nil {
			return nil, err
		}
		row, err := decodeRow(key, it)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
		if isEnough(&row) {
			break
		}
	}
	slices.Reverse(rows)
	return rows, nil
}

// runRow is a run and where it is in the table.
type runRow struct {
	driver.Run
	sequence int64 // of its start
}

// foldRows makes runs of rows in ascending order, from the sequence first on. The row after a start is the end of that
// run, of a plain worker or ours.
func foldRows(rows []ledgerRow, first int64) []runRow {
	var runs []runRow
	offset := int64(0) // of the number of a run, if older runs are not shown
	for i := range rows {
		row := &rows[i]
		if row.sequence < first || row.run != nil && row.run.First > row.sequence {
			continue
		}
		isOpen := len(runs) > 0 && runs[len(runs)-1].State == driver.RunStarted
		if row.isStarted() || !isOpen {
			if isOpen {
				endWithoutRow(&runs[len(runs)-1].Run)
			}
			start := row.sequence
			if !row.isStarted() {
				start--
			}
			runs = append(runs, runRow{foreignRun(start, row), start})
		}
		last := &runs[len(runs)-1]
		switch {
		case row.run != nil && row.run.Withdrawn != 0 && len(runs) > 1:
			runs = runs[:len(runs)-1]
		case row.run != nil:
			last.Run = row.run.toRun()
			offset = row.run.Attempt - int64(len(runs))
		case !row.isStarted():
			last.State, last.EndedAt = driver.RunState(row.status), createdTime(row.createdAt)
		}
	}
	for i := range runs {
		runs[i].Attempt = int64(i) + 1 + offset
	}
	return runs
}

// endWithoutRow ends a run whose end is missing, although another run follows.
func endWithoutRow(r *driver.Run) {
	r.State, r.EndedAt, r.Error = driver.RunAbandoned, r.StartedAt, "the next run began without a row that ends this one"
}

// foreignRun is the run of a plain worker by one of its rows.
func foreignRun(start int64, row *ledgerRow) driver.Run {
	return driver.Run{State: driver.RunStarted, ID: fmt.Sprint("foreign-", start), Owner: foreignOwner,
		StartedAt: createdTime(row.createdAt)}
}

// The formats of created_at. Times without a zone come second.
var (
	zonedFormats = []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999Z0700", "2006-01-02T15:04:05.999999999Z07",
		"2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999Z0700", "2006-01-02 15:04:05.999999999Z07"}
	localFormats = []string{"2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999"}
)

// createdTime reads a created_at, for people: a time without a zone is taken for UTC. It returns the zero time if it
// cannot read the text.
func createdTime(text string) time.Time {
	for _, format := range slices.Concat(zonedFormats, localFormats) {
		if t, err := time.Parse(format, text); err == nil {
			return t
		}
	}
	return time.Time{}
}

// latestCreatedTime is the latest time that a created_at can mean: a time without a zone may be that of the zone that
// comes last, 12 hours behind UTC. It returns false if it cannot read the text.
func latestCreatedTime(text string) (time.Time, bool) {
	for _, format := range zonedFormats {
		if t, err := time.Parse(format, text); err == nil {
			return t, true
		}
	}
	t := createdTime(text)
	return t.Add(12 * time.Hour), !t.IsZero()
}

// refusedOr turns the refusal of a condition into errRefused.
func refusedOr(err error) error {
	if refused := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &refused) {
		return errRefused
	}
	return err
}

// encode writes the run for a row.
func (r *rowRun) encode() types.AttributeValue {
	data, err := json.Marshal(r)
	if err != nil {
		panic(err) // it has only texts and numbers
	}
	return textValue(string(data))
}

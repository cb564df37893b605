// Package tabletest checks that a [record.Table] keeps its contract. The engine relies on this contract, and the
// conformance suite of package drivertest cannot check all of it, because it works through the engine. A new table
// should pass these cases before that suite. Nothing here needs package testing:
//
//	func TestTable(t *testing.T) {
//		h := tabletest.Harness{Open: func(ctx context.Context) (record.Table, error) { return openTable(ctx, addr) }}
//		for _, r := range tabletest.Run(t.Context(), h, nil) {
//			if r.Err != nil {
//				t.Errorf("%s: %v\npromised: %s", r.Case.Name, r.Err, r.Case.Promise)
//			}
//		}
//	}
//
// The cases run one after the other. Each uses its own records, and removes them at its end.
//
// A test that could not fail proves nothing. [Mutants] has tables that each break one promise, made of yours: run the
// cases on them too.
package tabletest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// Harness connects the cases to one table.
type Harness struct {
	// Open makes a new client of the table. All clients see the same records.
	Open func(ctx context.Context) (record.Table, error)

	// Lossy, if set, makes a client that calls fate once per request to the server, and does to the request what fate
	// returns. See [drivertest.Transport]. Without Lossy, the cases about lost replies are skipped.
	Lossy func(ctx context.Context, fate func() drivertest.Fate) (record.Table, error)

	// Restart, if set, ends the server and starts it again. It returns when the server answers. Without Restart, the
	// case about versions after a restart is skipped.
	Restart func(ctx context.Context) error

	// Prefix is the beginning of all names. The default is random.
	Prefix string

	// Rows is how many records the case "list" makes. The default is 1,100, because servers return pages of up to
	// 1,000.
	Rows int
}

// Options say how to run the cases. The zero value, and nil, run all of them.
type Options struct {
	// Match says which cases to run. The default is all.
	Match func(c Case) bool

	// Limit is how long one case may take. The default is one minute.
	Limit time.Duration

	// Report, if set, gets each result as soon as it is there.
	Report func(r Result)
}

// Case is one promise of the contract and the way to check it.
type Case struct {
	Name    string // short, in-words-like-this
	Promise string // one sentence
	run     func(e *caseEnv) error
}

// Result is the outcome of one case.
type Result struct {
	Case    Case
	Err     error  // nil: the promise was kept
	Skipped string // why the case could not be run, if it could not
}

// Cases returns all cases.
func Cases() []Case {
	return []Case{
		{"absent", "Load of an absent record returns a Row without version and data, and no error.", checkAbsent},
		{"swap", "A Swap that succeeds returns the version that every client reads from then on.", checkSwap},
		{
			"swap-compares",
			"A Swap of a version that is not the current one returns ErrConflict, with the current row or an empty one, " +
				"and changes nothing.",
			checkSwapCompares,
		},
		{
			"swap-atomic",
			"If eight clients replace or create one version at the same time, exactly one succeeds.",
			checkSwapAtomic,
		},
		{
			"version-new",
			"A version is never used twice for one name, not even for the same data or after a deletion.",
			checkVersionNew,
		},
		{
			"version-restart", "A version that was used before the server was restarted is not used again.",
			checkVersionRestart,
		},
		{"delete", "A deleted record is absent for Load and List, and can be created again.", checkDelete},
		{
			"delete-compares",
			"A Delete of a version that is not the current one returns ErrConflict and changes nothing. A Delete of an " +
				"absent row returns nil.",
			checkDeleteCompares,
		},
		{
			"delete-atomic",
			"If one client deletes a version and another replaces it, exactly one of them succeeds.",
			checkDeleteAtomic,
		},
		{
			"data", "Load returns the data that was written, byte for byte, also that of the largest record.", checkData,
		},
		{"names", "Every name has its own record, and is listed as it was written.", checkNames},
		{
			"list",
			"List yields every record under a prefix once, as Load returns it, however many there are.",
			checkList,
		},
		{
			"kept",
			"A table that removes idle records itself keeps a row until the time of KeepUntil, and forever if that is 0.",
			checkKept,
		},
		{
			"clock",
			"Now never goes back, and the estimates of several clients agree within the errors that they state.",
			checkClock,
		},
		{"context", "A call whose context has ended returns an error promptly.", checkContextEnds},
		{"closed", "After Close, every call returns ErrClosed. Close may be called again.", checkClosed},
		{
			"lost-reply",
			"A write whose reply was lost returns an error for an unknown outcome: no success, no ErrConflict, no refusal, " +
				"no ErrUnsent.",
			checkLostReply,
		},
		{
			"lost-request",
			"A request that never arrived returns an error: no absent record, no empty list, no success, no ErrConflict.",
			checkLostRequest,
		},
		{
			"refused-request",
			"A request that the server refused because of too many requests returns an error after which the engine retries.",
			checkRefusedRequest,
		},
		{
			"lost-list", "A List that cannot read something yields an error. It leaves out no record in silence.",
			checkLostList,
		},
	}
}

// Run checks a table and returns a result for each case, in the order of [Cases]. If the table cannot be opened, Run
// returns only a result that says so. When ctx has ended, the cases that are left have its cause as their error.
//
// A table that gives up a request while the machine is slow has broken no promise. Such a case runs again, up to three
// times.
func Run(ctx context.Context, h Harness, o *Options) []Result {
	opts := o.withDefaults()
	if h.Prefix == "" {
		h.Prefix = "tabletest-" + strings.ToLower(rand.Text()[:8]) + "/"
	}
	if h.Rows == 0 {
		h.Rows = 1100
	}
	var results []Result
	report := func(r Result) {
		results = append(results, r)
		opts.Report(r)
	}
	probe, err := h.Open(ctx)
	if err != nil {
		open := Case{Name: "open", Promise: "The table can be opened."}
		report(Result{Case: open, Err: fmt.Errorf("opening the table: %w", err)})
		return results
	}
	_ = probe.Close()
	var machine pace.Pace
	defer machine.Watch()()
	for _, c := range Cases() {
		if opts.Match(c) {
			report(runCase(ctx, h, c, opts.Limit, &machine))
		}
	}
	return results
}

func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	if d.Match == nil {
		d.Match = func(Case) bool { return true }
	}
	if d.Limit == 0 {
		d.Limit = time.Minute
	}
	if d.Report == nil {
		d.Report = func(Result) {}
	}
	return d
}

// maxRetries is how often a case is repeated that has failed because the machine was slow.
const maxRetries = 3

func runCase(ctx context.Context, h Harness, c Case, limit time.Duration, machine *pace.Pace) Result {
	for tries := 0; ; tries++ {
		if ctx.Err() != nil {
			return Result{Case: c, Err: fmt.Errorf("not run: %w", context.Cause(ctx))}
		}
		start := time.Now()
		err := tryCase(ctx, h, c, limit, fmt.Sprintf("%s%s/%d/", h.Prefix, c.Name, tries))
		var skip skipped
		var no unansweredError
		switch {
		case errors.As(err, &skip):
			return Result{Case: c, Skipped: string(skip)}
		case errors.As(err, &no) && tries < maxRetries && machine.Worst(start) > pace.SlowMachine:
		default:
			return Result{Case: c, Err: err}
		}
	}
}

func tryCase(ctx context.Context, h Harness, c Case, limit time.Duration, prefix string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the case took longer than %v", limit))
	defer cancel()
	e := &caseEnv{ctx: ctx, h: h, prefix: prefix}
	defer e.cleanUp()
	return c.run(e)
}

// unansweredError is the error of a call that had to succeed and has an unknown outcome. It proves nothing if the
// machine was slow.
type unansweredError struct{ error }

func (u unansweredError) Unwrap() error { return u.error }

// markUnanswered wraps the error of a call that had to succeed.
func markUnanswered(err error) error {
	if isUnknownOutcome(err) {
		return unansweredError{err}
	}
	return err
}

type skipped string

func (s skipped) Error() string { return string(s) }

// caseEnv has the clients and record names of a case.
type caseEnv struct {
	ctx    context.Context
	h      Harness
	prefix string

	mu     sync.Mutex
	tables []record.Table
	used   []string
}

// openClient makes a client for the case.
func (e *caseEnv) openClient() (record.Table, error) {
	t, err := e.h.Open(e.ctx)
	if err != nil {
		return nil, fmt.Errorf("opening a client: %w", markUnanswered(err))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tables = append(e.tables, t)
	return t, nil
}

func (e *caseEnv) openClients(n int) (ts []record.Table, err error) {
	for range n {
		t, err := e.openClient()
		if err != nil {
			return nil, err
		}
		ts = append(ts, t)
	}
	return ts, nil
}

// recordName returns the name of a record of this case.
func (e *caseEnv) recordName(n string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.used = append(e.used, e.prefix+n)
	return e.prefix + n
}

// cleanUp removes the records of the case, as far as that is possible.
func (e *caseEnv) cleanUp() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), 10*time.Second)
	defer cancel()
	if t, err := e.h.Open(ctx); err == nil {
		for _, name := range e.used {
			if row, err := t.Load(ctx, name); err == nil && row.Version != "" {
				_ = t.Delete(ctx, row)
			}
		}
		_ = t.Close()
	}
	for _, t := range e.tables {
		_ = t.Close()
	}
}

// idleData returns the data of an idle lock as the engine writes it, and its token. A table may decode the data. The
// lock is idle from idleSince on: a client of the same store that deletes old records leaves it alone.
func idleData(token int64) (data []byte, _ int64) {
	data, err := record.Encode(&record.Record{Token: token, Idle: idleSince})
	if err != nil {
		panic(err)
	}
	return data, token
}

// newRow returns a row that replaces a version. Rows with different tokens have different data.
func newRow(name, version string, token int64) record.Row {
	data, token := idleData(token)
	return record.Row{Name: name, Version: version, Data: data, Token: token}
}

// baseToken is the first token. It is a day old, so that no table's clock is behind it.
var baseToken = time.Now().Add(-24 * time.Hour).UnixMicro()

// idleSince is later than the end of any run.
var idleSince = time.Now().Add(24 * time.Hour).UnixMicro()

// writeRow writes a row, which must succeed.
func writeRow(e *caseEnv, t record.Table, r record.Row) (record.Row, error) {
	got, err := t.Swap(e.ctx, r)
	if err != nil {
		return got, fmt.Errorf("a Swap of %[2]q from its current version %[1]q failed: %[3]w", r.Version, r.Name,
			markUnanswered(err))
	}
	if got.Version == "" {
		return got, fmt.Errorf("a Swap of %q succeeded without a version", r.Name)
	}
	return got, nil
}

// expectRow loads a row, which must be as it was written.
func expectRow(e *caseEnv, t record.Table, want record.Row) error {
	got, err := t.Load(e.ctx, want.Name)
	switch {
	case err != nil:
		return fmt.Errorf("loading %q: %w", want.Name, markUnanswered(err))
	case got.Version != want.Version:
		return fmt.Errorf("%q should have version %q, but Load returned %q", want.Name, want.Version, got.Version)
	case string(got.Data) != string(want.Data):
		return fmt.Errorf("%q does not have the data of version %q", want.Name, want.Version)
	}
	return nil
}

// expectAbsent checks that there is no row.
func expectAbsent(e *caseEnv, t record.Table, name string) error {
	got, err := t.Load(e.ctx, name)
	if err != nil {
		return fmt.Errorf("loading %q, which is absent: %w", name, markUnanswered(err))
	}
	if got.Version != "" || len(got.Data) != 0 {
		return fmt.Errorf("%q should be absent, but Load returned version %q and %d bytes", name, got.Version,
			len(got.Data))
	}
	return nil
}

// isUnknownOutcome reports whether the engine treats an error as an unknown outcome.
func isUnknownOutcome(err error) bool {
	return err != nil && !errors.Is(err, record.ErrConflict) && !driverutil.IsFinal(err)
}

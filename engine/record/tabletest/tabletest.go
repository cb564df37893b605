// Package tabletest checks that a [record.Table] keeps its contract: what the engine relies on, and what the
// conformance suite of package drivertest cannot see from above the engine. A table passes it before it meets that
// suite. Nothing here needs package testing:
//
//	func TestTable(t *testing.T) {
//		h := tabletest.Harness{Open: func(ctx context.Context) (record.Table, error) { return openTable(ctx, addr) }}
//		for _, r := range tabletest.Run(t.Context(), h) {
//			if r.Err != nil {
//				t.Errorf("%s: %v\npromised: %s", r.Case.Name, r.Err, r.Case.Promise)
//			}
//		}
//	}
//
// The cases run one after the other, on records of their own.
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
)

// Harness connects the cases to one table.
type Harness struct {
	// Open makes a new client of the table: what one writes the others see.
	Open func(ctx context.Context) (record.Table, error)

	// Lossy, if set, makes a client whose requests meet the fates that it asks for, one for each request on its way
	// to the server: see [drivertest.Transport]. Without it the cases about lost replies are skipped.
	Lossy func(ctx context.Context, fate func() drivertest.Fate) (record.Table, error)

	// Prefix starts all names. Default: a random one.
	Prefix string

	// Rows is how many records are made to be listed. Default 1,100: servers give out pages of up to 1,000.
	Rows int

	// Limit is for one case. Default one minute.
	Limit time.Duration
}

// Case is one promise of the contract and the way to check it.
type Case struct {
	Name    string // short, in-words-like-this
	Promise string // one sentence
	run     func(e *caseEnv) error
}

// Result is how a table did in one case.
type Result struct {
	Case    Case
	Err     error  // nil: the promise was kept
	Skipped string // why the case could not be run, if it could not
}

// Cases are all cases.
func Cases() []Case {
	return []Case{
		{"absent", "A record that is absent is a Row without a version and without data, and no error.", checkAbsent},
		{"swap", "A Swap that succeeds gives back the version under which the row is read from then on, by every client, at once.", checkSwap},
		{"swap-compares", "A Swap of another version than the row has is an ErrConflict, changes nothing, and gives back the row as it is, or none.", checkSwapCompares},
		{"swap-atomic", "Of eight clients that replace, or create, one version at the same time exactly one wins.", checkSwapAtomic},
		{"version-new", "A version is never used twice for one name, also for the same data, and across a deletion.", checkVersionNew},
		{"delete", "What was deleted is gone: for Load, for List, and for who would create it anew.", checkDelete},
		{"delete-compares", "A Delete of another version than the row has is an ErrConflict, and leaves the row; of no row it is nil.", checkDeleteCompares},
		{"delete-atomic", "Of one who deletes and one who replaces the same version exactly one succeeds.", checkDeleteAtomic},
		{"data", "Data comes back as it was written, byte for byte.", checkData},
		{"names", "Every name is a record of its own, and is listed as it was given.", checkNames},
		{"list", "List yields every record under a prefix, each once and as Load gives it, however many there are.", checkList},
		{"clock", "Now never falls, and what the clients of one table say of the store's clock fits together within the errors that they state.", checkClock},
		{"context", "A call whose context has ended returns its error soon, and no success.", checkContextEnds},
		{"closed", "After Close every call says ErrClosed; Close may be called again.", checkClosed},
		{"lost-reply", "A write that took effect and whose reply was lost is neither a success nor an ErrConflict nor a refusal: its outcome is not known.", checkLostReply},
		{"lost-request", "A request that never arrived is an error: no absent record, no empty list, no success, no ErrConflict.", checkLostRequest},
		{"refused-request", "A request that the server turned away for now, as too many, is an error that tells the engine to look again.", checkRefusedRequest},
	}
}

// Run checks a table, and returns a result for each case, in the order of [Cases]. If the table cannot be opened,
// that is the one result.
func Run(ctx context.Context, h Harness) []Result {
	if h.Prefix == "" {
		h.Prefix = "tabletest-" + strings.ToLower(rand.Text()[:8]) + "/"
	}
	if h.Rows == 0 {
		h.Rows = 1100
	}
	if h.Limit == 0 {
		h.Limit = time.Minute
	}
	probe, err := h.Open(ctx)
	if err != nil {
		open := Case{Name: "open", Promise: "The table can be opened."}
		return []Result{{Case: open, Err: fmt.Errorf("opening the table: %w", err)}}
	}
	_ = probe.Close()
	var results []Result
	for _, c := range Cases() {
		results = append(results, runCase(ctx, h, c))
	}
	return results
}

func runCase(ctx context.Context, h Harness, c Case) Result {
	ctx, cancel := context.WithTimeoutCause(ctx, h.Limit, fmt.Errorf("the case took longer than %v", h.Limit))
	defer cancel()
	e := &caseEnv{ctx: ctx, h: h, prefix: h.Prefix + c.Name + "/"}
	err := c.run(e)
	e.cleanUp()
	var skip skipped
	if errors.As(err, &skip) {
		return Result{Case: c, Skipped: string(skip)}
	}
	return Result{Case: c, Err: err}
}

type skipped string

func (s skipped) Error() string { return string(s) }

// caseEnv is what a case works with.
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
		return nil, fmt.Errorf("opening a client: %w", err)
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

// recordName is that of a record of this case.
func (e *caseEnv) recordName(n string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.used = append(e.used, e.prefix+n)
	return e.prefix + n
}

// cleanUp removes what the case has left, as far as that is possible.
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

// idleData is the data of an idle lock, and its token: what the engine keeps, since a table may look into it.
func idleData(token int64) (data []byte, _ int64) {
	data, err := record.Encode(&record.Record{Token: token, Idle: token})
	if err != nil {
		panic(err)
	}
	return data, token
}

// newRow is a row to be written over a version, with a content of its own.
func newRow(name, version string, token int64) record.Row {
	data, token := idleData(token)
	return record.Row{Name: name, Version: version, Data: data, Token: token}
}

// baseToken is where tokens begin: some time ago, so that no table finds them in the future.
var baseToken = time.Now().Add(-24 * time.Hour).UnixMicro()

// writeRow writes a row, and looks whether it was.
func writeRow(e *caseEnv, t record.Table, r record.Row) (record.Row, error) {
	got, err := t.Swap(e.ctx, r)
	if err != nil {
		return got, fmt.Errorf("a Swap of version %q of %q, which stands, failed: %w", r.Version, r.Name, err)
	}
	if got.Version == "" {
		return got, fmt.Errorf("a Swap of %q succeeded and gave no version", r.Name)
	}
	return got, nil
}

// expectRow loads a row, which must be as it was written.
func expectRow(e *caseEnv, t record.Table, want record.Row) error {
	got, err := t.Load(e.ctx, want.Name)
	switch {
	case err != nil:
		return fmt.Errorf("loading %q: %w", want.Name, err)
	case got.Version != want.Version:
		return fmt.Errorf("%q should stand at version %q and is read at %q", want.Name, want.Version, got.Version)
	case string(got.Data) != string(want.Data):
		return fmt.Errorf("%q does not have the data that stand at version %q", want.Name, want.Version)
	}
	return nil
}

// expectAbsent checks that there is no row.
func expectAbsent(e *caseEnv, t record.Table, name string) error {
	got, err := t.Load(e.ctx, name)
	if err != nil {
		return fmt.Errorf("loading %q, which is absent: %w", name, err)
	}
	if got.Version != "" || len(got.Data) != 0 {
		return fmt.Errorf("%q should be absent and is read at version %q with %d bytes", name, got.Version, len(got.Data))
	}
	return nil
}

// isUnknownOutcome reports whether an error says that the outcome is not known, as the engine takes it.
func isUnknownOutcome(err error) bool {
	return err != nil && !errors.Is(err, record.ErrConflict) && !driverutil.IsFinal(err)
}

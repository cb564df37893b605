package tabletest_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// remote is a correct table behind a link that loses requests and replies. Each Load calls onLoad first, if it is
// set. It may remove idle records, and never does.
type remote struct {
	record.Table
	fate   func() drivertest.Fate
	onLoad func(t record.Table)
}

func (*remote) Traits() record.Traits { return record.Traits{ExpiresIdle: true} }

// ask is one request.
func ask[T any](t *remote, request func() (T, error)) (T, error) {
	if t.fate == nil {
		return request()
	}
	return drivertest.Carry(t.fate(), request)
}

func (t *remote) Load(ctx context.Context, name string) (record.Row, error) {
	if t.onLoad != nil {
		t.onLoad(t.Table)
	}
	return ask(t, func() (record.Row, error) { return t.Table.Load(ctx, name) })
}

func (t *remote) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	return ask(t, func() (record.Row, error) { return t.Table.Swap(ctx, row) })
}

func (t *remote) Delete(ctx context.Context, row record.Row) error {
	_, err := ask(t, func() (bool, error) { return true, t.Table.Delete(ctx, row) })
	return err
}

func (t *remote) List(ctx context.Context, prefix, after string) iter.Seq2[record.Row, error] {
	rows, err := ask(t, func() (iter.Seq2[record.Row, error], error) { return t.Table.List(ctx, prefix, after), nil })
	if err != nil {
		return func(yield func(record.Row, error) bool) { yield(record.Row{}, err) }
	}
	return rows
}

// harness is one correct store.
func harness(onLoad func(t record.Table)) tabletest.Harness {
	m := memory.New(nil)
	open := func(fate func() drivertest.Fate) (record.Table, error) {
		return &remote{Table: m.Table(), fate: fate, onLoad: onLoad}, nil
	}
	return tabletest.Harness{
		Open:  func(context.Context) (record.Table, error) { return open(nil) },
		Lossy: func(_ context.Context, fate func() drivertest.Fate) (record.Table, error) { return open(fate) },
		// The records of the store survive, and nothing else is in it.
		Restart: func(context.Context) error { return nil },
	}
}

// TestSound: a correct table passes all cases, and none is skipped. Each result is reported when it is there.
func TestSound(t *testing.T) {
	t.Parallel()
	var reported []string
	results := tabletest.Run(t.Context(), harness(nil), &tabletest.Options{Report: func(r tabletest.Result) {
		reported = append(reported, r.Case.Name)
	}})
	for i, r := range results {
		if r.Err != nil || r.Skipped != "" || reported[i] != r.Case.Name {
			t.Errorf("%s: %v, skipped: %q; reported: %s", r.Case.Name, r.Err, r.Skipped, reported[i])
		}
	}
	if len(results) != len(tabletest.Cases()) || len(reported) != len(results) {
		t.Errorf("%d results and %d reports of %d cases", len(results), len(reported), len(tabletest.Cases()))
	}
}

// keptOpen is a table that outlives its engine.
type keptOpen struct{ record.Table }

func (keptOpen) Close() error { return nil }

// TestBesideLocks: a correct table passes although clients with locks in the same table close all the time. Each of
// them may delete the records of locks that have been idle for long.
func TestBesideLocks(t *testing.T) {
	t.Parallel()
	h := harness(func(t record.Table) {
		for range 100 {
			_ = record.New(keptOpen{t}).Close()
		}
	})
	h.Rows = 30
	for _, r := range tabletest.Run(t.Context(), h, nil) {
		if r.Err != nil {
			t.Errorf("%s: %v", r.Case.Name, r.Err)
		}
	}
}

// TestMutants: the case that is named finds each mutant, for the right reason.
func TestMutants(t *testing.T) {
	t.Parallel()
	reasons := map[string]string{
		"deletes without comparing":                "a Delete of an old version",
		"never deletes":                            "should be absent",
		"uses a hash of the data as the version":   "was used twice",
		"takes a lost reply for a conflict":        "its reply was lost, but it returned",
		"calls a rough clock exact":                "errors stated is too small",
		"takes an error for an absent record":      "a Load whose request never arrived",
		"takes too many requests for a refusal":    "refused for now",
		"lists the first page only":                "is missing",
		"folds case":                               "share a record",
		"continues after Close":                    "after Close should return ErrClosed",
		"swaps without comparing":                  "a Swap of",
		"compares and writes in two steps":         "at the same time",
		"reads from a cache":                       "should have version",
		"counts versions in memory":                "after a restart: version",
		"returns other data with a conflict":       "with other data",
		"cuts large records":                       "does not have the data",
		"removes idle records too soon":            "that was to be kept",
		"says that what had no reply was not sent": "its reply was lost, but it returned",
		"leaves out what it cannot list":           "yields no error",
	}
	for _, m := range tabletest.Mutants() {
		t.Run(m.Defect, func(t *testing.T) {
			t.Parallel()
			results := tabletest.Run(t.Context(), m.Break(harness(nil)), &tabletest.Options{Match: m.IsCase})
			if len(results) != 1 {
				t.Fatalf("%d results", len(results))
			}
			want := reasons[m.Defect]
			if err := results[0].Err; want == "" || err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", m.Case, err, want)
			}
		})
	}
	if len(reasons) != len(tabletest.Mutants()) {
		t.Errorf("%d reasons for %d mutants", len(reasons), len(tabletest.Mutants()))
	}
}

// TestContextEnds: the cases that are left when the context ends say that they were not run.
func TestContextEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	late := errors.New("no time left")
	results := tabletest.Run(ctx, harness(nil), &tabletest.Options{Report: func(tabletest.Result) { cancel(late) }})
	if len(results) != len(tabletest.Cases()) || results[0].Err != nil {
		t.Fatalf("%+v", results)
	}
	for _, r := range results[1:] {
		if !errors.Is(r.Err, late) || !strings.HasPrefix(r.Err.Error(), "not run: ") {
			t.Errorf("%s: %v", r.Case.Name, r.Err)
		}
	}
}

// TestOpenFails: if a table cannot be opened, Run returns one result, with the error.
func TestOpenFails(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	results := tabletest.Run(t.Context(),
		tabletest.Harness{Open: func(context.Context) (record.Table, error) { return nil, away }}, nil)
	if len(results) != 1 || !errors.Is(results[0].Err, away) {
		t.Errorf("%v", results)
	}
}

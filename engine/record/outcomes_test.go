package record_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// faultyTable is a table some of whose next requests fail: loads, swaps for which there was no connection, swaps whose
// replies were lost, and swaps that another client's write has refused.
type faultyTable struct {
	record.Table
	loads, unsent, lost, conflicts atomic.Int64
	afterLost                      func() // called when a swap's reply was lost
}

func (*faultyTable) Watcher() record.Watcher { return nil }

func (t *faultyTable) Load(ctx context.Context, name string) (record.Row, error) {
	if t.loads.Add(-1) >= 0 {
		return record.Row{}, errUnreachable
	}
	return t.Table.Load(ctx, name)
}

func (t *faultyTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	switch {
	case t.conflicts.Add(-1) >= 0:
		return record.Row{}, record.ErrConflict
	case t.unsent.Add(-1) >= 0:
		return record.Row{}, fmt.Errorf("%w: %w", record.ErrUnsent, errUnreachable)
	}
	row, err := t.Table.Swap(ctx, row)
	if err == nil && t.lost.Add(-1) >= 0 {
		if t.afterLost != nil {
			t.afterLost()
		}
		return record.Row{}, errUnreachable
	}
	return row, err
}

// fault makes the next n requests fail. Before loads fail, a swap is refused: then the remembered row is old.
func (t *faultyTable) fault(kind string, n int64) {
	t.loads.Store(0)
	t.unsent.Store(0)
	t.lost.Store(0)
	t.conflicts.Store(0)
	switch kind {
	case "load":
		t.conflicts.Store(1)
		t.loads.Store(n)
	case "unsent":
		t.unsent.Store(n)
	case "lost":
		t.lost.Store(n)
	}
}

// outcomeSteps are the calls that change a lock or a run, and that are tried until their outcome is known. Each of them
// is a new one on its table.
var outcomeSteps = map[string]func(t *testing.T, table record.Table) (step func(context.Context) error){
	"Release": func(t *testing.T, table record.Table) func(context.Context) error {
		s, g := acquireForStep(t, table)
		return func(ctx context.Context) error { return s.Release(ctx, g.Claim, "") }
	},
	"Detach": func(t *testing.T, table record.Table) func(context.Context) error {
		s, g := acquireForStep(t, table)
		return func(ctx context.Context) error { return s.Detach(ctx, g, time.Hour) }
	},
	"SetWeight": func(t *testing.T, table record.Table) func(context.Context) error {
		s, g := acquireForStep(t, table)
		return func(ctx context.Context) error { return s.SetWeight(ctx, g, 1) }
	},
	"Break": func(t *testing.T, table record.Table) func(context.Context) error {
		s, g := acquireForStep(t, table)
		return func(ctx context.Context) error {
			return s.Break(ctx, g.Name, g.Ref, driver.Break{Mode: driver.BreakForce})
		}
	},
	"RaiseToken": func(t *testing.T, table record.Table) func(context.Context) error {
		s, g := acquireForStep(t, table)
		return func(ctx context.Context) error {
			return s.RaiseToken(ctx, g.Name, g.Token+1e9)
		}
	},
	"FinishRun": func(t *testing.T, table record.Table) func(context.Context) error {
		l, g := beginForStep(t, table)
		return func(ctx context.Context) error { return l.FinishRun(ctx, g, succeeded("done")) }
	},
	"ForgetRuns": func(t *testing.T, table record.Table) func(context.Context) error {
		l, g := beginForStep(t, table)
		storetest.Release(t, l, g.Claim)
		return func(ctx context.Context) error { return l.ForgetRuns(ctx, g.Name) }
	},
	"RetryRun": func(t *testing.T, table record.Table) func(context.Context) error {
		l, g := beginForStep(t, table)
		storetest.Release(t, l, g.Claim)
		return func(ctx context.Context) error { return l.RetryRun(ctx, g.Name) }
	},
}

func acquireForStep(t *testing.T, table record.Table) (driver.Store, driver.Grant) {
	s := record.New(table)
	t.Cleanup(func() { _ = s.Close() })
	c := storetest.Mutex("a", time.Minute)
	c.Kind, c.Limit, c.Weight = driver.KindRW, 10, 10
	return s, storetest.Acquire(t, s, c)
}

func beginForStep(t *testing.T, table record.Table) (driver.Ledger, driver.Grant) {
	l := record.NewLedger(table)
	t.Cleanup(func() { _ = l.Close() })
	return l, storetest.Acquire(t, l, newRun("a"))
}

// TestStepsAreTriedAgain: a request that failed ends no call that changes something, whether or not it was sent, and
// whether it was a read or a write.
func TestStepsAreTriedAgain(t *testing.T) {
	for name, prepare := range outcomeSteps {
		for _, fault := range []string{"load", "unsent", "lost"} {
			t.Run(name+", "+fault, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					table := &faultyTable{Table: fakeMemory().Table()}
					step := prepare(t, table)
					table.fault(fault, 2)
					if err := step(t.Context()); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// TestSilentStoreEndsSteps: a call ends with its context, and otherwise when the store has been silent for 10 s. The
// outcome is uncertain if and only if something may have been written.
func TestSilentStoreEndsSteps(t *testing.T) {
	for name, prepare := range outcomeSteps {
		for _, fault := range []string{"load", "unsent", "lost"} {
			for _, limit := range []time.Duration{time.Second, time.Hour} {
				t.Run(fmt.Sprint(name, ", ", fault, ", ", limit), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						table := &faultyTable{Table: fakeMemory().Table()}
						step := prepare(t, table)
						table.fault(fault, 1e9)
						if fault == "lost" { // what reads the outcome does not find it
							table.afterLost = func() { table.loads.Store(1e9) }
						}
						ctx, cancel := context.WithTimeout(t.Context(), limit)
						defer cancel()
						start := time.Now()
						err := step(ctx)
						min := min(limit, 10*time.Second)
						if took := time.Since(start); took < min || took > min+2*time.Second {
							t.Errorf("it took %v", took)
						}
						if !errors.Is(err, errUnreachable) || errors.Is(err, context.DeadlineExceeded) != (ctx.Err() != nil) ||
							errors.Is(err, driver.ErrUncertain) != (fault == "lost") {
							t.Errorf("unexpected error %v", err)
						}
					})
				})
			}
		}
	}
}

// TestRefusalOfUncertainStep: a store that refuses everything does not tell whether an earlier request took effect.
func TestRefusalOfUncertainStep(t *testing.T) {
	for name, prepare := range outcomeSteps {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				refusing := &refusingTable{Table: fakeMemory().Table()}
				table := &faultyTable{Table: refusing}
				step := prepare(t, table)
				table.fault("lost", 1)
				table.afterLost = func() { refusing.with.Store(&driver.ErrDenied) }
				if err := step(t.Context()); !errors.Is(err, driver.ErrUncertain) || !errors.Is(err, driver.ErrDenied) {
					t.Errorf("unexpected error %v", err)
				}
			})
		})
	}
}

// TestLateStepsOfHistories: an operator's call whose reply was lost does not touch what has begun meanwhile: the
// history of a key that was forgotten, and a key that has used its retry.
func TestLateStepsOfHistories(t *testing.T) {
	for _, name := range []string{"ForgetRuns", "RetryRun"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := fakeMemory()
				table := &faultyTable{Table: m.Table()}
				step := outcomeSteps[name](t, table)
				other := record.NewLedger(m.Table())
				defer other.Close()
				table.fault("lost", 1)
				table.afterLost = func() {
					c := newRun("a")
					c.Run.MaxAttempts = 1
					g := storetest.Acquire(t, other, c)
					if err := other.FinishRun(t.Context(), g, driver.RunOutcome{State: driver.RunFailed}); err != nil {
						t.Error(err)
					}
				}
				if err := step(t.Context()); err != nil {
					t.Error(err)
				}
				h, err := other.ReadRuns(t.Context(), "a", 0)
				if err != nil || len(h.Runs) == 0 || h.RetryAllowed {
					t.Errorf("the history is %+v, %v", h, err)
				}
			})
		})
	}
}

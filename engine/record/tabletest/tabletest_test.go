package tabletest_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// remote is a correct table behind a link that loses requests and replies. A function that is set replaces the
// method.
type remote struct {
	record.Table
	fate func() drivertest.Fate

	load   func(t *remote, ctx context.Context, name string) (record.Row, error)
	swap   func(t *remote, ctx context.Context, row record.Row) (record.Row, error)
	delete func(t *remote, ctx context.Context, row record.Row) error
	list   func(t *remote, ctx context.Context, prefix string) iter.Seq2[record.Row, error]
	now    func(t *remote) (int64, time.Duration)
	close  func(t *remote) error

	lastReplyAt atomic.Int64
}

// ask is one request.
func ask[T any](t *remote, request func() (T, error)) (T, error) {
	if t.fate == nil {
		return request()
	}
	return drivertest.Carry(t.fate(), request)
}

func (t *remote) Load(ctx context.Context, name string) (record.Row, error) {
	t.lastReplyAt.CompareAndSwap(0, time.Now().Unix())
	if t.load != nil {
		return t.load(t, ctx, name)
	}
	return ask(t, func() (record.Row, error) { return t.Table.Load(ctx, name) })
}

func (t *remote) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if t.swap != nil {
		return t.swap(t, ctx, row)
	}
	return ask(t, func() (record.Row, error) { return t.Table.Swap(ctx, row) })
}

func (t *remote) Delete(ctx context.Context, row record.Row) error {
	if t.delete != nil {
		return t.delete(t, ctx, row)
	}
	_, err := ask(t, func() (bool, error) { return true, t.Table.Delete(ctx, row) })
	return err
}

func (t *remote) List(ctx context.Context, prefix string) iter.Seq2[record.Row, error] {
	if t.list != nil {
		return t.list(t, ctx, prefix)
	}
	rows, err := ask(t, func() (iter.Seq2[record.Row, error], error) { return t.Table.List(ctx, prefix), nil })
	if err != nil {
		return func(yield func(record.Row, error) bool) { yield(record.Row{}, err) }
	}
	return rows
}

func (t *remote) Now() (int64, time.Duration) {
	if t.now != nil {
		return t.now(t)
	}
	return t.Table.Now()
}

func (t *remote) Close() error {
	if t.close != nil {
		return t.close(t)
	}
	return t.Table.Close()
}

// harness is one store, all of whose clients are changed by change.
func harness(change func(t *remote)) tabletest.Harness {
	m := memory.New(nil)
	open := func(fate func() drivertest.Fate) (record.Table, error) {
		t := &remote{Table: m.Table(), fate: fate}
		change(t)
		return t, nil
	}
	return tabletest.Harness{
		Open:  func(context.Context) (record.Table, error) { return open(nil) },
		Lossy: func(_ context.Context, fate func() drivertest.Fate) (record.Table, error) { return open(fate) },
	}
}

// TestSound: a correct table passes all cases, and none is skipped.
func TestSound(t *testing.T) {
	t.Parallel()
	results := tabletest.Run(t.Context(), harness(func(*remote) {}))
	for _, r := range results {
		if r.Err != nil || r.Skipped != "" {
			t.Errorf("%s: %v, skipped: %q", r.Case.Name, r.Err, r.Skipped)
		}
	}
	if len(results) != len(tabletest.Cases()) {
		t.Errorf("%d results of %d cases", len(results), len(tabletest.Cases()))
	}
}

// TestBesideLocks: a correct table passes although clients with locks in the same table close all the time. Each of them
// may delete the records of locks that have been idle for long.
func TestBesideLocks(t *testing.T) {
	t.Parallel()
	h := harness(func(t *remote) {
		t.load = func(t *remote, ctx context.Context, name string) (record.Row, error) {
			for range 100 {
				keepOpen := func(*remote) error { return nil }
				if err := record.New(&remote{Table: t.Table, close: keepOpen}).Close(); err != nil {
					return record.Row{}, err
				}
			}
			return ask(t, func() (record.Row, error) { return t.Table.Load(ctx, name) })
		}
	})
	h.Rows = 30
	for _, r := range tabletest.Run(t.Context(), h) {
		if r.Err != nil {
			t.Errorf("%s: %v", r.Case.Name, r.Err)
		}
	}
}

// TestBroken: each broken table fails the case that checks its defect, for the right reason.
func TestBroken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, caught, want string }{
		{"deletes without comparing", "delete-compares", "a Delete of an old version"},
		{"never deletes", "delete", "should be absent"},
		{"uses a hash of the data as version", "version-new", "was used twice"},
		{"reports a lost reply as a conflict", "lost-reply", "its reply was lost, but it returned"},
		{"calls a rough clock exact", "clock", "errors stated is too small"},
		{"counts an error as an absent record", "lost-request", "a Load whose request never arrived"},
		{"counts too many requests as a refusal", "refused-request", "refused for now"},
		{"lists the first page only", "list", "is missing"},
		{"folds case", "names", "share a record"},
		{"continues after Close", "closed", "after Close should return ErrClosed"},
		{"swaps without comparing", "swap-compares", "a Swap of"},
		{"compares and writes in two steps", "swap-atomic", "at the same time"},
		{"reads from a cache", "swap", "should have version"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			breaks := broken[c.name]
			if breaks == nil {
				t.Fatal("there is no such table")
			}
			for _, r := range tabletest.Run(t.Context(), harness(breaks())) {
				if r.Case.Name == c.caught && (r.Err == nil || !strings.Contains(r.Err.Error(), c.want)) {
					t.Errorf("%s: %v, want %q", c.caught, r.Err, c.want)
				}
			}
		})
	}
}

// broken has functions that break a correct table.
var broken = map[string]func() func(t *remote){
	"deletes without comparing": func() func(t *remote) {
		return func(t *remote) {
			t.delete = func(t *remote, ctx context.Context, row record.Row) error {
				now, err := t.Table.Load(ctx, row.Name)
				if err != nil {
					return err
				}
				return t.Table.Delete(ctx, now)
			}
		}
	},
	"never deletes": func() func(t *remote) {
		return func(t *remote) { t.delete = func(*remote, context.Context, record.Row) error { return nil } }
	},
	"uses a hash of the data as version": func() func(t *remote) { return hashedTable() },
	"reports a lost reply as a conflict": func() func(t *remote) {
		return func(t *remote) {
			t.swap = func(t *remote, ctx context.Context, row record.Row) (record.Row, error) {
				got, err := ask(t, func() (record.Row, error) { return t.Table.Swap(ctx, row) })
				if errors.Is(err, drivertest.ErrLost) {
					err = record.ErrConflict
				}
				return got, err
			}
		}
	},
	"calls a rough clock exact": func() func(t *remote) {
		return func(t *remote) {
			from := time.Now()
			t.now = func(t *remote) (int64, time.Duration) {
				return t.lastReplyAt.Load()*1e6 + time.Since(from).Microseconds(), 0
			}
		}
	},
	"counts an error as an absent record": func() func(t *remote) {
		return func(t *remote) {
			t.load = func(t *remote, ctx context.Context, name string) (record.Row, error) {
				got, err := ask(t, func() (record.Row, error) { return t.Table.Load(ctx, name) })
				if errors.Is(err, drivertest.ErrLost) {
					return record.Row{Name: name}, nil
				}
				return got, err
			}
		}
	},
	"counts too many requests as a refusal": func() func(t *remote) {
		return func(t *remote) {
			t.swap = func(t *remote, ctx context.Context, row record.Row) (record.Row, error) {
				got, err := ask(t, func() (record.Row, error) { return t.Table.Swap(ctx, row) })
				if errors.Is(err, drivertest.ErrRefused) {
					err = driver.ErrDenied
				}
				return got, err
			}
		}
	},
	"lists the first page only": func() func(t *remote) {
		return func(t *remote) {
			t.list = func(t *remote, ctx context.Context, prefix string) iter.Seq2[record.Row, error] {
				return func(yield func(record.Row, error) bool) {
					n := 0
					for row, err := range t.Table.List(ctx, prefix) {
						if n++; n > 1000 || !yield(row, err) {
							return
						}
					}
				}
			}
		}
	},
	"folds case": func() func(t *remote) {
		return func(t *remote) {
			t.swap = func(t *remote, ctx context.Context, row record.Row) (record.Row, error) {
				row.Name = strings.ToLower(row.Name)
				return t.Table.Swap(ctx, row)
			}
			t.load = func(t *remote, ctx context.Context, name string) (record.Row, error) {
				return t.Table.Load(ctx, strings.ToLower(name))
			}
		}
	},
	"continues after Close": func() func(t *remote) {
		return func(t *remote) { t.close = func(*remote) error { return nil } }
	},
	"swaps without comparing": func() func(t *remote) {
		return func(t *remote) {
			t.swap = func(t *remote, ctx context.Context, row record.Row) (record.Row, error) {
				now, err := t.Table.Load(ctx, row.Name)
				if err != nil {
					return now, err
				}
				row.Version = now.Version
				return t.Table.Swap(ctx, row)
			}
		}
	},
	"compares and writes in two steps": func() func(t *remote) {
		return func(t *remote) {
			t.swap = func(t *remote, ctx context.Context, row record.Row) (record.Row, error) {
				now, err := t.Table.Load(ctx, row.Name)
				if err == nil && now.Version != row.Version {
					return now, record.ErrConflict
				}
				time.Sleep(20 * time.Millisecond)
				for {
					now, err := t.Table.Load(ctx, row.Name)
					if err != nil {
						return now, err
					}
					row.Version = now.Version
					if got, err := t.Table.Swap(ctx, row); !errors.Is(err, record.ErrConflict) {
						return got, err
					}
				}
			}
		}
	},
	"reads from a cache": func() func(t *remote) {
		return func(t *remote) {
			var cache sync.Map
			t.load = func(t *remote, ctx context.Context, name string) (record.Row, error) {
				if row, ok := cache.Load(name); ok {
					return row.(record.Row), nil
				}
				row, err := t.Table.Load(ctx, name)
				cache.Store(name, row)
				return row, err
			}
		}
	},
}

// hashedTable keeps rows whose version is a hash of their data.
func hashedTable() func(t *remote) {
	var mu sync.Mutex
	rows := map[string]record.Row{}
	get := func(name string) record.Row {
		row := rows[name]
		row.Name = name
		return row
	}
	return func(t *remote) {
		t.load = func(_ *remote, _ context.Context, name string) (record.Row, error) {
			mu.Lock()
			defer mu.Unlock()
			return get(name), nil
		}
		t.swap = func(_ *remote, _ context.Context, row record.Row) (record.Row, error) {
			mu.Lock()
			defer mu.Unlock()
			if rows[row.Name].Version != row.Version {
				return get(row.Name), record.ErrConflict
			}
			row.Version = fmt.Sprintf("%x", sha256.Sum256(row.Data))
			rows[row.Name] = row
			return row, nil
		}
		t.delete = func(_ *remote, _ context.Context, row record.Row) error {
			mu.Lock()
			defer mu.Unlock()
			if have := rows[row.Name].Version; have != "" && have != row.Version {
				return record.ErrConflict
			}
			delete(rows, row.Name)
			return nil
		}
	}
}

// TestOpenFails: if a table cannot be opened, Run returns one result, with the error.
func TestOpenFails(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	results := tabletest.Run(t.Context(),
		tabletest.Harness{Open: func(context.Context) (record.Table, error) { return nil, away }})
	if len(results) != 1 || !errors.Is(results[0].Err, away) {
		t.Errorf("%v", results)
	}
}

package drivertest_test

import (
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// harness returns a harness for a correct store, with everything that a harness and a store can offer: the memory store
// behind links that can be cut, with watchers that poll.
func harness(opts *memory.Options) drivertest.Harness {
	return harnessOf(opts, func(t record.Table) record.Table { return t })
}

// harnessOf is harness with another table between the engine and the link.
func harnessOf(opts *memory.Options, over func(t record.Table) record.Table) drivertest.Harness {
	m := memory.New(opts)
	open := func(fate func() drivertest.Fate) (driver.Store, error) {
		l := &link{Table: m.Table(), fate: fate}
		return &pollingStore{Store: record.New(over(l)), link: l, held: map[string]driver.Grant{}}, nil
	}
	return drivertest.Harness{
		Open: func(context.Context) (driver.Store, error) {
			return open(func() drivertest.Fate { return drivertest.Pass })
		},
		Lossy:   func(_ context.Context, fate func() drivertest.Fate) (driver.Store, error) { return open(fate) },
		Cut:     func(s driver.Store) error { linkOf(s).down.Store(true); return nil },
		Heal:    func(s driver.Store) error { linkOf(s).down.Store(false); return nil },
		Kill:    func(s driver.Store) error { linkOf(s).down.Store(true); return nil },
		Restart: func(context.Context) error { return nil }, // memory loses nothing
	}
}

func linkOf(s driver.Store) *link {
	if b, ok := s.(*brokenStore); ok {
		s = b.Store
	}
	return s.(*pollingStore).link
}

// link is a table behind a link that can be cut. While it is cut, every second write takes effect, but its reply is
// lost. Otherwise fate decides about each request.
type link struct {
	record.Table
	fate   func() drivertest.Fate
	down   atomic.Bool
	writes atomic.Int64
}

var errNoAnswer = errors.New("no answer")

func (l *link) lost(ctx context.Context) error {
	select {
	case <-time.After(30 * time.Millisecond):
		return errNoAnswer
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *link) Load(ctx context.Context, name string) (record.Row, error) {
	if l.down.Load() {
		return record.Row{}, l.lost(ctx)
	}
	return drivertest.Carry(l.fate(), func() (record.Row, error) { return l.Table.Load(ctx, name) })
}

func (l *link) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if !l.down.Load() {
		return drivertest.Carry(l.fate(), func() (record.Row, error) { return l.Table.Swap(ctx, row) })
	}
	if l.writes.Add(1)%2 == 0 {
		l.Table.Swap(ctx, row)
	}
	return record.Row{}, l.lost(ctx)
}

func (l *link) Delete(ctx context.Context, row record.Row) error {
	if l.down.Load() {
		return l.lost(ctx)
	}
	_, err := drivertest.Carry(l.fate(), func() (any, error) { return nil, l.Table.Delete(ctx, row) })
	return err
}

func (l *link) List(ctx context.Context, prefix, after string) iter.Seq2[record.Row, error] {
	rows, err := drivertest.Carry(l.fate(), func() (iter.Seq2[record.Row, error], error) {
		return l.Table.List(ctx, prefix, after), nil
	})
	if err != nil {
		return func(yield func(record.Row, error) bool) { yield(record.Row{}, err) }
	}
	return rows
}

func (l *link) Watcher() record.Watcher {
	return record.WatcherFunc(func(ctx context.Context, name, version string) error {
		if l.down.Load() {
			return l.lost(ctx)
		}
		return storetest.WaitForChange(ctx, l.Table, name, version)
	})
}

// pollingStore reports endings by polling.
type pollingStore struct {
	driver.Store
	link *link

	mu   sync.Mutex
	held map[string]driver.Grant
}

func (w *pollingStore) Info() driver.Info {
	i := w.Store.Info()
	i.Abilities.Endings, i.Abilities.Ledger = true, true
	return i
}

func (w *pollingStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	g, err := w.Store.Acquire(ctx, c)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.held[c.ID] = g
	}
	return g, err
}

func (w *pollingStore) Release(ctx context.Context, c driver.Claim, ref string) error {
	w.mu.Lock()
	delete(w.held, c.ID)
	w.mu.Unlock()
	return w.Store.Release(ctx, c, ref)
}

// OpenLedger opens the run ledger behind a link with the same fate.
func (w *pollingStore) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	t, err := w.link.Table.OpenLedgerTable(ctx)
	return record.NewLedger(&link{Table: t, fate: w.link.fate}), err
}

func (w *pollingStore) NextEnding(ctx context.Context) (driver.Ending, error) {
	for {
		w.mu.Lock()
		held := make([]driver.Grant, 0, len(w.held))
		for _, g := range w.held {
			held = append(held, g)
		}
		w.mu.Unlock()
		for _, g := range held {
			l, err := w.Inspect(ctx, g.Name)
			if err != nil {
				return driver.Ending{}, err
			}
			if len(l.Holders) == 0 {
				return driver.Ending{Name: g.Name, ID: g.ID, Err: &driver.LossError{Cause: driver.LossBroken}}, nil
			}
		}
		if _, err := w.Inspect(ctx, "any"); err != nil {
			return driver.Ending{}, err
		}
		if err := pause(ctx); err != nil {
			return driver.Ending{}, err
		}
	}
}

func pause(ctx context.Context) error {
	select {
	case <-time.After(2 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Package memory keeps locks in the memory of one process, for tests and for programs that use the same code with and
// without a real store. The locks are gone when the process ends, and exclude nobody outside it.
//
// It is also the smallest complete record.Table: what it does with a map and a mutex, the tables of real stores do with
// a server.
package memory

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Options are the settings of a store. The zero value and nil mean the defaults.
type Options struct {
	// Clock is the clock of the store and of its clients. The default is driver.SystemClock.
	Clock driver.Clock
	// Unclocked makes a store whose clock expires no claims, as some real ones. A claim then expires when another
	// client has watched it unchanged for its TTL and a margin.
	Unclocked bool
}

// Memory is one store. Open returns its clients, which exclude each other.
type Memory struct {
	opts        Options
	startedAt   driver.Instant
	startMicros int64 // microseconds since 1970 at startedAt

	mu sync.Mutex
	// version counts the writes of the whole store and not those of a row, so that no version comes twice for a name,
	// even after the row was deleted and made again.
	version uint64
	rows    map[string]entry
	waiting map[string]*waiting // only of names for which calls wait
	ledger  *Memory             // the rows of the run ledger; nil until it is opened
}

// entry is one row. The engine encodes a new slice for each write and never changes its bytes, so they are kept and
// returned without a copy.
type entry struct {
	version string
	data    []byte
}

// waiting are the calls of Wait for one name.
type waiting struct {
	calls   int
	changed chan struct{} // closed when the row is written
}

// New makes an empty store. It is what the server is to other stores: all clients that its Open returns share it. So it
// takes no client and returns no error, unlike the New of other stores.
func New(opts *Options) *Memory {
	m := &Memory{rows: map[string]entry{}, waiting: map[string]*waiting{}}
	if opts != nil {
		m.opts = *opts
	}
	if m.opts.Clock.Monotonic == nil {
		m.opts.Clock = driver.SystemClock
	}
	m.startedAt, m.startMicros = m.opts.Clock.Now(), time.Now().UnixMicro()
	return m
}

// Open returns a new client of the store.
func (m *Memory) Open() driver.Store { return record.New(m.Table()) }

// Table returns a new client of the records themselves, for tests.
func (m *Memory) Table() record.Table { return &table{m: m, closed: make(chan struct{})} }

// Ledger returns a new client of the store's run ledger. Its runs are apart from the locks.
func (m *Memory) Ledger() driver.Ledger { return record.NewLedger(m.ledgerTable()) }

// ledgerTable returns a client of the ledger's rows. They are in a second Memory with the same clock, so that a
// key and a lock can have the same name.
func (m *Memory) ledgerTable() record.Table {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ledger == nil {
		m.ledger = &Memory{opts: m.opts, startedAt: m.startedAt, startMicros: m.startMicros,
			rows: map[string]entry{}, waiting: map[string]*waiting{}}
	}
	return m.ledger.Table()
}

// OpenLedgerTable opens the records of the store's run ledger.
func (t *table) OpenLedgerTable(context.Context) (record.Table, error) { return t.m.ledgerTable(), nil }

// table is one client's access to the store. Its Close ends only its own calls: the rows belong to all clients.
type table struct {
	record.Unsupported

	m      *Memory
	closed chan struct{}
	close  sync.Once
}

// Info promises to survive nothing, as the zero Survives says. It is fence-safe nevertheless: what the store would
// forget with the process, all clients forget at the same moment.
func (t *table) Info() driver.Info {
	expiryClock := driver.ExpiryClockStore
	if t.m.opts.Unclocked {
		expiryClock = driver.ExpiryClockObserver
	}
	return driver.Info{
		Store:       "memory:",
		Clock:       t.m.opts.Clock,
		Tier:        driver.TierFenceSafe,
		ExpiryClock: expiryClock,
	}
}

// Traits say that rows are listed in the order of their names.
func (t *table) Traits() record.Traits { return record.Traits{ListsInOrder: true, Ledger: true} }

// TokenFloor continues from the wall clock when the store was made. It does not follow when the wall clock is set,
// because the store's clock must not fall.
func (t *table) TokenFloor() int64 {
	return t.m.startMicros + t.m.opts.Clock.Since(t.m.startedAt).Microseconds()
}

// Clock is exact: all clients read the same clock.
func (t *table) Clock() record.Clock {
	if t.m.opts.Unclocked {
		return nil
	}
	return record.ExactClock(t.TokenFloor)
}

// ReadClock returns the store's clock, also if claims do not expire by it.
func (t *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	return time.UnixMicro(t.TokenFloor()), 0, ctx.Err()
}

// lockRows locks the store, or returns why the call must not continue.
func (t *table) lockRows(ctx context.Context) error {
	select {
	case <-t.closed:
		return driver.ErrClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	t.m.mu.Lock()
	return nil
}

// Load sees every Swap that has returned, because all clients share one mutex. The bytes of a row belong to all of
// them: they are never changed, so no copy is made.
func (t *table) Load(ctx context.Context, name string) (record.Row, error) {
	if err := t.lockRows(ctx); err != nil {
		return record.Row{}, err
	}
	defer t.m.mu.Unlock()
	return t.m.currentRow(name), nil
}

func (m *Memory) currentRow(name string) record.Row {
	e := m.rows[name]
	return record.Row{Name: name, Version: e.version, Data: e.data}
}

// Swap returns the current row with ErrConflict, since that costs nothing here: the engine then needs no Load.
func (t *table) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if err := t.lockRows(ctx); err != nil {
		return record.Row{}, err
	}
	defer t.m.mu.Unlock()
	// A row that does not exist has the empty version, so the same comparison serves the first write.
	if t.m.rows[row.Name].version != row.Version {
		return t.m.currentRow(row.Name), record.ErrConflict
	}
	t.m.version++
	t.m.replaceRow(row.Name, entry{version: strconv.FormatUint(t.m.version, 36), data: row.Data})
	return t.m.currentRow(row.Name), nil
}

// Delete leaves nothing of a row. The count of versions goes on, so a later row of the same name has another version,
// and a Swap that still expects the deleted one is refused.
func (t *table) Delete(ctx context.Context, row record.Row) error {
	if err := t.lockRows(ctx); err != nil {
		return err
	}
	defer t.m.mu.Unlock()
	switch t.m.rows[row.Name].version {
	case "": // also after an earlier Delete: a repetition must not fail
		return nil
	case row.Version:
		t.m.replaceRow(row.Name, entry{})
		return nil
	default:
		return record.ErrConflict
	}
}

// replaceRow replaces a row, and wakes the calls of wait for it.
func (m *Memory) replaceRow(name string, e entry) {
	if w := m.waiting[name]; w != nil {
		close(w.changed)
		delete(m.waiting, name)
	}
	if e.version == "" {
		delete(m.rows, name)
		return
	}
	m.rows[name] = e
}

// List takes all rows at one moment and yields them afterwards. What is written meanwhile is not seen, which the
// contract allows.
func (t *table) List(ctx context.Context, prefix, after string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		if err := t.lockRows(ctx); err != nil {
			yield(record.Row{}, err)
			return
		}
		var rows []record.Row
		for name := range t.m.rows {
			if strings.HasPrefix(name, prefix) && name > after {
				rows = append(rows, t.m.currentRow(name))
			}
		}
		// Without the mutex from here on: the body of the caller's loop may use the store.
		t.m.mu.Unlock()
		slices.SortFunc(rows, func(a, b record.Row) int { return cmp.Compare(a.Name, b.Name) })
		for _, row := range rows {
			if !yield(row, nil) {
				return
			}
		}
	}
}

// Watcher notifies of each change.
func (t *table) Watcher() record.Watcher { return record.WatcherFunc(t.wait) }

// wait waits for the current row to be replaced, or for an absent one to be written. The version is compared and the
// channel is taken under one mutex, so no change between the two is missed.
func (t *table) wait(ctx context.Context, name, version string) error {
	if err := t.lockRows(ctx); err != nil {
		return err
	}
	if t.m.rows[name].version != version {
		t.m.mu.Unlock()
		return nil
	}
	w := t.m.waiting[name]
	if w == nil {
		w = &waiting{changed: make(chan struct{})}
		t.m.waiting[name] = w
	}
	w.calls++
	t.m.mu.Unlock()
	defer t.m.leave(name, w)
	select {
	case <-w.changed:
		return nil
	case <-t.closed:
		return driver.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leave ends a call of wait. The last one leaves nothing of the name.
func (m *Memory) leave(name string, w *waiting) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w.calls--; w.calls == 0 && m.waiting[name] == w {
		delete(m.waiting, name)
	}
}

// Close ends this client only, as the rows of a server outlive a connection to it.
func (t *table) Close() error {
	t.close.Do(func() { close(t.closed) })
	return nil
}

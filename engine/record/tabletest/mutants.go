package tabletest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Mutant breaks one promise of a table that keeps all of them. A case that a mutant passes cannot find that defect in
// the table either: for example, because Harness.Lossy loses nothing.
//
//	for _, m := range tabletest.Mutants() {
//		o := &tabletest.Options{Match: m.IsCase}
//		for _, r := range tabletest.Run(t.Context(), m.Break(h), o) {
//			if r.Err == nil && r.Skipped == "" {
//				t.Errorf("a table that %s passes %s", m.Defect, r.Case.Name)
//			}
//		}
//	}
type Mutant struct {
	Defect string // what the table does, such as "never deletes"
	Case   string // the name of the case that finds it

	breakHarness func(h Harness) Harness
}

// IsCase reports whether a case is the one that finds the defect.
func (m Mutant) IsCase(c Case) bool { return c.Name == m.Case }

// Break returns a harness whose tables have the defect.
func (m Mutant) Break(h Harness) Harness { return m.breakHarness(h) }

// wrapping returns what breaks a harness by wrapping each of its tables.
func wrapping(wrap func(t record.Table) record.Table) func(h Harness) Harness {
	wrapOpened := func(t record.Table, err error) (record.Table, error) {
		if err != nil {
			return nil, err
		}
		return wrap(t), nil
	}
	return func(h Harness) Harness {
		sound := h
		h.Open = func(ctx context.Context) (record.Table, error) { return wrapOpened(sound.Open(ctx)) }
		if sound.Lossy != nil {
			h.Lossy = func(ctx context.Context, fate func() drivertest.Fate) (record.Table, error) {
				return wrapOpened(sound.Lossy(ctx, fate))
			}
		}
		return h
	}
}

// Mutants returns tables with one defect each. Those that misread lost replies need Harness.Lossy; the one that counts
// versions in memory needs Harness.Restart; the one that lists one page needs the default of Harness.Rows.
func Mutants() []Mutant {
	return []Mutant{
		{"counts versions in memory", "version-restart", countVersions},
		{"returns other data with a conflict", "swap-compares",
			wrapping(func(t record.Table) record.Table { return muddled{t} })},
		{"cuts large records", "data", wrapping(func(t record.Table) record.Table { return cut{t} })},
		{"removes idle records too soon", "kept",
			wrapping(func(t record.Table) record.Table { return &forgetful{Table: t} })},
		{"says that what had no reply was not sent", "lost-reply",
			wrapping(func(t record.Table) record.Table { return unsent{t} })},
		{"leaves out what it cannot list", "lost-list",
			wrapping(func(t record.Table) record.Table { return partial{t} })},
		{"swaps without comparing", "swap-compares",
			wrapping(func(t record.Table) record.Table { return blindSwap{t} })},
		{"compares and writes in two steps", "swap-atomic",
			wrapping(func(t record.Table) record.Table { return slowSwap{t} })},
		{"uses a hash of the data as the version", "version-new",
			wrapping(func(t record.Table) record.Table { return hashed{t} })},
		{"deletes without comparing", "delete-compares",
			wrapping(func(t record.Table) record.Table { return blindDelete{t} })},
		{"never deletes", "delete", wrapping(func(t record.Table) record.Table { return noDelete{t} })},
		{"reads from a cache", "swap", wrapping(func(t record.Table) record.Table { return &cached{Table: t} })},
		{"folds case", "names", wrapping(func(t record.Table) record.Table { return folded{t} })},
		{"lists the first page only", "list", wrapping(func(t record.Table) record.Table { return firstPage{t} })},
		{"calls a rough clock exact", "clock",
			wrapping(func(t record.Table) record.Table { return &roughClock{Table: t} })},
		{"continues after Close", "closed", wrapping(func(t record.Table) record.Table { return noClose{t} })},
		{"takes a lost reply for a conflict", "lost-reply",
			wrapping(func(t record.Table) record.Table { return hasty{t} })},
		{"takes an error for an absent record", "lost-request",
			wrapping(func(t record.Table) record.Table { return blank{t} })},
		{"takes too many requests for a refusal", "refused-request",
			wrapping(func(t record.Table) record.Table { return denied{t} })},
	}
}

type blindSwap struct{ record.Table }

func (t blindSwap) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	now, err := t.Load(ctx, row.Name)
	if err != nil {
		return now, err
	}
	row.Version = now.Version
	return t.Table.Swap(ctx, row)
}

type slowSwap struct{ record.Table }

func (t slowSwap) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	now, err := t.Load(ctx, row.Name)
	if err == nil && now.Version != row.Version {
		return now, record.ErrConflict
	}
	if err := sleepFor(ctx, 20*time.Millisecond); err != nil {
		return record.Row{}, err
	}
	for {
		if now, err = t.Load(ctx, row.Name); err != nil {
			return now, err
		}
		row.Version = now.Version
		if got, err := t.Table.Swap(ctx, row); !errors.Is(err, record.ErrConflict) {
			return got, err
		}
	}
}

type hashed struct{ record.Table }

// hash replaces the version of a row by a hash of its data.
func hash(row record.Row, err error) (record.Row, error) {
	if row.Version != "" {
		row.Version = fmt.Sprintf("%x", sha256.Sum256(row.Data))
	}
	return row, err
}

// unhash gives a row the version that it has in the table.
func (t hashed) unhash(ctx context.Context, row record.Row) (record.Row, error) {
	now, err := t.Table.Load(ctx, row.Name)
	if err != nil {
		return record.Row{}, err
	}
	if shown, _ := hash(now, nil); shown.Version != row.Version {
		return shown, record.ErrConflict
	}
	row.Version = now.Version
	return row, nil
}

func (t hashed) Load(ctx context.Context, name string) (record.Row, error) {
	return hash(t.Table.Load(ctx, name))
}

func (t hashed) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	data := row.Data
	row, err := t.unhash(ctx, row)
	if err != nil {
		return row, err
	}
	if row, err = t.Table.Swap(ctx, row); err == nil {
		row.Data = data // a table need not return it
	}
	return hash(row, err)
}

func (t hashed) Delete(ctx context.Context, row record.Row) error {
	row, err := t.unhash(ctx, row)
	if err != nil {
		return err
	}
	return t.Table.Delete(ctx, row)
}

type blindDelete struct{ record.Table }

func (t blindDelete) Delete(ctx context.Context, row record.Row) error {
	now, err := t.Load(ctx, row.Name)
	if err != nil {
		return err
	}
	return t.Table.Delete(ctx, now)
}

type noDelete struct{ record.Table }

func (noDelete) Delete(context.Context, record.Row) error { return nil }

// cached reads a record once.
type cached struct {
	record.Table
	rows sync.Map
}

func (t *cached) Load(ctx context.Context, name string) (record.Row, error) {
	if row, ok := t.rows.Load(name); ok {
		return row.(record.Row), nil
	}
	row, err := t.Table.Load(ctx, name)
	if err == nil {
		t.rows.Store(name, row)
	}
	return row, err
}

type folded struct{ record.Table }

func (t folded) Load(ctx context.Context, name string) (record.Row, error) {
	return t.Table.Load(ctx, strings.ToLower(name))
}

func (t folded) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	row.Name = strings.ToLower(row.Name)
	return t.Table.Swap(ctx, row)
}

// firstPage lists as many records as servers return at once.
type firstPage struct{ record.Table }

func (t firstPage) List(ctx context.Context, prefix, after string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		n := 0
		for row, err := range t.Table.List(ctx, prefix, after) {
			if n++; n > 1000 || !yield(row, err) {
				return
			}
		}
	}
}

// roughClock knows the time to a second, as by the Date of its first reply.
type roughClock struct {
	record.Table
	first atomic.Pointer[time.Time]
}

func (t *roughClock) Load(ctx context.Context, name string) (record.Row, error) {
	now := time.Now()
	t.first.CompareAndSwap(nil, &now)
	return t.Table.Load(ctx, name)
}

func (t *roughClock) Clock() record.Clock { return t }

func (t *roughClock) Bounds() (early, late int64, known bool) {
	at := t.first.Load()
	if at == nil {
		return t.Table.Clock().Bounds()
	}
	now := at.Unix()*1e6 + time.Since(*at).Microseconds()
	return now, now, true
}

func (*roughClock) IsStale() bool { return false }

type noClose struct{ record.Table }

func (noClose) Close() error { return nil }

// isUnanswered reports whether a request has an unknown outcome although its caller still waits.
func isUnanswered(ctx context.Context, err error) bool {
	return ctx.Err() == nil && isUnknownOutcome(err)
}

type hasty struct{ record.Table }

func (t hasty) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	got, err := t.Table.Swap(ctx, row)
	if isUnanswered(ctx, err) {
		return record.Row{}, record.ErrConflict
	}
	return got, err
}

type blank struct{ record.Table }

func (t blank) Load(ctx context.Context, name string) (record.Row, error) {
	got, err := t.Table.Load(ctx, name)
	if isUnanswered(ctx, err) {
		return record.Row{Name: name}, nil
	}
	return got, err
}

type denied struct{ record.Table }

func (t denied) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	got, err := t.Table.Swap(ctx, row)
	if isUnanswered(ctx, err) {
		return record.Row{}, fmt.Errorf("%w: %w", driver.ErrDenied, err)
	}
	return got, err
}

// counter is the memory of a server whose versions are numbers.
type counter struct {
	mu   sync.Mutex
	last int
	of   map[string]string // by name and true version
	true map[string]string // by name and number
}

func (c *counter) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last, c.of, c.true = 0, map[string]string{}, map[string]string{}
}

// number replaces the version of a row by its number.
func (c *counter) number(row record.Row) record.Row {
	if row.Version == "" {
		return row
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	number, ok := c.of[row.Name+" "+row.Version]
	if !ok {
		c.last++
		number = fmt.Sprint(c.last)
		c.of[row.Name+" "+row.Version], c.true[row.Name+" "+number] = number, row.Version
	}
	row.Version = number
	return row
}

// version replaces the number of a row by its true version.
func (c *counter) version(row record.Row) record.Row {
	c.mu.Lock()
	defer c.mu.Unlock()
	row.Version = c.true[row.Name+" "+row.Version]
	return row
}

// countVersions returns a harness whose versions are numbers, which begin again when the server is restarted.
func countVersions(h Harness) Harness {
	c, sound := &counter{}, h
	c.forget()
	h.Open = func(ctx context.Context) (record.Table, error) {
		t, err := sound.Open(ctx)
		return counted{t, c}, err
	}
	if sound.Restart != nil {
		h.Restart = func(ctx context.Context) error {
			c.forget()
			return sound.Restart(ctx)
		}
	}
	return h
}

type counted struct {
	record.Table
	counter *counter
}

func (t counted) Load(ctx context.Context, name string) (record.Row, error) {
	row, err := t.Table.Load(ctx, name)
	row.Name = name
	return t.counter.number(row), err
}

func (t counted) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	got, err := t.Table.Swap(ctx, t.counter.version(row))
	got.Name = row.Name
	return t.counter.number(got), err
}

func (t counted) Delete(ctx context.Context, row record.Row) error {
	return t.Table.Delete(ctx, t.counter.version(row))
}

type muddled struct{ record.Table }

func (t muddled) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	got, err := t.Table.Swap(ctx, row)
	if errors.Is(err, record.ErrConflict) {
		if got, _ = t.Load(ctx, row.Name); got.Version != "" {
			got.Data = row.Data
		}
	}
	return got, err
}

// cut reads 64 KiB of a record.
type cut struct{ record.Table }

func (t cut) Load(ctx context.Context, name string) (record.Row, error) {
	row, err := t.Table.Load(ctx, name)
	row.Data = row.Data[:min(len(row.Data), 64<<10)]
	return row, err
}

// forgetful keeps a row for a second.
type forgetful struct {
	record.Table
	written sync.Map // when, by name
}

func (t *forgetful) Traits() record.Traits {
	traits := t.Table.Traits()
	traits.ExpiresIdle = true
	return traits
}

func (t *forgetful) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	t.written.Store(row.Name, time.Now())
	return t.Table.Swap(ctx, row)
}

func (t *forgetful) Load(ctx context.Context, name string) (record.Row, error) {
	if at, ok := t.written.Load(name); ok && time.Since(at.(time.Time)) > time.Second {
		return record.Row{Name: name}, nil
	}
	return t.Table.Load(ctx, name)
}

type unsent struct{ record.Table }

func (t unsent) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	got, err := t.Table.Swap(ctx, row)
	if isUnanswered(ctx, err) {
		return record.Row{}, fmt.Errorf("%w: %w", record.ErrUnsent, err)
	}
	return got, err
}

type partial struct{ record.Table }

func (t partial) List(ctx context.Context, prefix, after string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		for row, err := range t.Table.List(ctx, prefix, after) {
			if err == nil && !yield(row, nil) {
				return
			}
		}
	}
}

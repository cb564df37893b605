package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// engine is the record engine, with all that it offers.
type engine interface {
	driver.Store
	driver.LockWatcher
	driver.Detacher
	driver.WeightChanger
	driver.LivenessFiler
	driver.Explainer
}

func engineOf(t record.Table) engine { return record.New(t).(engine) }

// store is the engine over the table of a directory. Where there is no store yet the first claim makes it; until then
// nothing stands there, and a look leaves no trace.
type store struct {
	dir     string
	options Options
	none    engine // over a table on which nothing stands
	made    atomic.Pointer[engine]
	table   *table // the one of made

	opening sync.Mutex
	closed  bool
}

// errAbsent: there is no store in the directory yet.
var errAbsent = errors.New("there is no store yet")

func newStore(ctx context.Context, dir string, opts *Options) (driver.Store, error) {
	if dir == "" {
		return nil, fmt.Errorf("%w: the directory's name is empty", driver.ErrInvalid)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s := &store{dir: dir, options: opts.withDefaults()}
	s.none = engineOf(nothing{dir: dir, hands: s.options.Clock})
	if _, err := s.at(ctx); err != nil {
		_ = s.none.Close()
		return nil, err
	}
	return s, nil
}

// at is the engine to look with.
func (s *store) at(ctx context.Context) (engine, error) {
	e, err := s.open(ctx, false)
	if errors.Is(err, errAbsent) {
		return s.none, nil
	}
	return e, err
}

// open gives the engine over the directory's table, and makes that if need be and allowed.
func (s *store) open(ctx context.Context, create bool) (engine, error) {
	if e := s.made.Load(); e != nil {
		return *e, nil
	}
	s.opening.Lock()
	defer s.opening.Unlock()
	if e := s.made.Load(); e != nil {
		return *e, nil
	}
	if s.closed {
		return nil, driver.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t, err := openDirectory(ctx, s.dir, s.options, create)
	if err != nil {
		return nil, fmt.Errorf("open file store: %w", err)
	}
	e := engineOf(t)
	s.table = t
	s.made.Store(&e)
	return e, nil
}

func (s *store) Info() driver.Info { return s.none.Info() }

func (s *store) Explain(c driver.Claim) driver.Plan { return s.none.Explain(c) }

func (s *store) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	e, err := s.open(ctx, true)
	if err != nil {
		return driver.Grant{}, err
	}
	return e.Acquire(ctx, c)
}

// Renew looks once, for all grants, whether the directory is still the one that others find.
func (s *store) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	e, err := s.at(ctx)
	if err == nil && e != s.none {
		err = s.table.checkInPlace(ctx)
	}
	if err != nil {
		for i := range grants {
			done(i, driver.Renewal{Err: err})
		}
		return
	}
	e.Renew(ctx, grants, done)
}

func (s *store) Release(ctx context.Context, c driver.Claim, ref string) error {
	e, err := s.at(ctx)
	if err != nil {
		return err
	}
	return e.Release(ctx, c, ref)
}

func (s *store) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	e, err := s.at(ctx)
	if err != nil {
		return driver.Lock{}, err
	}
	return e.Inspect(ctx, name)
}

func (s *store) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	e, err := s.at(ctx)
	if err != nil {
		return func(yield func(driver.Lock, error) bool) { yield(driver.Lock{}, err) }
	}
	return e.List(ctx, prefix)
}

func (s *store) Break(ctx context.Context, name, ref string, mode driver.BreakMode) error {
	e, err := s.at(ctx)
	if err != nil {
		return err
	}
	return e.Break(ctx, name, ref, mode)
}

func (s *store) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	e, err := s.at(ctx)
	if err != nil {
		return err
	}
	return e.Detach(ctx, g, keep)
}

func (s *store) SetWeight(ctx context.Context, g driver.Grant, weight int64) error {
	e, err := s.at(ctx)
	if err != nil {
		return err
	}
	return e.SetWeight(ctx, g, weight)
}

// madePoll is how often it is looked whether somebody has made the store.
const madePoll = time.Second

func (s *store) NextChange(ctx context.Context, seen driver.Lock) (driver.Lock, error) {
	for {
		e, err := s.at(ctx)
		if err != nil {
			return driver.Lock{}, err
		}
		if e != s.none {
			return e.NextChange(ctx, seen)
		}
		poll, cancel := context.WithTimeout(ctx, madePoll)
		lock, err := e.NextChange(poll, seen)
		cancel()
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return lock, err
		}
	}
}

// LivenessFile makes the store: who asks for it is about to claim.
func (s *store) LivenessFile() (*os.File, error) {
	e, err := s.open(context.Background(), true)
	if err != nil {
		return nil, err
	}
	return e.LivenessFile()
}

func (s *store) Warnings(ctx context.Context) ([]string, error) {
	warnings := ancestorWarnings(s.dir)
	_, err := s.open(ctx, false)
	if errors.Is(err, errAbsent) {
		return append(warnings, "there is no store in "+s.dir+" yet, and the first claim makes one: see that this is the directory that others use"), nil
	}
	return warnings, err
}

func (s *store) Close() error {
	s.opening.Lock()
	defer s.opening.Unlock()
	s.closed = true
	err := s.none.Close()
	if e := s.made.Load(); e != nil {
		err = errors.Join(err, (*e).Close())
	}
	return err
}

// nothing is the table of a directory in which there is no store yet. It is only looked at.
type nothing struct {
	dir   string
	hands driver.Clock
}

func (n nothing) Info() driver.Info { return storeInfo(n.dir, n.hands) }

func (n nothing) Keys(name string) []string { return recordPaths(n.dir, name) }

func (nothing) Now() (int64, time.Duration) { return 0, 0 }

func (nothing) Load(ctx context.Context, name string) (record.Row, error) {
	return record.Row{Name: name}, cmp.Or(checkName(name), ctx.Err())
}

func (n nothing) Swap(context.Context, record.Row) (record.Row, error) {
	return record.Row{}, fmt.Errorf("%w: %w in %s", driver.ErrUnsupported, errAbsent, n.dir)
}

func (nothing) Delete(context.Context, record.Row) error { return nil }

func (nothing) List(context.Context, string) iter.Seq2[record.Row, error] {
	return func(func(record.Row, error) bool) {}
}

func (nothing) Close() error { return nil }

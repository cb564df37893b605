package record_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// loadCounter is a source of rows whose loads fail as fail says. tries counts from 1 the loads of one row.
type loadCounter struct {
	fail func(name string, tries int) error
	mu   sync.Mutex
	of   map[string]int
}

func (l *loadCounter) load(_ context.Context, name string) (record.Row, error) {
	l.mu.Lock()
	if l.of == nil {
		l.of = map[string]int{}
	}
	l.of[name]++
	tries := l.of[name]
	l.mu.Unlock()
	if err := l.fail(name, tries); err != nil {
		return record.Row{}, err
	}
	return record.Row{Version: "1"}, nil
}

// loadAll returns the names of the rows that were loaded, and the errors.
func (l *loadCounter) loadAll(ctx context.Context, names []string) (loaded []string, errs []error) {
	record.LoadRows(ctx, names, l.load, func(row record.Row, err error) bool {
		if err == nil {
			loaded = append(loaded, row.Name)
		} else {
			errs = append(errs, err)
		}
		return true
	})
	return loaded, errs
}

// TestLoadRowsRetries: a list is whole although some of its loads are refused a few times; what is final is not tried
// again; and if the server is away, each row after the first ones is tried once.
func TestLoadRowsRetries(t *testing.T) {
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("name-%03d", i))
	}
	errBusy := errors.New("too many requests")

	t.Run("some are refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := &loadCounter{fail: func(name string, tries int) error {
				if name[len(name)-1] == '7' && tries <= 4 {
					return errBusy
				}
				return nil
			}}
			if loaded, errs := l.loadAll(t.Context(), names); !slices.Equal(loaded, names) || errs != nil {
				t.Errorf("%d of %d rows were loaded: %v", len(loaded), len(names), errs)
			}
		})
	})
	t.Run("final", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := &loadCounter{fail: func(name string, _ int) error {
				if name == "name-050" {
					return driver.ErrCorrupt
				}
				return nil
			}}
			loaded, errs := l.loadAll(t.Context(), names)
			if len(loaded) != len(names)-1 || len(errs) != 1 || l.of["name-050"] != 1 {
				t.Errorf("%d rows were loaded, one of them after %d tries: %v", len(loaded), l.of["name-050"], errs)
			}
		})
	})
	t.Run("away", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := &loadCounter{fail: func(string, int) error { return errBusy }}
			start := time.Now()
			_, errs := l.loadAll(t.Context(), names)
			if took := time.Since(start); len(errs) != len(names) || took > 1500*time.Millisecond {
				t.Errorf("%d errors in %v", len(errs), took)
			}
			if first, last := l.of[names[0]], l.of[names[99]]; first != 5 || last != 1 {
				t.Errorf("the first row was tried %d times, the last %d times", first, last)
			}
		})
	})
	t.Run("slow", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := &loadCounter{fail: func(string, int) error {
				time.Sleep(2 * time.Second)
				return errBusy
			}}
			if l.loadAll(t.Context(), names[:1]); l.of[names[0]] != 1 {
				t.Errorf("a row was tried %d times, although the server does not answer", l.of[names[0]])
			}
		})
	})
	t.Run("canceled", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			l := &loadCounter{fail: func(string, int) error {
				cancel()
				return errBusy
			}}
			start := time.Now()
			_, errs := l.loadAll(ctx, names)
			if len(errs) != 1 || !errors.Is(errs[0], context.Canceled) || time.Since(start) > 0 {
				t.Errorf("after %v: %v", time.Since(start), errs)
			}
		})
	})
}

package tabletest

import (
	"fmt"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
)

// lossy is a client of the harness whose requests meet a fate while it is set. A table that asks again by itself meets it again.
func (e *env) lossy() (record.Table, *atomic.Int64, error) {
	if e.h.Lossy == nil {
		return nil, nil, skipped("needs Harness.Lossy")
	}
	var fate atomic.Int64
	t, err := e.h.Lossy(e.ctx, func() drivertest.Fate { return drivertest.Fate(fate.Load()) })
	if err != nil {
		return nil, nil, fmt.Errorf("opening a client: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tables = append(e.tables, t)
	return t, &fate, nil
}

func lostReply(e *env) error {
	t, fate, err := e.lossy()
	if err != nil {
		return err
	}
	for round := range 3 {
		name := e.name(fmt.Sprint(round))
		now := record.Row{Name: name}
		if round > 0 {
			if now, err = put(e, t, row(name, "", base)); err != nil {
				return err
			}
		}
		fate.Store(int64(drivertest.LoseReply))
		what := "Swap"
		if round == 2 {
			what = "Delete"
			err = t.Delete(e.ctx, now)
		} else {
			_, err = t.Swap(e.ctx, row(name, now.Version, base+1))
		}
		fate.Store(int64(drivertest.Pass))
		if !unknown(err) {
			return fmt.Errorf("a %s took effect and its reply was lost, and it says: %v", what, err)
		}
	}
	return nil
}

func lostRequest(e *env) error { return e.fails(drivertest.LoseRequest, "never arrived") }

func refusedRequest(e *env) error { return e.fails(drivertest.Refuse, "was turned away for now") }

// fails has every method meet a fate that keeps it from reaching the store.
func (e *env) fails(f drivertest.Fate, what string) error {
	t, fate, err := e.lossy()
	if err != nil {
		return err
	}
	now, err := put(e, t, row(e.name("m"), "", base))
	if err != nil {
		return err
	}
	now.Data, _ = content(base)
	fate.Store(int64(f))
	err = each(e, t, e.ctx, now, func(method string, err error) error {
		if !unknown(err) {
			return fmt.Errorf("a %s whose request %s says: %v", method, what, err)
		}
		return nil
	})
	fate.Store(int64(drivertest.Pass))
	if err != nil {
		return err
	}
	return see(e, t, now)
}

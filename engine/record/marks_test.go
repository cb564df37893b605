package record_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// markTable is a table whose store has no clock, but removes marks when their time has passed. It fails the test if a
// mark is not changed together with the claim.
type markTable struct {
	record.Table
	t     *testing.T
	marks *marks
}

func (*markTable) Watcher() record.Watcher { return nil }

// marks are the marks of all clients: until when each exists.
type marks struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func newMarkedLedgers(t *testing.T) (open func() driver.Ledger, m *marks) {
	store, m := memory.New(nil), &marks{until: map[string]time.Time{}}
	return func() driver.Ledger {
		l := record.NewLedger(&markTable{store.Table(), t, m})
		t.Cleanup(func() { l.Close() })
		return l
	}, m
}

func (m *marks) exists(name string) bool { return time.Now().Before(m.until[name]) }

func (t *markTable) Traits() record.Traits { return record.Traits{Marks: true} }

func (t *markTable) Clock() record.Clock { return nil }

func (t *markTable) Load(ctx context.Context, name string) (record.Row, error) {
	t.marks.mu.Lock()
	defer t.marks.mu.Unlock()
	row, err := t.Table.Load(ctx, name)
	row.Marked = t.marks.exists(name)
	return row, err
}

func (t *markTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	t.marks.mu.Lock()
	defer t.marks.mu.Unlock()
	if row.Marked && !t.marks.exists(row.Name) {
		return record.Row{}, record.ErrConflict
	}
	now, err := t.Table.Swap(ctx, row)
	now.Marked = t.marks.exists(row.Name)
	if err != nil {
		return now, err
	}
	switch {
	case row.MarkTTL == record.RemoveMark:
		delete(t.marks.until, row.Name)
	case row.MarkTTL > 0:
		t.marks.until[row.Name] = time.Now().Add(row.MarkTTL)
	}
	now.Marked = t.marks.exists(row.Name)
	if rec, err := record.Decode(row.Name, row.Data); err != nil || (len(rec.Claims) > 0) != now.Marked {
		t.t.Errorf("%q has %d claims, and a mark: %t; %v", row.Name, len(rec.Claims), now.Marked, err)
	}
	return now, nil
}

// TestMarksExpireRuns: where no clock expires runs, a client that asks only once, and so has watched nothing, begins a
// run when the mark of the dead worker's run is gone, and no earlier. What the dead worker does then is refused.
func TestMarksExpireRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open, _ := newMarkedLedgers(t)
		worker := open()
		g := storetest.Acquire(t, worker, newRun("k"))
		time.Sleep(40 * time.Second)
		if err := storetest.Renew(t, worker, g).Err; err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute - 1)
		if _, err := open().Acquire(t.Context(), newRun("k")); !errors.Is(err, driver.ErrInProgress) {
			t.Fatalf("before the end of its TTL: %v", err)
		}
		time.Sleep(time.Nanosecond)
		h, err := open().ReadRuns(t.Context(), "k", 0)
		if err != nil || h.Runs[0].State != driver.RunAbandoned {
			t.Errorf("the run is shown as %+v, %v", h.Runs, err)
		}
		if err := storetest.Renew(t, worker, g).Err; !errors.Is(err, driver.ErrLost) {
			t.Errorf("a renewal after the TTL: %v", err)
		}
		if err := worker.FinishRun(t.Context(), g, succeeded("late")); !errors.Is(err, driver.ErrLost) {
			t.Errorf("a success after the TTL: %v", err)
		}
		if g := storetest.Acquire(t, open(), newRun("k")); g.Attempt != 2 {
			t.Errorf("the next run is attempt %d", g.Attempt)
		}
	})
}

// TestMarksOfOthers: a mark is written only by the client whose run it belongs to, so nothing that others do makes a
// dead worker's run last longer. When a run ends, its mark goes.
func TestMarksOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open, marks := newMarkedLedgers(t)
		worker, other := open(), open()
		g := storetest.Acquire(t, worker, newRun("k"))
		before := maps.Clone(marks.until)
		time.Sleep(time.Second)
		_, err := other.Acquire(t.Context(), newRun("k"))
		if !errors.Is(err, driver.ErrInProgress) {
			t.Fatal(err)
		}
		if err := other.Break(t.Context(), "k", g.Ref, driver.Break{Mode: driver.BreakGraceful}); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(before, marks.until) {
			t.Errorf("the mark lasted until %v, and now until %v", before, marks.until)
		}
		if err := worker.FinishRun(t.Context(), g, succeeded("")); err != nil {
			t.Fatal(err)
		}
		if left := slices.Collect(maps.Keys(marks.until)); len(left) > 0 {
			t.Errorf("there are still the marks of %v", left)
		}
	})
}

package memory

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/engine/record"
)

// TestWaitForAbsentRow: a call that waits for a row that does not exist returns when the row is written. Calls that
// have ended leave nothing.
func TestWaitForAbsentRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(nil)
		a, b := m.Table().(*table), m.Table()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := a.wait(ctx, "row", ""); !errors.Is(err, context.DeadlineExceeded) || len(m.waiting) != 0 {
			t.Errorf("%v, and %d names are awaited", err, len(m.waiting))
		}
		returned := make(chan error)
		go func() { returned <- a.wait(t.Context(), "row", "") }()
		synctest.Wait()
		if len(m.waiting) != 1 {
			t.Errorf("%d names are awaited", len(m.waiting))
		}
		if _, err := b.Swap(t.Context(), record.Row{Name: "row", Data: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		if err := <-returned; err != nil || len(m.waiting) != 0 {
			t.Errorf("%v, and %d names are awaited", err, len(m.waiting))
		}
	})
}

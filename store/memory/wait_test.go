package memory

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/engine/record"
)

// TestWaitForAbsentRow: a call that waits for a row that does not exist returns when the row is written. Calls that have
// ended leave nothing.
func TestWaitForAbsentRow(t *testing.T) {
	t.Parallel()
	m := New(nil)
	a, b := m.Table().(*table), m.Table()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := a.Wait(ctx, "row", ""); !errors.Is(err, context.DeadlineExceeded) || len(m.waiting) != 0 {
		t.Errorf("%v, and %d names are awaited", err, len(m.waiting))
	}
	returned := make(chan error)
	go func() { returned <- a.Wait(t.Context(), "row", "") }()
	for awaited := 0; awaited == 0; time.Sleep(time.Millisecond) {
		m.mu.Lock()
		awaited = len(m.waiting)
		m.mu.Unlock()
	}
	if _, err := b.Swap(t.Context(), record.Row{Name: "row", Data: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if err := <-returned; err != nil || len(m.waiting) != 0 {
		t.Errorf("%v, and %d names are awaited", err, len(m.waiting))
	}
}

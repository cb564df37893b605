package record_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// trips counts the round trips to a table. A conflict does not bring the row, as on the poorest of stores.
type trips struct {
	record.Table
	loads, swaps int
}

func (t *trips) Load(ctx context.Context, name string) (record.Row, error) {
	t.loads++
	return t.Table.Load(ctx, name)
}

func (t *trips) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	t.swaps++
	now, err := t.Table.Swap(ctx, row)
	if errors.Is(err, record.ErrConflict) {
		now = record.Row{}
	}
	return now, err
}

// did gives and forgets what was counted.
func (t *trips) did() string {
	s := fmt.Sprintf("%d loads, %d swaps", t.loads, t.swaps)
	t.loads, t.swaps = 0, 0
	return s
}

// TestRoundTrips promises what a step costs: one round trip to take a lock that is absent or as this client saw it last,
// one to renew and one to release it; one more to see what a stranger has done.
func TestRoundTrips(t *testing.T) {
	ctx := t.Context()
	m := memory.New(nil)
	one, two := &trips{Table: m.Table()}, &trips{Table: m.Table()}
	ours, theirs := record.New(one), record.New(two)
	claim := func() driver.Claim { return storetest.Mutex("m", time.Minute) }
	expect := func(table *trips, what, want string) {
		t.Helper()
		if got := table.did(); got != want {
			t.Errorf("%s took %s, not %s", what, got, want)
		}
	}

	a := storetest.Acquire(t, ours, claim())
	expect(one, "taking an absent lock", "0 loads, 1 swaps")

	if err := storetest.Renew(t, ours, a).Err; err != nil {
		t.Fatal(err)
	}
	expect(one, "renewing", "0 loads, 1 swaps")

	storetest.Release(t, ours, a.Claim)
	expect(one, "releasing", "0 loads, 1 swaps")

	a = storetest.Acquire(t, ours, claim())
	expect(one, "taking a lock as it was left", "0 loads, 1 swaps")

	if _, err := theirs.Acquire(ctx, claim()); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	expect(two, "being refused by a stranger's lock", "1 loads, 1 swaps")

	if _, err := theirs.Acquire(ctx, claim()); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	expect(two, "being refused again", "1 loads, 0 swaps")

	storetest.Release(t, ours, a.Claim)
	storetest.Acquire(t, theirs, claim())
	expect(two, "taking a lock that a stranger has left", "1 loads, 1 swaps")
}

package record

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// oneRowTable is a table with one row.
type oneRowTable struct {
	mapTable
	row Row
}

func (o *oneRowTable) Load(context.Context, string) (Row, error) { return o.row, nil }

func (o *oneRowTable) Swap(_ context.Context, r Row) (Row, error) {
	if r.Version != o.row.Version {
		return o.row, ErrConflict
	}
	o.row = r
	o.row.Version += "x"
	return o.row, nil
}

// TestLedgerRowsAreForgotten: a client remembers nothing of a key that has succeeded, whether it has run it or asked.
func TestLedgerRowsAreForgotten(t *testing.T) {
	l := NewLedger(&oneRowTable{}).(*ledger)
	defer l.Close()
	claim := func(id string) driver.Claim {
		return driver.Claim{Name: "k", ID: id, Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: time.Minute,
			Run: &driver.RunTerms{}}
	}
	g, err := l.Acquire(context.Background(), claim("a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.FinishRun(context.Background(), g, driver.RunOutcome{State: driver.RunSucceeded}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Acquire(context.Background(), claim("b")); !errors.Is(err, driver.ErrSucceeded) {
		t.Fatal(err)
	}
	if n := len(l.rows.byName); n != 0 {
		t.Errorf("%d rows are remembered", n)
	}
}

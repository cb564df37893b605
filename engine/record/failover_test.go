package record_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// fleeting is a table on which a swap whose reply was lost can be read, and is gone when another server takes over: a
// database shows a commit that its standby has not got. What is acknowledged lasts, and all that was written before
// it.
type fleeting struct {
	record.Table
	lose  int // of how many swaps to come the reply is lost
	reads record.Row
	lasts record.Row
}

func (f *fleeting) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	now, err := f.Table.Swap(ctx, row)
	if err != nil {
		return now, err
	}
	f.reads = now
	if f.lose > 0 {
		f.lose--
		return record.Row{}, errors.New("connection reset")
	}
	f.lasts = now
	return now, nil
}

// failOver leaves what lasts.
func (f *fleeting) failOver(t *testing.T) {
	t.Helper()
	if f.reads.Version == f.lasts.Version {
		return
	}
	err := f.Table.Delete(t.Context(), f.reads)
	if err == nil && f.lasts.Version != "" {
		_, err = f.Table.Swap(t.Context(), record.Row{Name: f.lasts.Name, Data: f.lasts.Data})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestReadsConfirmNothing promises that a grant is confirmed by a write that was acknowledged, and not by reading it
// after a write whose reply was lost: it may not be there any more when another server takes over.
func TestReadsConfirmNothing(t *testing.T) {
	for _, kind := range []driver.Kind{driver.KindMutex, driver.KindRW} {
		for _, used := range []bool{false, true} {
			for lose := range 4 {
				t.Run(fmt.Sprintf("%s, used before %v, %d replies lost", kind, used, lose), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						m := fakeMemory()
						table := &fleeting{Table: m.Table()}
						holder, other := record.New(table), m.Open()
						defer holder.Close()
						defer other.Close()
						claim := func(n int) driver.Claim {
							c := paceClaim(n, false)
							if kind == driver.KindRW {
								c.Kind, c.Limit, c.Weight = kind, driver.RWLimit, driver.RWLimit
							}
							return c
						}
						if used {
							g, err := holder.Acquire(t.Context(), claim(1))
							if err == nil {
								err = holder.Release(t.Context(), g.Claim, g.Ref)
							}
							if err != nil {
								t.Fatal(err)
							}
						}
						table.lose = lose
						if _, err := holder.Acquire(t.Context(), claim(2)); err != nil {
							t.Fatal(err)
						}
						table.failOver(t)
						if g, err := other.Acquire(t.Context(), claim(3)); !errors.Is(err, driver.ErrHeld) {
							t.Errorf("beside one who believes in the lock: token %d, %v", g.Token, err)
						}
					})
				})
			}
		}
	}
}

// unclocked is a table that does not know its store's clock, so that claims are judged by watching them.
type unclocked struct{ record.Table }

func (unclocked) Now() (int64, time.Duration) { return 0, -1 }

// TestForgottenRenewal promises that a holder is not taken for silent since a renewal that the store has forgotten,
// and that an observer has seen: what the holder renews afterwards looks otherwise.
func TestForgottenRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		table := &fleeting{Table: unclocked{m.Table()}}
		holder, observer := record.New(table), record.New(table)
		defer holder.Close()
		defer observer.Close()
		claim := func(n int) driver.Claim {
			c := paceClaim(n, false)
			c.TTL = 10 * time.Second
			return c
		}
		g, err := holder.Acquire(t.Context(), claim(1))
		if err != nil {
			t.Fatal(err)
		}
		renew := func() (err error) {
			holder.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) { err = r.Err })
			return err
		}
		table.lose = 1
		if err := renew(); !errors.Is(err, driver.ErrUncertain) {
			t.Fatal(err)
		}
		if _, err := observer.Acquire(t.Context(), claim(2)); !errors.Is(err, driver.ErrHeld) {
			t.Fatal(err)
		}
		table.failOver(t)
		time.Sleep(6 * time.Second)
		if err := renew(); err != nil { // good for 9 s from now
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second) // 12 s after the one that was forgotten
		if g, err := observer.Acquire(t.Context(), claim(3)); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("beside a holder that has renewed 6 s ago: token %d, %v", g.Token, err)
		}
	})
}

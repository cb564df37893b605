package record_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// undurableTable is a table on which a swap whose reply was lost can be read at first, and disappears when another
// server takes over: like a database that shows a commit which its standby does not have. An acknowledged swap remains,
// and so does everything that was written before it.
type undurableTable struct {
	record.Table
	lose    int // the replies to so many further swaps are lost
	latest  record.Row
	durable record.Row
}

func (*undurableTable) Watcher() record.Watcher { return nil }

func (f *undurableTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	now, err := f.Table.Swap(ctx, row)
	if err != nil {
		return now, err
	}
	f.latest = now
	if f.lose > 0 {
		f.lose--
		return record.Row{}, errors.New("connection reset")
	}
	f.durable = now
	return now, nil
}

// failOver removes everything that is not durable.
func (f *undurableTable) failOver(t *testing.T) {
	t.Helper()
	if f.latest.Version == f.durable.Version {
		return
	}
	err := f.Table.Delete(t.Context(), f.latest)
	if err == nil && f.durable.Version != "" {
		_, err = f.Table.Swap(t.Context(), record.Row{Name: f.durable.Name, Data: f.durable.Data})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestReadsConfirmNothing: a grant is confirmed by an acknowledged write, and not by a read after a write whose reply
// was lost: that write may disappear when another server takes over.
func TestReadsConfirmNothing(t *testing.T) {
	for _, kind := range []driver.Kind{driver.KindMutex, driver.KindRW} {
		for _, used := range []bool{false, true} {
			for lose := range 4 {
				t.Run(fmt.Sprintf("%s, used before %v, %d replies lost", kind, used, lose), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						m := fakeMemory()
						table := &undurableTable{Table: m.Table()}
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
							t.Errorf("next to a holder: token %d, %v", g.Token, err)
						}
					})
				})
			}
		}
	}
}

// TestReadsConfirmNoStep: what Detach, Break and RaiseToken have done remains when another server takes over, also if
// replies were lost: a read that shows it is not enough.
func TestReadsConfirmNoStep(t *testing.T) {
	const floor = 1 << 52
	steps := map[string]struct {
		do    func(ctx context.Context, s driver.Store, g driver.Grant) error
		check func(g driver.Grant, err error) bool // of the next claim
	}{
		"Detach": {
			func(ctx context.Context, s driver.Store, g driver.Grant) error {
				return s.Detach(ctx, g, time.Hour)
			},
			func(_ driver.Grant, err error) bool { return errors.Is(err, driver.ErrHeld) }},
		"Break": {
			func(ctx context.Context, s driver.Store, g driver.Grant) error {
				return s.Break(ctx, g.Name, g.Ref, driver.Break{Mode: driver.BreakForce})
			},
			func(_ driver.Grant, err error) bool { return err == nil }},
		"RaiseToken": {
			func(ctx context.Context, s driver.Store, g driver.Grant) error {
				return s.RaiseToken(ctx, g.Name, floor)
			},
			func(g driver.Grant, err error) bool { return err == nil && g.Token >= floor }},
	}
	for name, step := range steps {
		for lose := range 4 {
			t.Run(fmt.Sprintf("%s, %d replies lost", name, lose), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := fakeMemory()
					table := &undurableTable{Table: m.Table()}
					holder, other := record.New(table), m.Open()
					defer holder.Close()
					defer other.Close()
					g, err := holder.Acquire(t.Context(), paceClaim(1, false))
					if err != nil {
						t.Fatal(err)
					}
					table.lose = lose
					if err := step.do(t.Context(), holder, g); err != nil {
						t.Fatal(err)
					}
					table.failOver(t)
					if name != "Break" {
						time.Sleep(2 * time.Minute)
					}
					if g, err := other.Acquire(t.Context(), paceClaim(2, false)); !step.check(g, err) {
						t.Errorf("the next claim: token %d, %v", g.Token, err)
					}
				})
			})
		}
	}
}

// unclockedTable is a table that does not know its store's clock, so that clients must observe claims to expire them.
type unclockedTable struct{ record.Table }

func (unclockedTable) Watcher() record.Watcher { return nil }

func (unclockedTable) TokenFloor() int64   { return 0 }
func (unclockedTable) Clock() record.Clock { return nil }

// TestObserverSawLostRenewal: an observer has seen a renewal that the store then lost in a failover. The holder's next
// renewal differs from it, so the observer does not conclude that the holder has stopped renewing.
func TestObserverSawLostRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		table := &undurableTable{Table: unclockedTable{m.Table()}}
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
		if err := renew(); err != nil { // valid for 9 s from now
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second) // 12 s after the lost renewal
		if g, err := observer.Acquire(t.Context(), claim(3)); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("next to a holder that has renewed 6 s ago: token %d, %v", g.Token, err)
		}
	})
}

// lostPageTable is a table that loses the first page that is written: the reply is lost, the page can be read once, and
// then another server takes over, which does not have it.
type lostPageTable struct {
	record.Table
	written, lost bool
}

func (*lostPageTable) Watcher() record.Watcher { return nil }

func (f *lostPageTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	now, err := f.Table.Swap(ctx, row)
	if strings.Contains(row.Name, "\x1f") && err == nil && !f.written {
		f.written = true
		return record.Row{}, errors.New("connection reset")
	}
	return now, err
}

func (f *lostPageTable) Load(ctx context.Context, name string) (record.Row, error) {
	row, err := f.Table.Load(ctx, name)
	if strings.Contains(name, "\x1f") && err == nil && f.written && !f.lost {
		f.lost = true
		err = f.Table.Delete(ctx, row)
	}
	return row, err
}

// TestPageSurvivesFailover: runs are dropped from their record only when an acknowledged write has put them in a page.
// A page that was only read may disappear when another server takes over.
func TestPageSurvivesFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &lostPageTable{Table: memory.New(nil).Table()}
		l := record.NewLedger(table)
		defer l.Close()
		const attempts = 60
		failRuns(t, l, "k", attempts)
		if h, err := l.ReadRuns(t.Context(), "k", 0); err != nil || len(h.Runs) != attempts || !table.lost {
			t.Errorf("there are %d runs of %d, %v; a page was lost: %v", len(h.Runs), attempts, err, table.lost)
		}
	})
}

// forgettingTable is a table that can forget its last swap: like a database whose standby takes over and lacks the last
// commit. Versions are not used again.
type forgettingTable struct {
	record.Table
	row, before record.Row
	versions    int
}

func (*forgettingTable) Watcher() record.Watcher { return nil }

func (f *forgettingTable) Load(context.Context, string) (record.Row, error) { return f.row, nil }

func (f *forgettingTable) Swap(_ context.Context, row record.Row) (record.Row, error) {
	if row.Version != f.row.Version {
		return f.row, record.ErrConflict
	}
	f.versions++
	row.Version = fmt.Sprint(f.versions)
	f.before, f.row = f.row, row
	return row, nil
}

// TestStoreForgetsWrite: a client that has replaced a row believes the store if it shows the old row again.
func TestStoreForgetsWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &forgettingTable{Table: fakeMemory().Table()}
		s := record.New(table)
		defer s.Close()
		storetest.Release(t, s, storetest.Acquire(t, s, paceClaim(0, false)).Claim)
		storetest.Acquire(t, s, paceClaim(1, false))
		table.row = table.before
		if l, err := s.Inspect(t.Context(), "m"); err != nil || len(l.Holders) > 0 {
			t.Errorf("%d holders are shown (%v), and the store has none", len(l.Holders), err)
		}
		storetest.Acquire(t, s, paceClaim(2, false))
	})
}

package record_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// lossy is a table that answers the next swap with an error, having made it or not, and after something else has
// happened.
type lossy struct {
	record.Table
	lose  bool
	made  bool
	after func()
}

func (l *lossy) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if !l.lose {
		return l.Table.Swap(ctx, row)
	}
	l.lose = false
	if l.made {
		if _, err := l.Table.Swap(ctx, row); err != nil {
			return record.Row{}, err
		}
	}
	if l.after != nil {
		l.after()
	}
	return record.Row{}, errors.New("connection reset")
}

// lost loses the reply to the next swap, or the request.
func (l *lossy) lost(made bool, after func()) { l.lose, l.made, l.after = true, made, after }

// endings is a store with a holder whose replies get lost, and another client.
type endings struct {
	t             *testing.T
	m             *memory.Memory
	table         *lossy
	holder, other driver.Store
	n             int
}

func newEndings(t *testing.T) *endings {
	m := fakeMemory()
	table := &lossy{Table: m.Table()}
	e := &endings{t: t, m: m, table: table, holder: record.New(table), other: m.Open()}
	t.Cleanup(func() { e.holder.Close(); e.other.Close() })
	return e
}

func (e *endings) take(by driver.Store) driver.Grant {
	e.n++
	g, err := by.Acquire(e.t.Context(), paceClaim(e.n, false))
	if err != nil {
		e.t.Fatal(err)
	}
	return g
}

func (e *endings) breaks(g driver.Grant) {
	if err := e.other.Break(e.t.Context(), g.Name, g.Ref, driver.BreakForce); err != nil {
		e.t.Fatal(err)
	}
}

// nearEnd is how long before the end of its time a claim is released.
const nearEnd = 5 * time.Second

// TestReleaseKnowsItsOwn promises that a release whose reply was lost says nil only if it was this release that ended
// the claim.
func TestReleaseKnowsItsOwn(t *testing.T) {
	for _, c := range []struct {
		what  string
		made  bool
		after func(e *endings, g driver.Grant)
		want  driver.LossCause // empty: nil
	}{
		{"the reply is lost, and nobody comes", true, func(*endings, driver.Grant) {}, ""},
		{"the reply is lost, and somebody else comes", true, func(e *endings, g driver.Grant) { e.take(e.other) }, ""},
		{"the reply is lost, and others come, are broken and expire", true, func(e *endings, g driver.Grant) {
			e.breaks(e.take(e.other))
			short := paceClaim(1000, false)
			short.TTL = time.Second
			storetest.Acquire(e.t, e.other, short)
			time.Sleep(short.TTL + time.Millisecond)
			e.take(e.other)
		}, ""},
		{"the request is lost, and nothing happens", false, func(*endings, driver.Grant) {}, ""},
		{"the request is lost, and an operator breaks the claim", false,
			func(e *endings, g driver.Grant) { e.breaks(g) }, driver.LossBroken},
		{"the request is lost, an operator breaks the claim, and others have come and gone", false,
			func(e *endings, g driver.Grant) {
				e.breaks(g)
				for range 100 {
					next := e.take(e.other)
					storetest.Release(e.t, e.other, next.Claim)
				}
			}, driver.LossBroken},
		{"the request is lost, and somebody else comes when the claim's time is over", false,
			func(e *endings, g driver.Grant) {
				time.Sleep(nearEnd + time.Millisecond)
				e.take(e.other)
			}, driver.LossExpired},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEndings(t)
				g := e.take(e.holder)
				time.Sleep(g.GrantedTTL - nearEnd)
				e.table.lost(c.made, func() { c.after(e, g) })
				err := e.holder.Release(t.Context(), g.Claim, g.Ref)
				if storetest.LossOf(err) != c.want || c.want == "" && err != nil {
					t.Errorf("the release is told %v, want %q", err, c.want)
				}
			})
		})
	}
}

// TestTooManyEndings promises that a release which cannot know what it did says so: more claims were ended by others
// than are remembered.
func TestTooManyEndings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEndings(t)
		g := e.take(e.holder)
		e.table.lost(true, func() {
			for range 2 * driver.MaxWaiters {
				e.breaks(e.take(e.other))
			}
		})
		if err := e.holder.Release(t.Context(), g.Claim, g.Ref); !errors.Is(err, driver.ErrUncertain) ||
			errors.Is(err, driver.ErrLost) {
			t.Errorf("the release is told %v", err)
		}
		time.Sleep(time.Hour)
		g = e.take(e.holder)
		e.table.lost(true, nil)
		if err := e.holder.Release(t.Context(), g.Claim, g.Ref); err != nil {
			t.Errorf("an hour later another is told %v", err)
		}
	})
}

// TestForcedBreakIsTold promises that the holder of a claim that was broken by force is told of the operator, also
// when others have had the lock since, and also when the claim was granted by a swap whose reply it has not got.
func TestForcedBreakIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEndings(t)
		g := e.take(e.holder)
		e.breaks(g)
		e.take(e.other)
		if err := storetest.Renew(t, e.holder, g).Err; storetest.LossOf(err) != driver.LossBroken {
			t.Errorf("the renewal is told %v", err)
		}
		if err := e.holder.Release(t.Context(), g.Claim, ""); storetest.LossOf(err) != driver.LossBroken {
			t.Errorf("the release is told %v", err)
		}
		c := paceClaim(1000, true)
		c.Name = "another"
		e.table.lost(true, func() { e.breaks(driver.Grant{Claim: c, Ref: c.ID}) })
		if _, err := e.holder.Acquire(t.Context(), c); storetest.LossOf(err) != driver.LossBroken {
			t.Errorf("who is about to hold it is told %v", err)
		}
	})
}

// TestOperatorsStepsAreSettled promises that a break, a detaching and a change of weight whose replies, or requests,
// are lost are asked for again, and come to a certain end.
func TestOperatorsStepsAreSettled(t *testing.T) {
	for _, made := range []bool{true, false} {
		t.Run(fmt.Sprintf("made %v", made), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEndings(t)
				for _, mode := range []driver.BreakMode{driver.BreakRequestRelease, driver.BreakGraceful,
					driver.BreakForce} {
					g := e.take(e.other)
					e.table.lost(made, nil)
					if err := e.holder.Break(t.Context(), g.Name, g.Ref, mode); err != nil {
						t.Errorf("break %v: %v", mode, err)
					}
					if err := e.other.Release(t.Context(), g.Claim, ""); (err != nil) != (mode == driver.BreakForce) {
						t.Errorf("the release of what was broken by %v: %v", mode, err)
					}
				}
				g := e.take(e.other)
				e.table.lost(false, func() { storetest.Release(t, e.other, g.Claim) })
				if err := e.holder.Break(t.Context(), g.Name, g.Ref, driver.BreakForce); !errors.Is(err,
					driver.ErrLost) {
					t.Errorf("a break of what its holder has released: %v", err)
				}
				g = e.take(e.holder)
				e.table.lost(made, nil)
				if err := e.holder.(driver.Detacher).Detach(t.Context(), g, time.Minute); err != nil {
					t.Errorf("detach: %v", err)
				}
				storetest.Release(t, e.holder, g.Claim)

				c := paceClaim(1000, false)
				c.Kind, c.Limit, c.Weight = driver.KindRW, driver.RWLimit, driver.RWLimit
				g = storetest.Acquire(t, e.holder, c)
				e.table.lost(made, nil)
				if err := e.holder.(driver.WeightChanger).SetWeight(t.Context(), g, 1); err != nil {
					t.Errorf("set weight: %v", err)
				}
				l, err := e.other.Inspect(t.Context(), c.Name)
				if err != nil || len(l.Holders) != 1 || l.Holders[0].Weight != 1 {
					t.Errorf("%+v, %v", l, err)
				}
			})
		})
	}
}

// TestUnsettledStep promises that such a step gives up when the store does not answer, says that its outcome is not
// known, and ends with its context.
func TestUnsettledStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		table := &deaf{Table: m.Table()}
		s := record.New(table)
		defer s.Close()
		g := storetest.Acquire(t, s, paceClaim(1, false))
		table.writes.Store(time.Now().Add(time.Hour).UnixNano())
		from := time.Now()
		err := s.Break(t.Context(), g.Name, g.Ref, driver.BreakForce)
		if took := time.Since(from); !errors.Is(err, driver.ErrUncertain) || !errors.Is(err, errDeaf) ||
			took < 10*time.Second || took > 15*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Break(ctx, g.Name, g.Ref, driver.BreakForce); !errors.Is(err, driver.ErrUncertain) ||
			!errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("when its context has ended: %v", err)
		}
	})
}

// TestAllWaitersAreTold promises that an operator can break all who wait in line, one after the other, and each is
// told, though the store does not tell of changes.
func TestAllWaitersAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		holder := m.Open()
		defer holder.Close()
		held := paceClaim(0, false)
		held.TTL = time.Hour
		storetest.Acquire(t, holder, held)
		var told atomic.Int64
		for n := range driver.MaxWaiters {
			s := record.New(far{m.Table(), 0})
			defer s.Close()
			go func() {
				c := paceClaim(1+n, true)
				c.Fair, c.TTL = true, time.Hour
				if _, err := s.Acquire(t.Context(), c); storetest.LossOf(err) == driver.LossBroken {
					told.Add(1)
				} else {
					t.Errorf("one who waits is told %v", err)
				}
			}()
			time.Sleep(time.Second)
		}
		l, err := holder.Inspect(t.Context(), "m")
		if err != nil || len(l.Waiters) != driver.MaxWaiters {
			t.Fatalf("%d wait, %v", len(l.Waiters), err)
		}
		for _, w := range l.Waiters {
			if err := holder.Break(t.Context(), "m", w.Ref, driver.BreakGraceful); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := told.Load(); n != driver.MaxWaiters {
			t.Errorf("%d of %d are told", n, driver.MaxWaiters)
		}
	})
}

// unsent is a table to which there is no connection for writes.
type unsent struct{ record.Table }

func (unsent) Swap(context.Context, record.Row) (record.Row, error) {
	return record.Row{}, fmt.Errorf("connection refused: %w", record.ErrUnsent)
}

// TestUnsentIsKnown promises that the outcome of a step is known of which surely nothing was sent.
func TestUnsentIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		other, s := m.Open(), record.New(unsent{far{m.Table(), 0}})
		defer other.Close()
		defer s.Close()
		g := storetest.Acquire(t, other, paceClaim(1, false))
		another := paceClaim(2, false)
		another.Name = "another"
		_, err := s.Acquire(t.Context(), another)
		for what, err := range map[string]error{"a claim": err,
			"a break": s.Break(t.Context(), g.Name, g.Ref, driver.BreakForce)} {
			if !errors.Is(err, record.ErrUnsent) || errors.Is(err, driver.ErrUncertain) {
				t.Errorf("%s is told %v", what, err)
			}
		}
	})
}

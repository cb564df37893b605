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

// lossyTable is a table that can return an error for the next swap, after it has made the swap or not, and after
// something else has happened.
type lossyTable struct {
	record.Table
	lose  bool
	made  bool
	after func()
}

func (*lossyTable) Watcher() record.Watcher { return nil }

func (l *lossyTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
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

// loseNext loses the reply to the next swap, or the request.
func (l *lossyTable) loseNext(made bool, after func()) { l.lose, l.made, l.after = true, made, after }

// endingHarness is a store with a holder whose replies get lost, and another client.
type endingHarness struct {
	t             *testing.T
	m             *memory.Memory
	table         *lossyTable
	holder, other driver.Store
	n             int
}

func newEndingHarness(t *testing.T) *endingHarness {
	m := fakeMemory()
	table := &lossyTable{Table: m.Table()}
	e := &endingHarness{t: t, m: m, table: table, holder: record.New(table), other: m.Open()}
	t.Cleanup(func() { e.holder.Close(); e.other.Close() })
	return e
}

func (e *endingHarness) takeLock(by driver.Store) driver.Grant {
	e.n++
	g, err := by.Acquire(e.t.Context(), paceClaim(e.n, false))
	if err != nil {
		e.t.Fatal(err)
	}
	return g
}

func (e *endingHarness) forceBreak(g driver.Grant) {
	if err := e.other.Break(e.t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
		e.t.Fatal(err)
	}
}

// nearEnd is how long before it expires a claim is released.
const nearEnd = 5 * time.Second

// TestReleaseAfterLostRequest: a release whose request or reply was lost returns nil only if this release has ended the
// claim.
func TestReleaseAfterLostRequest(t *testing.T) {
	for _, c := range []struct {
		what  string
		made  bool
		after func(e *endingHarness, g driver.Grant)
		want  driver.LossCause // empty: nil
	}{
		{"the reply is lost, and nothing happens", true, func(*endingHarness, driver.Grant) {}, ""},
		{"the reply is lost, and another claim is granted", true,
			func(e *endingHarness, g driver.Grant) { e.takeLock(e.other) }, ""},
		{"the reply is lost, and other claims are granted, broken and expire", true,
			func(e *endingHarness, g driver.Grant) {
				e.forceBreak(e.takeLock(e.other))
				short := paceClaim(1000, false)
				short.TTL = time.Second
				storetest.Acquire(e.t, e.other, short)
				time.Sleep(short.TTL + time.Millisecond)
				e.takeLock(e.other)
			}, ""},
		{"the request is lost, and nothing happens", false, func(*endingHarness, driver.Grant) {}, ""},
		{"the request is lost, and an operator breaks the claim", false,
			func(e *endingHarness, g driver.Grant) { e.forceBreak(g) }, driver.LossBroken},
		{"the request is lost, an operator breaks the claim, and others hold the lock meanwhile", false,
			func(e *endingHarness, g driver.Grant) {
				e.forceBreak(g)
				for range 100 {
					next := e.takeLock(e.other)
					storetest.Release(e.t, e.other, next.Claim)
				}
			}, driver.LossBroken},
		{"the request is lost, and another claim is granted when this one has expired", false,
			func(e *endingHarness, g driver.Grant) {
				time.Sleep(nearEnd + time.Millisecond)
				e.takeLock(e.other)
			}, driver.LossExpired},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEndingHarness(t)
				g := e.takeLock(e.holder)
				time.Sleep(g.GrantedTTL - nearEnd)
				e.table.loseNext(c.made, func() { c.after(e, g) })
				err := e.holder.Release(t.Context(), g.Claim, g.Ref)
				if storetest.LossOf(err) != c.want || c.want == "" && err != nil {
					t.Errorf("the release returned %v, want %q", err, c.want)
				}
			})
		})
	}
}

// TestReleaseAfterShortDetach: the note of a claim that was detached for a short time is short, too. A release whose
// request was lost does not take the missing note for its own success.
func TestReleaseAfterShortDetach(t *testing.T) {
	for what, isReleasedLate := range map[string]bool{"before it has expired": false, "after that": true} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEndingHarness(t)
				g := e.takeLock(e.holder)
				const keep = 100 * time.Millisecond
				if err := e.holder.Detach(t.Context(), g, keep); err != nil {
					t.Fatal(err)
				}
				if isReleasedLate {
					time.Sleep(keep + time.Millisecond)
				}
				e.table.loseNext(false, func() {
					time.Sleep(keep + time.Millisecond)
					next := e.takeLock(e.other) // removes the claim
					time.Sleep(3 * keep)
					storetest.Release(t, e.other, next.Claim) // drops the note
				})
				err := e.holder.Release(t.Context(), g.Claim, g.Ref)
				if isReleasedLate && storetest.LossOf(err) != driver.LossExpired ||
					!isReleasedLate && !errors.Is(err, driver.ErrUncertain) {
					t.Errorf("the release returned %v", err)
				}
			})
		})
	}
}

// TestReleaseLongAfterExpiry: a release does not begin with a row that this client saw before the claim has expired and
// the note of that was dropped. Otherwise a lost request would look like its own success.
func TestReleaseLongAfterExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEndingHarness(t)
		g := e.takeLock(e.holder)
		time.Sleep(g.GrantedTTL + time.Second)
		e.takeLock(e.other) // removes the claim
		time.Sleep(g.GrantedTTL + driver.UnreachableTimeout(g.GrantedTTL) + time.Second)
		e.takeLock(e.other)                           // drops the note
		e.table.Table = unclockedTable{e.table.Table} // so that the release cannot tell by the clock
		e.table.loseNext(false, nil)
		if err := e.holder.Release(t.Context(), g.Claim, g.Ref); !errors.Is(err, driver.ErrLost) {
			t.Errorf("the release returned %v", err)
		}
	})
}

// TestDetachThatHasEnded: a Detach whose reply was lost, and which is asked about after its time, was made.
func TestDetachThatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEndingHarness(t)
		g := e.takeLock(e.holder)
		e.table.loseNext(true, func() { time.Sleep(time.Second) })
		if err := e.holder.Detach(t.Context(), g, 100*time.Millisecond); err != nil {
			t.Error(err)
		}
	})
}

// TestTooManyEndings: a release returns an unknown outcome if more claims were ended by others than notes are kept.
func TestTooManyEndings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEndingHarness(t)
		g := e.takeLock(e.holder)
		e.table.loseNext(true, func() {
			for range 2 * driver.MaxWaiters {
				e.forceBreak(e.takeLock(e.other))
			}
		})
		if err := e.holder.Release(t.Context(), g.Claim, g.Ref); !errors.Is(err, driver.ErrUncertain) ||
			errors.Is(err, driver.ErrLost) {
			t.Errorf("the release returned %v", err)
		}
		time.Sleep(time.Hour)
		g = e.takeLock(e.holder)
		e.table.loseNext(true, nil)
		if err := e.holder.Release(t.Context(), g.Claim, g.Ref); err != nil {
			t.Errorf("an hour later another release returned %v", err)
		}
	})
}

// TestHolderLearnsOfForcedBreak: the holder of a claim that was broken by force learns of the break, even if others
// have held the lock since, and also if the claim was granted by a swap whose reply was lost.
func TestHolderLearnsOfForcedBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEndingHarness(t)
		g := e.takeLock(e.holder)
		e.forceBreak(g)
		e.takeLock(e.other)
		if err := storetest.Renew(t, e.holder, g).Err; storetest.LossOf(err) != driver.LossBroken {
			t.Errorf("the renewal returned %v", err)
		}
		if err := e.holder.Release(t.Context(), g.Claim, ""); storetest.LossOf(err) != driver.LossBroken {
			t.Errorf("the release returned %v", err)
		}
		c := paceClaim(1000, true)
		c.Name = "another"
		e.table.loseNext(true, func() { e.forceBreak(driver.Grant{Claim: c, Ref: c.ID}) })
		if _, err := e.holder.Acquire(t.Context(), c); storetest.LossOf(err) != driver.LossBroken {
			t.Errorf("Acquire returned %v", err)
		}
	})
}

// TestOperatorStepAfterLostReply: a break, a Detach and a SetWeight whose reply or request is lost are tried again,
// until their outcome is known.
func TestOperatorStepAfterLostReply(t *testing.T) {
	for _, made := range []bool{true, false} {
		t.Run(fmt.Sprintf("made %v", made), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEndingHarness(t)
				for _, mode := range []driver.BreakMode{driver.BreakRequestRelease, driver.BreakGraceful,
					driver.BreakForce} {
					g := e.takeLock(e.other)
					e.table.loseNext(made, nil)
					if err := e.holder.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: mode}); err != nil {
						t.Errorf("break %v: %v", mode, err)
					}
					if err := e.other.Release(t.Context(), g.Claim, ""); (err != nil) != (mode == driver.BreakForce) {
						t.Errorf("the release of a claim that was broken with mode %v: %v", mode, err)
					}
				}
				g := e.takeLock(e.other)
				e.table.loseNext(false, func() { storetest.Release(t, e.other, g.Claim) })
				if err := e.holder.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakForce}); !errors.Is(err,
					driver.ErrLost) {
					t.Errorf("a break of a claim that its holder has released: %v", err)
				}
				g = e.takeLock(e.holder)
				e.table.loseNext(made, nil)
				if err := e.holder.Detach(t.Context(), g, time.Minute); err != nil {
					t.Errorf("detach: %v", err)
				}
				storetest.Release(t, e.holder, g.Claim)

				c := paceClaim(1000, false)
				c.Kind, c.Limit, c.Weight = driver.KindRW, driver.RWLimit, driver.RWLimit
				g = storetest.Acquire(t, e.holder, c)
				e.table.loseNext(made, nil)
				if err := e.holder.SetWeight(t.Context(), g, 1); err != nil {
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

// TestUnresolvedOperatorStep: a break ends with an unknown outcome when the store has not answered for too long, or
// when its context ends.
func TestUnresolvedOperatorStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		table := &unreachableTable{Table: m.Table()}
		s := record.New(table)
		defer s.Close()
		g := storetest.Acquire(t, s, paceClaim(1, false))
		table.writes.Store(time.Now().Add(time.Hour).UnixNano())
		from := time.Now()
		err := s.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakForce})
		if took := time.Since(from); !errors.Is(err, driver.ErrUncertain) || !errors.Is(err, errUnreachable) ||
			took < 10*time.Second || took > 15*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Break(ctx, g.Name, g.Ref, driver.Break{Mode: driver.BreakForce}); !errors.Is(err, driver.ErrUncertain) ||
			!errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after the context has ended: %v", err)
		}
	})
}

// TestAllWaitersLearnOfBreak: an operator breaks all waiting claims, one after the other, and each of them learns of
// it, although the store does not notify of changes.
func TestAllWaitersLearnOfBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		holder := m.Open()
		defer holder.Close()
		held := paceClaim(0, false)
		held.TTL = time.Hour
		storetest.Acquire(t, holder, held)
		var informed atomic.Int64
		for n := range driver.MaxWaiters {
			s := record.New(distantTable{m.Table(), 0})
			defer s.Close()
			go func() {
				c := paceClaim(1+n, true)
				c.Fair, c.TTL = true, time.Hour
				if _, err := s.Acquire(t.Context(), c); storetest.LossOf(err) == driver.LossBroken {
					informed.Add(1)
				} else {
					t.Errorf("a broken waiter's Acquire returned %v", err)
				}
			}()
			time.Sleep(time.Second)
		}
		l, err := holder.Inspect(t.Context(), "m")
		if err != nil || len(l.Waiters) != driver.MaxWaiters {
			t.Fatalf("%d claims wait, %v", len(l.Waiters), err)
		}
		for _, w := range l.Waiters {
			if err := holder.Break(t.Context(), "m", w.Ref, driver.Break{Mode: driver.BreakGraceful}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := informed.Load(); n != driver.MaxWaiters {
			t.Errorf("%d of %d waiters learned of it", n, driver.MaxWaiters)
		}
	})
}

// unsentTable is a table that has no connection for writes.
type unsentTable struct{ record.Table }

func (unsentTable) Watcher() record.Watcher { return nil }

func (unsentTable) Swap(context.Context, record.Row) (record.Row, error) {
	return record.Row{}, fmt.Errorf("connection refused: %w", record.ErrUnsent)
}

// TestUnsentIsKnown: the outcome of a step is known if its request was certainly not sent.
func TestUnsentIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		other, s := m.Open(), record.New(unsentTable{distantTable{m.Table(), 0}})
		defer other.Close()
		defer s.Close()
		g := storetest.Acquire(t, other, paceClaim(1, false))
		another := paceClaim(2, false)
		another.Name = "another"
		_, err := s.Acquire(t.Context(), another)
		for what, err := range map[string]error{"a claim": err,
			"a break": s.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakForce})} {
			if !errors.Is(err, record.ErrUnsent) || errors.Is(err, driver.ErrUncertain) {
				t.Errorf("%s returned %v", what, err)
			}
		}
	})
}

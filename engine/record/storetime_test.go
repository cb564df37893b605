package record_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// wallClockTable is one client of a store whose Clock is nil, as those of etcd, ZooKeeper and Consul. off is how
// wrong its machine's wall clock is. If timeless is set, the store does not tell its time either.
type wallClockTable struct {
	record.Table
	off      time.Duration
	timeless bool
	fails    *error // what ReadClock returns instead of the time
}

func (wallClockTable) Watcher() record.Watcher { return nil }

func (t wallClockTable) TokenFloor() int64 { return time.Now().Add(t.off).UnixMicro() }

func (t wallClockTable) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	switch {
	case t.timeless:
		return now, 0, driver.ErrUnsupported
	case t.fails != nil && *t.fails != nil:
		return now, 0, *t.fails
	}
	return t.Table.ReadClock(ctx)
}

// testWallClocks runs a test whose clients have wall clocks that are wrong.
func testWallClocks(t *testing.T, test func(t *testing.T, open func(off time.Duration) driver.Ledger)) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New(&memory.Options{Unclocked: true})
		test(t, func(off time.Duration) driver.Ledger {
			l := record.NewLedger(wallClockTable{Table: m.Table(), off: off})
			t.Cleanup(func() { _ = l.Close() })
			return l
		})
	})
}

// failRun begins a run of a key, which fails at once.
func failRun(t *testing.T, l driver.Ledger, c driver.Claim) driver.Grant {
	t.Helper()
	g := storetest.Acquire(t, l, c)
	if err := l.FinishRun(t.Context(), g, driver.RunOutcome{State: driver.RunFailed, Error: "no"}); err != nil {
		t.Fatal(err)
	}
	return g
}

// sweepFor has a client work on another key until it has swept. The ends of runs start sweeps.
func sweepFor(t *testing.T, l driver.Ledger, times int) {
	t.Helper()
	for range times {
		failRun(t, l, newRun("other"))
		time.Sleep(time.Hour)
	}
}

// TestRetentionIgnoresWallClocks: a history is kept for as long as was asked for, although the wall clock of the
// client that ended its run was behind, or that of the client that sweeps is ahead. Then it is removed.
func TestRetentionIgnoresWallClocks(t *testing.T) {
	for _, ender := range []time.Duration{0, -72 * time.Hour, 72 * time.Hour} {
		for _, sweeper := range []time.Duration{0, 72 * time.Hour} {
			testWallClocks(t, func(t *testing.T, open func(time.Duration) driver.Ledger) {
				l, other := open(ender), open(sweeper)
				kept := newRun("k")
				kept.Run.KeepFor = 48 * time.Hour
				g := storetest.Acquire(t, l, kept)
				if err := l.FinishRun(t.Context(), g, succeeded("done")); err != nil {
					t.Fatal(err)
				}
				sweepFor(t, other, 47)
				if _, err := l.Acquire(t.Context(), newRun("k")); !errors.Is(err, driver.ErrSucceeded) {
					t.Errorf("ender %v, sweeper %v: after 47 h of 48: %v", ender, sweeper, err)
				}
				sweepFor(t, other, 80) // the token must have passed, too
				if h, err := l.ReadRuns(t.Context(), "k", 0); err != nil || len(h.Runs) > 0 {
					t.Errorf("ender %v, sweeper %v: after 127 h of 48: %d runs, %v", ender, sweeper, len(h.Runs), err)
				}
			})
		}
	}
}

// TestTokensIgnoreWallClocks: the tokens of a key rise although its record was removed, and the wall clock of the
// client that had the larger token was ahead, or that of the next one is behind.
func TestTokensIgnoreWallClocks(t *testing.T) {
	for _, first := range []time.Duration{0, 2 * time.Hour} {
		for _, second := range []time.Duration{0, -72 * time.Hour} {
			testWallClocks(t, func(t *testing.T, open func(time.Duration) driver.Ledger) {
				l := open(first)
				short := newRun("k")
				short.Run.KeepFor = time.Minute
				g := failRun(t, l, short)
				sweepFor(t, l, 6)
				if h, err := l.ReadRuns(t.Context(), "k", 0); err != nil || len(h.Runs) > 0 {
					t.Fatalf("after 6 h the record is still there: %d runs, %v", len(h.Runs), err)
				}
				if next := storetest.Acquire(t, open(second), newRun("k")); next.Token <= g.Token {
					t.Errorf("wall clocks %v, %v: the token falls from %d to %d", first, second, g.Token, next.Token)
				}
			})
		}
	}
}

// TestPausesIgnoreWallClocks: the pause between two runs is counted by the store's clock, whichever client ends the
// one and begins the other.
func TestPausesIgnoreWallClocks(t *testing.T) {
	clocks := []time.Duration{0, -time.Hour, time.Hour}
	for _, ender := range clocks {
		for _, beginner := range clocks {
			testWallClocks(t, func(t *testing.T, open func(time.Duration) driver.Ledger) {
				c := newRun("k")
				c.Run.Pause = time.Minute
				failRun(t, open(ender), c)
				next := open(beginner)
				time.Sleep(57 * time.Second)
				if _, err := next.Acquire(t.Context(), c); !errors.Is(err, driver.ErrTooSoon) {
					t.Errorf("clocks %v, %v: after 57 s of a pause of one minute: %v", ender, beginner, err)
				}
				time.Sleep(5 * time.Second)
				if _, err := next.Acquire(t.Context(), c); err != nil {
					t.Errorf("clocks %v, %v: after 62 s of a pause of one minute: %v", ender, beginner, err)
				}
			})
		}
	}
}

// TestTimelessStore: a store that tells no time at all keeps no pauses, and says so, unless there is an answer that
// needs no clock. It removes no histories.
func TestTimelessStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New(&memory.Options{Unclocked: true})
		l := record.NewLedger(wallClockTable{Table: m.Table(), timeless: true})
		defer l.Close()
		paused := newRun("paused")
		paused.Run.Pause = time.Minute
		if _, err := l.Acquire(t.Context(), paused); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("a run with a pause: %v", err)
		}
		storetest.Release(t, l, storetest.Acquire(t, l, newRun("paused")).Claim)
		if _, err := l.Acquire(t.Context(), paused); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("a run with a pause after another one: %v", err)
		}
		g := storetest.Acquire(t, l, newRun("paused"))
		if _, err := l.Acquire(t.Context(), paused); !errors.Is(err, driver.ErrInProgress) {
			t.Errorf("a run with a pause while another is in progress: %v", err)
		}
		if err := l.FinishRun(t.Context(), g, succeeded("done")); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Acquire(t.Context(), paused); !errors.Is(err, driver.ErrSucceeded) {
			t.Errorf("a run with a pause after one that has succeeded: %v", err)
		}
		kept := newRun("k")
		kept.Run.KeepFor = time.Hour
		failRun(t, l, kept)
		sweepFor(t, l, 72)
		if h, err := l.ReadRuns(t.Context(), "k", 0); err != nil || len(h.Runs) != 1 {
			t.Errorf("%d runs, %v", len(h.Runs), err)
		}
	})
}

// TestClockThatFails: once a store has told its time, runs begin and end although it does not for a while, and pauses
// are counted by the last answer. A client whose wall clock is wrong shows that its own is not used.
func TestClockThatFails(t *testing.T) {
	for _, failure := range []error{driver.ErrUnsupported, errors.New("no answer"), driver.ErrDenied} {
		synctest.Test(t, func(t *testing.T) {
			var fails error
			m := memory.New(&memory.Options{Unclocked: true})
			l := record.NewLedger(wallClockTable{Table: m.Table(), off: -time.Hour, fails: &fails})
			defer l.Close()
			c := newRun("k")
			c.Run.Pause = time.Minute
			g := storetest.Acquire(t, l, c)
			time.Sleep(2 * time.Minute) // the answer of the store is too old
			fails = failure
			if err := l.FinishRun(t.Context(), g, driver.RunOutcome{State: driver.RunFailed, Error: "no"}); err != nil {
				t.Errorf("%v: the end of a run: %v", failure, err)
			}
			time.Sleep(50 * time.Second)
			if _, err := l.Acquire(t.Context(), c); !errors.Is(err, driver.ErrTooSoon) {
				t.Errorf("%v: after 50 s of a pause of one minute: %v", failure, err)
			}
			time.Sleep(20 * time.Second)
			failRun(t, l, c)
			fails = nil
			time.Sleep(2 * time.Minute)
			failRun(t, l, c)
			h, err := l.ReadRuns(t.Context(), "k", 0)
			if err != nil || len(h.Runs) != 3 || time.Since(h.Runs[2].EndedAt).Abs() > time.Second {
				t.Errorf("%v: %+v, %v", failure, h.Runs, err)
			}
		})
	}
}

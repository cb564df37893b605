package holdfast

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// clockedLedgers is a store whose ledger has another clock.
type clockedLedgers struct {
	driver.Store
	clock driver.Clock
}

func (s clockedLedgers) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	l, err := s.Store.OpenLedger(ctx)
	return clockedLedger{l, s.clock}, err
}

type clockedLedger struct {
	driver.Ledger
	clock driver.Clock
}

func (l clockedLedger) Info() driver.Info {
	info := l.Ledger.Info()
	info.Clock = l.clock
	return info
}

// requireState checks that a report that returned err is what the ledger shows of the only run of a key.
func requireState(t *testing.T, l *Ledger, key string, err error, reported RunState) {
	t.Helper()
	runs, readErr := l.History(t.Context(), key)
	if readErr != nil || len(runs) != 1 {
		t.Fatalf("the history is %v, %v", runs, readErr)
	}
	if (err == nil) != (runs[0].State == reported) {
		t.Errorf("the report %q returned %v, and the ledger shows %q", reported, err, runs[0].State)
	}
}

// TestReportOfRunLostMeanwhile: a success is reported, and Succeed returns nil, also if the run expires in the middle
// of the call.
func TestReportOfRunLostMeanwhile(t *testing.T) {
	for n := range int64(5) {
		synctest.Test(t, func(t *testing.T) {
			store := bubbleMemory().Open()
			clock := store.Info().Clock
			boottime, asleep := clock.Boottime, false
			var readings atomic.Int64 // how many there are until the machine sleeps
			clock.Boottime = func() time.Duration {
				if readings.Add(-1) == 0 {
					asleep = true
				}
				if asleep {
					return boottime() + time.Hour
				}
				return boottime()
			}
			l := newClient(t, clockedLedgers{store, clock}, nil).Ledger("l", nil)
			run, err := l.Begin(t.Context(), "k", nil)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			readings.Store(n + 1)
			err = run.Succeed(t.Context(), nil)
			readings.Store(0)
			synctest.Wait() // for what is done in the background
			requireState(t, l, "k", err, RunSucceeded)
			if err != nil {
				t.Errorf("nobody else has ended the run, but Succeed returned %v", err)
			}
		})
	}
}

// TestReportDuringClose: a run that Close has ended reports no success, since Succeed has returned ErrClosed.
func TestReportDuringClose(t *testing.T) {
	l := newClient(t, bubbleMemory().Open(), nil).Ledger("l", nil)
	run, err := l.Begin(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	h := run.lease.hold
	if !h.endAs(stateClosed, nil) { // as the first part of Close does
		t.Fatal("the run has ended before")
	}
	err = run.Succeed(t.Context(), nil)
	wantIs(t, err, ErrClosed)
	if err := h.releaseClaim(t.Context()); err != nil { // the second part
		t.Fatal(err)
	}
	requireState(t, l, "k", err, RunSucceeded)
}

// TestConcurrentReports: of a success and a failure that are reported at the same time, the one that returns nil is
// what the ledger shows.
func TestConcurrentReports(t *testing.T) {
	l := newClient(t, bubbleMemory().Open(), nil).Ledger("l", nil)
	for i := range 300 {
		key := fmt.Sprint(i)
		run, err := l.Begin(t.Context(), key, nil)
		if err != nil {
			t.Fatal(err)
		}
		var succeeded, failed error
		var reports sync.WaitGroup
		reports.Go(func() { succeeded = run.Succeed(t.Context(), nil) })
		reports.Go(func() { failed = run.Fail(t.Context(), nil) })
		reports.Wait()
		requireState(t, l, key, succeeded, RunSucceeded)
		requireState(t, l, key, failed, RunFailed)
	}
}

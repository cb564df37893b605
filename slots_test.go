package holdfast_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

// scheduleFunc is a Schedule made of a function.
type scheduleFunc func(after time.Time) time.Time

func (f scheduleFunc) Next(after time.Time) time.Time { return f(after) }

// openLedgerAt opens a ledger on a store whose clock shows a given time, whatever the clock of this machine shows.
// setClock sets the store's clock.
func openLedgerAt(t *testing.T, now time.Time) (l *holdfast.Ledger, setClock func(time.Time)) {
	t.Helper()
	start := time.Now()
	var ahead atomic.Int64 // of the store's clock, in nanoseconds; background work of the client reads that clock, too
	sinceStart := func() time.Duration { return time.Since(start) }
	m := memory.New(&memory.Options{Clock: driver.Clock{
		Monotonic: sinceStart, Boottime: func() time.Duration { return sinceStart() + time.Duration(ahead.Load()) },
	}})
	setClock = func(to time.Time) { ahead.Store(int64(time.Until(to))) }
	setClock(now) // after the store was made, which starts with this machine's clock
	client, err := holdfast.New(m.Open(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client.Ledger("jobs", nil), setClock
}

func mustParseTime(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestCurrentSlot: the current slot is the one that has started last by the store's clock.
func TestCurrentSlot(t *testing.T) {
	mondays := scheduleFunc(func(after time.Time) time.Time { // at every minute of a Monday
		next := after.UTC().Truncate(time.Minute).Add(time.Minute)
		for next.Weekday() != time.Monday {
			next = next.Truncate(24 * time.Hour).Add(24 * time.Hour)
		}
		return next
	})
	only := func(text string) holdfast.Schedule {
		return scheduleFunc(func(after time.Time) time.Time {
			if at := mustParseTime(t, text); at.After(after) {
				return at
			}
			return time.Time{}
		})
	}
	tests := []struct {
		name            string
		schedule        holdfast.Schedule
		now, start, end string
	}{
		{"in a day", holdfast.Every(24 * time.Hour), "2100-03-01T23:59:59.5Z", "2100-03-01T00:00:00Z", "2100-03-02T00:00:00Z"},
		{"when a day starts", holdfast.Every(24 * time.Hour), "2100-03-02T00:00:00Z", "2100-03-02T00:00:00Z", "2100-03-03T00:00:00Z"},
		{"in seven hours", holdfast.Every(7 * time.Hour), "2100-01-01T00:00:01Z", "2099-12-31T21:00:00Z", "2100-01-01T04:00:00Z"},
		{"in a second", holdfast.Every(time.Second), "2100-01-01T00:00:01.25Z", "2100-01-01T00:00:01Z", "2100-01-01T00:00:02Z"},
		{"after many slots and a gap", mondays, "2100-01-10T12:00:00Z", "2100-01-04T23:59:00Z", "2100-01-11T00:00:00Z"},
		{"years later", only("2090-01-01T00:00:00Z"), "2100-01-01T00:00:00Z", "2090-01-01T00:00:00Z", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ledger, _ := openLedgerAt(t, mustParseTime(t, test.now))
				slot, err := ledger.CurrentSlot(t.Context(), test.schedule)
				if err != nil {
					t.Fatal(err)
				}
				if !slot.Now.Equal(mustParseTime(t, test.now)) || slot.MaxError != 0 {
					t.Errorf("the store's clock shows %v within %v, want %s", slot.Now, slot.MaxError, test.now)
				}
				if !slot.Start.Equal(mustParseTime(t, test.start)) {
					t.Errorf("the slot starts at %v, want %s", slot.Start, test.start)
				}
				if test.end == "" != slot.End.IsZero() || test.end != "" && !slot.End.Equal(mustParseTime(t, test.end)) {
					t.Errorf("the slot ends at %v, want %q", slot.End, test.end)
				}
				if key := slot.Key("backup"); key != "backup@"+test.start {
					t.Errorf("the key is %q", key)
				}
			})
		})
	}
}

// TestCurrentSlotRefused: a schedule without a slot, one that does not advance, and none at all are invalid.
func TestCurrentSlotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger, _ := openLedgerAt(t, mustParseTime(t, "2100-01-01T00:00:00Z"))
		for name, schedule := range map[string]holdfast.Schedule{
			"nil":              nil,
			"too fast":         holdfast.Every(time.Second - 1),
			"never":            scheduleFunc(func(time.Time) time.Time { return time.Time{} }),
			"in the future":    scheduleFunc(func(time.Time) time.Time { return time.Unix(1<<33, 0) }),
			"does not advance": scheduleFunc(func(after time.Time) time.Time { return after }),
		} {
			if slot, err := ledger.CurrentSlot(t.Context(), schedule); !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("%s: %+v, %v", name, slot, err)
			}
		}
		unclocked, err := holdfast.New(memory.New(&memory.Options{Unclocked: true}).Open(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer unclocked.Close()
		_, err = unclocked.Ledger("jobs", nil).CurrentSlot(t.Context(), holdfast.Every(time.Hour))
		if !errors.Is(err, holdfast.ErrUnsupported) {
			t.Errorf("a store without a clock: %v", err)
		}
	})
}

// TestOncePerSlot: a job runs once per slot, and again when the next slot has started. If the store's clock is set back
// to a slot that has succeeded, the job does not run again.
func TestOncePerSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := mustParseTime(t, "2100-01-01T10:59:00Z")
		ledger, setClock := openLedgerAt(t, start)
		runs := 0
		runJob := func() {
			t.Helper()
			slot, err := ledger.CurrentSlot(t.Context(), holdfast.Every(time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			run, err := ledger.Begin(t.Context(), slot.Key("report"), nil)
			if errors.Is(err, holdfast.ErrSucceeded) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			runs++
			if err := run.Succeed(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		for _, step := range []struct {
			at   string
			runs int
		}{
			{"2100-01-01T10:59:00Z", 1}, {"2100-01-01T10:59:59.9Z", 1}, {"2100-01-01T11:00:00Z", 2}, {"2100-01-01T11:30:00Z", 2},
			{"2100-01-01T10:59:30Z", 2}, {"2100-01-01T12:00:00Z", 3},
		} {
			setClock(mustParseTime(t, step.at))
			if runJob(); runs != step.runs {
				t.Errorf("at %s the job has run %d times, want %d", step.at, runs, step.runs)
			}
		}
	})
}

package holdfast_test

import (
	"context"
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

// timelessStore is a store that does not tell the time.
type timelessStore struct{ driver.Store }

type timelessLedger struct{ driver.Ledger }

func (s timelessStore) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	l, err := s.Store.OpenLedger(ctx)
	return timelessLedger{l}, err
}

func (timelessLedger) ReadClock(context.Context) (time.Time, time.Duration, error) {
	return time.Time{}, 0, driver.ErrUnsupported
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
			// as "@every 1h" of github.com/robfig/cron/v3
			"counts from when it is asked": scheduleFunc(func(after time.Time) time.Time {
				return after.Add(time.Hour - time.Duration(after.Nanosecond()))
			}),
			"counts from the second in which it is asked": scheduleFunc(func(after time.Time) time.Time {
				return after.Truncate(time.Second).Add(time.Hour)
			}),
		} {
			if slot, err := ledger.CurrentSlot(t.Context(), schedule); !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("%s: %+v, %v", name, slot, err)
			}
		}
		timeless, err := holdfast.New(timelessStore{memory.New(nil).Open()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer timeless.Close()
		_, err = timeless.Ledger("jobs", nil).CurrentSlot(t.Context(), holdfast.Every(time.Hour))
		if !errors.Is(err, holdfast.ErrUnsupported) {
			t.Errorf("a store that does not tell the time: %v", err)
		}
	})
}

// zonedStore is a store whose ledger tells the time in a time zone, as time.UnixMicro does on a machine in that zone.
type zonedStore struct {
	driver.Store
	zone *time.Location
}

type zonedLedger struct {
	driver.Ledger
	zone *time.Location
}

func (s zonedStore) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	l, err := s.Store.OpenLedger(ctx)
	return zonedLedger{l, s.zone}, err
}

func (l zonedLedger) ReadClock(ctx context.Context) (time.Time, time.Duration, error) {
	now, maxError, err := l.Ledger.ReadClock(ctx)
	return now.In(l.zone), maxError, err
}

// TestSlotInEveryTimeZone: workers on machines in different time zones get the same slot of a schedule without a time
// zone, which means UTC, so that the job runs once. What the ledger returns is in UTC, too.
func TestSlotInEveryTimeZone(t *testing.T) {
	nightly := scheduleFunc(func(after time.Time) time.Time { // at 3:00 in the time zone of the time that it is given
		next := time.Date(after.Year(), after.Month(), after.Day(), 3, 0, 0, 0, after.Location())
		if !next.After(after) {
			next = next.AddDate(0, 0, 1)
		}
		return next
	})
	// Its times are in the time zone of its machine, and it is given them again.
	nightlyIn := func(zone *time.Location) holdfast.Schedule {
		return scheduleFunc(func(after time.Time) time.Time { return nightly(after).In(zone) })
	}
	synctest.Test(t, func(t *testing.T) {
		m := memory.New(nil)
		ran := 0
		keys := map[string]bool{}
		for _, zone := range []*time.Location{
			time.UTC, time.FixedZone("JST", 9*3600), time.FixedZone("PST", -8*3600), time.FixedZone("NPT", 20700),
		} {
			client, err := holdfast.New(zonedStore{m.Open(), zone}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			l := client.Ledger("jobs", nil)
			for _, schedule := range []holdfast.Schedule{nightly, nightlyIn(zone)} {
				slot, err := l.CurrentSlot(t.Context(), schedule)
				if err != nil {
					t.Fatal(err)
				}
				keys[slot.Key("report")] = true
				if slot.Start.Location() != time.UTC || slot.End.Location() != time.UTC || slot.Now.Location() != time.UTC {
					t.Errorf("in %s: %v, %v, %v, want times in UTC", zone, slot.Start, slot.End, slot.Now)
				}
				if _, err := l.Do(t.Context(), slot.Key("report"), nil, func(context.Context, *holdfast.Run) ([]byte, error) {
					ran++
					return nil, nil
				}); err != nil {
					t.Fatal(err)
				}
				runs, err := l.History(t.Context(), slot.Key("report"))
				if err != nil || len(runs) != 1 || runs[0].StartedAt.Location() != time.UTC || runs[0].EndedAt.Location() != time.UTC {
					t.Errorf("in %s: %+v, %v, want one run with its times in UTC", zone, runs, err)
				}
			}
		}
		if ran != 1 || len(keys) != 1 {
			t.Errorf("workers in four time zones ran the job of one slot %d times, under %v", ran, keys)
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

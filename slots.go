package holdfast

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Schedule says when the slots of a job start: the same moments for all who ask, whenever they ask. The cron
// expressions of github.com/robfig/cron/v3 are Schedules. Its "@every 1h" is none, because it counts from the moment
// at which it is asked: use [Every].
type Schedule interface {
	// Next returns when the first slot starts that starts after a moment, or the zero Time if there is none. The moment
	// is in UTC, on every machine. So a cron expression without a time zone means UTC; with robfig/cron,
	// "CRON_TZ=Asia/Tokyo 0 3 * * *" names another one. A Schedule must not use time.Local: then machines in different
	// time zones would run the job of one slot once each.
	Next(after time.Time) time.Time
}

// Every returns the schedule of slots that are d long and follow each other, counted from 1970-01-01T00:00:00Z. So the
// slots of Every(24*time.Hour) are the days in UTC. d is at least one second.
func Every(d time.Duration) Schedule { return every(d) }

type every time.Duration

// Next implements Schedule. A schedule that is too fast has no slots.
func (e every) Next(after time.Time) time.Time {
	d := time.Duration(e)
	if d < time.Second {
		return time.Time{}
	}
	passed := time.Duration(after.UnixNano()) % d // the years 1678 to 2262 fit
	if passed < 0 {
		passed += d
	}
	return after.Add(d - passed).UTC()
}

// Slot is a period in which a job is to run once. Its times are in UTC.
type Slot struct {
	Start time.Time
	End   time.Time // when the next slot starts; zero if there is no other
	// Now is the time by the store's clock when it was asked, and MaxError is how wrong it may be. Within MaxError of
	// Start or of End, the neighboring slot may be the current one.
	Now      time.Time
	MaxError time.Duration
}

// Key returns the key of a job's run in this slot: the job's key, an @, and when the slot starts, in UTC.
func (s Slot) Key(job string) string { return job + "@" + s.Start.UTC().Format(time.RFC3339Nano) }

// CurrentSlot returns the slot of a schedule that has started last, by the store's clock. So all workers agree on the
// slot, whatever their own clocks show. With [Slot.Key] it makes a job run once per slot, and with RunOptions.Slot a
// job that takes longer than its slot does not overlap with the next one:
//
//	slot, err := ledger.CurrentSlot(ctx, holdfast.Every(24*time.Hour))
//	if err != nil {
//		return err
//	}
//	_, err = ledger.Do(ctx, slot.Key("report"), &holdfast.RunOptions{Slot: &slot}, makeReport)
//
// A worker that is started by a timer of its own machine may come before the slot has started by the store's clock. If
// Slot.End is near, it should wait until then and ask again.
//
// When the store's clock is set back, or a server takes over whose clock is behind, the slot before may be the current
// one again. If it has succeeded, it is not run again.
//
// It costs one round trip. Errors: ErrInvalid if no slot of the schedule has started yet, or if the start of the slot
// depends on when the schedule is asked; ErrUnsupported if the store does not tell the time; and those of the store.
func (l *Ledger) CurrentSlot(ctx context.Context, s Schedule) (Slot, error) {
	const op = "find slot"
	if s == nil {
		return Slot{}, l.wrapError(op, "", newInvalidError("the schedule is nil"))
	}
	slot, err := onLedger(ctx, l, op, "", func(ctx context.Context, store driver.Ledger) (slot Slot, err error) {
		slot.Now, slot.MaxError, err = store.ReadClock(ctx)
		slot.Now = slot.Now.UTC() // the same slot in every time zone
		return slot, err
	})
	if err != nil {
		return Slot{}, err
	}
	if slot.Start, slot.End, err = findSlot(s, slot.Now); err != nil {
		return Slot{}, l.wrapError(op, "", err)
	}
	return slot, nil
}

// findSlot returns the start of the slot that has started last, and that of the next one. A Schedule tells only what
// comes next, so it is asked from earlier and earlier moments, until a slot has started since then. It is always asked
// in UTC, also from what it has returned itself.
func findSlot(s Schedule, now time.Time) (start, end time.Time, err error) {
	const longest = 20 * 366 * 24 * time.Hour
	next := func(after time.Time) time.Time { return s.Next(after.UTC()).UTC() }
	for back := time.Second; start.IsZero(); back *= 2 {
		if back > longest {
			return start, end, newInvalidError("the schedule has no slot that has started within 20 years")
		}
		if first := next(now.Add(-back)); !first.IsZero() && !first.After(now) {
			start = first
		}
	}
	for {
		end = next(start)
		switch {
		case !end.IsZero() && !end.After(start):
			return start, end, newInvalidError("the schedule says that %v comes after %v", end, start)
		case !end.IsZero() && !end.After(now):
			start = end
			continue
		}
		// Another worker asks at another moment, and must get the same slot.
		if again := next(start.Add(-1)); !again.Equal(start) {
			return start, end, newInvalidError("the schedule says that a slot starts at %v, and when it is asked from the "+
				"nanosecond before, %v: its slots depend on when it is asked; use Every for slots of a fixed length", start, again)
		}
		return start, end, nil
	}
}

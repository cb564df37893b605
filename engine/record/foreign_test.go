package record

import (
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// TestForeignHolders: next to a foreign holder, no claim is granted or queued. A claim that held the lock before is
// lost. Only a forced break ends the foreign claim before it expires. After that, tokens continue to rise.
func TestForeignHolders(t *testing.T) {
	data, err := Encode(&Record{Kind: driver.KindMutex, Limit: 1, Token: 7, Claims: []Claim{
		{ID: "old", Weight: 1, TTL: 1e9, SilenceLimit: 1e9, State: Granted, Token: 7, ExpiresAt: 50}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []Row{{Name: "m", Version: "v", Data: data, Foreign: 100},
		{Name: "m", Version: "v", Foreign: 100}} {
		w := &stepWorld{now: 90}
		rec, err := decodeRow(row)
		if err != nil {
			t.Fatal(err)
		}
		if rec.isForgettable(NoEnd) {
			t.Error("the record would be swept")
		}
		for _, queue := range []bool{false, true} {
			next := rec.clone()
			var held *driver.HeldError
			if _, err := next.Acquire(newTestClaim("new", 1), driver.KindSemaphore, 5, queue, info,
				w.stepInput()); !errors.As(err, &held) || !held.Holders[0].Foreign {
				t.Errorf("queue %v: %v", queue, err)
			}
		}
		var lost *driver.LossError
		if _, err := rec.clone().Renew("old", 7, w.stepInput()); !errors.As(err, &lost) ||
			lost.Cause != driver.LossTaken {
			t.Errorf("the previous holder's renewal returned %v", err)
		}
		ref := rec.describeLock("m", w.stepInput()).Holders[0].Ref
		for _, mode := range []driver.BreakMode{driver.BreakGraceful, driver.BreakRequestRelease} {
			if err := rec.clone().Break(ref, driver.Break{Mode: mode}, w.stepInput()); !errors.Is(err, driver.ErrUnsupported) {
				t.Errorf("mode %v: %v", mode, err)
			}
		}
		forced := rec.clone()
		if err := forced.Break(ref, driver.Break{Mode: driver.BreakForce}, w.stepInput()); err != nil || forced.Foreign != 0 ||
			forced.Token <= rec.Token || forced.Check() != nil {
			t.Errorf("forced: %+v, %v", forced, err)
		}
		for now, free := range map[int64]bool{100: false, 101: true} {
			w.now = now
			next := rec.clone()
			c, err := next.Acquire(newTestClaim("new", 1), driver.KindMutex, 1, false, info, w.stepInput())
			if (err == nil) != free || free && (c.Token <= rec.Token || next.Check() != nil) {
				t.Errorf("at %d: %+v, %v", now, c, err)
			}
		}
	}
}

// TestForeignFarEnd: a foreign claim whose expiry is too distant for a Duration, such as the last day of the year 9999,
// is shown and waited for as a very long time.
func TestForeignFarEnd(t *testing.T) {
	const now, far = 1_800_000_000_000_000, 253_402_300_799_999_999
	rec := &Record{Foreign: far}
	m := StepInput{ClockTrusted: true, Now: now, Earliest: now, Latest: now}
	if left := rec.describeLock("m", m).Holders[0].Remaining; left < driver.MaxTTL {
		t.Errorf("it is shown with %v remaining", left)
	}
	for _, n := range []int64{far - now, now - far} {
		if d := microsToDuration(n); (d > 0) != (n > 0) || d.Abs() < driver.MaxTTL || d.Abs()+driver.MaxTTL < 0 {
			t.Errorf("%d microseconds are converted to %v", n, d)
		}
	}
}

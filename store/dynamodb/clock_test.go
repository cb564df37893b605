package dynamodb

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// TestClock: whatever the replies take, on a clock of ours that runs wrong, the service's clock is within the error that is
// given, and the estimate never falls; one reply tells the time to a second, some tell it well, and a long silence makes it
// stale.
func TestClock(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		fast := 1 + (r.Float64()-0.5)*0.0008 // of our clock
		theirs := time.Unix(1_800_000_000, r.Int64N(1e9))
		var ours time.Duration
		pass := func(d time.Duration) {
			theirs = theirs.Add(d)
			ours += time.Duration(float64(d) * fast)
		}
		hand := func() time.Duration { return ours }
		c := clock{hands: driver.Clock{Monotonic: hand, Real: hand}}
		if _, off := c.now(); off >= 0 || !c.stale() {
			t.Fatal("it knows the time without having heard it")
		}
		var last int64
		for i := range 50 {
			from := c.hands.Now()
			pass(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
			host := time.Duration(r.Int64N(int64(hostsDiffer))) // the clock of the host that answers is that much ahead
			date := theirs.Add(host - hostsDiffer/2).Truncate(time.Second)
			pass(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
			c.heard(date, from)
			now, off := c.now()
			if wrong := time.Duration(theirs.UnixMicro()-now) * time.Microsecond; wrong.Abs() > off+time.Microsecond || now < last {
				t.Fatalf("seed %d, reply %d: it is off by %v and says %v; %d after %d", seed, i, wrong, off, now, last)
			}
			if i == 0 && off > 900*time.Millisecond || i == 49 && off > 400*time.Millisecond || c.stale() {
				t.Fatalf("seed %d: after %d replies it is off by up to %v", seed, i+1, off)
			}
			last = now
			pass(time.Duration(r.Int64N(int64(3 * time.Second))))
		}
		pass(time.Hour)
		if now, off := c.now(); !c.stale() || time.Duration(theirs.UnixMicro()-now).Abs()*time.Microsecond > off {
			t.Fatalf("seed %d: after an hour of silence it says that it is off by %v", seed, off)
		}
		theirs = theirs.Add(-time.Minute) // somebody sets it
		for range 20 {
			c.heard(theirs.Truncate(time.Second), c.hands.Now())
			pass(time.Second / 3)
		}
		now, off := c.now()
		if wrong := time.Duration(theirs.UnixMicro()-now) * time.Microsecond; wrong.Abs() > off || now < last {
			t.Fatalf("seed %d: set back by a minute it is off by %v and says %v", seed, wrong, off)
		}
	}
}

// TestForeignEnd: an item is free to "expired_at < now", in whole seconds, from the second after its expired_at.
func TestForeignEnd(t *testing.T) {
	t.Parallel()
	for expires, want := range map[string]int64{"100": 101e6 - 1, "100.5": 101e6 - 1, "0": 1e6 - 1, "": record.NoEnd, "1E+100": record.NoEnd} {
		if got := foreignEnd(expires); got != want {
			t.Errorf("%s: %d, want %d", expires, got, want)
		}
	}
	tb := &table{link: &link{clock: &clock{hands: driver.SystemClock}}, expires: "expired_at"}
	for ends, want := range map[int64]string{1: "1", 1e6: "1", 1e6 + 1: "2"} {
		if got := tb.expiry(ends); got != want {
			t.Errorf("a hold until %d µs: %s, want %s", ends, got, want)
		}
	}
}

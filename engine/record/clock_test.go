package record

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestServerClock: the estimate is off by no more than it says, prefers the quickest reply, follows a server whose clock was
// set, and never falls. Set forward, it may as well stand where it stood, for as long as an end can be left that was written then.
func TestServerClock(t *testing.T) {
	var elapsed time.Duration
	hand := func() time.Duration { return elapsed }
	c := ServerClock{Clock: driver.Clock{Monotonic: hand, Real: hand}}
	if _, off := c.Now(); off >= 0 {
		t.Error("a clock that was never heard is known")
	}
	ahead := 100 * time.Hour // the server's clock is beyond this machine's
	theirs := func() int64 { return time.Unix(2_000_000_000, 0).Add(ahead + elapsed).UnixMicro() }
	reply := func(there, back time.Duration) {
		from := c.Clock.Now()
		elapsed += there
		micro := theirs()
		elapsed += back
		c.Heard(micro, from, c.Clock.Now())
	}
	last := int64(0)
	within := func(what string, most time.Duration) {
		t.Helper()
		micro, off := c.Now()
		if wrong := time.Duration(micro-theirs()) * time.Microsecond; wrong.Abs() > off || off > most {
			t.Errorf("%s: wrong by %v, and says %v, at most %v", what, wrong, off, most)
		}
		if micro < last {
			t.Errorf("%s: the clock falls by %d µs", what, last-micro)
		}
		last = micro
	}
	reply(0, 100*time.Millisecond)
	within("a slow reply", 55*time.Millisecond)
	reply(time.Millisecond, time.Millisecond)
	within("a quick reply", 3*time.Millisecond)
	reply(300*time.Millisecond, 0)
	within("a slow reply does not spoil it", 6*time.Millisecond)
	elapsed += 10 * time.Second
	within("as time goes by", 110*time.Millisecond)
	if c.Stale() {
		t.Error("it is stale after ten seconds")
	}
	elapsed += 25 * time.Second
	if !c.Stale() {
		t.Error("it is not stale after more than half a minute")
	}
	reply(time.Millisecond, time.Millisecond)
	ahead += time.Minute
	reply(time.Millisecond, time.Millisecond)
	within("set forward", time.Minute+150*time.Millisecond)
	early := func() (least time.Duration) {
		micro, off := c.Now()
		return time.Duration(micro-theirs())*time.Microsecond - off
	}
	if d := early(); d > -time.Minute {
		t.Errorf("set forward by a minute, it says that no more than %v of that are doubtful", -d)
	}
	elapsed += driver.MaxTTL - time.Minute
	reply(time.Millisecond, time.Millisecond)
	if d := early(); d > -time.Minute {
		t.Errorf("nearly a day after it was set forward by a minute, it says that no more than %v of that are doubtful", -d)
	}
	elapsed += 2 * time.Minute
	reply(time.Millisecond, time.Millisecond)
	within("a day after", 3*time.Millisecond)
	ahead += time.Minute
	reply(time.Millisecond, time.Millisecond)
	ahead -= time.Minute
	reply(time.Millisecond, time.Millisecond)
	within("set forward and back", time.Minute+200*time.Millisecond)
	elapsed += 2 * time.Minute
	reply(time.Millisecond, time.Millisecond)
	within("a while after it was set forward and back", 200*time.Millisecond)
}

// TestHandsApart: where the hands of our clock say different things, because the machine slept or its wall clock, which stands
// in for a better one, was set, the estimate is off by no more than it says; and a reply puts it right.
func TestHandsApart(t *testing.T) {
	for what, c := range map[string]struct{ passed, stood, set time.Duration }{
		"slept":            {passed: time.Hour, stood: time.Hour},
		"set forward":      {set: time.Hour},
		"set back":         {set: -time.Hour},
		"slept, set back":  {passed: time.Hour, stood: time.Hour, set: -10 * time.Minute},
		"slept, and awake": {passed: time.Hour, stood: time.Minute},
	} {
		var now, mono, real time.Duration
		clock := ServerClock{Clock: driver.Clock{Monotonic: func() time.Duration { return mono }, Real: func() time.Duration { return real }}}
		start := time.Unix(2_000_000_000, 0)
		hear := func() { i := clock.Clock.Now(); clock.Heard(start.Add(now).UnixMicro(), i, i) }
		hear()
		now, mono, real = now+c.passed, mono+c.passed-c.stood, real+c.passed+c.set
		for _, heard := range []bool{false, true} {
			if heard {
				hear()
			}
			micro, off := clock.Now()
			wrong := time.Duration(micro-start.Add(now).UnixMicro()) * time.Microsecond
			if wrong.Abs() > off || off > 90*time.Minute {
				t.Errorf("%s, heard: %v: wrong by %v, and says %v", what, heard, wrong, off)
			}
		}
	}
}

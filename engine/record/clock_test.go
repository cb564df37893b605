package record

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// clockHarness is a server's clock, and a client that estimates it from replies.
type clockHarness struct {
	t            *testing.T
	c            ServerClock
	clockRate    float64       // of the own clock
	ownTime      time.Duration // the own clock
	serverTime   time.Time     // the server's clock
	lastEstimate int64
}

func newClockHarness(t *testing.T) *clockHarness {
	w := &clockHarness{t: t, clockRate: 1, serverTime: time.Unix(2_000_000_000, 345_678_000)}
	ownClock := func() time.Duration { return w.ownTime }
	w.c.Clock = driver.Clock{Monotonic: ownClock, Boottime: ownClock}
	return w
}

func (w *clockHarness) passTime(d time.Duration) {
	w.serverTime = w.serverTime.Add(d)
	w.ownTime += time.Duration(float64(d) * w.clockRate)
}

// addExactReply adds a reply with the exact time of a server whose clock is wrong by the given time.
func (w *clockHarness) addExactReply(there, back, wrong time.Duration) {
	from := w.c.Clock.Now()
	w.passTime(there)
	micro := w.serverTime.Add(wrong).UnixMicro()
	w.passTime(back)
	w.c.AddReply(micro, from, w.c.Clock.Now())
}

// addDate adds a reply with a Date header of a host whose clock is wrong by the given time.
func (w *clockHarness) addDate(there, back, wrong time.Duration) {
	from := w.c.Clock.Now()
	w.passTime(there)
	date := w.serverTime.Add(wrong).Truncate(time.Second)
	w.passTime(back)
	w.c.AddDate(date, from, w.c.Clock.Now())
}

// addTimestamp adds a reply with the time of a write, in whole milliseconds.
func (w *clockHarness) addTimestamp(there, back, wrong time.Duration) {
	from := w.c.Clock.Now()
	w.passTime(there)
	stamp := w.serverTime.Add(wrong).Truncate(time.Millisecond)
	w.passTime(back)
	w.c.AddTimestamp(stamp, time.Millisecond, from, w.c.Clock.Now())
}

// readBounds returns how far the server's clock is ahead of the early bound and behind the late one.
func (w *clockHarness) readBounds() (early, late time.Duration) {
	e, l, _ := w.c.Bounds()
	return microsToDuration(w.serverTime.UnixMicro() - e), microsToDuration(l - w.serverTime.UnixMicro())
}

// checkWithin checks that the server's clock is within the bounds, that the mean error of these is at most maxError,
// and that the estimate does not go back.
func (w *clockHarness) checkWithin(what string, maxError time.Duration) {
	w.t.Helper()
	early, late := w.readBounds()
	if early < 0 || late < 0 || early+late > 2*maxError {
		w.t.Errorf("%s: the clock is %v ahead of the early bound and %v behind the late one, with a maximal error of %v", what, early,
			late, maxError)
	}
	w.checkRises(what)
}

func (w *clockHarness) checkRises(what string) (estimate time.Duration) {
	w.t.Helper()
	now := w.c.TokenFloor()
	if now < w.lastEstimate {
		w.t.Errorf("%s: the estimate goes back by %v", what, microsToDuration(w.lastEstimate-now))
	}
	w.lastEstimate = now
	return microsToDuration(now - w.serverTime.UnixMicro())
}

// TestServerClockSteps: the estimate of a server's clock is wrong by no more than the error that it states. Fast
// replies improve it, slow ones do not make it worse, and it asks for a new reply when it has become inaccurate.
func TestServerClockSteps(t *testing.T) {
	w := newClockHarness(t)
	if _, _, known := w.c.Bounds(); known || w.c.Known() || !w.c.IsStale() {
		t.Error("the clock is known before the first reply")
	}
	w = newClockHarness(t)
	w.addExactReply(0, 100*time.Millisecond, 0)
	w.checkWithin("a slow reply", 55*time.Millisecond)
	w.addExactReply(time.Millisecond, time.Millisecond, 0)
	w.checkWithin("a fast reply", 3*time.Millisecond)
	w.addExactReply(300*time.Millisecond, 0, 0)
	w.checkWithin("a slow reply after a fast one", 6*time.Millisecond)
	w.passTime(10 * time.Second)
	w.checkWithin("ten seconds later", 110*time.Millisecond)
	if w.c.IsStale() {
		t.Error("the clock is stale after ten seconds")
	}
	w.passTime(25 * time.Second)
	if !w.c.IsStale() {
		t.Error("the clock is not stale after more than half a minute")
	}
	w.addExactReply(time.Millisecond, time.Millisecond, 0)
	w.checkWithin("a new reply", 3*time.Millisecond)
	if w.c.IsStale() {
		t.Error("the clock is stale after a reply")
	}
}

// TestServerClockAnyReplies: the server's clock is always within the bounds, whatever the delays and formats of
// replies, with an own clock that is up to 1 % too fast or too slow, and with hosts whose clocks differ. One Date
// bounds the time to 1.2 s, several bound it more closely.
func TestServerClockAnyReplies(t *testing.T) {
	upTo := func(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		w := newClockHarness(t)
		w.clockRate, w.c.HostsApart = 1+(r.Float64()-0.5)*0.0198, 100*time.Millisecond
		for i := range 60 {
			there, back := upTo(r, 100*time.Millisecond), upTo(r, 100*time.Millisecond)
			wrong := upTo(r, w.c.HostsApart) - w.c.HostsApart/2
			if kind := r.IntN(8); seed%2 == 0 || kind > 1 {
				w.addDate(there, back, wrong)
			} else if kind == 0 {
				w.addExactReply(there, back, wrong)
			} else {
				w.addTimestamp(there, back, wrong)
			}
			maxError := 900 * time.Millisecond
			if i > 30 {
				maxError = 700 * time.Millisecond
			}
			w.checkWithin("a reply", maxError)
			if w.c.IsStale() || t.Failed() {
				t.Fatalf("seed %d, reply %d; stale: %v", seed, i, w.c.IsStale())
			}
			w.passTime(upTo(r, 3*time.Second))
		}
		w.passTime(time.Hour)
		w.checkWithin("an hour without a reply", 2*time.Minute)
		if !w.c.IsStale() {
			t.Fatalf("seed %d: the clock is not stale after an hour without a reply", seed)
		}
	}
}

// TestServerClockOddReply: one reply whose time contradicts all others, by seconds or years, expires no claim early,
// sets no expiry time too early, and does not change tokens. With the next reply, new expiry times ignore it. If its
// time was ahead, it has no further effect. If its time was behind, claims are expired later, for at most two days,
// because a client that trusts it sets expiry times that are too early.
func TestServerClockOddReply(t *testing.T) {
	for _, wrong := range []time.Duration{25 * time.Second, 300 * 24 * time.Hour, -25 * time.Second,
		-300 * 24 * time.Hour} {
		for _, reply := range []func(*clockHarness, time.Duration, time.Duration,
			time.Duration){(*clockHarness).addExactReply,
			(*clockHarness).addDate} {
			w := newClockHarness(t)
			addReply := func(wrong time.Duration) { reply(w, time.Millisecond, time.Millisecond, wrong) }
			for range 5 {
				addReply(0)
				w.passTime(300 * time.Millisecond)
			}
			w.checkWithin("before", time.Second)
			addReply(wrong)
			early, late := w.readBounds()
			if early < min(wrong, 0) || early < -wrong || late < max(wrong, 0) {
				t.Errorf("contradicting by %v: clock for expiring %v, for expiry times %v", wrong, -early, late)
			}
			if !w.c.IsStale() {
				t.Errorf("contradicting by %v: the clock does not ask for another reply", wrong)
			}
			if e := w.checkRises("contradicting"); e.Abs() > time.Second {
				t.Errorf("contradicting by %v: tokens are made from a time that is wrong by %v", wrong, e)
			}
			addReply(0)
			w.passTime(time.Minute)
			addReply(0)
			early, late = w.readBounds()
			if late < 0 || late > 1500*time.Millisecond || early < 0 || wrong > 0 && early > 1500*time.Millisecond ||
				wrong < 0 && early < -wrong {
				t.Errorf("after a contradiction by %v: clock for expiring %v, for expiry times %v", wrong, -early, late)
			}
			if w.c.IsStale() {
				t.Errorf("after a contradiction by %v the clock is stale", wrong)
			}
			w.checkRises("after")
			for range 2 {
				w.passTime(driver.MaxTTL + time.Second)
				addReply(0)
				w.readBounds()
			}
			w.checkWithin("two days after", 1200*time.Millisecond)
		}
	}
}

// TestServerClockSet: if a server's clock is set, or another server takes over, the estimate follows from the second
// reply on. Until then, expiry times are set by the later one of the two clocks. A clock that is ahead of an earlier
// one expires no claim as long as an expiry time may exist that was set by the earlier one.
func TestServerClockSet(t *testing.T) {
	for _, step := range []time.Duration{time.Minute, -time.Minute} {
		w := newClockHarness(t)
		addReply := func() { w.addExactReply(time.Millisecond, time.Millisecond, 0) }
		addReply()
		w.serverTime = w.serverTime.Add(step)
		addReply()
		early, late := w.readBounds()
		if late < max(0, -step) || early < max(0, step)-10*time.Millisecond {
			t.Errorf("set by %v, one reply: clock for expiring %v, for expiry times %v", step, -early, late)
		}
		w.checkRises("set")
		addReply()
		early, late = w.readBounds()
		if late < 0 || late > 10*time.Millisecond || early < max(0, step)-10*time.Millisecond ||
			early > max(0, step)+100*time.Millisecond {
			t.Errorf("set by %v: clock for expiring %v, for expiry times %v", step, -early, late)
		}
		if e := w.checkRises("set"); step > 0 && e.Abs() > 10*time.Millisecond {
			t.Errorf("set by %v: tokens are made from a time that is wrong by %v", step, e)
		}
		w.passTime(driver.MaxTTL - time.Minute)
		addReply()
		if early, _ := w.readBounds(); early < max(0, step)-10*time.Millisecond {
			t.Errorf("nearly a day after it was set by %v: clock for expiring %v", step, -early)
		}
		w.passTime(driver.MaxTTL + 2*time.Minute)
		addReply()
		w.checkWithin("two days after", 3*time.Millisecond)
	}
}

// TestServerClockTwoHosts: if two hosts whose clocks differ reply in turn, claims are expired by the clock that is
// behind, however many replies there are, and not by a much earlier time.
func TestServerClockTwoHosts(t *testing.T) {
	const apart = 5 * time.Second
	for _, inRow := range []int{1, 2, 3} {
		w := newClockHarness(t)
		from := w.ownTime
		for range 2000 {
			for _, wrong := range []time.Duration{0, -apart} {
				for range inRow {
					w.addDate(time.Millisecond, time.Millisecond, wrong)
					w.passTime(50 * time.Millisecond)
				}
			}
			w.checkRises("two hosts")
		}
		for range 3 { // the last replies are from the host that is ahead
			w.addDate(time.Millisecond, time.Millisecond, 0)
		}
		if early, late := w.readBounds(); early < apart || early > apart+3*time.Second+(w.ownTime-from)/50 ||
			late < 0 ||
			late > 2*time.Second {
			t.Errorf("%d in a row: clock for expiring %v, for expiry times %v", inRow, -early, late)
		}
	}
}

// TestServerClockOvertaken: replies that overtake each other do no harm.
func TestServerClockOvertaken(t *testing.T) {
	w := newClockHarness(t)
	w.addExactReply(time.Millisecond, time.Millisecond, 0)
	from, micro := w.c.Clock.Now(), w.serverTime.UnixMicro()
	w.passTime(time.Millisecond)
	to := w.c.Clock.Now()
	w.passTime(time.Minute)
	w.addExactReply(time.Millisecond, time.Millisecond, 0)
	w.c.AddReply(micro, from, to)
	w.checkWithin("an older reply that arrives late", 3*time.Millisecond)
	if w.c.IsStale() {
		t.Error("an older reply contradicts a newer one")
	}
}

// TestServerClockReadingsDisagree: the two readings of the own clock differ, because the machine slept, or because its
// wall clock, which replaces a missing boottime clock, was set. The estimate is then wrong by no more than the error
// that it states, and a reply corrects it.
func TestServerClockReadingsDisagree(t *testing.T) {
	for what, c := range map[string]struct{ passed, asleep, set time.Duration }{
		"slept":              {passed: time.Hour, asleep: time.Hour},
		"set forward":        {set: time.Hour},
		"set back":           {set: -time.Hour},
		"slept, set back":    {passed: time.Hour, asleep: time.Hour, set: -10 * time.Minute},
		"slept for a minute": {passed: time.Hour, asleep: time.Minute},
	} {
		var now, mono, real time.Duration
		clock := ServerClock{Clock: driver.Clock{Monotonic: func() time.Duration { return mono },
			Boottime: func() time.Duration { return real }}}
		start := time.Unix(2_000_000_000, 0)
		addReply := func() { i := clock.Clock.Now(); clock.AddReply(start.Add(now).UnixMicro(), i, i) }
		addReply()
		now, mono, real = now+c.passed, mono+c.passed-c.asleep, real+c.passed+c.set
		for _, replied := range []bool{false, true} {
			if replied {
				addReply()
			}
			early, late, _ := clock.Bounds()
			if is := start.Add(now).UnixMicro(); microsToDuration(late-early) > 3*time.Hour || early > is || late < is ||
				replied && late-early > 1e5 {
				t.Errorf("%s, new reply %v: bounds %d to %d", what, replied, early-is, late-is)
			}
		}
	}
}

// TestTokenFloorRises: the floor of tokens rises with each call, even when a reply shows that the server's clock is
// behind what was estimated.
func TestTokenFloorRises(t *testing.T) {
	w := newClockHarness(t)
	w.serverTime = w.serverTime.Truncate(time.Second)
	last := int64(0)
	for range 20 {
		w.addDate(0, 0, 0) // the later ones show that the second has just begun
		if next := w.c.TokenFloor(); next <= last {
			t.Errorf("%d after %d", next, last)
		} else {
			last = next
		}
	}
}

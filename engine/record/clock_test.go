package record

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// clockWorld is a server whose clock a client hears.
type clockWorld struct {
	t     *testing.T
	c     ServerClock
	fast  float64       // of our clock
	ours  time.Duration // that clock
	true  time.Time     // the server's
	given int64
}

func newClockWorld(t *testing.T) *clockWorld {
	w := &clockWorld{t: t, fast: 1, true: time.Unix(2_000_000_000, 345_678_000)}
	hand := func() time.Duration { return w.ours }
	w.c.HostsApart = 100 * time.Millisecond
	w.c.Clock = driver.Clock{Monotonic: hand, Boottime: hand}
	return w
}

func (w *clockWorld) pass(d time.Duration) {
	w.true = w.true.Add(d)
	w.ours += time.Duration(float64(d) * w.fast)
}

// exact is a reply of a server that reads its clock, which is wrong by so much.
func (w *clockWorld) exact(there, back, wrong time.Duration) {
	from := w.c.Clock.Now()
	w.pass(there)
	micro := w.true.Add(wrong).UnixMicro()
	w.pass(back)
	w.c.AddReply(micro, from, w.c.Clock.Now())
}

// date is a reply with a Date of a host whose clock is wrong by so much.
func (w *clockWorld) date(there, back, wrong time.Duration) {
	from := w.c.Clock.Now()
	w.pass(there)
	date := w.true.Add(wrong).Truncate(time.Second)
	w.pass(back)
	w.c.AddDate(date, from, w.c.Clock.Now())
}

// stamp is a reply with the time of a write, to a millisecond.
func (w *clockWorld) stamp(there, back, wrong time.Duration) {
	from := w.c.Clock.Now()
	w.pass(there)
	stamp := w.true.Add(wrong).Truncate(time.Millisecond)
	w.pass(back)
	w.c.AddTimestamp(stamp, time.Millisecond, from, w.c.Clock.Now())
}

// bounds gives by how much the server's clock is past the early bound, and short of the late one.
func (w *clockWorld) bounds() (early, late time.Duration) {
	e, l := w.c.ClockBounds()
	return microsToDuration(w.true.UnixMicro() - e), microsToDuration(l - w.true.UnixMicro())
}

// within demands that the server's clock lies within the bounds, that they are not farther away than most, and that
// the estimate does not fall.
func (w *clockWorld) within(what string, most time.Duration) {
	w.t.Helper()
	early, late := w.bounds()
	if early < 0 || late < 0 || early+late > 2*most {
		w.t.Errorf("%s: the clock is %v past the early bound and %v short of the late one, at most %v off", what, early,
			late, most)
	}
	now, off := w.c.Now()
	if wrong := microsToDuration(now - w.true.UnixMicro()); wrong.Abs() > off {
		w.t.Errorf("%s: the estimate is wrong by %v, and says %v", what, wrong, off)
	}
	w.rises(what)
}

func (w *clockWorld) rises(what string) (estimate time.Duration) {
	w.t.Helper()
	now, _ := w.c.Now()
	if now < w.given {
		w.t.Errorf("%s: the estimate falls by %v", what, microsToDuration(w.given-now))
	}
	w.given = now
	return microsToDuration(now - w.true.UnixMicro())
}

// TestServerClockSteps promises that the estimate of a server's clock is off by no more than it says, profits from
// quick replies, is not spoilt by slow ones, and asks for a request when it has grown worse.
func TestServerClockSteps(t *testing.T) {
	w := newClockWorld(t)
	if _, off := w.c.Now(); off >= 0 || w.c.Known() || !w.c.ClockIsStale() {
		t.Error("a clock that was never heard is known")
	}
	w = newClockWorld(t)
	w.exact(0, 100*time.Millisecond, 0)
	w.within("a slow reply", 55*time.Millisecond)
	w.exact(time.Millisecond, time.Millisecond, 0)
	w.within("a quick reply", 3*time.Millisecond)
	w.exact(300*time.Millisecond, 0, 0)
	w.within("a slow reply does not spoil it", 6*time.Millisecond)
	w.pass(10 * time.Second)
	w.within("as time goes by", 110*time.Millisecond)
	if w.c.ClockIsStale() {
		t.Error("it is stale after ten seconds")
	}
	w.pass(25 * time.Second)
	if !w.c.ClockIsStale() {
		t.Error("it is not stale after more than half a minute")
	}
	w.exact(time.Millisecond, time.Millisecond, 0)
	w.within("heard again", 3*time.Millisecond)
	if w.c.ClockIsStale() {
		t.Error("it is stale after a reply")
	}
}

// TestServerClockAnyReplies promises that whatever the replies take, and however they tell the time, on a clock of
// ours that runs up to 1 % wrong and with hosts that differ, the server's clock lies within the bounds. One Date
// tells the time to 1.2 s, some tell it well.
func TestServerClockAnyReplies(t *testing.T) {
	upTo := func(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		w := newClockWorld(t)
		w.fast = 1 + (r.Float64()-0.5)*0.0198
		for i := range 60 {
			there, back := upTo(r, 100*time.Millisecond), upTo(r, 100*time.Millisecond)
			if kind := r.IntN(8); seed%2 == 0 || kind > 1 {
				w.date(there, back, upTo(r, w.c.HostsApart)-w.c.HostsApart/2)
			} else if kind == 0 {
				w.exact(there, back, 0)
			} else {
				w.stamp(there, back, 0)
			}
			most := 900 * time.Millisecond
			if i > 30 {
				most = 700 * time.Millisecond
			}
			w.within("a reply", most)
			if w.c.ClockIsStale() || t.Failed() {
				t.Fatalf("seed %d, reply %d; stale: %v", seed, i, w.c.ClockIsStale())
			}
			w.pass(upTo(r, 3*time.Second))
		}
		w.pass(time.Hour)
		w.within("an hour of silence", 2*time.Minute)
		if !w.c.ClockIsStale() {
			t.Fatalf("seed %d: after an hour of silence it is not stale", seed)
		}
	}
}

// TestServerClockOddReply promises that one reply that tells another time than all others, seconds or years off, has
// nobody judged early, sets no end early, leaves the tokens alone, and is gone from what is set with the next reply.
// One that is ahead leaves nothing behind at all; one that is behind holds back the judgement, since the ends of
// those who believe it come early, and for two days at most.
func TestServerClockOddReply(t *testing.T) {
	for _, wrong := range []time.Duration{25 * time.Second, 300 * 24 * time.Hour, -25 * time.Second,
		-300 * 24 * time.Hour} {
		for _, reply := range []func(*clockWorld, time.Duration, time.Duration, time.Duration){(*clockWorld).exact,
			(*clockWorld).date} {
			w := newClockWorld(t)
			say := func(wrong time.Duration) { reply(w, time.Millisecond, time.Millisecond, wrong) }
			for range 5 {
				say(0)
				w.pass(300 * time.Millisecond)
			}
			w.within("before", time.Second)
			say(wrong)
			early, late := w.bounds()
			if early < min(wrong, 0) || early < -wrong || late < max(wrong, 0) {
				t.Errorf("odd by %v: judged by %v, ends set by %v", wrong, -early, late)
			}
			if !w.c.ClockIsStale() {
				t.Errorf("odd by %v: it asks for no other reply", wrong)
			}
			if e := w.rises("odd"); e.Abs() > time.Second {
				t.Errorf("odd by %v: tokens are made from what is %v off", wrong, e)
			}
			say(0)
			w.pass(time.Minute)
			say(0)
			early, late = w.bounds()
			if late < 0 || late > 1500*time.Millisecond || early < 0 || wrong > 0 && early > 1500*time.Millisecond ||
				wrong < 0 && early < -wrong {
				t.Errorf("after one that was odd by %v: judged by %v, ends set by %v", wrong, -early, late)
			}
			if w.c.ClockIsStale() {
				t.Errorf("after one that was odd by %v it is stale", wrong)
			}
			w.rises("after")
			for range 2 {
				w.pass(driver.MaxTTL + time.Second)
				say(0)
				w.bounds()
			}
			w.within("two days after", 1200*time.Millisecond)
		}
	}
}

// TestServerClockSet promises that a server's clock that is set, or that of another server that takes over, is
// followed from the second reply on; that till then ends are set by the later one of both; and that nobody is judged
// by a clock that is ahead of one heard before, as long as an end can be left that was set by that.
func TestServerClockSet(t *testing.T) {
	for _, step := range []time.Duration{time.Minute, -time.Minute} {
		w := newClockWorld(t)
		say := func() { w.exact(time.Millisecond, time.Millisecond, 0) }
		say()
		w.true = w.true.Add(step)
		say()
		early, late := w.bounds()
		if late < max(0, -step) || early < max(0, step)-10*time.Millisecond {
			t.Errorf("set by %v, heard once: judged by %v, ends set by %v", step, -early, late)
		}
		w.rises("set")
		say()
		early, late = w.bounds()
		if late < 0 || late > 10*time.Millisecond || early < max(0, step)-10*time.Millisecond ||
			early > max(0, step)+100*time.Millisecond {
			t.Errorf("set by %v: judged by %v, ends set by %v", step, -early, late)
		}
		if e := w.rises("set"); step > 0 && e.Abs() > 10*time.Millisecond {
			t.Errorf("set by %v: tokens are made from what is %v off", step, e)
		}
		w.pass(driver.MaxTTL - time.Minute)
		say()
		if early, _ := w.bounds(); early < max(0, step)-10*time.Millisecond {
			t.Errorf("nearly a day after it was set by %v: judged by %v", step, -early)
		}
		w.pass(driver.MaxTTL + 2*time.Minute)
		say()
		w.within("two days after", 3*time.Millisecond)
	}
}

// TestServerClockTwoHosts promises that of two hosts whose clocks lie apart, which answer in turn, the one that is
// behind is judged by, however often they do, and by not much less than that.
func TestServerClockTwoHosts(t *testing.T) {
	const apart = 5 * time.Second
	for _, inRow := range []int{1, 2, 3} {
		w := newClockWorld(t)
		from := w.ours
		for range 2000 {
			for _, wrong := range []time.Duration{0, -apart} {
				for range inRow {
					w.date(time.Millisecond, time.Millisecond, wrong)
					w.pass(50 * time.Millisecond)
				}
			}
			w.rises("two hosts")
		}
		for range 3 { // and lately the one that is ahead
			w.date(time.Millisecond, time.Millisecond, 0)
		}
		if early, late := w.bounds(); early < apart || early > apart+3*time.Second+(w.ours-from)/50 || late < 0 ||
			late > 2*time.Second {
			t.Errorf("%d in a row: judged by %v, ends set by %v", inRow, -early, late)
		}
	}
}

// TestServerClockOvertaken promises that replies which overtake each other harm nothing.
func TestServerClockOvertaken(t *testing.T) {
	w := newClockWorld(t)
	w.exact(time.Millisecond, time.Millisecond, 0)
	from, micro := w.c.Clock.Now(), w.true.UnixMicro()
	w.pass(time.Millisecond)
	to := w.c.Clock.Now()
	w.pass(time.Minute)
	w.exact(time.Millisecond, time.Millisecond, 0)
	w.c.AddReply(micro, from, to)
	w.within("an older reply that is heard late", 3*time.Millisecond)
	if w.c.ClockIsStale() {
		t.Error("an older reply contradicts a newer one")
	}
}

// TestHandsApart: where the hands of our clock say different things, because the machine slept or its wall clock,
// which stands in for a better one, was set, the estimate is off by no more than it says; and a reply puts it right.
func TestHandsApart(t *testing.T) {
	for what, c := range map[string]struct{ passed, stood, set time.Duration }{
		"slept":            {passed: time.Hour, stood: time.Hour},
		"set forward":      {set: time.Hour},
		"set back":         {set: -time.Hour},
		"slept, set back":  {passed: time.Hour, stood: time.Hour, set: -10 * time.Minute},
		"slept, and awake": {passed: time.Hour, stood: time.Minute},
	} {
		var now, mono, real time.Duration
		clock := ServerClock{Clock: driver.Clock{Monotonic: func() time.Duration { return mono },
			Boottime: func() time.Duration { return real }}}
		start := time.Unix(2_000_000_000, 0)
		hear := func() { i := clock.Clock.Now(); clock.AddReply(start.Add(now).UnixMicro(), i, i) }
		hear()
		now, mono, real = now+c.passed, mono+c.passed-c.stood, real+c.passed+c.set
		for _, heard := range []bool{false, true} {
			if heard {
				hear()
			}
			micro, off := clock.Now()
			wrong := time.Duration(micro-start.Add(now).UnixMicro()) * time.Microsecond
			early, late := clock.ClockBounds()
			if is := start.Add(now).UnixMicro(); wrong.Abs() > off || off > 90*time.Minute || early > is || late < is ||
				heard && late-early > 1e5 {
				t.Errorf("%s, heard: %v: wrong by %v, and says %v; from %d to %d", what, heard, wrong, off, early-is,
					late-is)
			}
		}
	}
}

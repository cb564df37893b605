package gcs

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestHandsApart: where the hands of our clock say different things, because the machine slept or its wall clock, which stands
// in for a better one, was set, the estimate is off by no more than it says.
func TestHandsApart(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct{ passed, stood, set time.Duration }{
		"slept":       {passed: time.Hour, stood: time.Hour},
		"set forward": {set: time.Hour},
		"set back":    {set: -time.Hour},
	} {
		var mono, real time.Duration
		clock := storeClock{clock: driver.Clock{Monotonic: func() time.Duration { return mono }, Real: func() time.Duration { return real }}}
		start := time.Unix(2_000_000_000, 0)
		clock.heard(start, time.Second, clock.clock.Now())
		mono, real = c.passed-c.stood, c.passed+c.set
		micro, off := clock.now()
		if wrong := time.Duration(micro-start.Add(c.passed).UnixMicro()) * time.Microsecond; wrong.Abs() > off {
			t.Errorf("%s: wrong by %v, and says %v", what, wrong, off)
		}
	}
}

package pace

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestLate: what the machine was late is known to who runs first again, before the watch itself does, and only what fell into
// the time that is asked for counts.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Pace
		stop := p.Watch()
		began := time.Now()
		time.Sleep(time.Second + every/2)
		expect := func(what string, since time.Time, worst, lost time.Duration) {
			t.Helper()
			if w, l := p.Worst(since), p.Lost(since); w != worst || l != lost {
				t.Errorf("%s: %v at worst, %v in all; want %v and %v", what, w, l, worst, lost)
			}
		}
		expect("in time", began, 0, 0)
		stop() // no timer fires any more, as on a machine that stands still
		time.Sleep(2*time.Second + every/2)
		expect("while it stands still", began, 2*time.Second, 2*time.Second)
		middle := time.Now()
		time.Sleep(time.Second)
		stop = p.Watch() // it goes on
		expect("afterwards", began, 3*time.Second, 3*time.Second)
		expect("since the middle", middle, 3*time.Second, time.Second)
		again := time.Now()
		time.Sleep(time.Second)
		expect("in time again", again, 0, 0)
		stop()
	})
}

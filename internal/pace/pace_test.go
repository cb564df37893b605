package pace

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestLate: a lag counts while it goes on, as far as it has come, and afterwards for those who ask about that time.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Pace
		took := []time.Duration{time.Second, 5 * time.Second} // from 0 to 1 s, from 1 s to 6 s, and then in time
		stop := p.WatchTask(time.Second, func(quit <-chan struct{}) {
			d := time.Second
			if len(took) > 0 {
				d, took = took[0], took[1:]
			}
			select {
			case <-quit:
			case <-time.After(d):
			}
		})
		start := time.Now()
		for _, want := range []time.Duration{0, time.Second, 2500 * time.Millisecond, 4 * time.Second,
			4 * time.Second} {
			time.Sleep(1500 * time.Millisecond)
			if worst, lost := p.Worst(start), p.Lost(start); worst != want || lost != want {
				t.Errorf("after %v: %v and %v in all, want %v", time.Since(start), worst, lost, want)
			}
		}
		if worst, lost := p.Worst(start.Add(4*time.Second)), p.Lost(start.Add(4*time.Second)); worst != 4*time.Second ||
			lost != 2*time.Second {
			t.Errorf("since its middle: %v and %v in all", worst, lost)
		}
		if worst, lost := p.Worst(start.Add(6*time.Second)), p.Lost(start.Add(6*time.Second)); worst != 0 || lost != 0 {
			t.Errorf("since its end: %v and %v in all", worst, lost)
		}
		stop()
		time.Sleep(time.Minute)
		if worst := p.Worst(start); worst != 4*time.Second {
			t.Errorf("when nothing is watched any more: %v", worst)
		}
	})
}

// TestWatch: a machine that is in time is not late.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Pace
		stop := p.Watch()
		start := time.Now()
		time.Sleep(time.Second + 2*time.Millisecond)
		if worst, lost := p.Worst(start), p.Lost(start); worst != 0 || lost != 0 {
			t.Errorf("%v, %v in all", worst, lost)
		}
		stop()
	})
}

package pace

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestWorst: a lag counts while it goes on, as far as it has come, and afterwards for those who ask about that time.
func TestWorst(t *testing.T) {
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
		defer stop()
		start := time.Now()
		for _, want := range []time.Duration{0, time.Second, 2500 * time.Millisecond, 4 * time.Second, 4 * time.Second} {
			time.Sleep(1500 * time.Millisecond)
			if got := p.Worst(start); got != want {
				t.Errorf("after %v: %v, want %v", time.Since(start), got, want)
			}
		}
		if got := p.Worst(start.Add(6 * time.Second)); got != 0 {
			t.Errorf("since then: %v", got)
		}
	})
}

package places

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestTake: who finds no place waits until there is one, for half of its time at most.
func TestTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(1)
		leave := p.Take(t.Context())
		took := func(ctx context.Context, want time.Duration) func() {
			t.Helper()
			from := time.Now()
			leave := p.Take(ctx)
			if d := time.Since(from); d != want {
				t.Errorf("it waited %v, not %v", d, want)
			}
			return leave
		}
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		took(short, time.Second)() // which must give back nothing
		if len(p) != 1 {
			t.Errorf("%d places are taken", len(p))
		}
		ended, end := context.WithCancel(t.Context())
		end()
		took(ended, 0)()
		time.AfterFunc(time.Minute, leave)
		leave = took(t.Context(), time.Minute)
		leave()
		took(t.Context(), 0)()
		if len(p) != 0 {
			t.Errorf("%d places are taken", len(p))
		}
	})
}

package gcs_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// TestAfterIdleHours: a client that has sent nothing for hours knows the service's clock badly. It reads before it
// makes a claim, so the claim expires a TTL after its client's death, and not minutes later.
func TestAfterIdleHours(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		s := startServer(t)
		var passed atomic.Int64
		hand := func() time.Duration { return driver.SystemClock.Monotonic() + time.Duration(passed.Load()) }
		o := quickLayoutOptions(layout)
		o.Clock = driver.Clock{Monotonic: hand, Boottime: hand}
		store, _ := mustOpen(t, s, o)
		const idle = 5 * time.Hour
		passed.Store(int64(idle))
		s.Shift(idle)
		var machine pace.Pace
		stop := machine.Watch()
		began := time.Now()
		acquire(t, store, mutexClaim("m", time.Minute))
		other, _ := mustOpen(t, s, quickLayoutOptions(layout))
		l, err := other.Inspect(t.Context(), "m")
		if err != nil || len(l.Holders) != 1 || l.Holders[0].Remaining > time.Minute+time.Second+machine.Lost(began) {
			t.Errorf("%s: %+v %v", layout, l, err)
		}
		stop()
	}
}

package driverutil

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestRetryLoopLimit: the limit counts from the first failed request, or from Restart; an answer ends an outage.
func TestRetryLoopLimit(t *testing.T) {
	t.Parallel()
	var now time.Duration
	read := func() time.Duration { return now }
	var paused []int
	l := RetryLoop{Clock: driver.Clock{Monotonic: read, Boottime: read}, Limit: time.Second,
		Pause: func(_ context.Context, tries int) error { paused = append(paused, tries); return nil }}
	lost := errors.New("no answer")
	fails := func(after time.Duration, sent bool) error {
		now += after
		return l.PauseAfterFailure(t.Context(), lost, sent)
	}
	if err := fails(time.Hour, false); err != nil || l.Uncertain {
		t.Errorf("the first failure: %v, uncertain %v", err, l.Uncertain)
	}
	if err := fails(time.Second, true); err != nil || !l.Uncertain {
		t.Errorf("within the limit: %v, uncertain %v", err, l.Uncertain)
	}
	if err := l.PauseAfterAnswer(t.Context()); err != nil {
		t.Error(err)
	}
	if err := fails(time.Second, false); err != nil || !l.Uncertain {
		t.Errorf("after an answer: %v, uncertain %v", err, l.Uncertain)
	}
	if err := fails(time.Second+1, false); err != lost {
		t.Errorf("after the limit: %v", err)
	}
	l.Restart()
	if err := fails(time.Second+1, false); err != lost {
		t.Errorf("after the limit from the restart: %v", err)
	}
	if len(paused) != 4 || paused[3] != 3 {
		t.Errorf("paused %v", paused)
	}
}

// TestRetryLoopEnd: the call ends with the request's own error when its context has ended, and with the pause's error
// otherwise.
func TestRetryLoopEnd(t *testing.T) {
	t.Parallel()
	lost, closed := errors.New("no answer"), errors.New("closed")
	l := RetryLoop{Clock: driver.SystemClock, Limit: time.Hour,
		Pause: func(context.Context, int) error { return closed }}
	if err := l.PauseAfterFailure(t.Context(), lost, true); err != closed {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.PauseAfterFailure(ctx, lost, true); err != lost {
		t.Errorf("got %v", err)
	}
}

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
	if err := fails(time.Second+1, false); !errors.Is(err, lost) || !errors.Is(err, driver.ErrUncertain) {
		t.Errorf("after the limit: %v", err)
	}
	l.Restart()
	if err := fails(time.Second+1, false); !errors.Is(err, lost) {
		t.Errorf("after the limit from the restart: %v", err)
	}
	if len(paused) != 4 || paused[3] != 3 {
		t.Errorf("paused %v", paused)
	}
}

// TestRetryLoopEnd: the call ends with a final error at once, and with the pause's error if that ends, which then says
// why the store was asked again. The error is ErrUncertain if and only if a request may have taken effect.
func TestRetryLoopEnd(t *testing.T) {
	t.Parallel()
	lost := errors.New("no answer")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	cases := []struct {
		name      string
		ctx       context.Context
		err       error
		pause     error
		sent      bool
		want      error
		uncertain bool
	}{
		{"tried again", t.Context(), lost, nil, true, nil, false},
		{"a refusal", t.Context(), driver.ErrDenied, nil, true, driver.ErrDenied, false},
		{"closed", t.Context(), lost, driver.ErrClosed, true, driver.ErrClosed, false},
		{"the context's end, sent", ended, lost, context.Canceled, true, context.Canceled, true},
		{"the context's end, not sent", ended, lost, context.Canceled, false, lost, false},
		{"a request's own limit", t.Context(), context.DeadlineExceeded, context.Canceled, false, context.Canceled, false},
	}
	for _, c := range cases {
		l := RetryLoop{Clock: driver.SystemClock, Limit: time.Hour,
			Pause: func(context.Context, int) error { return c.pause }}
		err := l.PauseAfterFailure(c.ctx, c.err, c.sent)
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || errors.Is(err, driver.ErrUncertain) != c.uncertain ||
			errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	l := RetryLoop{Clock: driver.SystemClock, Limit: time.Hour,
		Pause: func(context.Context, int) error { return nil }}
	if err := l.PauseAfterFailure(t.Context(), lost, true); err != nil {
		t.Fatal(err)
	}
	if err := l.PauseAfterFailure(t.Context(), driver.ErrDenied, false); !errors.Is(err, driver.ErrUncertain) ||
		!errors.Is(err, driver.ErrDenied) {
		t.Errorf("a refusal after a request of unknown outcome: %v", err)
	}
}

// TestRetryLoopReason: a request that the caller's context cuts off does not hide why the one before it failed.
func TestRetryLoopReason(t *testing.T) {
	t.Parallel()
	refused := errors.New("connection refused")
	ctx, cancel := context.WithCancel(t.Context())
	l := RetryLoop{Clock: driver.SystemClock, Limit: time.Hour,
		Pause: func(ctx context.Context, _ int) error { return ctx.Err() }}
	if err := l.PauseAfterFailure(ctx, refused, false); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := l.PauseAfterFailure(ctx, ctx.Err(), false); !errors.Is(err, refused) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

package driverutil

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestCallWithTimeout: a request that hangs is given up after its time, and the error is a context's only if the
// caller's has ended.
func TestCallWithTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		began := time.Now()
		if err := CallWithTimeout(t.Context(), time.Second, "it", hangs); err == nil ||
			errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := CallWithTimeout(ctx, time.Minute, "it", hangs); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the caller's own time is over: %v", err)
		}
		fault := errors.New("fault")
		if err := CallWithTimeout(t.Context(), time.Second, "it",
			func(context.Context) error { return fault }); err != fault {
			t.Errorf("a fault in time: %v", err)
		}
	})
}

// TestSilence: the error of a call says for how long the store has not answered: since the first request began that
// has had no answer, whether that has failed or is under way. What the store has said hides nothing, and is not
// changed.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		elapsed := func() time.Duration { return time.Since(began) }
		c := driver.Clock{Monotonic: elapsed, Boottime: elapsed}
		silence := func(o *Outage, err error) time.Duration {
			var silent *driver.SilentError
			if err = o.Explain(c, err); errors.As(err, &silent) {
				return silent.For
			}
			return 0
		}
		var o Outage
		gone, held := errors.New("no route"), &driver.HeldError{}
		ended := errors.Join(context.DeadlineExceeded, held)
		for _, step := range []struct {
			name string
			do   func(*Outage)
			err  error
			want time.Duration
		}{
			{"nothing was asked", func(*Outage) {}, ended, 0},
			{"a request is under way", func(o *Outage) { o.RequestStarted(c.Now()) }, ended, time.Second},
			{"the next one, so this one was answered", func(o *Outage) { o.RequestStarted(c.Now()) }, gone, time.Second},
			{"it fails", func(o *Outage) { o.RequestFailed(c, time.Hour) }, gone, 2 * time.Second},
			{"another one is under way", func(o *Outage) { o.RequestStarted(c.Now()) }, gone, 3 * time.Second},
			{"the store refuses", func(*Outage) {}, held, 0},
			{"no error", func(*Outage) {}, nil, 0},
			{"an answer", func(o *Outage) { o.RequestAnswered() }, gone, 0},
			{"a failure of which no start is known", func(o *Outage) { o.RequestFailed(c, time.Hour) }, gone, time.Second},
		} {
			step.do(&o)
			time.Sleep(time.Second)
			if got := silence(&o, step.err); got != step.want {
				t.Errorf("%s: %v, want %v", step.name, got, step.want)
			}
		}
	})
}

// TestReasonOfSilence: what the store has said is a reason why no request succeeds, and that time was up is none.
func TestReasonOfSilence(t *testing.T) {
	full := errors.New("no memory is left")
	late := CallWithTimeout(t.Context(), time.Nanosecond, "the store", func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	for _, c := range []struct{ err, reason, want error }{
		{full, nil, full},
		{context.DeadlineExceeded, full, full},
		{context.DeadlineExceeded, nil, nil},
		{os.ErrDeadlineExceeded, nil, nil},
		{context.DeadlineExceeded, fmt.Errorf("reading: %w", os.ErrDeadlineExceeded), nil},
		{HideContextError(context.DeadlineExceeded), nil, nil},
		{context.DeadlineExceeded, late, nil},
	} {
		var o Outage
		o.RequestFailed(driver.SystemClock, time.Hour)
		if c.reason != nil {
			o.NoteReason(t.Context(), c.reason)
		}
		silent, ok := errors.AsType[*driver.SilentError](o.Explain(driver.SystemClock, c.err))
		if !ok || silent.Reason != c.want {
			t.Errorf("%v, %v: the reason is %v, want %v", c.err, c.reason, silent, c.want)
		}
	}
}

package driverutil

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
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

package driver_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestPollChange: a lock that changes all the time is read about once per second, and a wait ends with its context.
func TestPollChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		inspect := func(_ context.Context, name string) (driver.Lock, error) {
			reads++
			return driver.Lock{Name: name, Revision: strconv.Itoa(reads)}, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var err error
		for seen := (driver.Lock{Name: "a"}); err == nil; {
			seen, err = driver.PollChange(ctx, seen, inspect)
		}
		if err != context.DeadlineExceeded || reads < 55 || reads > 125 {
			t.Errorf("%d reads in a minute, and then %v", reads, err)
		}
	})
}

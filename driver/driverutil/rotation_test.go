package driverutil

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// newRotation returns a rotation of numbers, each made in a second, and the numbers that it has retired.
func newRotation() (r *Rotation[int], retired *[]int) {
	start, made := time.Now(), 0
	passed := func() time.Duration { return time.Since(start) }
	retired = new([]int)
	return &Rotation[int]{
		Clock: driver.Clock{Monotonic: passed, Boottime: passed},
		Make: func(ctx context.Context, ttl time.Duration) (int, error) {
			made++
			n := made
			time.Sleep(time.Second)
			return n, ctx.Err()
		},
		Retire: func(n int) { *retired = append(*retired, n) },
	}, retired
}

func get(t *testing.T, r *Rotation[int], ttl time.Duration, want int) {
	t.Helper()
	if got, err := r.Get(t.Context(), ttl); got != want || err != nil {
		t.Errorf("the value is %d, %v; want %d", got, err, want)
	}
}

// TestRotation: each TTL has a value of its own, which is handed out for a third of the TTL, from the time at which its
// making began.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, retired := newRotation()
		const ttl = 30 * time.Second
		get(t, r, ttl, 1)
		get(t, r, 2*ttl, 2)
		time.Sleep(8*time.Second - 1)
		get(t, r, ttl, 1)
		time.Sleep(time.Nanosecond)
		get(t, r, ttl, 3)
		get(t, r, 2*ttl, 2)
		r.Drop(t.Context(), 2*ttl, 1)
		get(t, r, 2*ttl, 2)
		r.Drop(t.Context(), 2*ttl, 2)
		get(t, r, 2*ttl, 4)
		if want := []int{1, 2}; !slices.Equal(*retired, want) {
			t.Errorf("retired are %v, want %v", *retired, want)
		}
	})
}

// TestRotationTogether: callers that come at the same time share a value. One that gives up while another makes it gets
// the end of its context, and one that fails does not fail the others.
func TestRotationTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newRotation()
		given, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := r.Get(given, time.Minute); !errors.Is(err, context.Canceled) {
				t.Errorf("the first caller: %v", err)
			}
		})
		synctest.Wait()
		cancel()
		for range 10 {
			all.Go(func() { get(t, r, time.Minute, 2) })
		}
		all.Go(func() {
			if _, err := r.Get(given, time.Minute); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("a caller that has given up: %v", err)
			}
		})
		all.Wait()
	})
}

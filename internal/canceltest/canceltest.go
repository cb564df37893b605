// Package canceltest gives claims up at random moments, as callers do whose patience ends, and looks what is left of them.
package canceltest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Run has one worker for each of the stores make claims, give each the given time at most, and clean up, until n claims were
// given up. A second later nothing may stand. Some of the cancels must fall after the claim has come to stand, or the test
// proves nothing; with fifth, a fifth of them. So every other claim is given about the time that one takes on this machine.
func Run(t *testing.T, stores []driver.Store, n int64, most time.Duration, claim func(worker int) driver.Claim, fifth bool) {
	t.Helper()
	usual := min(measureAcquire(t, stores[0], claim(0)), measureAcquire(t, stores[0], claim(0))) // the first may have to connect
	most = max(most, 2*usual)
	var claims, cancels, after atomic.Int64
	var workers sync.WaitGroup
	for i, s := range stores {
		workers.Go(func() {
			for cancels.Load() < n && !t.Failed() {
				patience := rand.N(most)
				if claims.Add(1)%2 == 0 {
					patience = rand.N(2 * usual)
				}
				c := claim(i)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				_, err := s.Acquire(ctx, c)
				cancel()
				switch {
				case errors.Is(err, context.DeadlineExceeded):
					cancels.Add(1)
					if isOnLock(t, s, c) {
						after.Add(1)
					}
				case err != nil && (c.Wait || !errors.Is(err, driver.ErrHeld)):
					t.Error(err)
				}
				ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
				if rerr := s.Release(ctx, c, ""); rerr != nil && (err == nil || !errors.Is(rerr, driver.ErrLost)) {
					t.Errorf("release: %v (acquire: %v)", rerr, err)
				}
				cancel()
			}
		})
	}
	workers.Wait()
	time.Sleep(time.Second)
	for l, err := range stores[0].List(t.Context(), "") {
		t.Errorf("left: %+v %v", l, err)
	}
	t.Logf("%d claims, %d were cancelled, %d of them after the effect; nothing stood a second later", claims.Load(), cancels.Load(), after.Load())
	if after.Load() == 0 || fifth && after.Load() < cancels.Load()/5 {
		t.Errorf("only %d of %d cancels fell after the effect: the test proves little", after.Load(), cancels.Load())
	}
}

// measureAcquire tells how long a claim takes for which nobody waits.
func measureAcquire(t *testing.T, s driver.Store, c driver.Claim) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	start := time.Now()
	_, err := s.Acquire(ctx, c)
	took := time.Since(start)
	if err := errors.Join(err, s.Release(ctx, c, "")); err != nil {
		t.Fatal(err)
	}
	return took
}

// isOnLock tells whether a claim stands, granted or in line.
func isOnLock(t *testing.T, s driver.Store, c driver.Claim) bool {
	t.Helper()
	l, err := s.Inspect(t.Context(), c.Name)
	if err != nil {
		t.Error(err)
	}
	return slices.ContainsFunc(append(l.Holders, l.Waiters...), func(s driver.ClaimInfo) bool { return s.Ref == c.ID })
}

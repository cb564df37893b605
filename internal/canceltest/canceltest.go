// Package canceltest cancels claims at random moments, and checks what is left of them.
package canceltest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// Run has one worker per store make claims, cancel each after at maxWait maxWait, and clean up, until n claims were
// canceled. A second later, no claim may exist, apart from the time by which the store or the machine is slow. Some
// claims must be canceled after they existed, or the test proves nothing; with fifth, a fifth of them must. So every
// other claim gets about the time that a claim takes on this machine.
func Run(t *testing.T, stores []driver.Store, n int64, maxWait time.Duration, claim func(worker int) driver.Claim,
	fifth bool) {
	t.Helper()
	var machine pace.Pace
	defer machine.Watch()()
	// the first may have to connect
	usual := min(measureAcquire(t, stores[0], claim(0)), measureAcquire(t, stores[0], claim(0)))
	maxWait = max(maxWait, 2*usual)
	var claims, cancels, after atomic.Int64
	var workers sync.WaitGroup
	for i, s := range stores {
		workers.Go(func() {
			for cancels.Load() < n && !t.Failed() {
				limit := rand.N(maxWait)
				if claims.Add(1)%2 == 0 {
					limit = rand.N(2 * usual)
				}
				c := claim(i)
				ctx, cancel := context.WithTimeout(t.Context(), limit)
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
	ended := time.Now()
	time.Sleep(time.Second)
	var slow time.Duration // the longest listing
	for {
		asked := time.Now()
		left := listLocks(t, stores[0])
		if len(left) == 0 {
			break
		}
		// A store that takes so long to list the claims, or a machine that runs so late, may be as slow to remove them.
		slow = max(slow, time.Since(asked), machine.Worst(ended))
		if time.Since(ended) > time.Second+10*slow {
			t.Errorf("left: %q", left)
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Logf("%d claims, %d were canceled, %d of them after the effect; no claim existed a second later", claims.Load(),
		cancels.Load(), after.Load())
	if after.Load() == 0 || fifth && after.Load() < cancels.Load()/5 {
		t.Errorf("only %d of %d cancels fell after the effect: the test proves little", after.Load(), cancels.Load())
	}
}

// listLocks describes all locks of a store that have claims.
func listLocks(t *testing.T, s driver.Store) (found []string) {
	t.Helper()
	for l, err := range s.List(t.Context(), "") {
		found = append(found, fmt.Sprintf("%+v %v", l, err))
	}
	return found
}

// measureAcquire returns how long a claim takes on a free lock.
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

// isOnLock reports whether a claim exists, granted or waiting.
func isOnLock(t *testing.T, s driver.Store, c driver.Claim) bool {
	t.Helper()
	l, err := s.Inspect(t.Context(), c.Name)
	if err != nil {
		t.Error(err)
	}
	return slices.ContainsFunc(append(l.Holders, l.Waiters...), func(s driver.ClaimInfo) bool { return s.Ref == c.ID })
}

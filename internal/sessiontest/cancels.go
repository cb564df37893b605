//go:build unix

package sessiontest

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

var cancelCount = flag.Int("cancels", 400, "how many acquires are canceled")

// Cancels cancels acquires at random moments, and checks that soon no claim of theirs exists: long before
// it would expire.
func (h *Harness[C, P]) Cancels(t *testing.T) {
	c := h.Shared(t)
	held, free := t.Name()+"/held", []string{t.Name() + "/free-1", t.Name() + "/free-2"}
	blocker := h.Peer(t, c)
	hold := Claim(held)
	hold.TTL = time.Hour // it is never renewed
	if _, err := blocker.Acquire(t.Context(), hold); err != nil {
		t.Fatal(err)
	}
	run := &cancelRun{held: held, free: free}
	for range 4 {
		run.clients = append(run.clients, NewClient(t, h.Peer(t, c), 30*time.Second))
	}
	servers := h.watchCluster(t, c)
	defer run.machine.Watch()()
	start := time.Now()
	run.cancelAll(t)
	ended := time.Now()
	left := run.awaitNoClaims(t, blocker, servers, ended)
	t.Logf("%d acquires in %v: %d granted before the cancel, %d canceled while queued, %d canceled earlier; "+
		"%d claims left after %v, besides the holder", *cancelCount, ended.Sub(start).Round(time.Millisecond),
		run.granted, run.queued, run.early, left, time.Since(ended).Round(100*time.Millisecond))
	if left != 0 {
		t.Errorf("%d claims are left", left)
	}
	if run.granted+run.queued < *cancelCount/5 {
		t.Errorf("too few acquires were canceled after their claim existed")
	}
	CheckError(t, blocker.Release(t.Context(), hold, ""))
}

// cancelRun cancels acquires of a held lock and of free ones, from several clients.
type cancelRun struct {
	held    string
	free    []string
	clients []*holdfast.Client
	machine pace.Pace

	mu      sync.Mutex
	granted int // acquires that were granted before the cancel
	queued  int // acquires that were canceled while their claim was in the queue
	early   int // acquires that were canceled before that
}

// cancelAll makes all acquires. The time that each one gets follows the speed of the machine, so that about as many are
// canceled after their claim exists as before.
func (run *cancelRun) cancelAll(t *testing.T) {
	t.Helper()
	var usual atomic.Int64
	usual.Store(int64(measureCycle(t, run.clients)))
	todo := make(chan int, *cancelCount)
	for i := range *cancelCount {
		todo <- i
	}
	close(todo)
	var workers sync.WaitGroup
	for w := range 16 {
		workers.Go(func() {
			for i := range todo {
				name, limit := run.held, 30*time.Duration(usual.Load())
				if i%2 == 0 {
					name, limit = run.free[i/2%2], limit/3
				}
				run.cancelOne(t, run.clients[w%4], name, rand.N(limit), &usual)
			}
		})
	}
	workers.Wait()
}

// cancelOne makes one acquire with the given time limit, counts its outcome, and adapts the usual time to the counts.
func (run *cancelRun) cancelOne(t *testing.T, client *holdfast.Client, name string, limit time.Duration,
	usual *atomic.Int64) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	deadline, _ := ctx.Deadline()
	l, err := client.Mutex(name, nil).Lock(ctx)
	cancel()
	run.mu.Lock()
	var detailed *holdfast.Error
	switch {
	case err == nil:
		run.granted++
	case errors.As(err, &detailed) && len(detailed.Holders) > 0:
		run.queued++
	default:
		run.early++
		usual.Store(usual.Load() * 51 / 50)
	}
	if run.early < run.granted+run.queued {
		usual.Store(max(int64(time.Microsecond), usual.Load()*50/51))
	}
	run.mu.Unlock()
	if err == nil {
		CheckError(t, l.Release())
	} else if late := time.Since(deadline); late > 3*time.Second+10*run.machine.Worst(deadline) {
		t.Errorf("a canceled acquire returned %v after its context had ended", late)
	}
}

// awaitNoClaims waits, for 5 s at most, and returns how many claims are left, besides the holder's. A claim that is
// left by mistake exists for its TTL of 30 s. Slow servers get more time, but at most half of that.
func (run *cancelRun) awaitNoClaims(t *testing.T, s driver.Store, servers *pace.Pace, ended time.Time) (left int) {
	t.Helper()
	time.Sleep(time.Second)
	for {
		left = run.countClaims(t, s) - 1
		slow := max(servers.Worst(ended), run.machine.Worst(ended))
		if left == 0 || time.Since(ended) >= min(15*time.Second, 5*time.Second+10*slow) {
			return left
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (run *cancelRun) countClaims(t *testing.T, s driver.Store) (claims int) {
	t.Helper()
	for _, name := range append([]string{run.held}, run.free...) {
		l, err := s.Inspect(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		claims += len(l.Holders) + len(l.Waiters)
	}
	return claims
}

// measureCycle returns the average time of a Lock and a Release.
func measureCycle(t *testing.T, clients []*holdfast.Client) time.Duration {
	t.Helper()
	began, n := time.Now(), 0
	for range 8 {
		for _, client := range clients {
			CheckError(t, Lock(t, client, t.Name()+"/measure").Release())
			n++
		}
	}
	return time.Since(began) / time.Duration(n)
}

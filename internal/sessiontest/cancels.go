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
	"github.com/holdfast-go/holdfast/internal/pace"
)

var cancelCount = flag.Int("cancels", 400, "how many acquires are cancelled")

// Cancels gives acquires up at any moment, and looks what stands a second after the last.
func (r *Harness[C, P]) Cancels(t *testing.T) {
	c := r.Shared(t)
	held, free := t.Name()+"/held", []string{t.Name() + "/free-1", t.Name() + "/free-2"}
	blocker := r.Peer(t, c)
	hold := Claim(held)
	hold.TTL = time.Hour // nobody renews it
	if _, err := blocker.Acquire(t.Context(), hold); err != nil {
		t.Fatal(err)
	}
	var clients []*holdfast.Client
	for range 4 {
		clients = append(clients, NewClient(t, r.Peer(t, c), 30*time.Second))
	}
	pulse := r.watchCluster(t, c)
	var machine pace.Pace
	defer machine.Watch()()
	// Patience goes with the pace of the machine, so that about as many acquires come to stand as do not.
	var usual atomic.Int64
	usual.Store(int64(usualCycle(t, clients)))
	todo := make(chan int, *cancelCount)
	for i := range *cancelCount {
		todo <- i
	}
	close(todo)
	var all sync.WaitGroup
	var mu sync.Mutex
	granted, before, waited := 0, 0, 0
	start := time.Now()
	for w := range 16 {
		all.Go(func() {
			for i := range todo {
				name, limit := held, 30*time.Duration(usual.Load())
				if i%2 == 0 {
					name, limit = free[i/2%2], limit/3
				}
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(limit))
				given, _ := ctx.Deadline()
				l, err := clients[w%4].Mutex(name, nil).Lock(ctx)
				cancel()
				mu.Lock()
				var told *holdfast.Error
				switch {
				case err == nil:
					granted++
				case errors.As(err, &told) && len(told.Holders) > 0:
					waited++
				default:
					before++
					usual.Store(usual.Load() * 51 / 50)
				}
				if before < granted+waited {
					usual.Store(max(int64(time.Microsecond), usual.Load()*50/51))
				}
				mu.Unlock()
				if err == nil {
					CheckError(t, l.Release())
				} else if late := time.Since(given); late > 3*time.Second+10*machine.Worst(given) {
					t.Errorf("a cancelled acquire returned %v after its context had ended", late)
				}
			}
		})
	}
	all.Wait()
	over := time.Now()
	stand := func() (claims int) {
		for _, name := range append(free, held) {
			l, err := blocker.Inspect(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			claims += len(l.Holders) + len(l.Waiters)
		}
		return claims - 1 // the blocker's
	}
	time.Sleep(time.Second)
	left := stand()
	// What is left by mistake stays for the TTL of 30 s; servers that are late are waited for, for half of that at most.
	for left != 0 && time.Since(over) < min(15*time.Second, time.Second+10*max(pulse.Worst(over), machine.Worst(over))) {
		time.Sleep(20 * time.Millisecond)
		left = stand()
	}
	t.Logf("%d acquires in %v: %d granted before the cancel, %d given up in line, %d given up earlier; %d claims left after %v, beside the holder",
		*cancelCount, over.Sub(start).Round(time.Millisecond), granted, waited, before, left, time.Since(over).Round(100*time.Millisecond))
	if left != 0 {
		t.Errorf("%d claims are left", left)
	}
	if granted+waited < *cancelCount/5 {
		t.Errorf("too few cancels fell after the claim had come to stand")
	}
	CheckError(t, blocker.Release(t.Context(), hold, ""))
}

// usualCycle is how long it takes to lock and unlock.
func usualCycle(t *testing.T, clients []*holdfast.Client) time.Duration {
	began, n := time.Now(), 0
	for range 8 {
		for _, client := range clients {
			CheckError(t, Lock(t, client, t.Name()+"/measure").Release())
			n++
		}
	}
	return time.Since(began) / time.Duration(n)
}

package sessiontest

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/pace"
)

var cancels = flag.Int("cancels", 400, "how many acquires are cancelled")

// Cancels gives acquires up at any moment, and looks a second later what stands.
func (r *Rig[C, P]) Cancels(t *testing.T) {
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
	usual := usualCycle(t, clients)
	var machine pace.Pace
	defer machine.Watch()()
	todo := make(chan int, *cancels)
	for i := range *cancels {
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
				name, limit := held, 30*usual
				if i%2 == 0 {
					name, limit = free[i/2%2], 10*usual
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
				}
				mu.Unlock()
				if err == nil {
					Fails(t, l.Unlock())
				} else if late := time.Since(given); late > time.Second+10*machine.Worst(given) {
					t.Errorf("a cancelled acquire returned %v after its context had ended", late)
				}
			}
		})
	}
	all.Wait()
	took := time.Since(start)
	time.Sleep(time.Second)
	left := -1 // the blocker's
	for _, name := range append(free, held) {
		l, err := blocker.Inspect(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		left += len(l.Holders) + len(l.Waiters)
	}
	t.Logf("%d acquires in %v: %d granted before the cancel, %d given up in line, %d given up earlier; %d claims left after a second, beside the holder",
		*cancels, took.Round(time.Millisecond), granted, waited, before, left)
	if left != 0 {
		t.Errorf("%d claims are left", left)
	}
	if granted+waited < *cancels/5 {
		t.Errorf("too few cancels fell after the claim had come to stand")
	}
	Fails(t, blocker.Release(t.Context(), hold, ""))
}

// usualCycle is how long it takes to lock and unlock.
func usualCycle(t *testing.T, clients []*holdfast.Client) time.Duration {
	began, n := time.Now(), 0
	for range 8 {
		for _, client := range clients {
			Fails(t, Lock(t, client, t.Name()+"/measure").Unlock())
			n++
		}
	}
	return time.Since(began) / time.Duration(n)
}

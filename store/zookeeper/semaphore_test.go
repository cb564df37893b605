package zookeeper

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
)

// TestSemaphore: permits are granted up to the limit and in order, a wait that is canceled leaves nothing, holders
// and waiters are seen and can be broken, and what Curator's semaphore is not is refused.
func TestSemaphore(t *testing.T) {
	t.Parallel()
	s, err := openAs[*semaphoreStore](rig.Shared(t).Endpoints(), Options{Layout: LayoutCuratorSemaphore})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := t.Context()
	claim := func(wait bool) driver.Claim {
		c := mutexClaim(t.Name())
		c.Kind, c.Limit, c.Wait, c.TTL = driver.KindSemaphore, 2, wait, 10*time.Minute
		return c
	}
	var held []driver.Grant
	for range 2 {
		g, err := s.Acquire(ctx, claim(false))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, g)
	}
	if held[0].Token >= held[1].Token || held[0].Name != t.Name() {
		t.Errorf("%+v", held)
	}
	var heldErr *driver.HeldError
	if _, err := s.Acquire(ctx, claim(false)); !errors.As(err, &heldErr) || len(heldErr.Holders) != 2 {
		t.Errorf("a third permit of two: %v", err)
	}
	waitForCounts := func(holders, waiters int) (l driver.Lock) {
		t.Helper()
		for limit := time.Now().Add(time.Minute); time.Now().Before(limit); {
			var err error
			if l, err = s.Inspect(ctx, t.Name()); err != nil {
				t.Fatal(err)
			}
			if len(l.Holders) == holders && len(l.Waiters) == waiters {
				return l
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("%d hold and %d wait, want %d and %d", len(l.Holders), len(l.Waiters), holders, waiters)
		return l
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	given := claim(true)
	in := make(chan error, 1)
	go func() { _, err := s.Acquire(waiting, given); in <- err }()
	waitForCounts(2, 1)
	cancel()
	if err := <-in; !errors.Is(err, context.Canceled) {
		t.Errorf("a wait without success: %v", err)
	}
	mustSucceed(t, s.Release(ctx, given, ""))
	next := claim(true)
	go func() { _, err := s.Acquire(ctx, next); in <- err }()
	waitForCounts(2, 1)
	s.Renew(ctx, held, func(_ int, r driver.Renewal) { mustSucceed(t, r.Err) })
	mustSucceed(t, s.Release(ctx, held[0].Claim, held[0].Ref))
	mustSucceed(t, <-in)
	l := waitForCounts(2, 0)
	listed := 0
	for l, err := range s.List(ctx, t.Name()) {
		mustSucceed(t, err)
		if l.Name == t.Name() && len(l.Holders) == 2 {
			listed++
		}
	}
	if listed != 1 {
		t.Errorf("listed %d times", listed)
	}
	mustSucceed(t, s.Break(ctx, t.Name(), l.Holders[0].Ref, driver.Break{Mode: driver.BreakForce}))
	if e, err := s.NextEnding(ctx); err != nil || e.Name != t.Name() || e.ID != held[1].ID {
		t.Errorf("%+v, %v", e, err)
	}
	mustSucceed(t, s.Release(ctx, next, ""))
	waitForCounts(0, 0)
	heavy, mutex := claim(false), mutexClaim(t.Name())
	heavy.Weight = 2
	for _, c := range []driver.Claim{heavy, mutex} {
		if _, err := s.Acquire(ctx, c); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestSemaphoreTry: a claim that does not wait is refused soon, also where there are permits and the client that
// is to take the next one does not go on.
func TestSemaphoreTry(t *testing.T) {
	t.Parallel()
	s, err := openAs[*semaphoreStore](rig.Shared(t).Endpoints(), Options{Layout: LayoutCuratorSemaphore})
	mustSucceed(t, err)
	defer s.Close()
	c := mutexClaim(t.Name())
	c.Kind, c.Limit = driver.KindSemaphore, 2
	stuck := claimBelow(mutexClaim(t.Name()), locksFolder)
	stuck.TTL = time.Minute
	_, err = s.locks.Acquire(t.Context(), stuck)
	mustSucceed(t, err)
	start := time.Now()
	var heldErr *driver.HeldError
	if _, err := s.Acquire(t.Context(), c); !errors.As(err, &heldErr) || len(heldErr.Holders) != 1 {
		t.Errorf("behind one who has the mutex: %v", err)
	}
	if took := time.Since(start); took > stuck.TTL/2 {
		t.Errorf("that took %v", took)
	}
	mustSucceed(t, s.locks.Release(t.Context(), stuck, ""))
	g, err := s.Acquire(t.Context(), c)
	mustSucceed(t, err)
	mustSucceed(t, s.Release(t.Context(), g.Claim, ""))
}

// TestSemaphoreInterop: Curator's semaphore and ours share their permits, never more than there are, and both make
// progress.
func TestSemaphoreInterop(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	file := filepath.Join(t.TempDir(), "marks")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mark := func(what string) {
		f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		_, err = f.WriteString(what + "\n")
		mustSucceed(t, err)
	}
	var theirs sync.WaitGroup
	for range 3 {
		args := append(curatorCommand(t), strings.Join(c.Endpoints(), ","), "/"+t.Name(), "semaphore",
			strconv.Itoa(*sessiontest.Rounds), file)
		theirs.Go(func() {
			var out bytes.Buffer
			peer := exec.CommandContext(t.Context(), args[0], args[1:]...)
			peer.Stdout, peer.Stderr = &out, &out
			if err := peer.Run(); err != nil {
				t.Errorf("the peer: %v\n%s", err, out.Bytes())
			}
		})
	}
	ended := make(chan struct{})
	go func() { theirs.Wait(); close(ended) }()
	s, err := openAs[*semaphoreStore](c.Endpoints(), Options{Layout: LayoutCuratorSemaphore})
	if err != nil {
		t.Fatal(err)
	}
	client := newClient(t, s, time.Minute)
	var all, met sync.WaitGroup
	met.Add(3)
	for range 3 {
		all.Go(func() {
			meet := sync.OnceFunc(met.Done)
			defer meet()
			for going, n := true, 0; going || n < *sessiontest.Rounds; n++ {
				l, err := client.Semaphore(t.Name(), 3, nil).Acquire(t.Context(), 1)
				if err != nil {
					t.Error(err)
					return
				}
				mark("in")
				mark("ours")
				if meet(); n == 0 {
					met.Wait() // all three at a time
				}
				time.Sleep(20 * time.Millisecond)
				mark("out")
				mustSucceed(t, l.Release())
				select {
				case <-ended:
					going = false
				default:
				}
			}
		})
	}
	all.Wait()
	<-ended
	data, err := os.ReadFile(file)
	mustSucceed(t, err)
	inside, most, ours, total := 0, 0, 0, 0
	for line := range strings.Lines(string(data)) {
		switch strings.TrimSpace(line) {
		case "in":
			inside++
			total++
			most = max(most, inside)
		case "out":
			inside--
		case "ours":
			ours++
		}
	}
	t.Logf("%d permits of ours and %d of theirs, %d at a time at most", ours, total-ours, most)
	if most != 3 || inside != 0 || total-ours != 3**sessiontest.Rounds {
		t.Error("not as promised")
	}
}

package redis

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// TestOvertaken: a claim that was released while a request to make it was still under way is not made by that request,
// however the lock stands when it comes.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	s := open(t, "redis://"+startServer(t).Addr).(*Store)
	for name, shape := range map[string]func(*driver.Claim){
		"plain":     func(*driver.Claim) {},
		"fair":      func(c *driver.Claim) { c.Fair = true },
		"semaphore": func(c *driver.Claim) { c.Kind, c.Limit = driver.KindSemaphore, 3 },
	} {
		claim := func() driver.Claim {
			c := mutex(name, 10*time.Second)
			shape(&c)
			return c
		}
		for _, used := range []bool{false, true} {
			if used {
				g := acquire(t, s, claim())
				release(t, s, g.Claim)
			}
			c := claim()
			s.overtaken(c.ID)
			if err := s.Release(t.Context(), c, ""); !errors.Is(err, driver.ErrLost) {
				t.Errorf("%s: releasing what does not stand yet: %v", name, err)
			}
			if g, err := s.Acquire(t.Context(), c); !errors.Is(err, driver.ErrLost) {
				t.Errorf("%s, used before: %v: a late request made %+v, %v", name, used, g, err)
			}
		}
	}
}

// TestOvertakenInRoll: a claim that was released while a request to make it was still under way is not made by that request
// when those in line had to show themselves in between.
func TestOvertakenInRoll(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := open(t, "redis://"+server.Addr).(*Store)
	fair := func() driver.Claim {
		c := mutex("m", 30*time.Second)
		c.Fair = true
		return c
	}
	holder := acquire(t, s, fair())
	late := fair()
	s.overtaken(late.ID)
	if err := s.Release(t.Context(), late, ""); !errors.Is(err, driver.ErrLost) {
		t.Fatal(err)
	}
	do(t, server, "HSET", recordOf("m"), "roll", "1", "rollend", "2") // its time is over, and the next step ends it
	if _, err := s.Acquire(t.Context(), fair()); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	if left := do(t, server, "HEXISTS", recordOf("m"), "rollend"); left != ":0" {
		t.Fatal("the roll goes on")
	}
	if err := s.Release(t.Context(), holder.Claim, ""); err != nil {
		t.Fatal(err)
	}
	if g, err := s.Acquire(t.Context(), late); !errors.Is(err, driver.ErrLost) {
		t.Errorf("a late request made %+v, %v", g, err)
	}
}

// TestCalledOnArrival: a claim that is called before it knows that it stands in line takes its turn at once, and not when it
// next gives a sign of life.
func TestCalledOnArrival(t *testing.T) {
	t.Parallel()
	addr := startServer(t).Addr
	var all sync.WaitGroup
	for range 2 {
		s := open(t, "redis://"+addr)
		all.Go(func() {
			for range 3000 {
				c := waiting(mutex("m", 10*time.Second))
				c.Fair = true
				start := time.Now()
				if _, err := s.Acquire(t.Context(), c); err != nil {
					t.Error(err)
					return
				}
				if took := time.Since(start); took > 700*time.Millisecond {
					t.Errorf("it waited for %v, behind one claim that went at once", took)
				}
				if err := s.Release(t.Context(), c, ""); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// TestLongDead: those in line who have been dead for their TTL are passed over by the release itself, and cost the next no
// confirm window.
func TestLongDead(t *testing.T) {
	t.Parallel()
	s := open(t, "redis://"+startServer(t).Addr).(*Store)
	line := func(ttl time.Duration) driver.Claim {
		c := waiting(mutex("m", ttl))
		c.Fair = true
		return c
	}
	holder := acquire(t, s, line(time.Minute))
	keys := s.keys.all("m")
	for range 3 { // they come to stand in line, and are heard of no more
		dead := s.attempt(line(3 * time.Second))
		if _, r, err := dead.enter(t.Context(), &keys); err != nil || r == nil || r.code != codeWaiting {
			t.Fatalf("%+v %v", r, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	granted := make(chan error, 1)
	go func() {
		_, err := s.Acquire(ctx, line(time.Minute))
		granted <- err
	}()
	time.Sleep(3500 * time.Millisecond)
	start := time.Now()
	if err := s.Release(ctx, holder.Claim, ""); err != nil {
		t.Fatal(err)
	}
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 1500*time.Millisecond { // a confirm window is 2 s
		t.Errorf("three that were long dead held up the next for %v", took)
	}
}

// TestNextKeepsItsPlace: a claim that is told to be the next goes on to give signs of life, also where its TTL is shorter than the
// confirm window that it is told to wait for.
func TestNextKeepsItsPlace(t *testing.T) {
	t.Parallel()
	url := "redis://" + startServer(t).Addr
	line := func() driver.Claim {
		c := waiting(mutex("m", time.Second))
		c.Fair = true
		return c
	}
	holder := open(t, url)
	first := acquire(t, holder, line())
	granted := make(chan int, 3)
	var all sync.WaitGroup
	for i := range 3 {
		s := open(t, url)
		all.Go(func() {
			g := acquire(t, s, line())
			granted <- i
			for range 7 { // longer than its TTL
				time.Sleep(200 * time.Millisecond)
				if r := renew(t, s, g); r.Err != nil {
					t.Error(r.Err)
				}
			}
			release(t, s, g.Claim)
		})
		time.Sleep(200 * time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond)
	release(t, holder, first.Claim)
	all.Wait()
	for want := range 3 {
		if got := <-granted; got != want {
			t.Errorf("claim %d in line was granted in the place of claim %d", got+1, want+1)
		}
	}
}

// TestQuietAgain: when a claim that was broken in line has been told, the lock is as light as before.
func TestQuietAgain(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := open(t, "redis://"+server.Addr)
	fair := func() driver.Claim {
		c := waiting(mutex("m", 30*time.Second))
		c.Fair = true
		return c
	}
	g := acquire(t, s, fair())
	told := make(chan error, 1)
	go func() { _, err := s.Acquire(t.Context(), fair()); told <- err }()
	var ref string
	if err := redistest.Until(t.Context(), func() bool {
		now, err := s.Inspect(t.Context(), "m")
		if err != nil || len(now.Waiters) == 0 {
			return false
		}
		ref = now.Waiters[0].Ref
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Break(t.Context(), "m", ref, driver.BreakForce); err != nil {
		t.Fatal(err)
	}
	if err := <-told; loss(err) != driver.LossBroken {
		t.Errorf("the one who waited: %v", err)
	}
	release(t, s, g.Claim)
	if out, quiet := do(t, server, "HEXISTS", "holdfast:{m}", "out"), do(t, server, "HGET", "holdfast:{m}", "quiet"); out != ":0" || quiet != "1" {
		t.Errorf("afterwards: out %q, quiet %q", out, quiet)
	}
}

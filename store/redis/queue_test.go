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

// TestReleaseOvertakesRequest: a claim that was released while a request to make it was still under way is not made by
// that request, however the lock stands when it comes.
func TestReleaseOvertakesRequest(t *testing.T) {
	t.Parallel()
	s := openForTest(t, "redis://"+startServer(t).Addr).(*store)
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
			s.addInFlight(c.ID)
			if err := s.Release(t.Context(), c, ""); !errors.Is(err, driver.ErrLost) {
				t.Errorf("%s: releasing what does not stand yet: %v", name, err)
			}
			if g, err := s.Acquire(t.Context(), c); !errors.Is(err, driver.ErrLost) {
				t.Errorf("%s, used before: %v: a late request made %+v, %v", name, used, g, err)
			}
		}
	}
}

// TestReleaseOvertakesRequestDuringRollCall: a claim that was released while a request to make it was still under way
// is not made by that request when those in line had to show themselves in between.
func TestReleaseOvertakesRequestDuringRollCall(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	fair := func() driver.Claim {
		c := mutex("m", 30*time.Second)
		c.Fair = true
		return c
	}
	holder := acquire(t, s, fair())
	late := fair()
	s.addInFlight(late.ID)
	if err := s.Release(t.Context(), late, ""); !errors.Is(err, driver.ErrLost) {
		t.Fatal(err)
	}
	// its time is over, and the next step ends it
	sendCommand(t, server, "HSET", recordKey("m"), "roll", "1", "rollend", "2")
	if _, err := s.Acquire(t.Context(), fair()); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	if left := sendCommand(t, server, "HEXISTS", recordKey("m"), "rollend"); left != ":0" {
		t.Fatal("the roll goes on")
	}
	if err := s.Release(t.Context(), holder.Claim, ""); err != nil {
		t.Fatal(err)
	}
	if g, err := s.Acquire(t.Context(), late); !errors.Is(err, driver.ErrLost) {
		t.Errorf("a late request made %+v, %v", g, err)
	}
}

// TestPromotedOnArrival: a claim that is called before it knows that it stands in line takes its turn at once, and not
// when it next gives a sign of life.
func TestPromotedOnArrival(t *testing.T) {
	t.Parallel()
	addr := startServer(t).Addr
	began := time.Now()
	var all sync.WaitGroup
	for range 2 {
		s := openForTest(t, "redis://"+addr)
		all.Go(func() {
			for i := 0; i < 3000 && (i < 500 || time.Since(began) < 20*time.Second); i++ {
				c := waiting(mutex("m", 10*time.Second))
				c.Fair = true
				start := time.Now()
				if _, err := s.Acquire(t.Context(), c); err != nil {
					t.Error(err)
					return
				}
				expectInTime(t, "a wait behind one claim that went at once", start, 700*time.Millisecond)
				if err := s.Release(t.Context(), c, ""); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// TestLongDeadWaiters: those in line who have been dead for their TTL are passed over by the release itself, and cost
// the next no confirm window.
func TestLongDeadWaiters(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	line := func(ttl time.Duration) driver.Claim {
		c := waiting(mutex("m", ttl))
		c.Fair = true
		return c
	}
	holder := acquire(t, s, line(10*time.Minute))
	keys := s.keys.allKeys("m")
	for range 3 { // they come to stand in line, and are heard of no more
		dead := s.newAcquireLoop(line(3 * time.Second))
		if _, r, err := dead.enterQueue(t.Context(), &keys); err != nil || r == nil || r.code != replyWaiting {
			t.Fatalf("%+v %v", r, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	next := line(10 * time.Minute)
	granted := make(chan error, 1)
	go func() {
		_, err := s.Acquire(ctx, next)
		granted <- err
	}()
	if err := redistest.Until(ctx,
		func() bool { return sendCommand(t, server, "HEXISTS", keys[2], next.ID) == ":1" }); err != nil {
		t.Fatal("the next does not stand in line: ", err)
	}
	time.Sleep(3500 * time.Millisecond)
	start := time.Now()
	if err := s.Release(ctx, holder.Claim, ""); err != nil {
		t.Fatal(err)
	}
	if called := sendCommand(t, server, "GET", "m"); called != next.ID && called != "$-1" {
		// its window may be over by now
		t.Error("the release has called another than the one that lives")
	}
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	// a confirm window is 2 s
	expectInTime(t, "the next behind three that were long dead", start, 1500*time.Millisecond)
}

// TestNextKeepsItsPlace: a claim that is told to be the next goes on to give signs of life, also where its TTL is
// shorter than the confirm window that it is told to wait for; and so it keeps its place.
func TestNextKeepsItsPlace(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	line := func() driver.Claim {
		c := waiting(mutex("m", 9*time.Second))
		c.Fair = true
		return c
	}
	held := line()
	held.TTL = time.Hour
	acquire(t, s, held)
	keys := s.keys.allKeys("m")
	granted := make(chan string, 2)
	var next [2]driver.Claim
	for i := range next {
		next[i] = line()
		go func() {
			if _, err := s.Acquire(t.Context(), next[i]); err == nil {
				granted <- next[i].ID
			}
		}()
		if err := redistest.Until(t.Context(),
			func() bool { return sendCommand(t, server, "HEXISTS", keys[2], next[i].ID) == ":1" }); err != nil {
			t.Fatal("it does not stand in line: ", err)
		}
	}
	if err := redistest.Until(t.Context(), func() bool { // it listens: the script that calls the one ahead tells it
		return sendCommand(t, server, "PUBLISH", keys[1]+":"+s.session, "next "+next[0].ID+" 3600000") != ":0"
	}); err != nil {
		t.Fatal("nobody is told: ", err)
	}
	sign := func() string { return sendCommand(t, server, "HGET", keys[2], "?"+next[0].ID) }
	last := sign()
	for range 3 { // the first may have been on its way
		if err := redistest.Until(t.Context(), func() bool { return sign() != last }); err != nil {
			t.Fatal("it gives no sign of life any more")
		}
		last = sign()
	}
	release(t, s, held)
	if first := <-granted; first != next[0].ID {
		t.Error("another was granted in its place")
	}
}

// TestQuietAfterBreak: when a claim that was broken in line has been told, the lock is as light as before.
func TestQuietAfterBreak(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr)
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
	if out, quiet := sendCommand(t, server, "HEXISTS", "holdfast:{m}", "out"), sendCommand(t, server, "HGET",
		"holdfast:{m}", "quiet"); out != ":0" || quiet != "1" {
		t.Errorf("afterwards: out %q, quiet %q", out, quiet)
	}
}

package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// TestReleaseOvertakesRequest: a claim is released while a request that makes it is still under way. When that request
// arrives, it does not make the claim, whatever the state of the lock is then.
func TestReleaseOvertakesRequest(t *testing.T) {
	t.Parallel()
	s := openForTest(t, "redis://"+startServer(t).Addr).(*store)
	for name, shape := range map[string]func(*driver.Claim){
		"plain":     func(*driver.Claim) {},
		"fair":      func(c *driver.Claim) { c.Fair = true },
		"semaphore": func(c *driver.Claim) { c.Kind, c.Limit = driver.KindSemaphore, 3 },
	} {
		claim := func() driver.Claim {
			c := mutex(name, longTTL)
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
				t.Errorf("%s: releasing a claim that does not exist yet: %v", name, err)
			}
			if g, err := s.Acquire(t.Context(), c); !errors.Is(err, driver.ErrLost) {
				t.Errorf("%s, used before: %v: a late request made %+v, %v", name, used, g, err)
			}
		}
	}
}

// TestReleaseOvertakesRequestDuringRollCall: so it is if a roll call ended in between.
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
	// This roll call has expired, and the next script ends it.
	sendCommand(t, server, "HSET", recordKey("m"), "roll", "1", "rollend", "2")
	if _, r := enterQueue(t, s, fair()); r == nil || r.code != replyHeld {
		t.Fatalf("%+v", r)
	}
	if left := sendCommand(t, server, "HEXISTS", recordKey("m"), "rollend"); left != ":0" {
		t.Fatal("the roll call goes on")
	}
	if err := s.Release(t.Context(), holder.Claim, ""); err != nil {
		t.Fatal(err)
	}
	if g, err := s.Acquire(t.Context(), late); !errors.Is(err, driver.ErrLost) {
		t.Errorf("a late request made %+v, %v", g, err)
	}
}

// TestPromotedOnArrival: a claim may be promoted before its client knows that it is in the queue. It confirms at once,
// and not only when it next shows that it is alive.
func TestPromotedOnArrival(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	pace, addr := watchServer(t, server), server.Addr
	began := time.Now()
	var all sync.WaitGroup
	for range 2 {
		s := openForTest(t, "redis://"+addr)
		all.Go(func() {
			for i := 0; i < 3000 && (i < 500 || time.Since(began) < 20*time.Second); i++ {
				c := waiting(mutex("m", longTTL))
				c.Fair = true
				start := time.Now()
				if _, err := s.Acquire(t.Context(), c); err != nil {
					t.Error(err)
					return
				}
				expectInTimeOf(t, pace, "a wait behind one claim that was released at once", start, 700*time.Millisecond)
				if err := s.Release(t.Context(), c, ""); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// TestLongDeadWaiters: claims in the queue that were dead for their TTL are removed by the release itself, and cost the
// next claim no confirm window.
func TestLongDeadWaiters(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	fair := func(ttl time.Duration) driver.Claim {
		c := waiting(mutex("m", ttl))
		c.Fair = true
		return c
	}
	holder := acquire(t, s, fair(10*time.Minute))
	for range 3 {
		joinAndDie(t, s, fair(3*time.Second))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	next := fair(10 * time.Minute)
	granted := waitInQueue(ctx, t, s, server, next)
	time.Sleep(3500 * time.Millisecond)
	pace, start := watchServer(t, server), time.Now()
	if err := s.Release(ctx, holder.Claim, ""); err != nil {
		t.Fatal(err)
	}
	if promoted := sendCommand(t, server, "GET", "m"); promoted != next.ID && promoted != "$-1" {
		// without a value its confirm window has ended already
		t.Error("the release has promoted a dead claim")
	}
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	// A confirm window is 2 s.
	expectInTimeOf(t, pace, "the claim behind three dead ones", start, 1500*time.Millisecond)
}

// TestNextKeepsItsPlace: a claim that is notified that it is the next goes on to show that it is alive, even if its TTL
// is shorter than the confirm window that it was told to wait for. So it keeps its place.
func TestNextKeepsItsPlace(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	fair := func() driver.Claim {
		c := waiting(mutex("m", 9*time.Second))
		c.Fair = true
		return c
	}
	held := fair()
	held.TTL = time.Hour
	acquire(t, s, held)
	keys := s.keys.allKeys("m")
	granted := make(chan string, 2)
	var next [2]driver.Claim
	for i := range next {
		next[i] = fair()
		go func() {
			if _, err := s.Acquire(t.Context(), next[i]); err == nil {
				granted <- next[i].ID
			}
		}()
		if err := redistest.Until(t.Context(),
			func() bool { return sendCommand(t, server, "HEXISTS", keys[2], next[i].ID) == ":1" }); err != nil {
			t.Fatal("it is not in the queue: ", err)
		}
	}
	// It gets the notice of a script that promotes the claim ahead, once it listens.
	if err := redistest.Until(t.Context(), func() bool {
		return sendCommand(t, server, "PUBLISH", keys[1]+":"+s.session, "next "+next[0].ID+" 3600000") != ":0"
	}); err != nil {
		t.Fatal("no client listens: ", err)
	}
	sign := func() string { return sendCommand(t, server, "HGET", keys[2], "?"+next[0].ID) }
	last := sign()
	for range 3 { // the first sign may have been under way
		if err := redistest.Until(t.Context(), func() bool { return sign() != last }); err != nil {
			t.Fatal("it does not show that it is alive any more")
		}
		last = sign()
	}
	release(t, s, held)
	if first := <-granted; first != next[0].ID {
		t.Error("another claim was granted first")
	}
}

// TestQuietAfterBreak: when the client of a claim that was broken in the queue has learned of it, the scripts take the
// short way again.
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
	outcome := make(chan error, 1)
	go func() { _, err := s.Acquire(t.Context(), fair()); outcome <- err }()
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
	if err := s.Break(t.Context(), "m", ref, driver.Break{Mode: driver.BreakForce}); err != nil {
		t.Fatal(err)
	}
	if err := <-outcome; loss(err) != driver.LossBroken {
		t.Errorf("the claim that waited: %v", err)
	}
	release(t, s, g.Claim)
	if quiet := sendCommand(t, server, "HGET", "holdfast:{m}", "quiet"); quiet != "1" {
		t.Errorf("afterwards quiet is %q", quiet)
	}
}

// TestPlainTurn: when the turn of a plain claim comes, the lock is left free for clients that know no queue, but no
// claim of ours overtakes it. If it is dead, the one behind it is granted soon.
func TestPlainTurn(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	holder := acquire(t, s, mutex("m", 10*time.Minute))
	joinAndDie(t, s, waiting(mutex("m", 10*time.Minute)))
	release(t, s, holder.Claim)
	for range 2 {
		if value := sendCommand(t, server, "SET", "m", "another client's", "NX"); value != "+OK" && value != "OK" {
			t.Errorf("another client gets %q", value)
		}
		sendCommand(t, server, "DEL", "m")
	}
	pace, start := watchServer(t, server), time.Now()
	next := waiting(mutex("m", 10*time.Minute))
	if _, err := s.Acquire(t.Context(), mutex("m", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("a claim has overtaken the one whose turn it is: %v", err)
	}
	acquire(t, s, next)
	expectInTimeOf(t, pace, "the claim behind a dead one", start, 2250*time.Millisecond) // a confirm window is 2 s
	release(t, s, next)
}

// TestDeadPlainWaiter: a plain claim that has died in the queue delays the one behind it by a confirm window, as a fair
// one does, whether that one is notified or polls.
func TestDeadPlainWaiter(t *testing.T) {
	t.Parallel()
	for _, waited := range []time.Duration{0, 700 * time.Millisecond, 1500 * time.Millisecond} {
		t.Run(waited.String(), func(t *testing.T) {
			t.Parallel()
			server := startServer(t)
			s := openForTest(t, "redis://"+server.Addr).(*store)
			holder := acquire(t, s, mutex("m", 10*time.Minute))
			joinAndDie(t, s, waiting(mutex("m", 10*time.Minute)))
			next := waiting(mutex("m", 10*time.Minute))
			granted := waitInQueue(t.Context(), t, s, server, next)
			time.Sleep(waited)
			pace, start := watchServer(t, server), time.Now()
			release(t, s, holder.Claim)
			if err := <-granted; err != nil {
				t.Fatal(err)
			}
			// A confirm window is 2 s and ten round trips.
			expectInTimeOf(t, pace, "the claim behind a dead one", start, 2250*time.Millisecond)
			release(t, s, next)
		})
	}
}

// TestDeadWaitersInARow: two claims that have died one behind the other delay the queue by two confirm windows, also
// if the claim behind them last asked the server when it was far behind in the queue, which has moved fast since
// then.
func TestDeadWaitersInARow(t *testing.T) {
	t.Parallel()
	for name, shape := range map[string]func(*driver.Claim){
		"plain":     func(*driver.Claim) {},
		"fair":      func(c *driver.Claim) { c.Fair = true },
		"semaphore": func(c *driver.Claim) { c.Kind, c.Limit = driver.KindSemaphore, 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startServer(t)
			s := openForTest(t, "redis://"+server.Addr).(*store)
			claim := func() driver.Claim {
				c := waiting(mutex("m", 10*time.Minute))
				shape(&c)
				return c
			}
			holder := acquire(t, s, claim()).Claim
			alive := make([]driver.Claim, 18)
			for i := range alive {
				alive[i] = claim()
				enterQueue(t, s, alive[i])
			}
			joinAndDie(t, s, claim())
			joinAndDie(t, s, claim())
			next := claim()
			granted := waitInQueue(t.Context(), t, s, server, next)
			// It gives a sign of life when it listens, and once more within a second. From then on it waits for longer.
			sign := func() string { return sendCommand(t, server, "HGET", s.keys.allKeys("m")[2], "?"+next.ID) }
			time.Sleep(600 * time.Millisecond)
			last := sign()
			if err := redistest.Until(t.Context(), func() bool { return sign() != last }); err != nil {
				t.Fatal(err)
			}
			pace := watchServer(t, server)
			for _, c := range alive {
				release(t, s, holder)
				if _, r := enterQueue(t, s, c); r != nil {
					t.Fatalf("%+v", r)
				}
				holder = c
			}
			start := time.Now()
			release(t, s, holder)
			if err := <-granted; err != nil {
				t.Fatal(err)
			}
			expectInTimeOf(t, pace, "the claim behind two dead ones", start, 4250*time.Millisecond)
			release(t, s, next)
		})
	}
}

// TestManyDeadPlainWaiters: ten plain claims that have died in the queue delay the one behind them by hardly more
// than two confirm windows, since they are removed together.
func TestManyDeadPlainWaiters(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	holder := acquire(t, s, mutex("m", 10*time.Minute))
	for range 10 {
		joinAndDie(t, s, waiting(mutex("m", 10*time.Minute)))
	}
	next := waiting(mutex("m", 10*time.Minute))
	granted := waitInQueue(t.Context(), t, s, server, next)
	pace, start := watchServer(t, server), time.Now()
	release(t, s, holder.Claim)
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	expectInTimeOf(t, pace, "the claim behind ten dead ones", start, 5*time.Second)
	release(t, s, next)
}

// TestPromoterLooksAgain: a claim that is far behind, and whose script promotes the first in the queue, looks again
// when that one must have confirmed. Nobody else may be alive to see that it has not.
func TestPromoterLooksAgain(t *testing.T) {
	t.Parallel()
	s := openForTest(t, "redis://"+startServer(t).Addr).(*store)
	holder := acquire(t, s, mutex("m", 10*time.Minute))
	for range 10 {
		joinAndDie(t, s, waiting(mutex("m", 10*time.Minute)))
	}
	release(t, s, holder.Claim)
	time.Sleep(600 * time.Millisecond) // for half a second the first may be about to come
	if _, r := enterQueue(t, s, waiting(mutex("m", 10*time.Minute))); r == nil || r.place != 10 || !r.lookAtEnd {
		t.Errorf("%+v", r)
	}
}

// TestNextIsLongDead: if the claim behind the one whose turn has come has been silent for its TTL, the one behind
// that is notified to look whether it comes.
func TestNextIsLongDead(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	for name, isFair := range map[string]bool{"plain": false, "fair": true} {
		claim := func(ttl time.Duration) driver.Claim {
			c := waiting(mutex(name, ttl))
			c.Fair = isFair
			return c
		}
		holder := acquire(t, s, claim(10*time.Minute))
		joinAndDie(t, s, claim(10*time.Minute))
		joinAndDie(t, s, claim(driver.MinTTL))
		next := claim(10 * time.Minute)
		joinAndDie(t, s, next)
		sub, live := s.subscribeToLock(name, next.ID)
		t.Cleanup(sub.unsubscribe)
		if !live {
			<-sub.notices // the hub listens now
		}
		time.Sleep(driver.MinTTL + 100*time.Millisecond)
		release(t, s, holder.Claim)
		select {
		case d := <-sub.notices:
			if d < time.Second || d > 2250*time.Millisecond {
				t.Errorf("%s: it looks after %v", name, d)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: it is not notified", name)
		}
	}
}

// TestSecondTurnIsWhole: a claim that missed its turn has the whole confirm window at its next one.
func TestSecondTurnIsWhole(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	holder := acquire(t, s, mutex("m", 10*time.Minute))
	late, other := waiting(mutex("m", 10*time.Minute)), waiting(mutex("m", 10*time.Minute))
	joinAndDie(t, s, late)
	joinAndDie(t, s, other)
	release(t, s, holder.Claim)
	if err := redistest.Until(t.Context(), func() bool { _, r := enterQueue(t, s, other); return r == nil }); err != nil {
		t.Fatal(err)
	}
	joinAndDie(t, s, late)
	release(t, s, other)
	left, err := strconv.Atoi(strings.TrimPrefix(sendCommand(t, server, "PTTL", "m"), ":"))
	if err != nil || left < 1500 {
		t.Errorf("it has %d ms to confirm, %v", left, err)
	}
	if g, r := enterQueue(t, s, late); r == nil {
		release(t, s, g.Claim)
	}
}

// TestReleaseWithoutRecord: a server that is short of memory may evict the record of a lock alone. The release of a
// mutex ends it nevertheless, and promotes the claim that waits.
func TestReleaseWithoutRecord(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	holder := acquire(t, s, mutex("m", 10*time.Minute))
	next := waiting(mutex("m", 10*time.Minute))
	granted := waitInQueue(t.Context(), t, s, server, next)
	time.Sleep(1100 * time.Millisecond) // it has asked the server twice, and now waits for longer
	sendCommand(t, server, "DEL", recordKey("m"))
	pace, start := watchServer(t, server), time.Now()
	release(t, s, holder.Claim)
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	expectInTimeOf(t, pace, "the claim behind it", start, 250*time.Millisecond)
	release(t, s, next)
}

// TestDeadHolderAndWaiter: when a holder has expired and the first claim in the queue is dead, the second one has the
// lock a confirm window later.
func TestDeadHolderAndWaiter(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	acquire(t, s, mutex("m", 3500*time.Millisecond)) // it is not renewed
	pace, start := watchServer(t, server), time.Now()
	joinAndDie(t, s, waiting(mutex("m", 10*time.Minute)))
	next := waiting(mutex("m", 10*time.Minute))
	acquire(t, s, next)
	expectInTimeOf(t, pace, "the claim behind a dead holder and a dead claim", start, 5750*time.Millisecond)
	release(t, s, next)
}

// enterQueue is runQueueScript for a claim that meets no error.
func enterQueue(t *testing.T, s *store, c driver.Claim) (driver.Grant, *refusal) {
	t.Helper()
	g, r, err := runQueueScript(t, s, c)
	if err != nil {
		t.Fatal(err)
	}
	return g, r
}

// joinAndDie puts a claim into the queue whose client sends nothing more.
func joinAndDie(t *testing.T, s *store, c driver.Claim) {
	t.Helper()
	if _, r := enterQueue(t, s, c); r == nil || r.code != replyWaiting {
		t.Fatalf("%+v", r)
	}
}

// waitInQueue begins an Acquire, and returns when the claim is in the queue. The channel gets its result.
func waitInQueue(ctx context.Context, t *testing.T, s *store, server *redistest.Server, c driver.Claim) <-chan error {
	t.Helper()
	granted := make(chan error, 1)
	go func() {
		_, err := s.Acquire(ctx, c)
		granted <- err
	}()
	claims := s.keys.allKeys(c.Name)[2]
	if err := redistest.Until(ctx,
		func() bool { return sendCommand(t, server, "HEXISTS", claims, c.ID) == ":1" }); err != nil {
		t.Fatal("it is not in the queue: ", err)
	}
	return granted
}

// TestJoinWhileFree: a claim that comes while the lock is left free for the first one in the queue joins behind it, and
// changes nothing else.
func TestJoinWhileFree(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	for try := 0; ; try++ {
		name := fmt.Sprint("m", try)
		holder := acquire(t, s, mutex(name, 10*time.Minute))
		first, second := waiting(mutex(name, 10*time.Minute)), waiting(mutex(name, 10*time.Minute))
		enterQueue(t, s, first)
		start := time.Now()
		release(t, s, holder.Claim)
		_, r := enterQueue(t, s, second)
		if time.Since(start) > 400*time.Millisecond { // the first claim may be dead by now
			if try == 50 {
				t.Fatal("the machine is too slow")
			}
			continue
		}
		if r == nil || r.code != replyWaiting || r.place != 2 || len(r.holders) > 0 {
			t.Errorf("the second claim: %+v", r)
		}
		if value := sendCommand(t, server, "EXISTS", name); value != ":0" {
			t.Error("it has reserved the lock for the first claim")
		}
		g, r := enterQueue(t, s, first)
		if r != nil || g.Token <= holder.Token {
			t.Fatalf("the first claim: %+v, token %d after %d", r, g.Token, holder.Token)
		}
		release(t, s, first)
		if g, r = enterQueue(t, s, second); r != nil {
			t.Errorf("the second claim afterwards: %+v", r)
		}
		release(t, s, g.Claim)
		return
	}
}

// TestJoinBehindDeadClaim: a claim comes when the lock is free, but was not left free just now for the first one in the
// queue. It reserves the lock for that one. So if that is dead, it waits for no more than a confirm window.
func TestJoinBehindDeadClaim(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	for name, since := range map[string]time.Duration{"expired": 0, "late": -time.Second, "clock set back": time.Hour} {
		ttl := 10 * time.Minute
		if since == 0 {
			ttl = driver.MinTTL
		}
		holder := acquire(t, s, mutex(name, ttl))
		first := waiting(mutex(name, 10*time.Minute))
		enterQueue(t, s, first)
		if since == 0 {
			if err := redistest.Until(t.Context(),
				func() bool { return sendCommand(t, server, "EXISTS", name) == ":0" }); err != nil {
				t.Fatal(err)
			}
		} else {
			release(t, s, holder.Claim)
			record := s.keys.allKeys(name)[1]
			sendCommand(t, server, "HSET", record, "left_for",
				fmt.Sprint(time.Now().Add(since).UnixMicro(), " ", first.ID))
		}
		_, r := enterQueue(t, s, waiting(mutex(name, 10*time.Minute)))
		if r == nil || r.code != replyWaiting || r.place != 1 || r.remaining <= 0 || r.remaining > 2250*time.Millisecond {
			t.Errorf("%s: the newcomer: %+v", name, r)
		}
	}
}

// TestDeadWaiterWithShortTTL: a claim that has died in the queue delays the one behind it by its TTL, if that is less
// than a confirm window.
func TestDeadWaiterWithShortTTL(t *testing.T) {
	t.Parallel()
	for name, fair := range map[string]bool{"plain": false, "fair": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startServer(t)
			s := openForTest(t, "redis://"+server.Addr).(*store)
			holder := acquire(t, s, mutex("m", 10*time.Minute))
			dead, next := waiting(mutex("m", driver.MinTTL)), waiting(mutex("m", 10*time.Minute))
			dead.Fair, next.Fair = fair, fair
			joinAndDie(t, s, dead)
			granted := waitInQueue(t.Context(), t, s, server, next)
			time.Sleep(600 * time.Millisecond) // from then on, a release notifies it
			enterQueue(t, s, dead)
			pace, start := watchServer(t, server), time.Now()
			release(t, s, holder.Claim)
			if err := <-granted; err != nil {
				t.Fatal(err)
			}
			expectInTimeOf(t, pace, "the claim behind a dead one", start, driver.MinTTL+250*time.Millisecond)
			release(t, s, next)
		})
	}
}

// TestLeftFreeBeforeForeignHolder: a claim for which the lock was left free, but which a foreign client took, keeps
// time to confirm when the lock is free again and another claim of ours finds that first.
func TestLeftFreeBeforeForeignHolder(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	holder := acquire(t, s, mutex("m", 10*time.Minute))
	second := waiting(mutex("m", 10*time.Minute))
	joinAndDie(t, s, waiting(mutex("m", 10*time.Minute)))
	joinAndDie(t, s, second)
	release(t, s, holder.Claim)
	sendCommand(t, server, "SET", "m", "another client's", "NX")
	time.Sleep(2500 * time.Millisecond)
	sendCommand(t, server, "DEL", "m")
	_, r := enterQueue(t, s, second)
	if r == nil || r.remaining < 400*time.Millisecond || r.remaining > time.Second {
		t.Errorf("the first claim has %+v to confirm", r)
	}
}

// TestLookAfterExpiry: the claims at the first places of the queue look when the holder may have expired. The others
// need not.
func TestLookAfterExpiry(t *testing.T) {
	for place, soon := range map[int64]bool{1: true, nearPlaces: true, nearPlaces + 1: false} {
		a := acquireLoop{claim: mutex("m", 10*time.Minute)}
		d := a.delayInQueue(&refusal{code: replyWaiting, place: place, remaining: 50 * time.Millisecond}, false)
		if soon != (d < 100*time.Millisecond) {
			t.Errorf("at place %d it looks after %v", place, d)
		}
	}
}

// TestLongestDelayInQueue: a waiting claim looks within a confirm window if it is near, within 4 s at the first 64
// places, and within a minute behind them, however long its TTL is.
func TestLongestDelayInQueue(t *testing.T) {
	for place, longest := range map[int64]time.Duration{
		nearPlaces: 1500 * time.Millisecond, 64: 4 * time.Second, 10000: time.Minute,
	} {
		a := acquireLoop{claim: mutex("m", 10*time.Minute)}
		d := a.delayInQueue(&refusal{code: replyWaiting, place: place, remaining: -1}, false)
		if d > longest || d < longest/2 {
			t.Errorf("at place %d it looks after %v", place, d)
		}
	}
}

// TestTurnOnQuietLock: the claim whose turn it is takes the free lock, and the last one leaves no queue. Its holder
// learns that its release was requested while it was waiting.
func TestTurnOnQuietLock(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	keys := s.keys.allKeys("m")
	holder := acquire(t, s, mutex("m", 10*time.Minute))
	granted := make(chan driver.Grant, 1)
	next := waiting(mutex("m", 10*time.Minute))
	go func() {
		g, err := s.Acquire(t.Context(), next)
		if err != nil {
			t.Error(err)
		}
		granted <- g
	}()
	if err := redistest.Until(t.Context(),
		func() bool { return sendCommand(t, server, "HEXISTS", keys[2], next.ID) == ":1" }); err != nil {
		t.Fatal("it is not in the queue: ", err)
	}
	if err := s.Break(t.Context(), "m", next.ID, driver.Break{Mode: driver.BreakRequestRelease}); err != nil {
		t.Fatal(err)
	}
	release(t, s, holder.Claim)
	if r := storetest.Renew(t, s, <-granted); r.Err != nil || !r.ReleaseRequested {
		t.Errorf("the holder's renewal returned %+v", r)
	}
	if line := sendCommand(t, server, "HGET", keys[1], "line"); line != "$-1" {
		t.Errorf("line is %q", line)
	}
	if left := sendCommand(t, server, "EXISTS", keys[2], keys[4]); left != ":0" {
		t.Errorf("%s keys of the queue are left", left)
	}
	release(t, s, next)
}

// TestPlainClaimAndFullQueue: a plain claim that waits is never refused because others wait.
func TestPlainClaimAndFullQueue(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr, func(o *Options) { o.MaxWaiters = 1 })
	holder := acquire(t, s, mutex("m", 10*time.Minute))
	granted := make(chan driver.Claim, 3)
	for range cap(granted) {
		c := waiting(mutex("m", 10*time.Minute))
		go func() {
			if _, err := s.Acquire(t.Context(), c); err != nil {
				t.Error(err)
			}
			granted <- c
		}()
	}
	time.Sleep(100 * time.Millisecond)
	release(t, s, holder.Claim)
	for range cap(granted) {
		release(t, s, <-granted)
	}
}

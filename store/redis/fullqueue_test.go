package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// fairClaim makes a claim that waits in the queue of m.
func fairClaim(ttl time.Duration) driver.Claim {
	c := waiting(mutex("m", ttl))
	c.Fair = true
	return c
}

// runQueueScript runs the script of a claim once, as the claim's client does.
func runQueueScript(t *testing.T, s *store, c driver.Claim) (driver.Grant, *refusal, error) {
	t.Helper()
	a, keys := s.newAcquireLoop(c), s.keys.allKeys(c.Name)
	return a.enterQueue(t.Context(), &keys)
}

// enterQueueOnce runs the script of a claim once: the claim enters the queue, and sends nothing more.
func enterQueueOnce(t *testing.T, s *store, c driver.Claim) (*refusal, error) {
	t.Helper()
	_, r, err := runQueueScript(t, s, c)
	return r, err
}

// fillQueue puts n claims into the queue of m, behind a holder.
func fillQueue(t *testing.T, s *store, n int, ttl time.Duration) driver.Grant {
	t.Helper()
	held := acquire(t, s, fairClaim(time.Hour))
	for range n {
		joinAndDie(t, s, fairClaim(ttl))
	}
	return held
}

// queueLength is the number of claims in the queue of m.
func queueLength(t *testing.T, server *redistest.Server) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimPrefix(sendCommand(t, server, "ZCARD", "holdfast.l:{m}"), ":"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestFullQueue: to refuse a claim because the queue is full costs the same however long the queue is, and the dead
// claims in it are still found.
func TestFullQueue(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	var each []float64
	for _, n := range []int{200, 2000} {
		sendCommand(t, server, "FLUSHALL")
		s := openForTest(t, "redis://"+server.Addr, func(o *Options) { o.MaxWaiters = n }).(*store)
		fillQueue(t, s, n-50, time.Hour)
		for range 50 { // with this TTL they are dead at once
			if _, err := enterQueueOnce(t, s, fairClaim(time.Millisecond)); err != nil {
				t.Fatal(err)
			}
		}
		const refusals = 40
		sendCommand(t, server, "CONFIG", "RESETSTAT")
		const future = "9000000000000000"
		sendCommand(t, server, "HSET", recordKey("m"), "swept", future)
		for range refusals {
			if _, err := enterQueueOnce(t, s, fairClaim(time.Hour)); !errors.Is(err, driver.ErrQueueFull) {
				if n > 200 || err != nil {
					t.Fatal(err)
				}
				break // a confirm window has passed, so the dead claims were found already
			}
		}
		_, scripts, inside := commandCalls(t, server)
		if sendCommand(t, server, "HGET", recordKey("m"), "swept") == future {
			t.Error("after the clock was set back, dead claims remain in the queue")
		}
		each = append(each, float64(inside)/float64(scripts))
		t.Logf("%d wait: %.1f commands per refusal", n, each[len(each)-1])
		found := redistest.Until(t.Context(), func() bool {
			sendCommand(t, server, "HDEL", recordKey("m"), "swept") // as after a confirm window
			r, err := enterQueueOnce(t, s, fairClaim(time.Hour))
			return err == nil && r.code == replyWaiting
		})
		if left := queueLength(t, server); found != nil || left > n-49 {
			t.Errorf("the dead claims are not found: %d claims are in the queue; %v", left, found)
		}
	}
	if each[1] > 40 {
		t.Errorf("a refusal behind 2000 costs %.1f commands", each[1])
	}
}

// TestFullQueueUnderLoad: many clients try again and again to enter a full queue, as the command does. That costs no
// other client a lease, and does not slow the server noticeably.
func TestFullQueueUnderLoad(t *testing.T) {
	t.Parallel()
	size, clients, span := 1000, 40, 3*time.Second
	if *prove {
		size, clients, span = defaultMaxWaiters, 400, 30*time.Second
	}
	server := startServer(t, "--slowlog-log-slower-than", "20000")
	s := openForTest(t, "redis://"+server.Addr, func(o *Options) { o.MaxWaiters = size }).(*store)
	fillQueue(t, s, size, time.Hour)
	holder := openClientForTest(t, "redis://"+server.Addr)
	ttl := longTTL
	if *prove {
		ttl = 3 * time.Second
	}
	innocent, err := holder.Mutex("innocent", &holdfast.LockOptions{TTL: ttl}).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var stores []*store
	for range clients {
		stores = append(stores, openForTest(t, "redis://"+server.Addr,
			func(o *Options) { o.MaxWaiters = size }).(*store))
	}
	sendCommand(t, server, "SLOWLOG", "RESET")
	sendCommand(t, server, "CONFIG", "RESETSTAT")
	ctx, end := context.WithCancel(t.Context())
	defer end()
	began := time.Now()
	var refused atomic.Int64
	var all sync.WaitGroup
	for _, c := range stores {
		all.Go(func() {
			for pause := 25 * time.Millisecond; ctx.Err() == nil; pause = min(2*pause, time.Second) {
				claim := fairClaim(10 * time.Second)
				switch _, err := c.Acquire(ctx, claim); {
				case errors.Is(err, driver.ErrQueueFull):
					refused.Add(1)
				case err == nil, ctx.Err() == nil:
					t.Errorf("behind a full queue: %v", err)
				}
				_ = c.life.Sleep(ctx, rand.N(pause)+pause/2)
			}
		})
	}
	var pings []time.Duration
	// A slow machine gets more time until each client has tried.
	for time.Since(began) < span || refused.Load() < int64(clients) && time.Since(began) < span+time.Minute {
		start := time.Now()
		if err := s.client.Do(t.Context(), s.client.B().Ping().Build()).Error(); err != nil {
			t.Error(err)
		}
		pings = append(pings, time.Since(start))
		_ = s.life.Sleep(ctx, 5*time.Millisecond)
	}
	end()
	all.Wait()
	slices.Sort(pings)
	at := func(part float64) time.Duration { return pings[int(part*float64(len(pings)-1))] }
	slow := sendCommand(t, server, "SLOWLOG", "LEN")
	t.Logf("%d in the queue, %d clients refused, %v: refused %d times; PING: median %v, 99 %% %v, longest %v; a script took the server %v, and of all commands 20 ms and more: %s",
		size, clients, span, refused.Load(), at(0.5), at(0.99), at(1), scriptTime(t, server), slow)
	if err := innocent.Err(); err != nil {
		t.Errorf("a lease on another lock is lost: %v", err)
	}
	if *prove && (at(0.99) > 20*time.Millisecond || scriptTime(t, server) > time.Millisecond) {
		t.Error("the server was kept busy")
	}
	if refused.Load() < int64(clients) {
		t.Error("no claim was refused")
	}
}

// scriptTime is the mean time for which a script kept the server busy.
func scriptTime(t *testing.T, server *redistest.Server) time.Duration {
	t.Helper()
	_, text, _ := strings.Cut(sendCommand(t, server, "INFO", "commandstats"), "cmdstat_evalsha:")
	_, text, _ = strings.Cut(text, "usec_per_call=")
	text, _, _ = strings.Cut(text, ",")
	us, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(us * float64(time.Microsecond))
}

// TestManyDeadWaiters: however many dead claims are at the head of a queue, no script removes more than a part of them,
// and the first live claim behind them is granted soon.
func TestManyDeadWaiters(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	held := fillQueue(t, s, 1500, time.Millisecond)
	next := fairClaim(longTTL)
	granted := make(chan error, 1)
	go func() {
		_, err := s.Acquire(t.Context(), next)
		granted <- err
	}()
	if err := redistest.Until(t.Context(),
		func() bool { return sendCommand(t, server, "HEXISTS", "holdfast.c:{m}", next.ID) == ":1" }); err != nil {
		t.Fatal("the next claim is not in the queue: ", err)
	}
	sendCommand(t, server, "CONFIG", "RESETSTAT")
	pace, start := watchServer(t, server), time.Now()
	release(t, s, held.Claim)
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	expectInTimeOf(t, pace, "the one behind 1500 dead", start, 3*time.Second)
	_, scripts, inside := commandCalls(t, server)
	t.Logf("%d scripts, of %d commands", scripts, inside)
	if scripts < 10 || inside/scripts > 1200 {
		t.Errorf("%d scripts ran %d commands", scripts, inside)
	}
}

// TestRollCallOfLongQueue: the claims that did not answer a roll call are removed in parts.
func TestRollCallOfLongQueue(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	fillQueue(t, s, 1000, time.Hour)
	var alive []driver.Claim
	for range 3 {
		alive = append(alive, fairClaim(time.Hour))
		if _, err := enterQueueOnce(t, s, alive[len(alive)-1]); err != nil {
			t.Fatal(err)
		}
	}
	now, err := strconv.ParseInt(strings.Fields(sendCommand(t, server, "EVAL",
		"local t = redis.call('TIME') return t[1] .. string.format('%06d', t[2])", "0"))[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	roll := func(at, end int64) {
		sendCommand(t, server, "HSET", recordKey("m"), "roll", fmt.Sprint(at), "rollend", fmt.Sprint(end))
	}
	roll(now, now+3600e6)
	for _, c := range alive {
		if _, err := enterQueueOnce(t, s, c); err != nil { // they answer
			t.Fatal(err)
		}
	}
	roll(now, now)
	one := fairClaim(time.Hour)
	one.Wait = false
	for step := 0; sendCommand(t, server, "HEXISTS", recordKey("m"), "rollend") == ":1"; step++ {
		before := queueLength(t, server)
		if _, err := enterQueueOnce(t, s, one); err != nil {
			t.Fatal(err)
		}
		if gone := before - queueLength(t, server); gone > 128 || step > 20 {
			t.Fatalf("script %d removed %d", step, gone)
		}
	}
	l, err := s.Inspect(t.Context(), "m")
	if err != nil || len(l.Waiters) != len(alive) {
		t.Fatalf("%d wait, want %d: %v", len(l.Waiters), len(alive), err)
	}
	for i, w := range l.Waiters {
		if w.Ref != alive[i].ID {
			t.Errorf("another claim is at place %d of the queue", i)
		}
	}
	roll(now+3600e6, now+7200e6)
	if _, err := enterQueueOnce(t, s, one); err != nil ||
		sendCommand(t, server, "HEXISTS", recordKey("m"), "roll") != ":0" {
		t.Errorf("after the clock was set back the roll call does not end: %v", err)
	}
}

// TestInspectLongQueue: all claims of a long queue are shown, in their order, by scripts that read a part each.
func TestInspectLongQueue(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	acquire(t, s, fairClaim(time.Hour))
	var ids []string
	for range 2*inspectPage + 1 {
		c := fairClaim(time.Hour)
		if _, err := enterQueueOnce(t, s, c); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, c.ID)
		for _, n := range []int{inspectPage, 2 * inspectPage, 2*inspectPage + 1} {
			if len(ids) == n {
				l, err := s.Inspect(t.Context(), "m")
				if err != nil || len(l.Waiters) != n {
					t.Fatalf("%d are shown of %d: %v", len(l.Waiters), n, err)
				}
				for i, w := range l.Waiters {
					if w.Ref != ids[i] {
						t.Fatalf("%d of %d is another", i, n)
					}
				}
			}
		}
	}
	sendCommand(t, server, "CONFIG", "RESETSTAT")
	if _, err := s.Inspect(t.Context(), "m"); err != nil {
		t.Fatal(err)
	}
	if by, scripts, _ := commandCalls(t, server); scripts != 3 || by["hgetall"] > 0 {
		t.Errorf("shown by %d scripts: %v", scripts, by)
	}
}

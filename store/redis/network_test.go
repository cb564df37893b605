package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// TestBadNetwork: over a slow link with resets no lease is lost. Over a link that loses a third of its packets, lost
// leases are counted. In neither case do two claims hold a lock at the same time, tokens repeat or fall, or the work
// stop.
func TestBadNetwork(t *testing.T) {
	t.Parallel()
	span := 10 * time.Second
	if *prove {
		span = 5 * time.Minute
	}
	server := startServer(t)
	var both sync.WaitGroup
	for name, faults := range map[string]func() (time.Duration, bool){
		"200 ms and up to 100 ms more or less, 1 % resets": func() (time.Duration, bool) {
			return 50*time.Millisecond + rand.N(100*time.Millisecond), rand.N(200) == 0 // per direction: 1 % of round trips
		},
		"30 % of packets lost": func() (d time.Duration, reset bool) {
			for again := 200 * time.Millisecond; rand.N(10) < 3; again *= 2 { // the delays of TCP's retransmissions
				d += again
			}
			return d, false
		},
	} {
		both.Go(func() {
			open := func() driver.Store {
				via, err := servertest.NewLink(server.Addr)
				if err != nil {
					t.Error(err)
					return nil
				}
				t.Cleanup(via.Close)
				var s driver.Store
				if redistest.Until(t.Context(),
					func() bool { s, err = driver.Open(t.Context(), "redis://"+via.Addr); return err == nil }) != nil {
					t.Error(err)
					return nil
				}
				t.Cleanup(func() { s.Close() })
				via.SetFaults(faults)
				return s
			}
			var stores []driver.Store
			for range 6 {
				s := open()
				if s == nil {
					return
				}
				stores = append(stores, s)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var wg sync.WaitGroup
			var lost, renewed atomic.Int64
			for i, s := range stores[2:] {
				wg.Go(func() { holdUntilDone(ctx, t, s, fmt.Sprint(name, i), &lost, &renewed) })
			}
			r := newHoldChecker()
			wg.Go(func() { r.run(ctx, stores[:2], name) })
			time.Sleep(span)
			done := redistest.Until(t.Context(), func() bool { return r.grantCount() > 0 && renewed.Load() > 0 })
			cancel()
			wg.Wait()
			t.Logf("%s: %d renewals, %d leases lost; %d grants of a contended lock; tokens repeated %d times and fell %d times; two held at a time %d times",
				name, renewed.Load(), lost.Load(), r.grants, r.repeated, r.fell, r.twice)
			if r.repeated+r.fell+r.twice > 0 || done != nil {
				t.Errorf("%s: two claims held the lock at the same time, tokens did not rise, or nothing was granted or renewed", name)
			}
			if lost.Load() > 0 && strings.Contains(name, "resets") {
				t.Errorf("%s: %d leases lost", name, lost.Load())
			}
		})
	}
	both.Wait()
}

// holdUntilDone holds a lock until ctx ends, with the default timing of a client, and counts losses and renewals.
func holdUntilDone(ctx context.Context, t *testing.T, s driver.Store, name string, lost, renewed *atomic.Int64) {
	const ttl = 12 * time.Second
	for ctx.Err() == nil {
		c := waiting(mutex(name, ttl))
		g, err := s.Acquire(ctx, c)
		if err != nil {
			continue
		}
		until := g.Since.Add(ttl - driver.Margin(ttl))
		clock := s.Info().Clock
		for gone := false; ctx.Err() == nil && !gone; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(ttl / 3):
			}
			for { // retry while the lease is valid
				left := time.Duration(until.Monotonic - clock.Now().Monotonic)
				if gone = left <= 0; gone {
					lost.Add(1)
					break
				}
				bounded, cancel := context.WithTimeout(ctx, min(left, ttl/3))
				var r driver.Renewal
				s.Renew(bounded, []driver.Grant{g}, func(_ int, a driver.Renewal) { r = a })
				cancel()
				if ctx.Err() != nil {
					return
				}
				if loss(r.Err) != "" {
					t.Errorf("%s: the store reports a loss: %v", name, r.Err)
					lost.Add(1)
					gone = true
					break
				}
				if r.Err == nil {
					renewed.Add(1)
					until = r.Since.Add(r.GrantedTTL - driver.Margin(r.GrantedTTL))
					break
				}
			}
		}
	}
}

// TestFlappingLink: a link that is cut again and again, for a second of each interval between renewals, costs no lease,
// at most three renewals per interval, and leaves no connections behind.
func TestFlappingLink(t *testing.T) {
	t.Parallel()
	const ttl, flaps = 18 * time.Second, 11 // together the flaps take longer than the TTL
	server := startServer(t)
	via, err := servertest.NewLink(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(via.Close)
	c := openClientForTest(t, "redis://"+via.Addr)
	l := lockEventually(t, c, "m", ttl)
	sendCommand(t, server, "CONFIG", "RESETSTAT")
	start := time.Now()
	for range flaps {
		via.Cut()
		expectHeld(t, l, time.Second)
		via.Heal()
		expectHeld(t, l, time.Second)
	}
	intervals := int(time.Since(start)/(ttl/3)) + 1
	by, _, _ := commandCalls(t, server)
	t.Logf("%d flaps, %d intervals: %d renewals, %d connections made", flaps, intervals, by["evalsha"],
		via.ConnectionCount())
	if n := by["evalsha"]; n > 3*intervals || n < intervals/2 {
		t.Errorf("%d renewals in %d intervals", n, intervals)
	}
	if n := via.ConnectionCount(); n > 2+2*flaps {
		t.Errorf("%d connections were made", n)
	}
	if err := redistest.Until(t.Context(),
		func() bool { return strings.Count(sendCommand(t, server, "CLIENT", "LIST"), "\n") <= 4 }); err != nil {
		t.Errorf("connections are left: %s", sendCommand(t, server, "CLIENT", "LIST"))
	}
}

// TestServerAway: a server that is killed and comes back with its data costs no lease. The token stays the same, and
// waiting claims go on waiting.
func TestServerAway(t *testing.T) {
	t.Parallel()
	const ttl = longTTL // a server may take seconds to start
	server := startServer(t, "--appendonly", "yes", "--appendfsync", "always")
	c := openClientForTest(t, "redis://"+server.Addr)
	l := lockEventually(t, c, "m", ttl)
	fair := openClientForTest(t, "redis://"+server.Addr).Mutex("m", fairOptions(ttl))
	got := make(chan error, 2)
	go func() {
		next, err := fair.Lock(t.Context())
		if err == nil {
			err = next.Release()
		}
		got <- err
	}()
	plain := openClientForTest(t, "redis://"+server.Addr)
	go func() {
		next, err := plain.Mutex("m", nil).Lock(t.Context())
		if err == nil {
			err = next.Release()
		}
		got <- err
	}()
	if err := redistest.Until(t.Context(), func() bool {
		held, err := c.Inspect(t.Context(), "m")
		return err == nil && len(held.Waiters) == 2
	}); err != nil {
		t.Fatal("they do not wait: ", err)
	}
	server.Kill()
	expectHeld(t, l, 1500*time.Millisecond)
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	waitForRenewal(t, l)
	token := l.Token()
	if held, err := c.Inspect(t.Context(), "m"); err != nil || len(held.Holders) != 1 ||
		held.Holders[0].Token != token {
		t.Errorf("the lock is held as %+v, %v; token %d", held, err, token)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	for range 2 {
		select {
		case err := <-got:
			if err != nil {
				t.Error("a waiter: ", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("a waiting claim is never granted")
		}
	}
}

// TestHolderLosesPermissions: if the Redis user of a holder loses its permissions, or is removed, the holder learns
// within its TTL that it lost the lock, and the error says why.
func TestHolderLosesPermissions(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	server := startServer(t)
	for what, take := range map[string][]string{
		"command":  {"ACL", "SETUSER", "worker", "-evalsha"},
		"password": {"ACL", "SETUSER", "worker", "<hunter2", ">hunter3"},
		"user":     {"ACL", "DELUSER", "worker"},
	} {
		sendCommand(t, server, "ACL", "SETUSER", "worker", "reset", "on", ">hunter2", "~*", "&*", "+@all")
		l := lockEventually(t, openClientForTest(t, "redis://worker:hunter2@"+server.Addr), what, ttl)
		sendCommand(t, server, take...)
		if what == "password" {
			_, _ = server.Do("CLIENT", "KILL", "USER", "worker")
		}
		start := time.Now()
		select {
		case <-l.Context().Done():
		case <-time.After(ttl + 20*time.Second):
			t.Errorf("%s: the holder does not learn of it", what)
			continue
		}
		expectInTime(t, what+": to learn of it", start, ttl)
		expectError(t, what, context.Cause(l.Context()), driver.ErrLost)
	}
}

func fairOptions(ttl time.Duration) *holdfast.LockOptions {
	return &holdfast.LockOptions{TTL: ttl, Fair: true}
}

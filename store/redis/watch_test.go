package redis

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// TestWatch: a client that watches a lock is notified by the server of every change, ours and foreign, without polling,
// and sends little while nothing changes.
func TestWatch(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s, other := openForTest(t, "redis://"+server.Addr).(*store), openForTest(t, "redis://"+server.Addr)
	s.watchPoll = time.Hour
	seen, err := s.Inspect(t.Context(), "m")
	if err != nil {
		t.Fatal(err)
	}
	var took []time.Duration
	next := func(what string, change func(), holders, waiters int) {
		t.Helper()
		got := make(chan driver.Lock)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer func() {
			cancel()
			for range got {
			}
		}()
		sendCommand(t, server, "CONFIG", "RESETSTAT")
		go func() {
			defer close(got)
			for l := seen; ctx.Err() == nil; {
				changed, err := s.NextChange(ctx, l)
				if err != nil {
					continue // the server is busy for a while, or ctx has ended
				}
				l = changed
				select {
				case got <- l:
				case <-ctx.Done():
				}
			}
		}()
		if err := redistest.Until(ctx,
			func() bool { by, _, _ := commandCalls(t, server); return by["eval"] >= 2 }); err != nil {
			t.Fatalf("%s: the lock is not watched: %v", what, err) // it reads the lock before tracking is on, and after
		}
		start := time.Now()
		change()
		for l := range got {
			if seen = l; len(l.Holders) == holders && len(l.Waiters) == waiters {
				took = append(took, time.Since(start))
				return
			}
		}
		t.Errorf("%s: not notified", what)
	}
	for range 3 {
		var g driver.Grant
		next("grant", func() { g = acquire(t, other, mutex("m", time.Hour)) }, 1, 0)
		fair := waiting(mutex("m", time.Hour))
		fair.Fair = true
		granted := make(chan driver.Grant, 1)
		next("a claim in the queue", func() { go func() { g, _ := other.Acquire(t.Context(), fair); granted <- g }() }, 1, 1)
		next("hand-over", func() {
			if err := other.Release(t.Context(), g.Claim, ""); err != nil {
				t.Error(err)
			}
		}, 1, 0)
		g = <-granted
		next("break", func() {
			if err := other.Break(t.Context(), "m", g.Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
				t.Error(err)
			}
		}, 0, 0)
		next("foreign", func() { sendCommand(t, server, "SET", "m", "somebody", "PX", "3600000") }, 1, 0)
		next("foreign gone", func() { sendCommand(t, server, "DEL", "m") }, 0, 0)
		next("foreign for a while", func() { sendCommand(t, server, "SET", "m", "somebody", "PX", "3600000") }, 1, 0)
		next("end of a TTL", func() { sendCommand(t, server, "PEXPIRE", "m", "500") }, 0, 0)
	}
	slices.Sort(took)
	t.Logf("notified after %v in the median, %v at most", took[len(took)/2], took[len(took)-1])

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	sendCommand(t, server, "CONFIG", "RESETSTAT")
	start := time.Now()
	if _, err := openForTest(t, "redis://"+server.Addr).(*store).NextChange(ctx, seen); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("nothing has changed: %v", err)
	}
	by, _, _ := commandCalls(t, server)
	if n, took := by["eval"]+by["evalsha"], time.Since(start); n > 4+int(2*took/watchPoll) {
		t.Errorf("%d reads in %v", n, took)
	}
}

// TestExplain: the keys that Explain returns are those that a claim makes.
func TestExplain(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for _, query := range []string{"?prefix=app:", "?template={app}:*:lock", "?prefix=r:&layout=redisson"} {
		s := openForTest(t, "redis://"+server.Addr+query)
		c := mutex("m", time.Minute)
		sem := mutex("s", time.Minute)
		sem.Kind, sem.Limit = driver.KindSemaphore, 3
		for _, c := range []driver.Claim{c, sem} {
			sendCommand(t, server, "FLUSHALL")
			if _, err := s.Acquire(t.Context(), c); errors.Is(err, driver.ErrUnsupported) {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			plan := s.Explain(c)
			for key := range strings.FieldsSeq(sendCommand(t, server, "EVAL",
				"return table.concat(redis.call('KEYS', '*'), ' ')", "0")) {
				if !slices.Contains(plan.Keys, key) {
					t.Errorf("%s: the key %s exists, and is not among %q", query, key, plan.Keys)
				}
			}
			if plan.TTL != c.TTL || sendCommand(t, server, "EXISTS", plan.Keys[0]) != ":1" {
				t.Errorf("%s: %+v", query, plan)
			}
		}
	}
}

package redis

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestWatch: who watches a lock is told of what becomes of it by the server, ours and foreign, sooner than by polling, and
// asks little while nothing happens.
func TestWatch(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s, other := open(t, "redis://"+server.Addr).(*Store), open(t, "redis://"+server.Addr)
	seen, err := s.Inspect(t.Context(), "m")
	if err != nil {
		t.Fatal(err)
	}
	var took []time.Duration
	next := func(what string, change func(), holders, waiters int) {
		t.Helper()
		got := make(chan driver.Lock)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		go func() {
			defer close(got)
			for l := seen; ctx.Err() == nil; {
				changed, err := s.NextChange(ctx, l)
				if err != nil {
					continue // a server that is busy for a while; or the end of ctx
				}
				l = changed
				select {
				case got <- l:
				case <-ctx.Done():
				}
			}
		}()
		time.Sleep(100 * time.Millisecond) // it watches
		start := time.Now()
		change()
		for l := range got {
			if seen = l; len(l.Holders) == holders && len(l.Waiters) == waiters {
				took = append(took, time.Since(start))
				return
			}
		}
		t.Errorf("%s: not told", what)
	}
	for range 3 {
		var g driver.Grant
		next("grant", func() { g = acquire(t, other, mutex("m", 30*time.Second)) }, 1, 0)
		fair := waiting(mutex("m", 30*time.Second))
		fair.Fair = true
		granted := make(chan driver.Grant, 1)
		next("a claim in line", func() { go func() { g, _ := other.Acquire(t.Context(), fair); granted <- g }() }, 1, 1)
		next("hand-over", func() {
			if err := other.Release(t.Context(), g.Claim, ""); err != nil {
				t.Error(err)
			}
		}, 1, 0)
		g = <-granted
		next("break", func() {
			if err := other.Break(t.Context(), "m", g.Ref, driver.BreakForce); err != nil {
				t.Error(err)
			}
		}, 0, 0)
		next("foreign", func() { do(t, server, "SET", "m", "somebody", "PX", "30000") }, 1, 0)
		next("foreign gone", func() { do(t, server, "DEL", "m") }, 0, 0)
		next("foreign for a moment", func() { do(t, server, "SET", "m", "somebody", "PX", "500") }, 1, 0)
		next("end of a TTL", func() {}, 0, 0)
	}
	slices.Sort(took)
	t.Logf("told after %v in the median, %v at most", took[len(took)/2], took[len(took)-1])
	if took[len(took)/2] > watchPoll/4 {
		t.Errorf("told as late as by polling: %v", took)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	do(t, server, "CONFIG", "RESETSTAT")
	if _, err := s.NextChange(ctx, seen); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nothing has changed: %v", err)
	}
	by, _, _ := calls(t, server)
	if n := by["eval"] + by["evalsha"]; n > 10 {
		t.Errorf("%d looks in 3 s", n)
	}
}

// TestExplain: the keys that are named are those that stand there.
func TestExplain(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for _, query := range []string{"?prefix=app:", "?template={app}:*:lock", "?prefix=r:&layout=redisson"} {
		s := open(t, "redis://"+server.Addr+query)
		c := mutex("m", time.Second)
		sem := mutex("s", time.Second)
		sem.Kind, sem.Limit = driver.KindSemaphore, 3
		for _, c := range []driver.Claim{c, sem} {
			do(t, server, "FLUSHALL")
			if _, err := s.Acquire(t.Context(), c); errors.Is(err, driver.ErrUnsupported) {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			plan := s.(driver.Explainer).Explain(c)
			for key := range strings.FieldsSeq(do(t, server, "EVAL", "return table.concat(redis.call('KEYS', '*'), ' ')", "0")) {
				if !slices.Contains(plan.Keys, key) {
					t.Errorf("%s: %s stands there, and is not among %q", query, key, plan.Keys)
				}
			}
			if plan.TTL != c.TTL || do(t, server, "EXISTS", plan.Keys[0]) != ":1" {
				t.Errorf("%s: %+v", query, plan)
			}
		}
	}
}

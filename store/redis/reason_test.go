package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// TestBreakReason: the client whose claim an operator breaks learns the reason: by a renewal, a release, a detach, or
// while it waits, on every kind of lock. In Redisson's layout the claim is broken without it.
func TestBreakReason(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	a := mustStart(t)(redistest.Independent(3)).Addrs()
	for _, kind := range []string{"plain", "fair", "semaphore", "redlock", "redisson"} {
		t.Run(kind, func(t *testing.T) {
			const reason = "alice@host, by force: INC-123"
			raw, want := "redis://"+server.Addr, reason
			switch kind {
			case "redisson":
				raw, want = raw+"?layout=redisson", ""
			case "redlock":
				raw = "redlock://" + a[0] + "?addrs=" + a[1] + "," + a[2]
			}
			operator, s := openForTest(t, raw), openForTest(t, raw)
			claim := func(name string) driver.Claim {
				c := waiting(mutex(kind+name, longTTL))
				switch kind {
				case "fair":
					c.Fair = true
				case "semaphore":
					c.Kind, c.Limit, c.Weight = driver.KindSemaphore, 3, 2
				}
				return c
			}
			breakNow := func(name, ref string, mode driver.BreakMode) {
				t.Helper()
				b := operator
				if err := b.Break(t.Context(), name, ref, driver.Break{Mode: mode, Reason: reason}); err != nil {
					t.Fatal(err)
				}
			}
			broken := func(name string, mode driver.BreakMode) driver.Grant {
				t.Helper()
				g := acquire(t, s, claim(name))
				breakNow(g.Name, g.Ref, mode)
				return g
			}
			check := func(what string, err error) {
				t.Helper()
				var lost *driver.LossError
				if !errors.As(err, &lost) || lost.Cause != driver.LossBroken {
					t.Fatalf("%s: %v", what, err)
				}
				if got := fmt.Sprint(lost.Err); got != want && (want != "" || lost.Err != nil) {
					t.Errorf("%s tells the reason %q", what, got)
				}
			}
			check("a renewal after a graceful break", renewUntilSure(t, s, broken("a", driver.BreakGraceful)).Err)
			check("a renewal after a break by force", renewUntilSure(t, s, broken("b", driver.BreakForce)).Err)
			check("a release", s.Release(t.Context(), broken("c", driver.BreakForce).Claim, ""))
			check("a detach", s.Detach(t.Context(), broken("d", driver.BreakForce), longTTL))
			_, err := s.Acquire(t.Context(), broken("e", driver.BreakForce).Claim)
			check("a repeated claim", err)
			if kind == "redisson" || kind == "redlock" {
				return // nobody sees the waiters
			}
			for i, mode := range []driver.BreakMode{driver.BreakGraceful, driver.BreakForce} {
				name := fmt.Sprint("waiter", i)
				g, outcome := acquire(t, s, claim(name)), make(chan error, 1)
				go func() {
					_, err := s.Acquire(t.Context(), claim(name))
					outcome <- err
				}()
				var ref string
				if err := redistest.Until(t.Context(), func() bool {
					l, err := operator.Inspect(t.Context(), g.Name)
					if err != nil || len(l.Waiters) == 0 {
						return false
					}
					ref = l.Waiters[0].Ref
					return true
				}); err != nil {
					t.Fatal(err)
				}
				breakNow(g.Name, ref, mode)
				check("a claim that waits", <-outcome)
			}
		})
	}
}

// noReads is a client whose HGET requests get no reply.
type noReads struct {
	rueidis.Client
	asked chan struct{}
}

func (c noReads) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if cmd.Commands()[0] != "HGET" {
		return c.Client.Do(ctx, cmd)
	}
	c.asked <- struct{}{}
	<-ctx.Done()
	return c.Client.Do(ctx, cmd)
}

// TestReasonWithoutReply: while the reason for which a claim was broken is asked for, the other claims' renewals are
// reported. If there is no reply, the loss is reported without a reason.
func TestReasonWithoutReply(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	operator := openForTest(t, "redis://"+server.Addr).(*store)
	client := noReads{operator.client, make(chan struct{}, 1)}
	s, err := New(t.Context(), client, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	gs := []driver.Grant{acquire(t, s, mutex("broken", longTTL)), acquire(t, s, mutex("other", longTTL))}
	if err := operator.Break(t.Context(), "broken", gs[0].Ref, driver.Break{Mode: driver.BreakForce, Reason: "why"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.Renew(ctx, gs, func(i int, r driver.Renewal) {
		if i == 1 {
			if r.Err != nil {
				t.Error(r.Err)
			}
			<-client.asked // the question does not wait for this report either
			cancel()
			return
		}
		var lost *driver.LossError
		if ctx.Err() == nil || !errors.As(r.Err, &lost) || lost.Cause != driver.LossBroken || lost.Err != nil {
			t.Errorf("the broken claim: %v", r.Err)
		}
	})
	start := time.Now()
	if err := s.Release(t.Context(), gs[0].Claim, ""); loss(err) != driver.LossBroken {
		t.Error(err)
	}
	if took := time.Since(start); took < maxReasonTime {
		t.Errorf("the reason was asked for during %v only", took)
	}
}

// TestReasonsAreBounded: reasons are removed when nobody can ask for them any more, and go before notes if there are
// too many. A break without a reason stores none.
func TestReasonsAreBounded(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	record := recordKey("m")
	count := func() string {
		return sendCommand(t, server, "EVAL", `local n = {['~'] = 0, ['='] = 0}
			for _, f in ipairs(redis.call('HKEYS', KEYS[1])) do
				local first = string.sub(f, 1, 1)
				if n[first] then n[first] = n[first] + 1 end
			end
			return n['~'] .. ' notes, ' .. n['='] .. ' reasons'`, "1", record)
	}
	broken := func(reason string) {
		g := acquire(t, s, waiting(mutex("m", longTTL)))
		if err := s.Break(t.Context(), "m", g.Ref, driver.Break{Mode: driver.BreakForce, Reason: reason}); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when, want string) {
		t.Helper()
		if n := count(); n != want {
			t.Errorf("%s there are %s, want %s", when, n, want)
		}
	}
	broken("")
	expect("after a break without a reason", "1 notes, 0 reasons")
	reason := strings.Repeat("x", driver.MaxReason)
	for range 3 {
		broken(reason)
	}
	expect("after 3 with one", "4 notes, 3 reasons")
	sendCommand(t, server, "EVAL", `local t = redis.call('TIME')
		for i = 1, 4100 do
			redis.call('HSET', KEYS[1], '=' .. i, string.format('%.0f why', t[1] * 1000000 + 3600000000))
		end
		redis.call('HSET', KEYS[1], 'notes', '4096')`, "1", record)
	broken(reason)
	expect("after one that finds too many reasons", "5 notes, 1 reasons")
	sendCommand(t, server, "EVAL", `for _, f in ipairs(redis.call('HKEYS', KEYS[1])) do
			local first = string.sub(f, 1, 1)
			if first == '~' then redis.call('HSET', KEYS[1], f, '1') end
			if first == '=' then redis.call('HSET', KEYS[1], f, '1 why') end
		end
		redis.call('HSET', KEYS[1], 'noted', '1', '=old', '1 why')`, "1", record)
	c := waiting(mutex("m", longTTL))
	c.Fair = true
	acquire(t, s, c)
	release(t, s, c)
	c = waiting(mutex("m", longTTL))
	c.Kind, c.Limit = driver.KindSemaphore, 3
	release(t, s, acquire(t, s, c).Claim)
	expect("when all have expired", "0 notes, 0 reasons")
}

package redis

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

var commandStat = regexp.MustCompile(`cmdstat_([a-z|]+):calls=(\d+)`)

// commandCalls returns how often each command was called since the last reset, by clients and by scripts, from the
// server's own statistics.
func commandCalls(t *testing.T, s *redistest.Server) (by map[string]int, scripts, inside int) {
	t.Helper()
	by = map[string]int{}
	for _, m := range commandStat.FindAllStringSubmatch(sendCommand(t, s, "INFO", "commandstats"), -1) {
		n, _ := strconv.Atoi(m[2])
		by[m[1]] = n
		switch m[1] {
		case "evalsha", "eval":
			scripts += n
		case "info", "config|resetstat", "ping", "hello", "client|setinfo", "client", "subscribe":
		default:
			inside += n
		}
	}
	return by, scripts, inside
}

// TestScriptCallsPerStep: a free mutex is acquired by one script call, renewed by one, even together with 31 others,
// and released by one. So many commands are in each, and no more.
func TestScriptCallsPerStep(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr)
	step := func(what string, commands int, f func()) {
		sendCommand(t, server, "CONFIG", "RESETSTAT")
		f()
		by, scripts, inside := commandCalls(t, server)
		t.Logf("%s: %d script calls, %d commands inside", what, scripts, inside)
		if scripts != 1 || by["evalsha"] != 1 || inside != commands {
			t.Errorf("%s: %v, want one script call with %d commands", what, by, commands)
		}
	}
	for name, commands := range map[string][3]int{"plain": {4, 4, 3}, "fair": {4, 4, 4}} {
		c := mutex(name, time.Minute)
		c.Fair = name == "fair"
		for range 2 { // then the server knows the scripts, and no expiry has to be moved
			renew(t, s, acquire(t, s, c))
			release(t, s, c)
		}
		var g driver.Grant
		step(name+" acquire", commands[0], func() { g = acquire(t, s, c) })
		step(name+" renew", commands[1], func() {
			if r := renew(t, s, g); r.Err != nil {
				t.Error(r.Err)
			}
		})
		step(name+" release", commands[2], func() { _ = s.Release(t.Context(), c, "") })
	}
	var gs []driver.Grant
	for i := range maxRenewBatch {
		gs = append(gs, acquire(t, s, mutex(fmt.Sprint("batch", i), time.Minute)))
	}
	step(fmt.Sprintf("renewal of %d", maxRenewBatch), 1+3*maxRenewBatch, func() {
		s.Renew(t.Context(), gs, func(_ int, r driver.Renewal) {
			if r.Err != nil {
				t.Error(r.Err)
			}
		})
	})
}

// TestJoinCost: where claims of this client wait, another plain one joins them with one script.
func TestJoinCost(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	keys := s.keys.allKeys("m")
	holder := acquire(t, s, mutex("m", time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	join := func(waiters int) {
		calls.Go(func() { _, _ = s.Acquire(ctx, waiting(mutex("m", time.Hour))) })
		if err := redistest.Until(ctx, func() bool {
			return sendCommand(t, server, "ZCARD", keys[4]) == fmt.Sprint(":", waiters)
		}); err != nil {
			t.Fatal(err)
		}
	}
	join(1)
	least := 10
	for n := range 10 { // those that wait may poll meanwhile
		sendCommand(t, server, "CONFIG", "RESETSTAT")
		join(n + 2)
		_, scripts, _ := commandCalls(t, server)
		least = min(least, scripts)
	}
	if least != 1 {
		t.Errorf("it takes %d scripts", least)
	}
	cancel()
	calls.Wait()
	release(t, s, holder.Claim)
}

// TestHandOverCost: a hand-over costs the same number of commands however many claims wait, and notifies only the next
// ones.
func TestHandOverCost(t *testing.T) {
	for name, scripts := range map[string]int{"fair": 2, "plain": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkHandOverCost(t, name == "fair", scripts)
		})
	}
}

// checkHandOverCost measures hand-overs, each of which runs so many scripts if nobody polls.
func checkHandOverCost(t *testing.T, isFair bool, scriptsEach int) {
	server := startServer(t)
	pace := watchServer(t, server)
	var each []float64
	sizes := []int{10, 100, 1000}
	for _, n := range sizes {
		s := openForTest(t, "redis://"+server.Addr)
		name := fmt.Sprint("line", n)
		claim := func() driver.Claim {
			c := waiting(mutex(name, time.Hour))
			c.Fair = isFair
			return c
		}
		holder := acquire(t, s, claim())
		granted := make(chan driver.Grant)
		for range n {
			go func() {
				if g, err := s.Acquire(t.Context(), claim()); err == nil {
					granted <- g
				}
			}()
		}
		if err := redistest.Until(t.Context(), func() bool {
			l, err := s.Inspect(t.Context(), name)
			return err == nil && len(l.Waiters) == n
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1100 * time.Millisecond)                  // each claim polls once within a second after it entered
		if err := redistest.Until(t.Context(), func() bool { // and the last ones once more
			sendCommand(t, server, "CONFIG", "RESETSTAT")
			start := time.Now()
			time.Sleep(200 * time.Millisecond)
			_, polled, _ := commandCalls(t, server)
			return polled <= 100*int(max(200*time.Millisecond, time.Since(start)).Milliseconds())/1000
		}); err != nil {
			t.Fatal("the waiting claims poll too often")
		}
		const rounds = 8
		var took []time.Duration
		sendCommand(t, server, "CONFIG", "RESETSTAT")
		began := time.Now()
		for range rounds {
			start := time.Now()
			release(t, s, holder.Claim)
			next := <-granted
			took = append(took, time.Since(start))
			if next.Token <= holder.Token {
				t.Errorf("token %d after %d", next.Token, holder.Token)
			}
			holder = next
		}
		_, scripts, inside := commandCalls(t, server)
		polls := scripts - scriptsEach*rounds
		per := float64(inside) / float64(scripts)
		slices.Sort(took)
		t.Logf("%d wait: %.1f script calls a hand-over (polls in that time: %d), %.1f commands in each; median %v", n,
			float64(scripts)/rounds, polls, per, took[len(took)/2])
		// A thousand claims poll 40 times per second (see delayInQueue). If the machine
		// or the server was late by a confirm window, all claims have answered a roll call.
		maxPolls := 4 + int(100*time.Since(began).Seconds())
		if max(machine.Worst(began), pace.Worst(began)) > time.Second {
			maxPolls += n
		}
		if polls < 0 || polls > maxPolls {
			t.Errorf("%d wait: %d script calls for %d hand-overs in %v", n, scripts, rounds, time.Since(began))
		}
		each = append(each, per)
		s.Close()
	}
	if each[len(each)-1] > 2*each[0] { // twice: a poll costs less than a hand-over, and a slow machine has more polls
		t.Errorf("the commands of a hand-over grow with the queue: %.1f with %d, %.1f with %d", each[0], sizes[0],
			each[len(each)-1], sizes[len(sizes)-1])
	}
}

// TestLedgerCost: each step of a run is one script call, and so is the question for a key that has succeeded.
func TestLedgerCost(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	open := func() storetest.CountedLedger {
		return storetest.CountedLedger{
			Ledger: storetest.OpenLedger(t, openForTest(t, "redis://"+server.Addr)),
			Take: func() string {
				_, scripts, _ := commandCalls(t, server)
				sendCommand(t, server, "CONFIG", "RESETSTAT")
				return fmt.Sprint(scripts)
			},
		}
	}
	storetest.CheckLedgerCosts(t, open(), open(), storetest.LedgerCosts{Begin: "1", Renew: "1", Succeed: "1", Ask: []string{"1"}})
}

// TestManyAttempts: a key can have had thousands of runs.
func TestManyAttempts(t *testing.T) {
	t.Parallel()
	attempts := 1000
	if *prove {
		attempts = 10_000
	}
	storetest.CheckManyAttempts(t, storetest.OpenLedger(t, openForTest(t, "redis://"+startServer(t).Addr)), attempts)
}

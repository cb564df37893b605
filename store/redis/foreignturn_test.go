package redis

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// turnShapes are the claims that can hold a lock alone, and so hand it over.
var turnShapes = map[string]func(*driver.Claim){
	"fair":   func(c *driver.Claim) { c.Fair = true },
	"plain":  func(*driver.Claim) {},
	"writer": func(c *driver.Claim) { c.Kind, c.Limit, c.Weight = driver.KindRW, driver.RWLimit, driver.RWLimit },
}

// turnScene is a lock that one claim holds, while two wait in the queue whose clients do nothing more by themselves.
type turnScene struct {
	*store
	server        *redistest.Server
	shape         func(*driver.Claim)
	name          string
	record        string // its key
	holder        driver.Grant
	first, second driver.Claim
}

func newTurnScene(t *testing.T, server *redistest.Server, s *store, name string, shape func(*driver.Claim)) *turnScene {
	t.Helper()
	x := &turnScene{store: s, server: server, shape: shape, name: name, record: recordKey(name)}
	x.holder = acquire(t, s, x.claim())
	x.first, x.second = x.claim(), x.claim()
	for i, c := range []driver.Claim{x.first, x.second} {
		if r := x.look(t, c); r == nil || r.code != replyWaiting || r.place != int64(i+1) {
			t.Fatalf("%+v", r)
		}
	}
	return x
}

// claim is a new claim on the lock that may wait.
func (x *turnScene) claim() driver.Claim {
	c := waiting(mutex(x.name, 10*time.Minute))
	x.shape(&c)
	return c
}

// look runs the script of a waiting claim. It returns nil if the claim was granted.
func (x *turnScene) look(t *testing.T, c driver.Claim) *refusal {
	t.Helper()
	r, err := enterQueueOnce(t, x.store, c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// get returns the value of the lock's key, and "" if it is free.
func (x *turnScene) get(t *testing.T) string {
	t.Helper()
	return strings.Replace(sendCommand(t, x.server, "GET", x.name), "$-1", "", 1)
}

// setLastFree writes when the lock was last free, in server microseconds, for its current value.
func (x *turnScene) setLastFree(t *testing.T, at int64) {
	t.Helper()
	sendCommand(t, x.server, "HSET", x.record, "turn", fmt.Sprint(at, " ", x.get(t)))
}

// lastFree reads it, and the value for which it counts.
func (x *turnScene) lastFree(t *testing.T) (at int64, value string) {
	t.Helper()
	before, value, _ := strings.Cut(sendCommand(t, x.server, "HGET", x.record, "turn"), " ")
	at, _ = strconv.ParseInt(before, 10, 64)
	return at, value
}

// endTurn makes the turn of foreign clients end.
func (x *turnScene) endTurn(t *testing.T) {
	t.Helper()
	sendCommand(t, x.server, "HSET", x.record, "turn", "1 ")
}

// beginTurn has the holder release the lock after it was not free for long, and runs checks while foreign clients have
// their turn. If the machine was so slow that the turn ended meanwhile, it does all of it once more.
func beginTurn(t *testing.T, server *redistest.Server, s *store, name string, shape func(*driver.Claim),
	checks func(x *turnScene) []string) *turnScene {
	t.Helper()
	for try := range 20 {
		x := newTurnScene(t, server, s, fmt.Sprint(name, try), shape)
		x.setLastFree(t, 1)
		start := time.Now()
		release(t, s, x.holder.Claim)
		faults := checks(x)
		if time.Since(start) > s.opts.ForeignTurn {
			continue
		}
		for _, f := range faults {
			t.Error(name, ": ", f)
		}
		return x
	}
	t.Fatalf("20 turns of %v have ended before a few requests", s.opts.ForeignTurn)
	return nil
}

func openWithTurns(t *testing.T, server *redistest.Server, turn time.Duration) *store {
	t.Helper()
	return openForTest(t, "redis://"+server.Addr, func(o *Options) { o.ForeignTurn = turn }).(*store)
}

// TestForeignTurn: a lock that was not free for a second is left free by the next release, for foreign clients alone:
// no claim acquires it, neither a newcomer nor the first in the queue, also of a client without the option. Afterwards
// the queue goes on in its order, and tokens rise, even if the last one was ahead of the clock.
func TestForeignTurn(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s, without := openWithTurns(t, server, time.Second), openForTest(t, "redis://"+server.Addr).(*store)
	for name, shape := range turnShapes {
		x := beginTurn(t, server, s, name, shape, func(x *turnScene) (faults []string) {
			for _, client := range []*store{s, without} {
				for what, c := range map[string]driver.Claim{"plain": mutex(x.name, longTTL), "same": x.claim()} {
					c.Wait = false
					if _, err := client.Acquire(t.Context(), c); !errors.Is(err, driver.ErrHeld) &&
						!errors.Is(err, driver.ErrMismatch) {
						faults = append(faults, fmt.Sprintf("a newcomer (%s) was not refused: %v", what, err))
					}
				}
				r, err := enterQueueOnce(t, client, x.first)
				if err != nil {
					t.Fatal(err)
				}
				if r == nil || r.code != replyWaiting || r.place != 1 || r.remaining <= 0 || r.remaining > time.Second {
					faults = append(faults, fmt.Sprintf("the first in the queue was told %+v", r))
				}
			}
			if value := sendCommand(t, server, "SET", x.name, "a foreign client's", "NX"); value != "+OK" {
				faults = append(faults, "a foreign client got "+value)
			}
			return faults
		})
		if r := x.look(t, x.first); r == nil || !heldByForeign(r) {
			t.Errorf("%s: next to a foreign holder the first in the queue was told %+v", name, r)
		}
		sendCommand(t, server, "DEL", x.name)
		x.endTurn(t)
		last := x.holder.Token + int64(time.Hour/time.Microsecond)
		sendCommand(t, server, "HSET", x.record, "token", strconv.FormatInt(last, 10))
		if r := x.look(t, x.second); r == nil || r.code != replyWaiting {
			t.Errorf("%s: the second in the queue was told %+v", name, r)
		}
		if g := acquire(t, s, x.first); g.Token <= last {
			t.Errorf("%s: token %d after %d", name, g.Token, last)
		}
		release(t, s, x.first)
		acquire(t, s, x.second)
	}
}

// TestForeignTurnWhenDue: a lock is left to foreign clients if it was not free for a second, however it was held: by
// one claim, or by several that handed it over, of which only the last has the option. Otherwise it is handed over.
func TestForeignTurnWhenDue(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s, without := openWithTurns(t, server, time.Second), openForTest(t, "redis://"+server.Addr).(*store)
	hour := time.Hour.Microseconds()
	for name, shape := range turnShapes {
		// isLeft reports whether the release has left the lock free for a turn.
		isLeft := func(x *turnScene) bool {
			_, value := x.lastFree(t)
			return x.get(t) == "" && value == ""
		}
		x := newTurnScene(t, server, s, name+" long", shape)
		if mark := x.get(t); mark != x.holder.ID { // it ends with the time at which the lock was acquired
			mark = mark[:strings.LastIndexByte(mark, ':')] + ":1"
			sendCommand(t, server, "SET", x.name, mark, "PX", "600000")
			sendCommand(t, server, "HSET", x.record, "mark", mark)
		}
		sendCommand(t, server, "HSET", x.record, "token", "1")
		release(t, s, x.holder.Claim)
		if !isLeft(x) {
			t.Errorf("%s: a lock that one claim held for long was not left free", name)
		}

		x = newTurnScene(t, server, s, name+" short", shape)
		x.setLastFree(t, x.holder.Token+hour) // as if the clock was set back: it counts as free until now
		release(t, s, x.holder.Claim)
		at, value := x.lastFree(t)
		if isLeft(x) || value == "" || at > x.holder.Token+hour/2 || at < x.holder.Token {
			t.Errorf("%s: after a hand-over of a lock that was free just now, turn is %d %q", name, at, value)
		}

		// It was free long ago, which one client after the other passes on.
		x = newTurnScene(t, server, without, name+" chain", shape)
		x.setLastFree(t, 1)
		release(t, without, x.holder.Claim)
		if at, value := x.lastFree(t); at != 1 || value == "" || name != "plain" && value != x.get(t) {
			t.Errorf("%s: a client without the option has noted %d %q, and handed over to %q", name, at, value, x.get(t))
		}
		acquire(t, s, x.first)
		release(t, s, x.first)
		if !isLeft(x) {
			t.Errorf("%s: a lock that was handed over for long was not left free", name)
		}
		x.endTurn(t)
		acquire(t, s, x.second)
		release(t, s, x.second)
		if x.get(t) != "" {
			t.Errorf("%s: the lock is not free in the end", name)
		}
	}
}

// TestForeignTurnCost: a hand-over calls no command in addition if no client of the lock has foreign-turn, and one if
// the client has.
func TestForeignTurnCost(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	inside := func(name string, turn time.Duration) int {
		s := openWithTurns(t, server, turn)
		x := newTurnScene(t, server, s, name, turnShapes["fair"])
		if turn > 0 { // so that no turn is due, however slow the machine is
			x.setLastFree(t, x.holder.Token+time.Hour.Microseconds())
		}
		sendCommand(t, server, "CONFIG", "RESETSTAT")
		release(t, s, x.holder.Claim)
		by, _, inside := commandCalls(t, server)
		t.Logf("%s: %v", name, by)
		return inside
	}
	inside("warm", 0) // the server learns the script
	usual, with := inside("usual", 0), inside("with", time.Second)
	if usual != 9 || with != usual+1 {
		t.Errorf("a hand-over calls %d commands, and %d with foreign-turn", usual, with)
	}
}

// TestForeignTurnNotices: when foreign clients have a turn, the first two claims in the queue are told when to come,
// and so is one that becomes the second because another gives up. If the first is dead, the second promotes it, and so
// begins its confirm window. If no claim waits any more, the lock is free for all.
func TestForeignTurnNotices(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openWithTurns(t, server, time.Second)
	var third driver.Claim
	var subs []*subscription
	x := beginTurn(t, server, s, "m", turnShapes["fair"], func(x *turnScene) []string {
		third, subs = x.claim(), nil
		for _, c := range []driver.Claim{x.first, x.second, third} {
			sub, live := s.subscribeToLock(x.name, c.ID)
			t.Cleanup(sub.unsubscribe)
			if subs = append(subs, sub); !live {
				<-sub.notices // the hub listens now
			}
		}
		x.look(t, third)       // each script in the turn tells the first two
		release(t, s, x.first) // now the third is the second
		return nil
	})
	for i, sub := range subs {
		select {
		case d := <-sub.notices:
			if d <= 0 || d > time.Second+time.Millisecond {
				t.Errorf("claim %d was told to come after %v", i, d)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("claim %d was not told when to come", i)
		}
	}
	x.endTurn(t)
	if r := x.look(t, third); r == nil || r.code != replyWaiting || x.get(t) != x.second.ID {
		t.Errorf("the claim behind a dead one was told %+v, and the lock is reserved for %q", r, x.get(t))
	}

	beginTurn(t, server, s, "empty", turnShapes["fair"], func(x *turnScene) (faults []string) {
		release(t, s, x.first)
		release(t, s, x.second)
		c := mutex(x.name, longTTL)
		if _, err := s.Acquire(t.Context(), c); err != nil {
			faults = append(faults, "a claim is refused though none waits: "+err.Error())
		}
		return faults
	})
}

// TestForeignTurnOnFullServer: a server that is out of memory does not refuse a release that gives foreign clients a
// turn.
func TestForeignTurnOnFullServer(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openWithTurns(t, server, time.Second)
	for name, shape := range turnShapes {
		x := newTurnScene(t, server, s, name, shape)
		x.setLastFree(t, 1)
		sendCommand(t, server, "CONFIG", "SET", "maxmemory", "1")
		err := s.Release(t.Context(), x.holder.Claim, "")
		sendCommand(t, server, "CONFIG", "SET", "maxmemory", "0")
		if _, value := x.lastFree(t); err != nil || value != "" || x.get(t) != "" {
			t.Errorf("%s: %v; the lock is %q", name, err, x.get(t))
		}
	}
}

// TestForeignTurnAndClock: if the server's clock is set back while foreign clients have their turn, or after a
// hand-over, the first in the queue does not wait for the clock to catch up.
func TestForeignTurnAndClock(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openWithTurns(t, server, time.Second)
	for name, shape := range turnShapes {
		x := newTurnScene(t, server, s, name, shape)
		x.setLastFree(t, 1)
		release(t, s, x.holder.Claim)
		sendCommand(t, server, "HSET", x.record, "turn", fmt.Sprint(x.holder.Token+time.Hour.Microseconds(), " "))
		if r := x.look(t, x.first); r != nil {
			t.Errorf("%s: the first in the queue was told %+v", name, r)
		}
		release(t, s, x.first)
		sendCommand(t, server, "DEL", x.name)
		now, err := strconv.ParseInt(sendCommand(t, server, "HGET", x.record, "token"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sendCommand(t, server, "HSET", x.record, "turn", fmt.Sprint(now+time.Second.Microseconds(), " ", x.second.ID))
		if c, err := s.Acquire(t.Context(), x.second); err != nil {
			t.Errorf("%s: the claim after a hand-over: %+v, %v", name, c, err)
		}
	}
}

// TestLooksAtForeignHolders: the first in the queue looks less and less often at a foreign holder that stays. It looks
// every few milliseconds, or every few round trips, if it has found another one before: at most a few hundred times at
// each holder, and then as seldom.
func TestLooksAtForeignHolders(t *testing.T) {
	t.Parallel()
	a := acquireLoop{retryLoop: retryLoop{store: &store{}}}
	r := &refusal{remaining: -1, holders: []driver.ClaimInfo{{Foreign: true}}}
	expect := func(what string, got, most time.Duration) {
		t.Helper()
		if got < most/2 || got > most {
			t.Errorf("%s: it looks again after %v, want %v at most, and half of that at least", what, got, most)
		}
	}
	var f foreignLooks
	var now driver.Instant
	r.holders[0].Ref = "first"
	for i := range 100 {
		expect("at the first holder", f.delay(&a, r, now), min(10*time.Millisecond<<min(i, 10), maxForeignLook))
	}
	for i := range 3 {
		r.holders[0].Ref = fmt.Sprint("other", i)
		since, looks := now, 0
		for now.Since(since) < time.Minute {
			d := f.delay(&a, r, now)
			expect("at the next holder", d, min(max(minForeignLook, now.Since(since)/64), maxForeignLook))
			now = now.Add(d)
			if d < maxForeignLook/2 {
				looks++
			}
		}
		if looks > 500 {
			t.Errorf("it looked %d times more often than usual at one holder", looks)
		}
	}
	a.store.rtt.Store(int64(5 * time.Millisecond))
	r.holders[0].Ref = "far"
	expect("on a slow link", f.delay(&a, r, now), 40*time.Millisecond)
	r.remaining = 2 * time.Millisecond
	if d := f.delay(&a, r, now); d <= r.remaining || d > r.remaining+5*time.Millisecond {
		t.Errorf("at a holder that expires in %v it looks again after %v", r.remaining, d)
	}
}

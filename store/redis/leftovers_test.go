package redis

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// TestRedlockServerHangs: while a server hangs, a bounded number of releases is kept for it, and at most one goroutine
// sends them, however many claims come and go. The server gets the releases when it is back.
//
// The test does not run in parallel with others: it counts the goroutines of the whole process.
func TestRedlockServerHangs(t *testing.T) {
	g := mustStart(t)(redistest.Independent(3))
	a := g.Addrs()
	s := openForTest(t, "redlock://"+a[0]+"?addrs="+a[1]+","+a[2]).(*redlockStore)
	held := acquire(t, s, waiting(mutex("held", longTTL)))
	g.Servers[2].Signal(syscall.SIGSTOP)
	var cycles sync.WaitGroup
	for i := range 8 {
		cycles.Go(func() {
			for n := range 10 {
				c := waiting(mutex(fmt.Sprint("m", i, "-", n), longTTL))
				if _, err := s.Acquire(t.Context(), c); err != nil {
					t.Error(err)
				}
				if err := s.Release(t.Context(), c, ""); err != nil {
					t.Error(err)
				}
			}
		})
	}
	cycles.Wait()
	release(t, s, held.Claim)
	countPending := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.pending[2].releases)
	}
	if n := countPending(); n != 81 {
		t.Errorf("%d releases are kept of 81", n)
	}
	countSenders := func() int {
		stacks := make([]byte, 4<<20)
		return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "sendPendingReleases(")
	}
	if n := countSenders(); n > 1 {
		t.Errorf("%d goroutines send releases to a server that is away", n)
	}
	for i := range 2 * maxPendingReleases {
		s.scheduleRelease(2, fmt.Sprint("other", i), pendingRelease{"other", "", longTTL, time.Now().Add(longTTL)})
	}
	if n := countPending(); n != maxPendingReleases {
		t.Errorf("%d releases are kept, and at most %d may be", n, maxPendingReleases)
	}
	g.Servers[2].Signal(syscall.SIGCONT)
	if err := redistest.Until(t.Context(), func() bool { return countPending() == 0 }); err != nil {
		t.Errorf("%d releases are not sent when the server is back", countPending())
	}
	if n := sendCommand(t, g.Servers[2], "EXISTS", "held"); n != ":0" {
		t.Error("a released claim is still on the server that was away")
	}
	if err := redistest.Until(t.Context(), func() bool { return countSenders() == 0 }); err != nil {
		t.Error("the goroutine that sends the releases does not end")
	}
}

// TestBreakNotesAreBounded: the notes of breaks are bounded in time and number. If notes had to be removed early, a
// release that might have found one returns that the outcome is uncertain, and not success.
func TestBreakNotesAreBounded(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for _, layout := range []Layout{LayoutPlain, LayoutRedisson} {
		s := openForTest(t, "redis://"+server.Addr+"?layout="+string(layout))
		lossy, lose := openLossy(t, "redis://"+server.Addr+"?layout="+string(layout))
		name := string(layout)
		record := recordKey(name)
		fields := func(test string) string {
			return sendCommand(t, server, "EVAL", `local n, now = 0, redis.call('TIME')[1] * 1000000
				for _, f in ipairs(redis.call('HKEYS', KEYS[1])) do
					local ends = string.sub(f, 1, 1) == '~' and tonumber(redis.call('HGET', KEYS[1], f))
					if ends and (ARGV[1] ~= 'long' or ends > now + 86400000000) then n = n + 1 end
				end
				return n`, "1", record, test)
		}
		broken := func() driver.Grant {
			g := acquire(t, lossy, waiting(mutex(name, longTTL)))
			if err := s.Break(t.Context(), name, g.Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
				t.Fatal(err)
			}
			return g
		}
		for range 70 {
			broken()
		}
		if n, long := fields(""), fields("long"); n != ":70" || long != ":0" {
			t.Errorf("%s: %s notes, %s for more than a day", layout, n, long)
		}
		sendCommand(t, server, "EVAL", `for _, f in ipairs(redis.call('HKEYS', KEYS[1])) do
			if string.sub(f, 1, 1) == '~' then redis.call('HSET', KEYS[1], f, '1') end
		end
		redis.call('HSET', KEYS[1], 'notes', '128')`, "1", record)
		broken()
		if n := fields(""); n != ":1" {
			t.Errorf("%s: %s notes, and all but one had expired", layout, n)
		}
		forgotten := broken()
		sendCommand(t, server, "EVAL", `local t = redis.call('TIME')
		for i = 1, 4100 do redis.call('HSET', KEYS[1], '~' .. i, string.format('%.0f', t[1] * 1000000 + 3600000000)) end
		redis.call('HSET', KEYS[1], 'notes', '4096')`, "1", record)
		broken()
		if n := fields(""); n != ":1" {
			t.Errorf("%s: %s notes, and the maximum is 4096", layout, n)
		}
		// A ping of the client may be what loses its reply. The release then has one, and says that the claim is lost.
		err := error(driver.ErrLost)
		for tries := 0; tries < 10 && errors.Is(err, driver.ErrLost); tries++ {
			lose()
			err = lossy.Release(t.Context(), forgotten.Claim, "")
		}
		if !errors.Is(err, driver.ErrUncertain) {
			t.Errorf("%s: the release of a broken claim whose note is gone: %v", layout, err)
		}
		own := acquire(t, lossy, waiting(mutex(name, longTTL)))
		if err := lossy.Release(t.Context(), own.Claim, ""); err != nil {
			t.Errorf("%s: a release of a holder: %v", layout, err)
		}
		if err := lossy.Release(t.Context(), own.Claim, ""); loss(err) != driver.LossGone {
			t.Errorf("%s: a release of a released claim: %v", layout, err)
		}
	}
}

// TestReleaseAfterBreakNoteExpired: a release that is repeated after the note of a break may have been removed does not
// report success.
func TestReleaseAfterBreakNoteExpired(t *testing.T) {
	t.Parallel()
	r := &redlockStore{servers: make([]*store, 3), majority: 2}
	for begun, expired := range map[time.Time]bool{
		time.Now(): false, time.Now().Add(-breakNoteTime - time.Second): true, time.Now().Round(0).Add(-breakNoteTime - time.Second): true,
	} {
		p := retryLoop{RetryLoop: driverutil.RetryLoop{Uncertain: true}, startedAt: begun}
		if err := p.releaseResult(0); expired != errors.Is(err, driver.ErrUncertain) || !expired && err != nil {
			t.Errorf("begun %v ago: %v", time.Since(begun), err)
		}
		lost := map[int]bool{0: true, 1: true, 2: true}
		err := r.releaseResult(replyCounts{byServer: map[int]int64{0: 0, 1: 0, 2: 0}, byReply: map[int64]int{0: 3}},
			map[int]bool{}, lost, isNoteExpired(begun))
		if expired != errors.Is(err, driver.ErrUncertain) || !expired && err != nil {
			t.Errorf("of a Redlock, begun %v ago: %v", time.Since(begun), err)
		}
	}
}

// TestBrokenPromotedClaim: a claim that was broken in the queue, and whose client never learns of it, costs the others
// nothing.
func TestBrokenPromotedClaim(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	dead := fairClaim(longTTL)
	cycle := func() (inside int) {
		sendCommand(t, server, "CONFIG", "RESETSTAT")
		g := acquire(t, s, fairClaim(longTTL))
		release(t, s, g.Claim)
		_, _, inside = commandCalls(t, server)
		return inside
	}
	cycle() // makes the record
	light := cycle()
	g := acquire(t, s, fairClaim(longTTL))
	if _, err := enterQueueOnce(t, s, dead); err != nil {
		t.Fatal(err)
	}
	if err := s.Break(t.Context(), "m", dead.ID, driver.Break{Mode: driver.BreakGraceful}); err != nil {
		t.Fatal(err)
	}
	release(t, s, g.Claim)
	if n := sendCommand(t, server, "EXISTS", "holdfast.c:{m}", "holdfast.l:{m}", "holdfast.h:{m}"); n != ":0" {
		t.Errorf("%s keys of an empty queue", n)
	}
	if n := cycle(); n != light {
		t.Errorf("a cycle makes %d commands, and made %d before", n, light)
	}
	for range 2 { // the claim learns of it each time, since a reply may be lost
		if _, err := enterQueueOnce(t, s, dead); loss(err) != driver.LossBroken {
			t.Errorf("a request of the broken claim: %v", err)
		}
	}
	sendCommand(t, server, "HSET", recordKey("m"), "kept", "1") // so that the expiries have to be moved
	cycle()
	if n := cycle(); n != light {
		t.Errorf("with a note in the record a cycle makes %d commands, and made %d before", n, light)
	}
	// The note has expired.
	sendCommand(t, server, "HSET", recordKey("m"), "noted", "1", "~"+dead.ID, "1", "kept", "1")
	next := fairClaim(longTTL)
	enterQueue(t, s, next)
	release(t, s, next)
	for _, field := range []string{"noted", "notes", "~" + dead.ID} {
		if sendCommand(t, server, "HEXISTS", recordKey("m"), field) != ":0" {
			t.Errorf("the field %s of its note remains", field)
		}
	}
}

// TestLatePromotedClaim: of a promoted claim that has not confirmed in time nothing is left when another claim takes
// the lock.
func TestLatePromotedClaim(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	g := acquire(t, s, fairClaim(longTTL))
	if _, err := enterQueueOnce(t, s, fairClaim(longTTL)); err != nil {
		t.Fatal(err)
	}
	release(t, s, g.Claim)
	sendCommand(t, server, "DEL", "m") // as the server does when the confirm window has ended
	g = acquire(t, s, mutex("m", longTTL))
	if n := sendCommand(t, server, "EXISTS", "holdfast.c:{m}"); n != ":0" {
		t.Error("the promoted claim is left")
	}
	release(t, s, g.Claim)
}

// TestIdleLocksExpire: a lock that is not used any more leaves only a record with its token: for a day, or for two days
// if it had a queue. In Redisson's layout it leaves the token key too.
func TestIdleLocksExpire(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	idle := func(layout Layout, shape func(*driver.Claim)) map[string]time.Duration {
		sendCommand(t, server, "FLUSHALL")
		s := openForTest(t, "redis://"+server.Addr+"?layout="+string(layout))
		c := mutex("job-17", longTTL)
		shape(&c)
		release(t, s, acquire(t, s, c).Claim)
		return keyTTLs(t, server)
	}
	day := func(what string, left map[string]time.Duration, key string, maxLeft time.Duration) {
		t.Helper()
		if left[key] < 24*time.Hour || left[key] > maxLeft {
			t.Errorf("%s: %s is kept for %v", what, key, left[key])
		}
		delete(left, key)
		t.Logf("%s: %s takes %s bytes", what, key, sendCommand(t, server, "MEMORY", "USAGE", key))
	}
	none := func(what string, left map[string]time.Duration) {
		t.Helper()
		if len(left) > 0 {
			t.Errorf("%s leaves %v", what, left)
		}
	}
	left := idle(LayoutPlain, func(*driver.Claim) {})
	day("plain", left, "holdfast:{job-17}", 25*time.Hour+longTTL)
	none("plain", left)
	left = idle(LayoutPlain, func(c *driver.Claim) { c.Fair = true })
	day("fair", left, "holdfast:{job-17}", 49*time.Hour)
	none("fair", left)
	left = idle(LayoutPlain, func(c *driver.Claim) { c.Kind, c.Limit = driver.KindSemaphore, 5 })
	day("semaphore", left, "holdfast:{job-17}", 49*time.Hour)
	none("semaphore", left)
	left = idle(LayoutRedisson, func(*driver.Claim) {})
	day("redisson", left, "holdfast:{job-17}", 25*time.Hour+longTTL)
	day("redisson", left, "redisson_lock_token:{job-17}", 25*time.Hour+longTTL)
	none("redisson", left)

	s := openForTest(t, "redis://"+server.Addr).(*store)
	for _, kind := range []driver.Kind{driver.KindMutex, driver.KindSemaphore} {
		sendCommand(t, server, "FLUSHALL")
		dies := func() driver.Claim {
			c := fairClaim(6 * time.Second) // both are made in that time, and then it passes
			if kind != driver.KindMutex {
				c.Kind, c.Fair = kind, false
			}
			return c
		}
		acquire(t, s, dies())
		if r, err := enterQueueOnce(t, s, dies()); err != nil || r == nil {
			t.Fatal(r, err)
		}
		if err := redistest.Until(t.Context(),
			func() bool { return sendCommand(t, server, "EXISTS", "m") == ":0" }); err != nil {
			t.Fatal(err)
		}
		left := keyTTLs(t, server)
		if len(left) < 3 {
			t.Errorf("%s: only these keys are left: %v", kind, left)
		}
		for key, left := range left {
			if key != "holdfast:{m}" && left > 25*time.Hour {
				t.Errorf("%s: dead claims leave %s for %v", kind, key, left)
			}
		}
	}
}

// TestRenewalKeepsKeys: renewals keep the record of a lock that is held for long, and move its expiry only once per
// hour.
func TestRenewalKeepsKeys(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	g := acquire(t, s, mutex("m", longTTL))
	inside := func() int {
		sendCommand(t, server, "CONFIG", "RESETSTAT")
		if r := renew(t, s, g); r.Err != nil {
			t.Fatal(r.Err)
		}
		_, _, n := commandCalls(t, server)
		return n
	}
	light := inside()
	sendCommand(t, server, "PEXPIRE", recordKey("m"), "60000")
	sendCommand(t, server, "HSET", recordKey("m"), "kept", "1")
	if n := inside(); n <= light {
		t.Errorf("a renewal that moves the record's end makes %d commands, others %d", n, light)
	}
	if left := keyTTLs(t, server)[recordKey("m")]; left < 25*time.Hour || left > 25*time.Hour+longTTL {
		t.Errorf("the record is kept for %v", left)
	}
	if n := inside(); n != light {
		t.Errorf("the next renewal makes %d commands, and %d did before", n, light)
	}
	if _, err := enterQueueOnce(t, s, fairClaim(longTTL)); err != nil {
		t.Fatal(err)
	}
	sendCommand(t, server, "HSET", recordKey("m"), "kept", "1")
	inside()
	if _, err := enterQueueOnce(t, s, fairClaim(longTTL)); err != nil {
		t.Fatal(err)
	}
	for key, left := range keyTTLs(t, server) { // the expiries of the queue's keys are moved with the record's
		if key != "m" && left < 24*time.Hour {
			t.Errorf("%s is kept for %v", key, left)
		}
	}
}

// keyTTLs returns the remaining time of each key; less than 0: the key never expires.
func keyTTLs(t *testing.T, server *redistest.Server) map[string]time.Duration {
	t.Helper()
	s := openForTest(t, "redis://"+server.Addr).(*store)
	all := map[string]time.Duration{}
	keys, err := s.client.Do(t.Context(), s.client.B().Keys().Pattern("*").Build()).AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		ms, err := s.client.Do(t.Context(), s.client.B().Pttl().Key(key).Build()).AsInt64()
		if err != nil {
			t.Fatal(err)
		}
		all[key] = millis(ms)
	}
	return all
}

// TestRedissonTokenKey: a token key that Redisson has made, or has counted up, never expires, as Redisson leaves it.
// Tokens rise, whichever of the two counts.
func TestRedissonTokenKey(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr+"?layout=redisson")
	cycle := func(name string) int64 {
		g := acquire(t, s, mutex(name, longTTL))
		release(t, s, g.Claim)
		return g.Token
	}
	sendCommand(t, server, "INCR", redissonToken("first"))
	cycle("first")
	cycle("second")
	if cycle("second"); keyTTLs(t, server)[redissonToken("second")] <= 0 {
		t.Error("a token key that only we use never expires")
	}
	sendCommand(t, server, "INCR", redissonToken("second"))
	if one, two := cycle("second"), cycle("second"); two <= one {
		t.Errorf("token %d after %d", two, one)
	}
	for key, left := range keyTTLs(t, server) {
		if strings.HasPrefix(key, redissonTokens) && left >= 0 {
			t.Errorf("%s, which Redisson uses, expires in %v", key, left)
		}
	}
}

// TestForeignValueIsNotShown: the value of another client under a lock's key is shown as a digest only, since it may be
// all that is needed to release that lock. To describe it costs the same however large it is.
func TestForeignValueIsNotShown(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	const secret = "hunter2-7f0c"
	for _, layout := range []Layout{LayoutPlain, LayoutRedisson} {
		sendCommand(t, server, "FLUSHALL")
		sendCommand(t, server, "SET", "string", secret)
		sendCommand(t, server, "HSET", "hash", secret+":1", "1")
		sendCommand(t, server, "EVAL", `redis.call('SET', 'large', string.rep('`+secret+`', 1000000))
			for i = 1, 10000 do redis.call('HSET', 'fields', '`+secret+`' .. i, i) redis.call('RPUSH', 'list', '`+secret+`') end`, "0")
		s := openForTest(t, "redis://"+server.Addr+"?layout="+string(layout))
		sendCommand(t, server, "CONFIG", "RESETSTAT")
		for _, name := range []string{"string", "hash", "large", "fields", "list"} {
			fair := waiting(mutex(name, longTTL))
			fair.Fair = layout == LayoutPlain
			brief, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			_, waited := s.Acquire(brief, fair)
			cancel()
			_ = s.Release(t.Context(), fair, "")
			_, refused := s.Acquire(t.Context(), mutex(name, longTTL))
			l, err := s.Inspect(t.Context(), name)
			if err != nil || len(l.Holders) != 1 {
				t.Fatalf("%+v %v", l, err)
			}
			shown := fmt.Sprintf("%v %v %+v", waited, refused, l)
			if !errors.Is(refused, driver.ErrHeld) || !strings.Contains(refused.Error(), l.Holders[0].Owner) ||
				strings.Contains(shown, "hunter") {
				t.Errorf("%s: %s", layout, shown)
			}
			t.Logf("%v", refused)
			large := name != "string" && name != "hash"
			if err := s.Break(t.Context(), name, l.Holders[0].Ref, driver.Break{Mode: driver.BreakForce}); large != errors.Is(err,
				driver.ErrUnsupported) {
				t.Errorf("%s: breaking %s: %v", layout, name, err)
			}
		}
		by, _, _ := commandCalls(t, server)
		for _, costly := range []string{"dump", "get", "hgetall", "lrange"} {
			if by[costly] > 0 {
				t.Errorf("%s: %s was called %d times", layout, costly, by[costly])
			}
		}
	}
}

// TestRedlockEndedContext: an Acquire whose context has ended before the call acquires nothing on any server.
func TestRedlockEndedContext(t *testing.T) {
	t.Parallel()
	a := mustStart(t)(redistest.Independent(3)).Addrs()
	s := openForTest(t, "redlock://"+a[0]+"?addrs="+a[1]+","+a[2]).(*redlockStore)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		if _, err := s.Acquire(ended, mutex("m", longTTL)); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	acquire(t, s, mutex("m", longTTL))
}

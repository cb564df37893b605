package record

import (
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// This file decides when a claim has expired. The package comment says why that is safe.

// observation is what must stay unchanged for a claim to count as not renewed. Its id alone would not do, since a claim
// can be removed and join again. Its token alone would not do either, since a waiter has none.
type observation struct {
	id    string
	token int64
	beat  int64
}

// maxBeatSkip is a bound of the random part of each beat. A beat that the store has forgotten comes again once in a
// million times, and there is room for billions of renewals of one lease.
const maxBeatSkip = 1 << 20

// stepInput collects what is known now, for a step on a row and its record.
func (e *engine) stepInput(row Row, rec *Record) StepInput {
	in := StepInput{ConfirmWindow: e.confirmWindow(), BeatSkip: rand.Int64N(maxBeatSkip)}
	in.Now = e.estimateTime()
	in.Earliest, in.Latest, in.ClockTrusted = e.storeBounds()
	in.Untimed = row.untimed
	if in.StoreTime = (TimeBounds{in.Earliest, in.Latest, in.ClockTrusted}); e.storeClock == nil {
		in.StoreTime = e.storeTime()
	}
	in.KeepsMarks, in.MarkIsGone = e.traits.Marks, e.traits.Marks && !row.Marked
	in.LivenessOf = e.livenessOf(row.Name, rec)
	return in
}

// livenessOf returns the LivenessOf of a step, for the claims of a record and for those that this client adds.
func (e *engine) livenessOf(name string, rec *Record) func(*Claim) Liveness {
	seen := e.observationsOf(name)
	if len(seen) == 0 && !e.anyMayBeDead(rec) { // as mostly where no other client wants the lock
		return countAsAlive
	}
	var now driver.Instant
	if e.liveness != nil {
		now = e.clock.Now()
	}
	return func(c *Claim) Liveness {
		if e.isDead(c, now) {
			return Dead
		}
		from, watched := seen[observation{c.ID, c.Token, c.Beat}]
		if watched && e.clock.SinceAtLeast(from) > e.observeTime(c) {
			return StoppedRenewing
		}
		return Alive
	}
}

func countAsAlive(*Claim) Liveness { return Alive }

// storeBounds returns the bounds between which the store's clock certainly is. If trusted is false, nothing is known
// of it.
func (e *engine) storeBounds() (early, late int64, trusted bool) {
	if e.storeClock == nil {
		return 0, 0, false
	}
	return e.storeClock.Bounds()
}

// isClockStale reports whether a load would show the store's time much better than it is known.
func (e *engine) isClockStale() bool { return e.storeClock != nil && e.storeClock.IsStale() }

// observeTime is how long a claim must have been watched unchanged before it may be removed: its silence limit, and a
// margin for clocks that run at different rates.
//
// This is safe because the watching began after the claim's last write had been started, and the owner counts the same
// time from the start of that write and stops a margin before its end. So the owner has always stopped earlier.
func (e *engine) observeTime(c *Claim) time.Duration {
	return c.SilenceLimit + driver.Margin(c.SilenceLimit)
}

// mayBeDead reports whether the table can tell whether a claim's client exists, and it is another client. A detached
// claim has no client.
func (e *engine) mayBeDead(c *Claim) bool {
	return e.liveness != nil && !c.Detached && c.Session != "" && c.Session != e.liveness.Session()
}

// anyMayBeDead reports whether one of the record's claims may belong to a process that has died.
func (e *engine) anyMayBeDead(rec *Record) bool {
	for i := range rec.Claims {
		if e.mayBeDead(&rec.Claims[i]) {
			return true
		}
	}
	return false
}

// isDead reports whether the table knows that a claim's client does not exist any more. now is a moment ago at most.
func (e *engine) isDead(c *Claim, now driver.Instant) bool {
	switch {
	case !e.mayBeDead(c):
		return false
	case e.alive.isKnown(c.Session, now):
		return false
	case e.liveness.IsDead(c.Session):
		return true
	}
	e.alive.note(c.Session, now)
	return false
}

// aliveKeep is for how long a client that was found alive is not asked for again. Each step judges all claims of a
// lock, so on a busy lock with a queue that would be most of what a turn costs. A dead client is taken for alive for
// so much longer at most, which only delays what others do.
const aliveKeep = 20 * time.Millisecond

// aliveClients are the clients that were found alive a moment ago.
type aliveClients struct {
	mu        sync.Mutex
	bySession map[string]driver.Instant // when it was asked
}

// isKnown reports whether the store said a short while ago that the client lives, so that it need not be asked
// again.
func (a *aliveClients) isKnown(session string, now driver.Instant) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	asked, ok := a.bySession[session]
	return ok && now.Since(asked) < aliveKeep
}

// maxAliveClients is how many clients are remembered. Beyond it all are forgotten, and asked for again.
const maxAliveClients = 1 << 12

// note remembers that a client lived when the store was asked. When there are too many, all are forgotten: asking
// again is cheap.
func (a *aliveClients) note(session string, asked driver.Instant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bySession == nil || len(a.bySession) >= maxAliveClients {
		a.bySession = map[string]driver.Instant{}
	}
	a.bySession[session] = asked
}

// observationsOf returns since when each claim of a lock has been watched unchanged. The map is never changed.
func (e *engine) observationsOf(name string) map[observation]driver.Instant {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.watchedSince[name]
}

// preciseClock is how well the store's clock must be known for it alone to expire claims. If it is known less well, a
// claim may have been given a later end than necessary, and is watched as well. A claim is also watched if its end is
// later than watching would find: its writer knew the clock less well, or the clock was set back since.
const preciseClock = 50 * time.Millisecond

// observeClaims notes the claims of a freshly loaded record, and since when each has been seen unchanged. It is called
// when the reply is there and not when the load was started: a claim that was written in between must not count as
// watched from before that write.
func (e *engine) observeClaims(name string, rec *Record) {
	now := e.clock.Now()
	early, late, trusted := e.storeBounds()
	isPrecise := trusted && late-early <= 2*preciseClock.Microseconds()
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.watchedSince[name]
	var after map[observation]driver.Instant
	for i := range rec.Claims {
		c := &rec.Claims[i]
		if isPrecise && c.ExpiresAt > 0 && c.ExpiresAt-early <= e.observeTime(c).Microseconds() {
			continue // the store's clock will expire it
		}
		key := observation{c.ID, c.Token, c.Beat}
		from, ok := before[key]
		if !ok {
			from = now
		}
		if after == nil {
			after = make(map[observation]driver.Instant, len(rec.Claims))
		}
		after[key] = from
	}
	e.watched += len(after) - len(before)
	if after == nil {
		delete(e.watchedSince, name)
		return
	}
	e.watchedSince[name] = after
	for other, claims := range e.watchedSince {
		if e.watched <= maxWatched {
			break
		}
		if other != name {
			delete(e.watchedSince, other)
			e.watched -= len(claims)
		}
	}
}

// maxWatched is how many claims a client watches. Beyond it, it forgets some, and begins again when it sees them again.
const maxWatched = 1 << 17

// nextExpiry returns how long it is until the first claim of a record can expire, if none is renewed.
func (e *engine) nextExpiry(name string, rec *Record) (soonest time.Duration, found bool) {
	early, _, trusted := e.storeBounds()
	seen := e.observationsOf(name)
	if trusted && rec.Foreign != 0 && rec.Foreign != NoEnd {
		soonest, found = microsToDuration(rec.Foreign-early), true
	}
	for i := range rec.Claims {
		c := &rec.Claims[i]
		left := e.observeTime(c)
		if from, ok := seen[observation{c.ID, c.Token, c.Beat}]; ok {
			left -= e.clock.SinceAtLeast(from)
		}
		if trusted && c.ExpiresAt > 0 {
			left = min(left, microsToDuration(c.ExpiresAt-early))
		}
		if !found || left < soonest {
			soonest, found = left, true
		}
	}
	return soonest, found
}

// isRenewalDue reports whether a holder's last renewal is a third of its TTL ago, or nearly: then the next one is about
// to come.
func (e *engine) isRenewalDue(row Row, rec *Record) bool {
	early, late, trusted := e.storeBounds()
	seen := e.observationsOf(row.Name)
	for i := range rec.Claims {
		c := &rec.Claims[i]
		var sinceRenewal time.Duration
		if trusted && c.ExpiresAt > 0 {
			sinceRenewal = c.SilenceLimit - microsToDuration(c.ExpiresAt-(early+(late-early)/2))
		} else if from, ok := seen[observation{c.ID, c.Token, c.Beat}]; ok {
			sinceRenewal = e.clock.SinceAtLeast(from)
		}
		if c.State == Granted && !c.Detached && sinceRenewal >= c.TTL/3-2*e.roundTrip() {
			return true
		}
	}
	return false
}

// microsToDuration converts microseconds, up to 146 years. A foreign client may write an end that no Duration can hold.
func microsToDuration(n int64) time.Duration {
	const limit = int64(math.MaxInt64 / 2 / time.Microsecond)
	return time.Duration(min(max(n, -limit), limit)) * time.Microsecond
}

package record

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// maxBeatSkip makes a beat that was forgotten come again once in a million times, and leaves room for a billion renewals of one lease.
const maxBeatSkip = 1 << 20

// stepInput is what is known now, about the row that the next step will be made on.
func (e *engine) stepInput(row Row) StepInput {
	m := StepInput{ConfirmWindow: e.confirmWindow(), BeatSkip: rand.Int64N(maxBeatSkip)}
	m.Now, m.Earliest, m.Latest, m.ClockTrusted = e.readStoreClock()
	seen := e.observationsOf(row.Name)
	m.LivenessOf = func(c *Claim) Liveness {
		if e.isDead(c) {
			return Dead
		}
		if from, ok := seen[observation{c.ID, c.Token, c.Beat}]; ok && e.clock.SinceAtLeast(from) > e.observeTime(c) {
			return StoppedRenewing
		}
		return Alive
	}
	return m
}

// readStoreClock gives the best estimate of the store's clock, for tokens and to be shown, and between what it surely is, if that
// is known.
func (e *engine) readStoreClock() (now, early, late int64, known bool) {
	now, off := e.table.Now()
	early, late = now-off.Microseconds(), now+off.Microseconds()
	if off >= 0 && e.clockBounder != nil {
		early, late = e.clockBounder.ClockBounds()
	}
	return now, early, late, off >= 0
}

// observeTime is how long a claim must have been watched unchanged before it may be ended: as long as it may be silent, and
// a margin for clocks that run at different rates. The watching began after the claim's last write had been started, so
// its owner stopped believing a margin before its own count of the same time was over.
func (e *engine) observeTime(c *Claim) time.Duration {
	return c.SilenceLimit + driver.Margin(c.SilenceLimit)
}

// isDead reports whether the table knows that a claim's client is not there any more.
func (e *engine) isDead(c *Claim) bool {
	return e.liveness != nil && !c.Detached && c.Session != "" && e.liveness.IsDead(c.Session)
}

// observationsOf gives what is being watched on a lock. The map is not changed any more once it is there.
func (e *engine) observationsOf(name string) map[observation]driver.Instant {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.watchedSince[name]
}

// preciseClock is how well the store's clock must be known to judge alone. Where it is known less well a claim may have been
// given a later end than need be, and is watched, too; so is one whose end is later than watching it would find, which was
// written by one who knew the clock less well, or before the clock was set back.
const preciseClock = 50 * time.Millisecond

// observeClaims notes how the claims of a freshly loaded record stand, and since when each has been seen so. It is called when
// the reply is there, not when the load was started: what was written in between must not count as watched before.
func (e *engine) observeClaims(name string, rec *Record) {
	now := e.clock.Now()
	_, early, late, known := e.readStoreClock()
	judges := known && late-early <= 2*preciseClock.Microseconds()
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.watchedSince[name]
	var after map[observation]driver.Instant
	for i := range rec.Claims {
		c := &rec.Claims[i]
		if judges && c.ExpiresAt > 0 && c.ExpiresAt-early <= e.observeTime(c).Microseconds() {
			continue // the store's clock judges it
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
	if after == nil {
		delete(e.watchedSince, name)
		return
	}
	e.watchedSince[name] = after
	for other := range e.watchedSince {
		if len(e.watchedSince) <= maxUsedRows {
			break
		}
		delete(e.watchedSince, other)
	}
}

// nextExpiry is the soonest time at which a claim could be over, if nothing is heard of it.
func (e *engine) nextExpiry(name string, rec *Record) (soonest time.Duration, found bool) {
	_, early, _, known := e.readStoreClock()
	seen := e.observationsOf(name)
	if known && rec.Foreign != 0 && rec.Foreign != NoEnd {
		soonest, found = microsToDuration(rec.Foreign-early), true
	}
	for i := range rec.Claims {
		c := &rec.Claims[i]
		left := e.observeTime(c)
		if from, ok := seen[observation{c.ID, c.Token, c.Beat}]; ok {
			left -= e.clock.SinceAtLeast(from)
		}
		if known && c.ExpiresAt > 0 {
			left = min(left, microsToDuration(c.ExpiresAt-early))
		}
		if !found || left < soonest {
			soonest, found = left, true
		}
	}
	return soonest, found
}

// isRenewalDue reports whether a holder has been silent for a third of its TTL, or nearly so: then its renewal is about to
// come.
func (e *engine) isRenewalDue(row Row, rec *Record) bool {
	now, off := e.table.Now()
	seen := e.observationsOf(row.Name)
	for i := range rec.Claims {
		c := &rec.Claims[i]
		var silent time.Duration
		if off >= 0 && c.ExpiresAt > 0 {
			silent = c.SilenceLimit - time.Duration(c.ExpiresAt-now)*time.Microsecond
		} else if from, ok := seen[observation{c.ID, c.Token, c.Beat}]; ok {
			silent = e.clock.SinceAtLeast(from)
		}
		if c.State == Granted && !c.Detached && silent >= c.TTL/3-2*e.roundTrip() {
			return true
		}
	}
	return false
}

// microsToDuration is a number of microseconds, up to 146 years: a foreign client may write an end that no Duration can tell.
func microsToDuration(n int64) time.Duration {
	const most = int64(math.MaxInt64 / 2 / time.Microsecond)
	return time.Duration(min(max(n, -most), most)) * time.Microsecond
}

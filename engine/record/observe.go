package record

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// maxSkip makes a beat that was forgotten come again once in a million times, and leaves room for a billion renewals of one lease.
const maxSkip = 1 << 20

// moment is what is known now, about the row that the next step will be made on.
func (e *engine) moment(row Row) StepInput {
	m := StepInput{ConfirmWindow: e.window(), BeatSkip: rand.Int64N(maxSkip)}
	m.Now, m.Earliest, m.Latest, m.ClockTrusted = e.storeClock()
	seen := e.sightings(row.Name)
	m.LivenessOf = func(c *Claim) Liveness {
		if e.gone(c) {
			return Dead
		}
		if from, ok := seen[sighting{c.ID, c.Token, c.Beat}]; ok && e.clock.SinceAtLeast(from) > e.patience(c) {
			return StoppedRenewing
		}
		return Alive
	}
	return m
}

// storeClock gives the best estimate of the store's clock, for tokens and to be shown, and between what it surely is, if that
// is known.
func (e *engine) storeClock() (now, early, late int64, known bool) {
	now, off := e.table.Now()
	early, late = now-off.Microseconds(), now+off.Microseconds()
	if off >= 0 && e.bounded != nil {
		early, late = e.bounded.ClockBounds()
	}
	return now, early, late, off >= 0
}

// patience is how long a claim must have been watched unchanged before it may be ended: as long as it may be silent, and
// a margin for clocks that run at different rates. The watching began after the claim's last write had been started, so
// its owner stopped believing a margin before its own count of the same time was over.
func (e *engine) patience(c *Claim) time.Duration {
	return c.SilenceLimit + driver.Margin(c.SilenceLimit)
}

// gone reports whether the table knows that a claim's client is not there any more.
func (e *engine) gone(c *Claim) bool {
	return e.presence != nil && !c.Detached && c.Session != "" && e.presence.IsDead(c.Session)
}

// sightings gives what is being watched on a lock. The map is not changed any more once it is there.
func (e *engine) sightings(name string) map[sighting]driver.Instant {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen[name]
}

// precise is how well the store's clock must be known to judge alone. Where it is known less well a claim may have been
// given a later end than need be, and is watched, too; so is one whose end is later than watching it would find, which was
// written by one who knew the clock less well, or before the clock was set back.
const precise = 50 * time.Millisecond

// watch notes how the claims of a freshly loaded record stand, and since when each has been seen so. It is called when
// the reply is there, not when the load was started: what was written in between must not count as watched before.
func (e *engine) watch(name string, rec *Record) {
	now := e.clock.Now()
	_, early, late, known := e.storeClock()
	judges := known && late-early <= 2*precise.Microseconds()
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.seen[name]
	var after map[sighting]driver.Instant
	for i := range rec.Claims {
		c := &rec.Claims[i]
		if judges && c.ExpiresAt > 0 && c.ExpiresAt-early <= e.patience(c).Microseconds() {
			continue // the store's clock judges it
		}
		key := sighting{c.ID, c.Token, c.Beat}
		from, ok := before[key]
		if !ok {
			from = now
		}
		if after == nil {
			after = make(map[sighting]driver.Instant, len(rec.Claims))
		}
		after[key] = from
	}
	if after == nil {
		delete(e.seen, name)
		return
	}
	e.seen[name] = after
	for other := range e.seen {
		if len(e.seen) <= maxKnown {
			break
		}
		delete(e.seen, other)
	}
}

// nextEnd is the soonest time at which a claim could be over, if nothing is heard of it.
func (e *engine) nextEnd(name string, rec *Record) (soonest time.Duration, found bool) {
	_, early, _, known := e.storeClock()
	seen := e.sightings(name)
	if known && rec.Foreign != 0 && rec.Foreign != NoEnd {
		soonest, found = micros(rec.Foreign-early), true
	}
	for i := range rec.Claims {
		c := &rec.Claims[i]
		left := e.patience(c)
		if from, ok := seen[sighting{c.ID, c.Token, c.Beat}]; ok {
			left -= e.clock.SinceAtLeast(from)
		}
		if known && c.ExpiresAt > 0 {
			left = min(left, micros(c.ExpiresAt-early))
		}
		if !found || left < soonest {
			soonest, found = left, true
		}
	}
	return soonest, found
}

// renewalDue reports whether a holder has been silent for a third of its TTL, or nearly so: then its renewal is about to
// come.
func (e *engine) renewalDue(row Row, rec *Record) bool {
	now, off := e.table.Now()
	seen := e.sightings(row.Name)
	for i := range rec.Claims {
		c := &rec.Claims[i]
		var silent time.Duration
		if off >= 0 && c.ExpiresAt > 0 {
			silent = c.SilenceLimit - time.Duration(c.ExpiresAt-now)*time.Microsecond
		} else if from, ok := seen[sighting{c.ID, c.Token, c.Beat}]; ok {
			silent = e.clock.SinceAtLeast(from)
		}
		if c.State == Granted && !c.Detached && silent >= c.TTL/3-2*e.roundTrip() {
			return true
		}
	}
	return false
}

// micros is a number of microseconds, up to 146 years: a foreign client may write an end that no Duration can tell.
func micros(n int64) time.Duration {
	const most = int64(math.MaxInt64 / 2 / time.Microsecond)
	return time.Duration(min(max(n, -most), most)) * time.Microsecond
}

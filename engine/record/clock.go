package record

import (
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// ServerClock estimates a server's clock from the times in its replies: [ServerClock.AddReply] for a server that is
// asked for its time, [ServerClock.AddDate] for the Date of an HTTP reply, [ServerClock.AddTimestamp] for the time of
// a write. Each reply puts the clock between two bounds, and the estimate is what the bounds of all replies have in
// common. Between replies the bounds move apart by one part in 100, because the two clocks may run at different
// rates.
//
// A reply that contradicts the others may come from a server whose clock was set, from another server that has taken
// over, or from a host or proxy with a wrong clock. Until a further reply agrees with one of the two clocks, either may
// be right, and the bounds include both. Claims never expire by a clock that is ahead of another one that was read
// within a day: their ends may have been written by that one, and would come early.
type ServerClock struct {
	Clock driver.Clock // the clock of the instants that are passed to AddReply and the others
	// HostsApart is how far the clocks of the hosts behind one address may be apart: each reply may come from another
	// one.
	HostsApart time.Duration

	mu            sync.Mutex
	known         bool
	agreed        span  // what the bounds of the replies have in common
	contradicting *span // a reply that contradicts them, and with which no other has agreed yet
	// Of the clocks that are not followed any more, the one that is furthest behind: of those abandoned in this period,
	// and of those in the period before (see rotatePeriod).
	lowest      [2]*span
	periodStart driver.Instant // when this period began
	last        int64          // the largest estimate that was returned
}

// span holds the bounds of a server's clock at an instant of our clock, in microseconds.
type span struct {
	at          driver.Instant
	early, late int64
}

const (
	// clockDrift says how much faster or slower than a server's our clock may run: one part in clockDrift.
	clockDrift = 100
	// maxReadingError is by how much a server's reading of its own clock may be wrong.
	maxReadingError = time.Millisecond
	// staleAfter is how much worse than after the last reply an estimate may become before it is worth a request.
	staleAfter = 300 * time.Millisecond
)

// shiftTo moves a span to another instant. The two readings of our clock may disagree about how much time has passed:
// the monotonic one stops while the machine sleeps, and the other may be a wall clock that is set, even during the
// sleep. So the first gives the minimum that has passed, and the maximum is the other one plus their difference.
func (s span) shiftTo(i driver.Instant) span {
	minPassed, maxPassed := i.Monotonic-s.at.Monotonic, i.Since(s.at)
	return span{
		at:    i,
		early: s.early + (minPassed - minPassed/clockDrift).Microseconds(),
		late:  s.late + (2*maxPassed - minPassed + maxPassed/clockDrift).Microseconds(),
	}
}

// intersect returns what two spans of one instant have in common, and false if that is nothing.
func (s span) intersect(o span) (span, bool) {
	both := span{s.at, max(s.early, o.early), min(s.late, o.late)}
	return both, both.early <= both.late
}

func (s span) midpoint() int64 { return s.early + (s.late-s.early)/2 }

// laterOf returns the later of two instants of one clock.
func laterOf(i, j driver.Instant) driver.Instant {
	if j.Monotonic >= i.Monotonic {
		return j
	}
	return i
}

// AddReply adds a reply that arrived at to, and whose request was sent at from. The server read its clock in between.
func (c *ServerClock) AddReply(micro int64, from, to driver.Instant) {
	c.addReading(micro, 0, from, to)
}

// AddDate adds the Date of an HTTP reply, which is cut to the second.
func (c *ServerClock) AddDate(date time.Time, from, to driver.Instant) {
	c.addReading(date.UnixMicro(), time.Second, from, to)
}

// AddTimestamp adds the time that the server gave to a write, cut to a resolution.
func (c *ServerClock) AddTimestamp(stamp time.Time, resolution time.Duration, from, to driver.Instant) {
	c.addReading(stamp.UnixMicro(), resolution, from, to)
}

// addReading adds a reading, which the server may have cut by up to cut. If each of several hosts allows for
// HostsApart, the bounds of every reading include the clocks of all of them: no clock of theirs is behind the early
// bound, and none ahead of the late one.
func (c *ServerClock) addReading(micro int64, cut time.Duration, from, to driver.Instant) {
	wrong := c.HostsApart + maxReadingError
	reading := span{to, micro - wrong.Microseconds(), micro + (to.Since(from) + cut + wrong).Microseconds()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		c.known, c.agreed = true, reading
		return
	}
	now := laterOf(c.agreed.at, reading.at) // replies may overtake each other
	reading, agreed := reading.shiftTo(now), c.agreed.shiftTo(now)
	if both, ok := agreed.intersect(reading); ok {
		c.agreed = both
		c.followAgreed(agreed, nil)
		return
	}
	if c.contradicting != nil {
		odd := c.contradicting.shiftTo(now)
		if both, ok := odd.intersect(reading); ok {
			c.noteAbandonedClock(agreed, odd)
			c.agreed = both
			c.contradicting = nil
			return
		}
	}
	reply := reading // a copy, so that only the rare reading that is kept is allocated
	c.followAgreed(agreed, &reply)
}

// followAgreed keeps following what the replies agree on, and replaces the contradicting reply with another one or
// none.
func (c *ServerClock) followAgreed(agreed span, odd *span) {
	if c.contradicting != nil {
		c.noteAbandonedClock(c.contradicting.shiftTo(agreed.at), agreed)
	}
	c.contradicting = odd
}

// noteAbandonedClock remembers a clock that is not followed any more, if it is behind the one that is. Claims may have
// ends that were set by it.
func (c *ServerClock) noteAbandonedClock(left, followed span) {
	if left.early >= followed.early {
		return
	}
	c.rotatePeriod(left.at)
	if b := c.lowest[0]; b == nil || b.shiftTo(left.at).early > left.early {
		c.lowest[0] = &left
	}
}

// rotatePeriod begins another period when this one is as long as the longest TTL. A clock that is noted in one period
// counts until the end of the next one, and so at least as long as any claim with an end by that clock.
func (c *ServerClock) rotatePeriod(now driver.Instant) {
	passed := now.Monotonic - c.periodStart.Monotonic
	if passed <= driver.MaxTTL {
		return
	}
	c.lowest = [2]*span{nil, c.lowest[0]}
	if passed > 2*driver.MaxTTL {
		c.lowest[1] = nil
	}
	c.periodStart = now
}

// boundsAt returns the bounds of the server's clock by everything that is known, and the best estimate.
func (c *ServerClock) boundsAt(i driver.Instant) (s span, middle int64) {
	c.rotatePeriod(i)
	s = c.agreed.shiftTo(i)
	middle = s.midpoint()
	if c.contradicting != nil {
		odd := c.contradicting.shiftTo(i)
		s.early, s.late, middle = min(s.early, odd.early), max(s.late, odd.late), min(middle, odd.midpoint())
	}
	for _, b := range c.lowest {
		if b != nil {
			s.early = min(s.early, b.shiftTo(i).early)
		}
	}
	return s, middle
}

// Known reports whether there was any reply with a time.
func (c *ServerClock) Known() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known
}

// IsStale reports that there was no reply for half a minute, or that the machine was asleep, or that two replies
// contradict each other.
func (c *ServerClock) IsStale() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known || c.contradicting != nil {
		return true
	}
	now := c.agreed.shiftTo(c.Clock.Now())
	grown := (now.late - now.early) - (c.agreed.late - c.agreed.early)
	return grown > 2*staleAfter.Microseconds()
}

// Bounds implements [Clock].
func (c *ServerClock) Bounds() (early, late int64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		return 0, 0, false
	}
	s, _ := c.boundsAt(c.Clock.Now())
	return s.early, s.late, true
}

// TokenFloor implements [Table].TokenFloor: the best estimate of the server's clock, and before the first reply this
// machine's wall clock. It rises with each call, also while a better estimate is behind an earlier one: so the tokens
// of a client rise even if somebody removes the record in between.
func (c *ServerClock) TokenFloor() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now().UnixMicro()
	if c.known {
		_, now = c.boundsAt(c.Clock.Now())
	}
	c.last = max(c.last+1, now)
	return c.last
}

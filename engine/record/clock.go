package record

import (
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// ServerClock estimates a server's clock from what the server's replies say of it: [ServerClock.Heard] for a server that is
// asked for its time, [ServerClock.HeardDate] for the Date of an HTTP reply. Each reply puts it between two bounds, and the
// estimate is what the replies have in common; while nothing is heard the bounds move apart by one part in 100.
//
// A reply that contradicts the others may come from a server whose clock was set, from another one that has taken over, or from a
// host or a proxy that does not know the time. Until a further reply agrees with one of the two, either may be right. Nobody is
// ever judged by a clock that is ahead of another one heard within a day: the ends that were written by that one would come early.
type ServerClock struct {
	Clock driver.Clock // where the instants given to Heard are from
	// HostsApart is how far the clocks of the hosts behind one address may lie apart that date replies.
	HostsApart time.Duration

	mu            sync.Mutex
	known         bool
	agreed        span           // what the replies have in common
	contradicting *span          // one reply that contradicts them, and no other has agreed with yet
	lowest        [2]*span       // the lowest of the clocks that are not followed any more: in this period, and in the one before
	periodStart   driver.Instant // when this period began
	last          int64          // the largest estimate given out
}

// span is between what a server's clock was at an instant of ours, in microseconds.
type span struct {
	at          driver.Instant
	early, late int64
}

const (
	// clockDrift is how much our clock may run faster or slower than a server's: one part in so many.
	clockDrift = 100
	// readingTime is how much wrong an exact reading may be beside the time that the reply took.
	readingTime = time.Millisecond
	// staleAfter is how much worse than after the last reply an estimate may be before it is worth a request.
	staleAfter = 300 * time.Millisecond
)

// shiftTo is where a span lies at another instant. The hands of our clock may say different things: one stands still while the
// machine sleeps, the other may be a wall clock that is set, even in its sleep. So the first is believed for the least that has
// passed, and for the most the other and their difference.
func (s span) shiftTo(i driver.Instant) span {
	least, most := i.Monotonic-s.at.Monotonic, i.Since(s.at)
	return span{i, s.early + (least - least/clockDrift).Microseconds(), s.late + (2*most - least + most/clockDrift).Microseconds()}
}

// intersect is what two spans of one instant have in common.
func (s span) intersect(o span) (span, bool) {
	both := span{s.at, max(s.early, o.early), min(s.late, o.late)}
	return both, both.early <= both.late
}

func (s span) midpoint() int64 { return s.early + (s.late-s.early)/2 }

func laterOf(i, j driver.Instant) driver.Instant {
	if j.Monotonic >= i.Monotonic {
		return j
	}
	return i
}

// AddReply takes in a reply that came at to, and was asked for at from: the server read its clock in between.
func (c *ServerClock) AddReply(micro int64, from, to driver.Instant) {
	c.addReading(micro, 0, readingTime, from, to)
}

// AddDate takes in the Date of an HTTP reply, which is cut to the second.
func (c *ServerClock) AddDate(date time.Time, from, to driver.Instant) {
	c.addReading(date.UnixMicro(), time.Second, c.HostsApart+readingTime, from, to)
}

// AddTimestamp takes in the time that the server gave to a write, cut to a resolution.
func (c *ServerClock) AddTimestamp(stamp time.Time, resolution time.Duration, from, to driver.Instant) {
	c.addReading(stamp.UnixMicro(), resolution, readingTime, from, to)
}

// addReading takes in a reading that may have been cut, and be wrong beside that.
func (c *ServerClock) addReading(micro int64, cut, wrong time.Duration, from, to driver.Instant) {
	reply := span{to, micro - wrong.Microseconds(), micro + (to.Since(from) + cut + wrong).Microseconds()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		c.known, c.agreed = true, reply
		return
	}
	now := laterOf(c.agreed.at, reply.at) // replies may overtake each other
	reply, agreed := reply.shiftTo(now), c.agreed.shiftTo(now)
	if both, ok := agreed.intersect(reply); ok {
		c.agreed = both
		c.followAgreed(agreed, nil)
		return
	}
	if c.contradicting != nil {
		odd := c.contradicting.shiftTo(now)
		if both, ok := odd.intersect(reply); ok {
			c.noteLeftClock(agreed, odd)
			c.agreed = both
			c.contradicting = nil
			return
		}
	}
	c.followAgreed(agreed, &reply)
}

// followAgreed goes on with what the replies have agreed on, and leaves the odd one for another, or for none.
func (c *ServerClock) followAgreed(agreed span, odd *span) {
	if c.contradicting != nil {
		c.noteLeftClock(c.contradicting.shiftTo(agreed.at), agreed)
	}
	c.contradicting = odd
}

// noteLeftClock notes a clock that is not followed any more, if it is behind the one that is.
func (c *ServerClock) noteLeftClock(left, followed span) {
	if left.early >= followed.early {
		return
	}
	c.rotatePeriod(left.at)
	if b := c.lowest[0]; b == nil || b.shiftTo(left.at).early > left.early {
		c.lowest[0] = &left
	}
}

// rotatePeriod begins another period when this one is as long as a claim can stand: what is noted in one counts for at least as long.
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

// boundsAt gives between what the server's clock is, by whatever of it was heard, and the middle of what is followed.
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

// Known reports whether any reply has told the time.
func (c *ServerClock) Known() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known
}

// ClockIsStale is what [Aging] asks for: nothing was heard for half a minute, or the machine has slept, or two replies contradict each
// other.
func (c *ServerClock) ClockIsStale() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known || c.contradicting != nil {
		return true
	}
	now := c.agreed.shiftTo(c.Clock.Now())
	grown := (now.late - now.early) - (c.agreed.late - c.agreed.early)
	return grown > 2*staleAfter.Microseconds()
}

// ClockBounds is what [Bounded] asks for.
func (c *ServerClock) ClockBounds() (early, late int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, _ := c.boundsAt(c.Clock.Now())
	return s.early, s.late
}

// Now is what [Table].Now asks for. Before the first reply it is this machine's clock, good for nothing but tokens.
func (c *ServerClock) Now() (int64, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		c.last = max(c.last, time.Now().UnixMicro())
		return c.last, -1
	}
	s, middle := c.boundsAt(c.Clock.Now())
	c.last = max(c.last, middle)
	return c.last, time.Duration(max(c.last-s.early, s.late-c.last)) * time.Microsecond
}

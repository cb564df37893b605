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

	mu     sync.Mutex
	known  bool
	agreed span           // what the replies have in common
	odd    *span          // one reply that contradicts them, and no other has agreed with yet
	behind [2]*span       // the lowest of the clocks that are not followed any more: in this period, and in the one before
	period driver.Instant // when this period began
	last   int64          // the largest estimate given out
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

// when is where a span lies at another instant. The hands of our clock may say different things: one stands still while the
// machine sleeps, the other may be a wall clock that is set, even in its sleep. So the first is believed for the least that has
// passed, and for the most the other and their difference.
func (s span) when(i driver.Instant) span {
	least, most := i.Monotonic-s.at.Monotonic, i.Since(s.at)
	return span{i, s.early + (least - least/clockDrift).Microseconds(), s.late + (2*most - least + most/clockDrift).Microseconds()}
}

// and is what two spans of one instant have in common.
func (s span) and(o span) (span, bool) {
	both := span{s.at, max(s.early, o.early), min(s.late, o.late)}
	return both, both.early <= both.late
}

func (s span) middle() int64 { return s.early + (s.late-s.early)/2 }

func latest(i, j driver.Instant) driver.Instant {
	if j.Monotonic >= i.Monotonic {
		return j
	}
	return i
}

// AddReply takes in a reply that came at to, and was asked for at from: the server read its clock in between.
func (c *ServerClock) AddReply(micro int64, from, to driver.Instant) {
	c.heard(micro, 0, readingTime, from, to)
}

// AddDate takes in the Date of an HTTP reply, which is cut to the second.
func (c *ServerClock) AddDate(date time.Time, from, to driver.Instant) {
	c.heard(date.UnixMicro(), time.Second, c.HostsApart+readingTime, from, to)
}

// AddTimestamp takes in the time that the server gave to a write, cut to a resolution.
func (c *ServerClock) AddTimestamp(stamp time.Time, resolution time.Duration, from, to driver.Instant) {
	c.heard(stamp.UnixMicro(), resolution, readingTime, from, to)
}

// heard takes in a reading that may have been cut, and be wrong beside that.
func (c *ServerClock) heard(micro int64, cut, wrong time.Duration, from, to driver.Instant) {
	reply := span{to, micro - wrong.Microseconds(), micro + (to.Since(from) + cut + wrong).Microseconds()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		c.known, c.agreed = true, reply
		return
	}
	now := latest(c.agreed.at, reply.at) // replies may overtake each other
	reply, agreed := reply.when(now), c.agreed.when(now)
	if both, ok := agreed.and(reply); ok {
		c.agreed = both
		c.follow(agreed, nil)
		return
	}
	if c.odd != nil {
		odd := c.odd.when(now)
		if both, ok := odd.and(reply); ok {
			c.leave(agreed, odd)
			c.agreed = both
			c.odd = nil
			return
		}
	}
	c.follow(agreed, &reply)
}

// follow goes on with what the replies have agreed on, and leaves the odd one for another, or for none.
func (c *ServerClock) follow(agreed span, odd *span) {
	if c.odd != nil {
		c.leave(c.odd.when(agreed.at), agreed)
	}
	c.odd = odd
}

// leave notes a clock that is not followed any more, if it is behind the one that is.
func (c *ServerClock) leave(left, followed span) {
	if left.early >= followed.early {
		return
	}
	c.turn(left.at)
	if b := c.behind[0]; b == nil || b.when(left.at).early > left.early {
		c.behind[0] = &left
	}
}

// turn begins another period when this one is as long as a claim can stand: what is noted in one counts for at least as long.
func (c *ServerClock) turn(now driver.Instant) {
	passed := now.Monotonic - c.period.Monotonic
	if passed <= driver.MaxTTL {
		return
	}
	c.behind = [2]*span{nil, c.behind[0]}
	if passed > 2*driver.MaxTTL {
		c.behind[1] = nil
	}
	c.period = now
}

// now gives between what the server's clock is, by whatever of it was heard, and the middle of what is followed.
func (c *ServerClock) now(i driver.Instant) (s span, middle int64) {
	c.turn(i)
	s = c.agreed.when(i)
	middle = s.middle()
	if c.odd != nil {
		odd := c.odd.when(i)
		s.early, s.late, middle = min(s.early, odd.early), max(s.late, odd.late), min(middle, odd.middle())
	}
	for _, b := range c.behind {
		if b != nil {
			s.early = min(s.early, b.when(i).early)
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
	if !c.known || c.odd != nil {
		return true
	}
	now := c.agreed.when(c.Clock.Now())
	grown := (now.late - now.early) - (c.agreed.late - c.agreed.early)
	return grown > 2*staleAfter.Microseconds()
}

// ClockBounds is what [Bounded] asks for.
func (c *ServerClock) ClockBounds() (early, late int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, _ := c.now(c.Clock.Now())
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
	s, middle := c.now(c.Clock.Now())
	c.last = max(c.last, middle)
	return c.last, time.Duration(max(c.last-s.early, s.late-c.last)) * time.Microsecond
}

package dynamodb

import (
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// clock estimates the service's clock from the Date of its replies. A Date has whole seconds, so one reply tells the time to
// a second and the time that it took; of several, which fall into different parts of a second, what they have in common is
// much less. The estimate gets worse again while nothing is heard.
type clock struct {
	hands driver.Clock

	mu          sync.Mutex
	known       bool
	at          driver.Instant // when the bounds were
	early, late int64          // the service's clock, in microseconds, was between these
	least       time.Duration  // how well one reply alone would tell the time
	last        int64          // the largest given out
}

const (
	// hostsDiffer is how far the clocks of the hosts behind one endpoint may lie apart.
	hostsDiffer = 100 * time.Millisecond
	// drift is how much our clock may run faster or slower than theirs: one part in so many.
	drift = 2000
	// tokenGap is more than twice what a client may be off that has heard one reply, on a slow link.
	tokenGap = 3 * time.Second
	// staleAfter is how much worse than after a single reply an estimate may be before it is worth a request.
	staleAfter = 200 * time.Millisecond
)

// heard takes in a reply to a request that was sent at from and answered by now.
func (c *clock) heard(date time.Time, from driver.Instant) {
	now := c.hands.Now()
	early := date.Add(-hostsDiffer).UnixMicro()
	late := date.Add(time.Second + c.hands.Since(from) + hostsDiffer).UnixMicro()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.least = time.Duration(late-early) * time.Microsecond / 2
	if c.known {
		e, l := c.bounds()
		if max(e, early) <= min(l, late) { // else somebody has set his clock, and the newest counts
			early, late = max(e, early), min(l, late)
		}
	}
	c.known, c.at, c.early, c.late = true, now, early, late
}

// bounds gives between what the service's clock is now. The hand that may stand still has it at the least, the other at
// the most.
func (c *clock) bounds() (early, late int64) {
	least, most := c.hands.AtLeast(c.at), c.hands.Since(c.at)
	return c.early + (least - least/drift).Microseconds(), c.late + (most + most/drift).Microseconds()
}

// now gives the middle, which never falls, and how far off it may be; negative before the first reply.
func (c *clock) now() (int64, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		return 0, -1
	}
	early, late := c.bounds()
	c.last = max(c.last, early+(late-early)/2)
	return c.last, time.Duration(max(c.last-early, late-c.last)) * time.Microsecond
}

// stale reports whether a reply would tell the time much better than is known.
func (c *clock) stale() bool {
	_, off := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return off < 0 || off > c.least+staleAfter
}

package record

import (
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// ServerClock is for tables whose server tells its clock with a reply: it was read after the start of the request and before
// the reply's arrival. A server whose clock is set, or that takes over with another clock, is followed, but the estimate never
// falls. Where the new clock is ahead, the ends that claims have by the old one would come early: so the estimate is given as
// off by the step until no such end can be left, and claims are watched meanwhile.
type ServerClock struct {
	Clock driver.Clock // where the instants given to Heard are from

	mu    sync.Mutex
	known bool
	micro int64          // the server's clock
	at    driver.Instant // at this instant of ours
	off   time.Duration  // and off by no more than this
	last  int64          // the largest given out

	ahead   time.Duration  // by how much at the most the server's clock is ahead of what it was
	stepped driver.Instant // when that was found
}

// Heard takes in what a reply said that came at to, and was asked for at from: if it is a better estimate than the one there
// is, or shows that one to be wrong.
func (c *ServerClock) Heard(micro int64, from, to driver.Instant) {
	off := to.Since(from)/2 + time.Millisecond
	mid := driver.Instant{Monotonic: (from.Monotonic + to.Monotonic) / 2, Real: (from.Real + to.Real) / 2}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known {
		if mid.Monotonic < c.at.Monotonic {
			return // a later one is known
		}
		then, was := c.reckon(mid)
		wrong := time.Duration(micro-then) * time.Microsecond
		switch {
		case wrong.Abs() > was+off:
			c.ahead, c.stepped = max(0, c.doubt(to)+wrong+was+off), to
		case off > was:
			return
		}
	}
	c.known, c.micro, c.at, c.off = true, micro, mid, off
}

// reckon is the estimate of an instant after the last reply that counted. It grows worse by 1 % of the time that has passed,
// and by what the hands say differently: one stands still while the machine sleeps, the other may be a wall clock that is set.
func (c *ServerClock) reckon(i driver.Instant) (micro int64, off time.Duration) {
	most, least := i.Since(c.at), i.Monotonic-c.at.Monotonic
	return c.micro + most.Microseconds(), c.off + most/100 + most - least
}

// staleAfter is how much worse than after the last reply an estimate may be before it is worth a request.
const staleAfter = 300 * time.Millisecond

// Stale is what [Aging] asks for.
func (c *ServerClock) Stale() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, off := c.reckon(c.Clock.Now())
	return !c.known || off > c.off+staleAfter
}

// doubt is by how much ends may come early that were written before the server's clock was set.
func (c *ServerClock) doubt(now driver.Instant) time.Duration {
	if now.Monotonic-c.stepped.Monotonic > driver.MaxTTL {
		return 0
	}
	return c.ahead
}

// Now is what [Table].Now asks for. Before the first reply it is this machine's clock, good for nothing but tokens.
func (c *ServerClock) Now() (int64, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	micro, off := time.Now().UnixMicro(), time.Duration(-1)
	if c.known {
		now := c.Clock.Now()
		micro, off = c.reckon(now)
		off += c.doubt(now)
	}
	if micro < c.last {
		if off >= 0 {
			off += time.Duration(c.last-micro) * time.Microsecond
		}
		micro = c.last
	}
	c.last = micro
	return micro, off
}

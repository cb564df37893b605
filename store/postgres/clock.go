package postgres

import (
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// serverClock estimates the server's clock from its replies: it was read after the start of a request and before the
// reply's arrival. A server that takes over with another clock is followed, but the estimate never falls.
type serverClock struct {
	clock driver.Clock

	mu    sync.Mutex
	known bool
	micro int64          // the server's clock
	at    driver.Instant // at this instant of ours
	off   time.Duration  // and off by no more than this
	last  int64          // the largest given out
}

// heard takes an estimate over if it is better than the one there is, or shows that one to be wrong.
func (c *serverClock) heard(micro int64, from, to driver.Instant) {
	length := max(to.Monotonic-from.Monotonic, to.Real-from.Real)
	off := length/2 + time.Millisecond
	mid := driver.Instant{Monotonic: (from.Monotonic + to.Monotonic) / 2, Real: (from.Real + to.Real) / 2}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known {
		since := max(mid.Monotonic-c.at.Monotonic, mid.Real-c.at.Real)
		was := c.off + since.Abs()/100
		wrong := time.Duration(micro-c.micro)*time.Microsecond - since
		if wrong.Abs() <= was+off && off > was {
			return
		}
	}
	c.known, c.micro, c.at, c.off = true, micro, mid, off
}

// now gives the estimate, which grows worse by 1 % of the time that has passed. Before the first reply it is this
// machine's clock, good for nothing but tokens.
func (c *serverClock) now() (int64, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	micro, off := time.Now().UnixMicro(), time.Duration(-1)
	if c.known {
		d := c.clock.Since(c.at)
		micro, off = c.micro+d.Microseconds(), c.off+d/100
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

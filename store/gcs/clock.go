package gcs

import (
	"net/http"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// storeClock estimates the store's clock from what replies say of it. All that is known is that it lies between two
// bounds, which grow apart by 1 % of the time that passes, and close in on it with each reply.
type storeClock struct {
	clock driver.Clock

	mu      sync.Mutex
	known   bool
	at      driver.Instant // when the store's clock was
	low     int64          // past this, in microseconds,
	high    int64          // and not past this
	told    int64          // the largest given out
	checked driver.Instant // when it was last heard
}

// heard takes in that at some instant since from the store's clock was at or after low, and before low + within.
func (c *storeClock) heard(low time.Time, within time.Duration, from driver.Instant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	l, h := low.UnixMicro(), low.Add(within+c.clock.Since(from)).UnixMicro()
	if c.known {
		was, is := c.bounds(now)
		if was <= h && l <= is { // else the two contradict each other, and the later one counts
			l, h = max(l, was), min(h, is)
		}
	}
	c.known, c.at, c.low, c.high, c.checked = true, now, l, h, now
}

// date takes in a reply's Date, which is cut to the second.
func (c *storeClock) date(h http.Header, from driver.Instant) bool {
	d, err := http.ParseTime(h.Get("Date"))
	if err == nil {
		c.heard(d, time.Second, from)
	}
	return err == nil
}

// stamp takes in the time that the store gave to a write of ours, which is cut to the millisecond.
func (c *storeClock) stamp(written time.Time, from driver.Instant) {
	if !written.IsZero() {
		c.heard(written, time.Millisecond, from)
	}
}

// bounds has the hand that may stand still at the least, and the other, which may be a wall clock that is set, at the most.
func (c *storeClock) bounds(now driver.Instant) (low, high int64) {
	least, most := now.Monotonic-c.at.Monotonic, now.Since(c.at)
	return c.low + (least - least/100).Microseconds(), c.high + (most + most/100).Microseconds()
}

// now is the middle between the bounds, and never falls.
func (c *storeClock) now() (int64, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	low, high := c.bounds(c.clock.Now())
	mid := max((low+high)/2, c.told)
	c.told = mid
	return mid, time.Duration(max(mid-low, high-mid)) * time.Microsecond
}

func (c *storeClock) isKnown() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known
}

// stale reports whether nothing was heard for so long that the bounds are worth a request.
func (c *storeClock) stale() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clock.Since(c.checked) > 30*time.Second
}

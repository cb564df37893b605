package torture

import (
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// shiftedClock is the clock of a worker, which the command shifts. Time that it measures never goes back.
type shiftedClock struct {
	real driver.Clock

	mu         sync.Mutex
	wall, boot time.Duration // how far these are ahead
	rate       float64       // how fast both elapse
	from, seen [2]time.Duration
}

// shiftClock replaces the clock of this process. It is called before a store is opened.
func shiftClock() *shiftedClock {
	c := &shiftedClock{real: driver.SystemClock, rate: 1}
	c.from = [2]time.Duration{c.real.Monotonic(), c.real.Boottime()}
	c.seen = c.from
	driver.SystemClock = driver.Clock{
		Monotonic: func() time.Duration { return c.read(0, c.real.Monotonic) },
		Boottime:  func() time.Duration { return c.read(1, c.real.Boottime) },
		Wall: func() time.Duration {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.real.Wall() + c.wall
		},
	}
	return c
}

// read returns the real clock, moved and sped up as the fault demands.
func (c *shiftedClock) read(which int, real func() time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.seen[which]
	if elapsed := real() - c.from[which]; c.rate == 1 {
		at += elapsed
	} else {
		at += time.Duration(float64(elapsed) * c.rate)
	}
	if which == 1 {
		at += c.boot
	}
	return at
}

// skew carries out an order to shift the clock.
func (c *shiftedClock) skew(o order, bootFit bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += o.Wall
	if !bootFit {
		return
	}
	if o.Boot > 0 {
		c.boot += o.Boot
	}
	if o.Rate > 0 {
		real := [2]time.Duration{c.real.Monotonic(), c.real.Boottime()}
		for i := range real {
			c.seen[i] += time.Duration(float64(real[i]-c.from[i]) * c.rate)
			c.from[i] = real[i]
		}
		c.rate = o.Rate
	}
}

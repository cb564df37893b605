package driver

import "time"

// Clock is where all of Holdfast reads elapsed time. It has two hands because neither alone can be trusted: Go's
// monotonic clock stands still while a machine is suspended, and the wall clock alone would end every lease whenever
// somebody sets it. The zero Clock is not usable; take [SystemClock], or one of a test's own.
type Clock struct {
	// Monotonic never goes back and is never set, but may stand still while the machine sleeps.
	Monotonic func() time.Duration
	// Boottime goes on while the machine sleeps: CLOCK_BOOTTIME on Linux, the like of it elsewhere, the wall clock
	// where there is none.
	Boottime func() time.Duration
	// Wall is the wall clock, which anybody may set. No time is measured with it. When it steps forward against
	// Boottime, the machine may have been stopped with all of its clocks, as a virtual machine is that its host pauses,
	// and somebody has set the clock right since: the client then renews all leases at once, to learn which are lost.
	// It may be nil.
	Wall func() time.Duration
}

// Instant is a moment on a Clock, meaningful only to clocks of the same machine and boot. Compare with Clock.Since.
type Instant struct{ Monotonic, Boottime time.Duration }

// Now reads both hands.
func (c Clock) Now() Instant { return Instant{c.Monotonic(), c.Boottime()} }

// Since is the time that has passed since i at most: the larger of what the two hands say. A holder that asks how
// long it may still believe asks this.
func (c Clock) Since(i Instant) time.Duration { return c.Now().Since(i) }

// SinceAtLeast is the time that has surely passed since i: that of the hand which may stand still, but is never set. An
// observer that wants to end somebody else's claim asks this.
func (c Clock) SinceAtLeast(i Instant) time.Duration { return c.Monotonic() - i.Monotonic }

// Since is [Clock.Since] for a clock that was read at i: reading it is a system call, so what follows from one reading
// should use one.
func (i Instant) Since(earlier Instant) time.Duration {
	return max(i.Monotonic-earlier.Monotonic, i.Boottime-earlier.Boottime)
}

// Add is the moment d after i.
func (i Instant) Add(d time.Duration) Instant { return Instant{i.Monotonic + d, i.Boottime + d} }

// SystemClock is the machine's.
var SystemClock = Clock{Monotonic: monotonic, Boottime: realTime, Wall: wallTime}

var started = time.Now()

func monotonic() time.Duration { return time.Since(started) }

func wallTime() time.Duration { return time.Duration(time.Now().UnixNano()) }

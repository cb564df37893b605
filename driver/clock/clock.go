// Package clock reads elapsed time. It imports next to nothing, so that a program that needs no more of Holdfast than
// this, such as the guard of the command, starts fast.
package clock

import "time"

// Clock is where all of Holdfast reads elapsed time. It has two readings because neither alone can be trusted: Go's
// monotonic clock stops while a machine is suspended, and the wall clock would end every lease whenever somebody sets
// it. The zero Clock is not usable; use [System], or a clock made for a test.
type Clock struct {
	// Monotonic never goes back and is never set, but may stop while the machine sleeps.
	Monotonic func() time.Duration
	// Boottime continues while the machine sleeps: CLOCK_BOOTTIME on Linux, its equivalent on other systems, or the
	// wall clock if there is none.
	Boottime func() time.Duration
	// Wall is the wall clock, which anybody may set. No time is measured with it. If it steps forward against Boottime,
	// the machine may have been stopped with all its clocks (a virtual machine that its host paused), and the wall
	// clock may have been set right since. The client then renews all leases at once, to learn which are lost. Wall may
	// be nil.
	Wall func() time.Duration
}

// Instant is a reading of a Clock. It means something only to clocks of the same machine and boot; see [Clock.Since].
type Instant struct{ Monotonic, Boottime time.Duration }

// Now reads both clocks.
func (c Clock) Now() Instant { return Instant{c.Monotonic(), c.Boottime()} }

// Since is the time that has passed since i at most: the larger of the two readings. A holder uses it to find out how
// long its lease is still valid.
func (c Clock) Since(i Instant) time.Duration { return c.Now().Since(i) }

// SinceAtLeast is the time that has certainly passed since i, by the clock that may stop but is never set. An observer
// uses it before it expires another client's claim.
func (c Clock) SinceAtLeast(i Instant) time.Duration { return c.Monotonic() - i.Monotonic }

// Since is [Clock.Since] for a clock that was read at i. Reading the clock is a system call, so code that needs several
// differences reads it once.
func (i Instant) Since(earlier Instant) time.Duration {
	return max(i.Monotonic-earlier.Monotonic, i.Boottime-earlier.Boottime)
}

// Add returns the instant d after i.
func (i Instant) Add(d time.Duration) Instant { return Instant{i.Monotonic + d, i.Boottime + d} }

// System is the clock of this machine.
var System = Clock{Monotonic: monotonic, Boottime: realTime, Wall: wallTime}

var started = time.Now()

func monotonic() time.Duration { return time.Since(started) }

func wallTime() time.Duration { return time.Duration(time.Now().UnixNano()) }

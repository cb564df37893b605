package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// realTime is CLOCK_MONOTONIC, which on this system goes on during sleep (Go's own monotonic clock does not).
func realTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return monotonic()
	}
	return time.Duration(ts.Nano())
}

package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// realTime is CLOCK_BOOTTIME: CLOCK_MONOTONIC plus the time spent suspended.
func realTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return monotonic()
	}
	return time.Duration(ts.Nano())
}

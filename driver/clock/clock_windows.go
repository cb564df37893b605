package clock

import (
	"time"

	"golang.org/x/sys/windows"
)

// realTime is the time since the boot, with that spent asleep (GetTickCount64; Go's own monotonic clock does not count
// that). It moves in steps of up to 16 ms, and nobody can set it.
func realTime() time.Duration { return windows.DurationSinceBoot() }

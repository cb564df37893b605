//go:build !linux && !darwin && !windows

package clock

import "time"

// realTime is the wall clock, for want of a clock that counts sleep and cannot be set.
func realTime() time.Duration { return time.Duration(time.Now().Round(0).UnixNano()) }

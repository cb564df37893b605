package boot

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// ID returns the id of the present boot of the machine.
func ID() (string, error) {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return "", fmt.Errorf("the id of this boot cannot be read: %w", err)
	}
	return id, nil
}

// ClockShift returns how far this process's boot clock is ahead of the kernel's own. On this system all processes
// share one.
func ClockShift() (time.Duration, error) { return 0, nil }

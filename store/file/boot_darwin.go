package file

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// bootID names this run of the machine's kernel.
func bootID() (string, error) {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return "", fmt.Errorf("the id of this boot cannot be read: %w", err)
	}
	return id, nil
}

// clockShift is how far this process's boot clock is ahead of the kernel's own: here all share one.
func clockShift() (time.Duration, error) { return 0, nil }

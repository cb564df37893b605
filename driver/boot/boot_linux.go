package boot

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// ID returns the id of the present boot of the machine: a random text that the kernel makes once per boot
// (random(4)). It is the same in every container, except in those that were given an id of their own.
func ID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("the id of this boot cannot be read (is /proc mounted?): %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// ClockShift returns how far this process's boot clock is ahead of the kernel's own. Time namespaces shift it, and
// the kernel shows by how much (time_namespaces(7)), so that clients in different namespaces agree on the time.
func ClockShift() (time.Duration, error) {
	b, err := os.ReadFile("/proc/self/timens_offsets")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // a kernel without time namespaces
	}
	if err != nil {
		return 0, err
	}
	// The file describes the namespace of this process's children. It is a different one only after an unshare.
	own, err1 := os.Readlink("/proc/self/ns/time")
	children, err2 := os.Readlink("/proc/self/ns/time_for_children")
	if err1 != nil || err2 != nil || own != children {
		return 0, errors.New("this process is about to leave its time namespace: its clock cannot be compared with others'")
	}
	return parseShift(b)
}

// parseShift reads the shift of the boot clock from the content of /proc/self/timens_offsets.
func parseShift(offsets []byte) (time.Duration, error) {
	for lines := bufio.NewScanner(bytes.NewReader(offsets)); lines.Scan(); {
		var seconds, nanos int64
		if n, _ := fmt.Sscanf(lines.Text(), "boottime %d %d", &seconds, &nanos); n == 2 {
			return time.Duration(seconds)*time.Second + time.Duration(nanos), nil
		}
	}
	return 0, fmt.Errorf("the shift of the boot clock is not in %q", offsets)
}

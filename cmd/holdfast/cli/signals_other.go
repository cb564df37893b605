//go:build unix && !linux

package cli

import (
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// resetSignal restores a signal's default action. The Go runtime cannot do that for SIGQUIT.
func resetSignal(sig syscall.Signal) bool {
	if sig == unix.SIGQUIT {
		return false
	}
	signal.Reset(sig)
	return true
}

func isSystemd(int) bool { return false }

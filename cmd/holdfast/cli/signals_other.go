//go:build !linux

package cli

import (
	"os/signal"
	"syscall"
)

// resetSignal restores a signal's default action. The Go runtime cannot do that for SIGQUIT.
func resetSignal(sig syscall.Signal) bool {
	if sig == syscall.SIGQUIT {
		return false
	}
	signal.Reset(sig)
	return true
}

func isSystemd(int) bool { return false }

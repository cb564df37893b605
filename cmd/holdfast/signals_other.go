//go:build unix && !linux

package main

import (
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// resetSignal gives a signal the meaning back that it has for a program that knows nothing of it. For SIGQUIT the Go runtime
// cannot.
func resetSignal(sig syscall.Signal) bool {
	if sig == unix.SIGQUIT {
		return false
	}
	signal.Reset(sig)
	return true
}

func isSystemd(int) bool { return false }

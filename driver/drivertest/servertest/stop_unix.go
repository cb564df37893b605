//go:build unix

package servertest

import "syscall"

// The signals that stop a process, and continue it.
const (
	stopSignal     = syscall.SIGSTOP
	continueSignal = syscall.SIGCONT
)

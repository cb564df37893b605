//go:build !unix

package servertest

import "syscall"

// There are no signals here that stop a process: Stop and Continue do nothing.
const (
	stopSignal     = syscall.Signal(0)
	continueSignal = syscall.Signal(0)
)

package main

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// resetSignal gives a signal the meaning back that it has for a program that knows nothing of it. The Go runtime would answer
// SIGQUIT with the stacks of its goroutines.
func resetSignal(sig syscall.Signal) bool {
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // the core of this program would tell nobody anything
	var action [32]uintptr                           // all zero: SIG_DFL, no flags, no mask
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, sigsetSize, 0, 0)
	return errno == 0
}

// sigsetSize is what the kernel calls sizeof(sigset_t).
const sigsetSize = 8

// isSystemd reports whether a process is systemd's: the machine's, or that of a user.
func isSystemd(pid int) bool {
	if checkProcNamespace() != nil {
		return pid == 1
	}
	p, err := readProcess(pid)
	return err == nil && p.Name == "systemd"
}

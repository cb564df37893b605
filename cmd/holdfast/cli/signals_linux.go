package cli

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
)

// resetSignal restores a signal's default action. signal.Reset does not do that for SIGQUIT: the Go runtime would
// print the stacks of all goroutines.
func resetSignal(sig syscall.Signal) bool {
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // a core file of this program would be of no use
	var action [32]uintptr                           // all zero: SIG_DFL, no flags, no mask
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0,
		sigsetSize, 0, 0)
	return errno == 0
}

// sigsetSize is what the kernel calls sizeof(sigset_t).
const sigsetSize = 8

// isSystemd reports whether a process is a systemd: that of the machine, or that of a user.
func isSystemd(pid int) bool {
	if guard.CheckProcNamespace() != nil {
		return pid == 1
	}
	p, err := guard.ReadProcess(pid)
	return err == nil && p.Name == "systemd"
}

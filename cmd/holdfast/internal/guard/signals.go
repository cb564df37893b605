package guard

import (
	"syscall"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/system"
)

// UncaughtSignals are not caught by any of the processes of the command: those that cannot be caught, those that
// report a fault of the process itself, and those that the system and the Go runtime use (a child ended; preemption).
var UncaughtSignals = map[syscall.Signal]bool{
	syscall.SIGKILL: true, system.SIGSTOP: true,
	syscall.SIGSEGV: true, syscall.SIGBUS: true, syscall.SIGFPE: true, syscall.SIGILL: true, syscall.SIGTRAP: true, system.SIGSYS: true,
	system.SIGCHLD: true, system.SIGURG: true,
}

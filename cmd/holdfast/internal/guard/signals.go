package guard

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// UncaughtSignals are not caught by any of the processes of the command: those that cannot be caught, those that
// report a fault of the process itself, and those that the system and the Go runtime use (a child ended; preemption).
var UncaughtSignals = map[syscall.Signal]bool{
	unix.SIGKILL: true, unix.SIGSTOP: true,
	unix.SIGSEGV: true, unix.SIGBUS: true, unix.SIGFPE: true, unix.SIGILL: true, unix.SIGTRAP: true, unix.SIGSYS: true,
	unix.SIGCHLD: true, unix.SIGURG: true,
}

// IsForeground reports whether this program is in the foreground process group of its terminal.
func IsForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

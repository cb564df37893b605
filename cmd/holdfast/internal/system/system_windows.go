package system

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/windows"
)

// Flags of os.OpenFile. Nothing that is opened by its path waits here, and links are followed: only administrators, and
// who they allow to, can make them.
const (
	NonBlock = 0
	NoFollow = 0
)

// The signals that not all systems have. This one never sends any of them.
const (
	SIGCHLD  = syscall.Signal(17)
	SIGCONT  = syscall.Signal(18)
	SIGSTOP  = syscall.Signal(19)
	SIGTSTP  = syscall.Signal(20)
	SIGTTIN  = syscall.Signal(21)
	SIGTTOU  = syscall.Signal(22)
	SIGURG   = syscall.Signal(23)
	SIGXFSZ  = syscall.Signal(25)
	SIGWINCH = syscall.Signal(28)
	SIGSYS   = syscall.Signal(31)
)

// ConnRefused is the error of a connection to a socket on which nobody listens.
const ConnRefused = windows.WSAECONNREFUSED

// signalNames are the signals that mean something here: Ctrl-C and Ctrl-Break, the end of the session, and the end by
// force.
var signalNames = map[syscall.Signal]string{
	syscall.SIGINT: "SIGINT", syscall.SIGTERM: "SIGTERM", syscall.SIGKILL: "SIGKILL",
}

// SignalName is the name of a signal, such as SIGTERM; empty if it has none.
func SignalName(sig syscall.Signal) string { return signalNames[sig] }

// SignalNumber is the signal of that name; 0 if there is none.
func SignalNumber(name string) syscall.Signal {
	for sig, known := range signalNames {
		if known == name {
			return sig
		}
	}
	return 0
}

// SignalSelf does nothing: processes do not die of signals here.
func SignalSelf(syscall.Signal) {}

// TerminalWidth is how many columns a terminal has; ok is false if the handle is none.
func TerminalWidth(fd uintptr) (columns int, ok bool) {
	var info windows.ConsoleScreenBufferInfo
	if err := windows.GetConsoleScreenBufferInfo(windows.Handle(fd), &info); err != nil {
		return 0, false
	}
	return int(info.Window.Right-info.Window.Left) + 1, true
}

// lockedByte is far behind the end of all files: a locked byte can neither be read nor written by others.
var lockedByte = windows.Overlapped{OffsetHigh: 1 << 30}

// TryLock locks a file against other processes that do the same. The error is ErrLocked if one has it.
func TryLock(f *os.File) error {
	at := lockedByte
	err := windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY,
		0, 1, 0, &at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return ErrLocked
	}
	return err
}

// Unlock ends the lock of TryLock, as the end of the process does.
func Unlock(f *os.File) {
	at := lockedByte
	_ = windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &at)
}

// Owner is the user whom a file belongs to. known is false where files do not belong to users with numbers.
func Owner(fs.FileInfo) (uid int, known bool) { return 0, false }

// OpenFileLimit is how many files this process may have open. There is no limit but the memory.
func OpenFileLimit() uint64 { return 1 << 14 }

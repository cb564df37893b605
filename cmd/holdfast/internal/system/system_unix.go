//go:build unix

package system

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Flags of os.OpenFile.
const (
	NonBlock = unix.O_NONBLOCK
	NoFollow = unix.O_NOFOLLOW
)

// The signals that not all systems have.
const (
	SIGCHLD  = unix.SIGCHLD
	SIGCONT  = unix.SIGCONT
	SIGSTOP  = unix.SIGSTOP
	SIGSYS   = unix.SIGSYS
	SIGTSTP  = unix.SIGTSTP
	SIGTTIN  = unix.SIGTTIN
	SIGTTOU  = unix.SIGTTOU
	SIGURG   = unix.SIGURG
	SIGWINCH = unix.SIGWINCH
	SIGXFSZ  = unix.SIGXFSZ
)

// ConnRefused is the error of a connection to a socket on which nobody listens.
const ConnRefused = unix.ECONNREFUSED

// SignalName is the name of a signal, such as SIGTERM; empty if it has none.
func SignalName(sig syscall.Signal) string { return unix.SignalName(sig) }

// SignalNumber is the signal of that name; 0 if there is none.
func SignalNumber(name string) syscall.Signal { return unix.SignalNum(name) }

// SignalSelf sends this process a signal.
func SignalSelf(sig syscall.Signal) { _ = unix.Kill(os.Getpid(), sig) }

// TerminalWidth is how many columns a terminal has; ok is false if the descriptor is none.
func TerminalWidth(fd uintptr) (columns int, ok bool) {
	size, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(size.Col), true
}

// TryLock locks a file or a directory against other processes that do the same. The error is ErrLocked if one has it.
func TryLock(f *os.File) error {
	for {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrLocked
		default:
			return err
		}
	}
}

// Unlock ends the lock of TryLock, as the end of the process does.
func Unlock(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }

// Owner is the user whom a file belongs to. known is false where files do not belong to users with numbers.
func Owner(info fs.FileInfo) (uid int, known bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(stat.Uid), true
}

// OpenFileLimit is how many files this process may have open.
func OpenFileLimit() uint64 {
	limit := unix.Rlimit{Cur: 1024}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	return uint64(limit.Cur)
}

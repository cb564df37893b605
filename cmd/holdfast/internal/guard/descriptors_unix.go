//go:build unix

package guard

import (
	"os"

	"golang.org/x/sys/unix"
)

// PassOn lets the guard inherit a descriptor under its own number, which it returns: the other numbers that this
// program was given belong to the command. It is closed here before anything else is started that could inherit it. The
// number is -1 for no file.
func PassOn(f *os.File) (int, error) {
	if f == nil {
		return -1, nil
	}
	fd := int(f.Fd())
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
	return fd, err
}

// keepToItself keeps children of this process from inheriting a descriptor.
func keepToItself(fd int) { unix.CloseOnExec(fd) }

// leaveSession moves this process to a session of its own.
func leaveSession() { _, _ = unix.Setsid() }

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

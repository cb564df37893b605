//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package fence

import (
	"os"
	"syscall"
)

// tryLockFile locks a file if no other process has locked it, and reports whether it did.
func tryLockFile(f *os.File) (bool, error) {
	for {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err {
		case nil:
			return true, nil
		case syscall.EWOULDBLOCK:
			return false, nil
		case syscall.EINTR:
		default:
			return false, os.NewSyscallError("flock", err)
		}
	}
}

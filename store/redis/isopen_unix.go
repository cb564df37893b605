//go:build unix

package redis

import (
	"errors"
	"syscall"
)

// isOpen reports whether an idle socket is still open: it has nothing to read, and not even an end.
func isOpen(socket syscall.RawConn) bool {
	var readErr error
	// Control, and not Read, which fails once the deadline of the last request has passed.
	err := socket.Control(func(fd uintptr) {
		_, _, readErr = syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	return err == nil && (errors.Is(readErr, syscall.EAGAIN) || errors.Is(readErr, syscall.EINTR))
}

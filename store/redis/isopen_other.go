//go:build !unix

package redis

import "syscall"

// isOpen cannot tell on this system, so that an idle direct connection is not used again.
func isOpen(syscall.RawConn) bool { return false }

//go:build !linux

package serve

import (
	"net"
	"time"
)

// setUserTimeout does nothing: TCP's keep-alive and the write deadlines find a client that vanished.
func setUserTimeout(*net.TCPConn, time.Duration) {}

// peerOf does not know the process at the other end of a unix socket.
func peerOf(*net.UnixConn) (userName string, pid int) { return "", 0 }

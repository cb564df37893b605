//go:build unix && !linux

package serve

import (
	"net"
	"syscall"
	"time"
)

// setUserTimeout does nothing: TCP's keep-alive and the write deadlines find a client that vanished.
func setUserTimeout(*net.TCPConn, time.Duration) {}

// listenPrivately makes a unix socket with socketMode, or less if the umask says so. Here only the umask of the whole
// process can do that: what other goroutines make at this moment is private, too.
func listenPrivately(path string) (net.Listener, error) {
	mask := syscall.Umask(0o777)
	syscall.Umask(mask | 0o777&^socketMode)
	defer syscall.Umask(mask)
	return net.Listen("unix", path)
}

// peerOf does not know the process at the other end of a unix socket.
func peerOf(*net.UnixConn) (userName string, pid int) { return "", 0 }

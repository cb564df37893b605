package serve

import (
	"net"
	"os/user"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout sets how long the system waits for the client's system to confirm what was sent; 0: as usual.
func setUserTimeout(c *net.TCPConn, d time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}

// peerOf names the process at the other end of a unix socket.
func peerOf(c *net.UnixConn) (userName string, pid int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return "", 0
	}
	var credentials *unix.Ucred
	_ = raw.Control(func(fd uintptr) {
		credentials, _ = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if credentials == nil {
		return "", 0
	}
	id := strconv.Itoa(int(credentials.Uid))
	if u, err := user.LookupId(id); err == nil {
		return u.Username, int(credentials.Pid)
	}
	return "uid " + id, int(credentials.Pid)
}

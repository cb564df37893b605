package serve

import (
	"context"
	"errors"
	"net"
	"os/user"
	"strconv"
	"sync"
	"syscall"
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

// listenPrivately makes a unix socket that never has another mode than socketMode, or less if the umask says so. The
// umask itself is the whole process's: other goroutines may be making files.
func listenPrivately(path string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		// Linux gives the file the mode that the socket has before it is bound.
		failed := raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), socketMode) })
		return errors.Join(err, failed)
	}}
	return config.Listen(context.Background(), "unix", path)
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
	return nameOfUser(credentials.Uid), int(credentials.Pid)
}

// userNames are the names of users that have called, by their numbers. A look-up may take longer than a request.
var userNames sync.Map

// nameOfUser returns the name of a user of this system, or the number if there is no name.
func nameOfUser(uid uint32) string {
	if name, ok := userNames.Load(uid); ok {
		return name.(string)
	}
	id := strconv.Itoa(int(uid))
	name := "uid " + id
	if u, err := user.LookupId(id); err == nil {
		name = u.Username
	}
	userNames.Store(uid, name)
	return name
}

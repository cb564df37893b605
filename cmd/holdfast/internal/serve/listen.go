package serve

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/system"
)

// Address is where a server listens.
type Address struct {
	network, where string
}

// ParseAddress reads unix:PATH or HOST:PORT.
func ParseAddress(text string) (Address, error) {
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		path = strings.TrimPrefix(path, "//")
		if path == "" {
			return Address{}, errors.New("the path of the socket is missing, such as unix:/run/holdfast.sock")
		}
		return Address{"unix", path}, nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil || port == "" {
		return Address{}, errors.New("give unix:PATH or HOST:PORT, such as 127.0.0.1:7420")
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return Address{}, fmt.Errorf("%q is no port: give a number from 0 to 65535", port)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	return Address{"tcp", net.JoinHostPort(host, port)}, nil
}

// IsLocal reports whether only this machine reaches the address.
func (a Address) IsLocal() bool {
	if a.network == "unix" {
		return true
	}
	host, _, _ := net.SplitHostPort(a.where)
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// IsLocalListener reports whether only this machine reaches a listener.
func IsLocalListener(l net.Listener) bool {
	switch a := l.Addr().(type) {
	case *net.UnixAddr:
		return true
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	}
	return false
}

// Listen listens. The socket of a server that has died is replaced, and that of one that lives is left as it is.
func (a Address) Listen() (net.Listener, error) {
	if a.network != "unix" {
		return net.Listen(a.network, a.where)
	}
	lock, err := lockSocket(a.where)
	if err != nil {
		return nil, err
	}
	l, err := a.listenUnix()
	if err != nil {
		lock.Close()
		return nil, err
	}
	return &unixListener{l, lock}, nil
}

// ListenPrivately listens on a unix socket in a new directory that is for this user alone. remove removes both.
func ListenPrivately() (l net.Listener, remove func(), err error) {
	const name = "socket"
	dir, err := os.MkdirTemp("", "holdfast-")
	if err == nil && len(dir)+1+len(name) > maxSocketPath {
		os.Remove(dir)
		dir, err = os.MkdirTemp("/tmp", "holdfast-")
	}
	if err != nil {
		return nil, nil, err
	}
	remove = func() { os.RemoveAll(dir) }
	if l, err = (Address{"unix", filepath.Join(dir, name)}).Listen(); err != nil {
		remove()
	}
	return l, remove, err
}

// maxSocketPath is the length of the longest path of a socket in bytes; Linux has a few more.
const maxSocketPath = 103

// unixListener keeps the lock of its socket.
type unixListener struct {
	net.Listener
	lock *os.File
}

func (l *unixListener) Close() error {
	err := l.Listener.Close()
	return errors.Join(err, l.lock.Close())
}

// lockSocket makes this process the only one that replaces the socket. The file of the lock is left behind: a process
// that removed it could remove the lock of the next one.
func lockSocket(path string) (*os.File, error) {
	// Anyone who can write to the directory could lead a symbolic link to any file, or make a FIFO.
	file, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR|system.NoFollow|system.NonBlock, 0o600)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%s.lock is a symbolic link; remove it", path)
	} else if err != nil {
		return nil, err
	}
	if err := system.TryLock(file); err != nil {
		file.Close()
		return nil, fmt.Errorf("another server uses %s", path)
	}
	return file, nil
}

// listenUnix makes the socket for its owner and group, or for fewer if the umask says so.
func (a Address) listenUnix() (net.Listener, error) {
	if info, err := os.Lstat(a.where); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("%s exists and is no socket", a.where)
		}
		c, err := net.DialTimeout("unix", a.where, time.Second)
		if err == nil {
			c.Close()
			return nil, fmt.Errorf("another program uses %s", a.where)
		}
		if !errors.Is(err, system.ConnRefused) {
			return nil, fmt.Errorf("%s exists, and it cannot be seen whether a program uses it: %w", a.where, err)
		}
		if err := os.Remove(a.where); err != nil {
			return nil, err
		}
	}
	return listenPrivately(a.where)
}

// socketMode is for the owner and the group.
const socketMode = 0o660

// URL is what clients call.
func URL(l net.Listener, secure bool) string {
	switch a := l.Addr(); {
	case a.Network() == "unix":
		return "unix:" + a.String()
	case secure:
		return "https://" + a.String()
	default:
		return "http://" + a.String()
	}
}

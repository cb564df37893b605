//go:build unix

package serve

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
)

// firstPassedFile is the number of the first file that systemd passes.
const firstPassedFile = 3

// PassedListeners are the listeners that systemd has opened for this process (sd_listen_fds(3)). The variables are
// removed, so that no child takes them for its own.
func PassedListeners() ([]net.Listener, error) {
	pid, count := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name)
	}
	if pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 || n > 100 {
		return nil, fmt.Errorf("LISTEN_FDS is %q, and not a number of sockets", count)
	}
	var all []net.Listener
	for fd := firstPassedFile; fd < firstPassedFile+n; fd++ {
		syscall.CloseOnExec(fd)
		file := os.NewFile(uintptr(fd), "socket "+strconv.Itoa(fd))
		l, err := net.FileListener(file)
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("file %d of systemd is no socket that listens: %w", fd, err)
		}
		all = append(all, l)
	}
	return all, nil
}

//go:build unix

package appendfile

import (
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// openInherited opens a descriptor that this program was started with. One that is marked close-on-exec was not: it
// is this process's own, under a number that was free.
func openInherited(number string) (*os.File, error) {
	fd, err := strconv.Atoi(number)
	if err != nil || fd < 0 {
		return nil, errors.New("not the number of a descriptor")
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC != 0 {
		return nil, unix.EBADF
	}
	if fd > 2 { // a reader waits until all have closed it, so no command may inherit it
		unix.CloseOnExec(fd)
	}
	return os.NewFile(uintptr(fd), "fd:"+number), nil
}

// awaitRoom waits until an inherited descriptor can be written to. Others may have it too, so that it cannot be made
// non-blocking.
func awaitRoom(file *os.File, deadline time.Time) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	ready, pollErr := 0, error(unix.EINTR)
	err = raw.Control(func(fd uintptr) {
		for errors.Is(pollErr, unix.EINTR) {
			left := max(time.Until(deadline), 0)
			ready, pollErr = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(left.Milliseconds()))
		}
	})
	if err = errors.Join(err, pollErr); err == nil && ready == 0 {
		err = os.ErrDeadlineExceeded
	}
	return err
}

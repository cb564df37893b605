//go:build unix

package cli

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// writeWithin writes a line to a pipe. It tries once whatever the time is, because this program may not be scheduled
// for longer than the timeout on a busy machine: a pipe with room always takes the message. Only if the pipe is full
// does it wait, for the timeout.
func writeWithin(pipe *os.File, line []byte, timeout time.Duration) error {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return err
	}
	var n int
	var writeErr error
	if err := raw.Control(func(fd uintptr) { n, writeErr = unix.Write(int(fd), line) }); err != nil {
		return err
	}
	if !errors.Is(writeErr, unix.EAGAIN) && !errors.Is(writeErr, unix.EINTR) && (writeErr != nil || n == len(line)) {
		return writeErr
	}
	_ = pipe.SetWriteDeadline(time.Now().Add(timeout))
	_, err = pipe.Write(line[max(n, 0):])
	return err
}

// expectBlocking makes the end of a pipe block, as the command expects it.
func expectBlocking(pipe *os.File) { _ = unix.SetNonblock(int(pipe.Fd()), false) }

// readAvailable reads what is in a pipe now, into the buffer, without waiting for more.
func readAvailable(pipe *os.File, buf []byte) (filled int) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		for filled < len(buf) {
			n, err := unix.Read(int(fd), buf[filled:])
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || n <= 0 { // empty for now, or forever
				return
			}
			filled += n
		}
	})
	return filled
}

// isOpenForBoth reports whether a file is open for reading and writing.
func isOpenForBoth(f *os.File) bool {
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE == unix.O_RDWR
}

package file

import (
	"errors"
	"path/filepath"

	"golang.org/x/sys/unix"
)

func (disk) renameExclusive(dir int, name, to string) error {
	err := unix.RenameatxNp(dir, name, dir, to, unix.RENAME_EXCL)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
		return linkExclusive(dir, name, to)
	}
	return err
}

// syncHandle uses F_FULLFSYNC, because fsync leaves the data in the drive's own memory on this system.
func (disk) syncHandle(handle int) error {
	return retryInterrupted(func() error {
		_, err := unix.FcntlInt(uintptr(handle), unix.F_FULLFSYNC, 0)
		if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) {
			return unix.Fsync(handle)
		}
		return err
	})
}

// makePipe uses the path, because this system's other call is not in package unix.
func makePipe(d noticeDir, name string) error { return unix.Mkfifo(filepath.Join(d.path, name), 0o600) }

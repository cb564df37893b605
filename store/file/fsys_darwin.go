package file

import (
	"errors"

	"golang.org/x/sys/unix"
)

func (disk) move(dir int, name, to string) error {
	err := unix.RenameatxNp(dir, name, dir, to, unix.RENAME_EXCL)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
		return linkMove(dir, name, to)
	}
	return err
}

// sync needs more than fsync here, which leaves the data in the drive's own memory.
func (disk) sync(handle int) error {
	return again(func() error {
		_, err := unix.FcntlInt(uintptr(handle), unix.F_FULLFSYNC, 0)
		if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) {
			return unix.Fsync(handle)
		}
		return err
	})
}

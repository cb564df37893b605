package file

import (
	"errors"

	"golang.org/x/sys/unix"
)

func (disk) move(dir int, name, to string) error {
	err := unix.Renameat2(dir, name, dir, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return linkMove(dir, name, to)
	}
	return err
}

func (disk) sync(handle int) error {
	return again(func() error { return unix.Fsync(handle) })
}

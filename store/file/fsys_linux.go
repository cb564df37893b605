package file

import (
	"errors"

	"golang.org/x/sys/unix"
)

func (disk) renameExclusive(dir int, name, to string) error {
	err := unix.Renameat2(dir, name, dir, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return linkExclusive(dir, name, to)
	}
	return err
}

func (disk) syncHandle(handle int) error {
	return retryInterrupted(func() error { return unix.Fsync(handle) })
}

package file

import (
	"errors"

	"golang.org/x/sys/unix"
)

// renameExclusive uses the one rename of Linux that never replaces a file (rename(2), RENAME_NOREPLACE). The two errors
// mean that the file system, or the kernel, does not have it.
func (disk) renameExclusive(dir int, name, to string) error {
	err := unix.Renameat2(dir, name, dir, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return linkExclusive(dir, name, to)
	}
	return err
}

// syncHandle puts a file's content on the disk, or the names in a directory. These are two things: fsync(2) says that
// to sync a file does not put its name on the disk, and that the directory must be synced for that.
func (disk) syncHandle(handle int) error {
	return retryInterrupted(func() error { return unix.Fsync(handle) })
}

func makePipe(d noticeDir, name string) error { return unix.Mkfifoat(d.dir, name, 0o600) }

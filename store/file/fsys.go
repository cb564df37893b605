package file

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// fsys is every file operation that the store makes, one method for each that is atomic as others see it. Tests put one
// in its place that keeps files in memory, stops a process between any two operations, and cuts the power at each.
// Directories are handles, and a name is always one entry of a directory: no path is ever walked after the store was
// opened, and no symbolic link is followed. Errors satisfy errors.Is for fs.ErrExist (also for a directory that is not
// empty) and fs.ErrNotExist.
type fsys interface {
	openDir(dir int, name string) (int, error)
	closeHandle(handle int)
	// listNames lists a directory as of now. What was in it throughout the call is in the list, if no other call lists by the same
	// handle meanwhile. One that was removed is fs.ErrNotExist.
	listNames(dir int) ([]string, error)
	entryExists(dir int, name string) (bool, error)
	// entryAge is how long ago the entry was last modified, and whether it is an empty plain file.
	entryAge(dir int, name string) (age time.Duration, emptyFile bool, err error)
	// fileSize is how many bytes a file has.
	fileSize(dir int, name string) (int, error)
	// extendFile adds bytes without meaning to the end of a file until it has size bytes.
	extendFile(dir int, name string, size int) error
	// readFile returns a regular file, or its first limit+1 bytes.
	readFile(dir int, name string, limit int) ([]byte, error)
	// writeNewFile makes a new file. With sync its content, but not its name, is on the disk afterwards.
	writeNewFile(dir int, name string, data []byte, sync bool) error
	// overwriteFile is write for a file that is there. A few bytes of its old content may remain behind the new.
	overwriteFile(dir int, name string, data []byte, sync bool) error
	// syncHandle puts the names of a directory on the disk.
	syncHandle(dir int) error
	makeDir(dir int, name string) error
	// renameExclusive renames a file, and fails if there is none or if the new name is taken.
	renameExclusive(dir int, name, to string) error
	// renameEntry renames a file or directory, also into another directory. A directory replaces an empty one, and nothing else.
	renameEntry(dir int, name string, toDir int, to string) error
	removeFile(dir int, name string) error
	removeDir(dir int, name string) error
	// createLocked makes a new file that is locked until its handle is closed, or its process ends.
	createLocked(dir int, name string) (int, error)
	// shareHandle returns the same open file once more, for another process. The lock goes with the last of them that is closed.
	shareHandle(handle int) (*os.File, error)
	// isLocked tells whether somebody has the file locked.
	isLocked(dir int, name string) (bool, error)
}

// describeError says in the driver's words what a file operation failed of that changed nothing. What the kernel refuses, for
// want of room, too, is final: it is told at once.
func describeError(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%s: %w: %w", doing, driver.ErrDenied, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%s: %w: the disk or the quota is full; nothing was changed, make room and try again: %w", doing, driver.ErrDenied, err)
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return fmt.Errorf("%s: too many open files; raise the limit (ulimit -n): %w", doing, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

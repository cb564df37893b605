package file

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// fsys contains every file operation that the store makes, one method for each step that is atomic for other
// processes. Tests use one that keeps files in memory, stops a process between any two operations, and cuts the power
// at each of them. Directories are handles, and a name is always one entry of a directory: no path is walked after
// the store was opened, and no symbolic link is followed. Errors satisfy errors.Is for fs.ErrExist (also for a
// directory that is not empty) and fs.ErrNotExist.
type fsys interface {
	openDir(dir int, name string) (int, error)
	closeHandle(handle int)
	// listNames lists a directory. An entry that exists during the whole call is in the list, provided that no other
	// call lists through the same handle at the same time. If whole is set, the list shows the directory at one moment;
	// otherwise it can lack an entry that was renamed meanwhile, under both of its names. For a removed directory it
	// returns fs.ErrNotExist.
	listNames(dir int) (names []string, whole bool, err error)
	entryExists(dir int, name string) (bool, error)
	// entryAge returns the time since the entry was last modified, and whether it is an empty regular file.
	entryAge(dir int, name string) (age time.Duration, emptyFile bool, err error)
	// fileSize returns the size of a file in bytes.
	fileSize(dir int, name string) (int, error)
	// extendFile appends zero bytes to a file until it has size bytes.
	extendFile(dir int, name string, size int) error
	// readFile returns the content of a regular file, or at least its first limit+1 bytes if it is longer than limit.
	readFile(dir int, name string, limit int) ([]byte, error)
	// writeNewFile makes a new file. With sync, its content is on the disk afterwards, but not its name.
	writeNewFile(dir int, name string, data []byte, sync bool) error
	// overwriteFile is writeNewFile for an existing file. A few bytes of its old content may remain after the new
	// content.
	overwriteFile(dir int, name string, data []byte, sync bool) error
	// openFile opens a file, to be written by overwriteHandle. With an error the handle is -1.
	openFile(dir int, name string) (int, error)
	// overwriteHandle is overwriteFile for an open file, without sync.
	overwriteHandle(handle int, data []byte) error
	// syncHandle puts the names in a directory on the disk.
	syncHandle(dir int) error
	makeDir(dir int, name string) error
	// renameExclusive renames a file. It fails if the file does not exist or if the new name does.
	renameExclusive(dir int, name, to string) error
	// linkFile gives a file a second name. It fails if the new name exists, or if the file does not, which means that
	// all its names have been removed: see Kept files at versionedFile. The error is errors.ErrUnsupported if files
	// do not have second names here, or if there is no room for another name.
	linkFile(dir int, name, to string) error
	// renameEntry renames a file or directory, also into another directory. A directory replaces an empty directory,
	// and nothing else.
	renameEntry(dir int, name string, toDir int, to string) error
	removeFile(dir int, name string) error
	removeDir(dir int, name string) error
	// createLocked makes a new file that is locked until its handle is closed or its process ends.
	createLocked(dir int, name string) (int, error)
	// shareHandle returns the same open file again, for another process. The lock is released when the last of them is
	// closed.
	shareHandle(handle int) (*os.File, error)
	// isLocked reports whether any process has the file locked.
	isLocked(dir int, name string) (bool, error)
}

// describeError wraps the error of a file operation that changed nothing, in the driver's errors where one applies.
// What the kernel refuses is final, and so is a full disk: the engine returns it at once instead of retrying.
func describeError(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, record.ErrUnsent):
		return fmt.Errorf("%s: %w", doing, err)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("%s: %w: %w", doing, driver.ErrDenied, err)
	case errors.Is(err, syscall.EROFS):
		return driverutil.RefuseStore(fmt.Errorf("%s: %w", doing, err))
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return driverutil.RefuseStore(fmt.Errorf("%s: the disk or the quota is full; nothing was changed, make room and try "+
			"again: %w", doing, err))
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return fmt.Errorf("%s: too many open files; raise the limit (ulimit -n): %w", doing, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

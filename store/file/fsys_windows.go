package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// disk is the real fsys. Handles are the kernel's. Names are opened below the handle of their directory, as on
// other systems, so that no path is walked, and names such as nul are names like all others.
//
// The kernel has no call that renames or removes by name: a file is opened first, and the rename goes by its handle. So
// the name might lead to another file by then, or the file have another name. Therefore nobody can open a file to
// rename or to remove it while somebody else has it open for that (see openToChange), and so each of these operations is
// atomic for the others. A process that is stopped exactly in between keeps the others from this one file until it
// continues or ends.
type disk struct{}

// access to what is opened, besides the wish to wait for its calls
const (
	toLook   = windows.FILE_READ_ATTRIBUTES
	toRead   = windows.FILE_READ_DATA | toLook
	toWrite  = windows.FILE_WRITE_DATA | toLook
	toAppend = windows.FILE_APPEND_DATA | toLook
	toUseDir = windows.FILE_LIST_DIRECTORY | windows.FILE_TRAVERSE | toWrite // a directory is synced by who can write
	toChange = windows.DELETE | toLook                                       // to rename or to remove
)

const (
	shareAll = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE
	// shareNoChange lets others read and write, but not rename or remove.
	shareNoChange = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE
	// shareNoWrite keeps others from opening the file for writing: this is how a file is locked.
	shareNoWrite = windows.FILE_SHARE_READ | windows.FILE_SHARE_DELETE
)

const (
	aFile      = windows.FILE_NON_DIRECTORY_FILE
	aDirectory = windows.FILE_DIRECTORY_FILE
)

// busyTimeout is how long a file may be in use by a process that does not share it: one that is renaming or removing
// it, or a scanner.
const busyTimeout = 2 * time.Second

// retryBusy repeats a call as long as another process is in its way for a moment.
func retryBusy(call func() error) error {
	for pause, began := time.Duration(0), time.Now(); ; pause = min(2*pause+50*time.Microsecond, 10*time.Millisecond) {
		err := call()
		if !errors.Is(err, windows.ERROR_SHARING_VIOLATION) || time.Since(began) > busyTimeout {
			return err
		}
		time.Sleep(pause)
	}
}

// openOnce opens or makes an entry of a directory. It follows no link.
func openOnce(dir int, name string, access, share, disposition, kind uint32) (int, error) {
	text, err := windows.NewNTUnicodeString(name)
	if err != nil {
		return -1, err
	}
	attributes := windows.OBJECT_ATTRIBUTES{
		RootDirectory: windows.Handle(dir), ObjectName: text, Attributes: windows.OBJ_CASE_INSENSITIVE,
	}
	attributes.Length = uint32(unsafe.Sizeof(attributes))
	handle := windows.InvalidHandle
	var status windows.IO_STATUS_BLOCK
	err = windows.NtCreateFile(&handle, access|windows.SYNCHRONIZE, &attributes, &status, nil,
		windows.FILE_ATTRIBUTE_NORMAL, share, disposition,
		kind|windows.FILE_SYNCHRONOUS_IO_NONALERT|windows.FILE_OPEN_REPARSE_POINT, 0, 0)
	if err != nil {
		return -1, systemError(err)
	}
	return int(handle), nil
}

func openAt(dir int, name string, access, share, disposition, kind uint32) (handle int, err error) {
	err = retryBusy(func() error {
		handle, err = openOnce(dir, name, access, share, disposition, kind)
		return err
	})
	return handle, err
}

// openToChange opens an entry so that nobody else can rename or remove it before the handle is closed.
func openToChange(dir int, name string, kind uint32) (int, error) {
	return openAt(dir, name, toChange, shareNoChange, windows.FILE_OPEN, kind)
}

// errNotDirectory is the error for a file in the place of a directory. Go's ENOTDIR is also that of a path that does not
// exist here.
const errNotDirectory = windows.ERROR_DIRECTORY

// systemError turns the errors of the kernel into those that the store knows from other systems.
func systemError(err error) error {
	status := windows.NTStatus(0)
	if errors.As(err, &status) {
		switch status {
		// A directory that was removed while it was open can be used no more.
		case windows.STATUS_DELETE_PENDING, windows.STATUS_FILE_DELETED:
			return fs.ErrNotExist
		case windows.STATUS_NOT_A_DIRECTORY:
			return errNotDirectory
		}
		err = status.Errno()
	}
	switch {
	case errors.Is(err, windows.ERROR_DISK_FULL), errors.Is(err, windows.ERROR_HANDLE_DISK_FULL):
		return syscall.ENOSPC
	case errors.Is(err, windows.ERROR_DISK_QUOTA_EXCEEDED), errors.Is(err, windows.ERROR_NOT_ENOUGH_QUOTA):
		return syscall.EDQUOT
	case errors.Is(err, windows.ERROR_WRITE_PROTECT):
		return syscall.EROFS
	case errors.Is(err, windows.ERROR_ACCESS_DENIED):
		return syscall.EACCES
	case errors.Is(err, windows.ERROR_TOO_MANY_OPEN_FILES):
		return syscall.EMFILE
	}
	return err
}

func (disk) openDir(dir int, name string) (int, error) {
	return openAt(dir, name, toUseDir, shareAll, windows.FILE_OPEN, aDirectory)
}

func (disk) closeHandle(handle int) { _ = windows.CloseHandle(windows.Handle(handle)) }

// directoryEntry is how the kernel describes an entry of a directory (FILE_FULL_DIR_INFO). The name follows it.
type directoryEntry struct {
	next, index                     uint32
	created, read, written, changed int64
	size, allocated                 int64
	attributes, nameBytes, eaBytes  uint32
}

const nameOffset = unsafe.Offsetof(directoryEntry{}.eaBytes) + 4

// maxListBuffer is the size in bytes up to which the buffer for a list grows. It has room for 5,000 names and more.
const maxListBuffer = 1 << 20

// listNames reads a directory that is not too large in one call of the kernel. It opens the directory once more: an
// open directory has one position at which it is read.
func (d disk) listNames(dir int) (names []string, whole bool, err error) {
	for size := 16 << 10; ; size *= 4 {
		if names, whole, err = d.listWith(dir, make([]uint64, size/8)); whole || err != nil || size >= maxListBuffer {
			return names, whole, err
		}
	}
}

// listWith lists a directory with a buffer, which is aligned as the entries are. whole reports whether it had room for
// all of them.
func (d disk) listWith(dir int, buf []uint64) (names []string, whole bool, err error) {
	opened, err := d.openDir(dir, "")
	if err != nil {
		return nil, false, describeRemoved(dir, err)
	}
	defer d.closeHandle(opened)
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&buf[0])), 8*len(buf))
	for calls := 0; ; calls++ {
		err := windows.GetFileInformationByHandleEx(windows.Handle(opened), windows.FileFullDirectoryInfo, &bytes[0],
			uint32(len(bytes)))
		switch {
		// A directory without any entry is one that is being removed: it has not even those for itself and above.
		case errors.Is(err, windows.ERROR_NO_MORE_FILES), errors.Is(err, windows.ERROR_FILE_NOT_FOUND) && calls == 0:
			return names, calls <= 1, nil
		case err != nil:
			return nil, false, describeRemoved(dir, systemError(err))
		}
		names = appendNames(names, bytes)
	}
}

// describeRemoved turns the error of a directory that was removed while it was open into fs.ErrNotExist.
func describeRemoved(handle int, err error) error {
	if isRemoved(handle) {
		return fs.ErrNotExist
	}
	return err
}

// appendNames appends the names in what the kernel has said of a directory, except "." and "..".
func appendNames(names []string, bytes []byte) []string {
	for {
		entry := (*directoryEntry)(unsafe.Pointer(&bytes[0]))
		text := unsafe.Slice((*uint16)(unsafe.Pointer(&bytes[nameOffset])), entry.nameBytes/2)
		if name := windows.UTF16ToString(text); name != "." && name != ".." {
			names = append(names, name)
		}
		if entry.next == 0 {
			return names
		}
		bytes = bytes[entry.next:]
	}
}

func (disk) entryExists(dir int, name string) (bool, error) {
	handle, err := openAt(dir, name, toLook, shareAll, windows.FILE_OPEN, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = windows.CloseHandle(windows.Handle(handle))
	}
	return err == nil, err
}

// look returns what the kernel knows of an entry of a directory.
func look(dir int, name string) (info windows.ByHandleFileInformation, err error) {
	handle, err := openAt(dir, name, toLook, shareAll, windows.FILE_OPEN, 0)
	if err != nil {
		return info, err
	}
	defer windows.CloseHandle(windows.Handle(handle))
	return info, systemError(windows.GetFileInformationByHandle(windows.Handle(handle), &info))
}

func sizeOf(info *windows.ByHandleFileInformation) int64 {
	return int64(info.FileSizeHigh)<<32 | int64(info.FileSizeLow)
}

func (disk) entryAge(dir int, name string) (age time.Duration, emptyFile bool, err error) {
	info, err := look(dir, name)
	if err != nil {
		return 0, false, err
	}
	const special = windows.FILE_ATTRIBUTE_DIRECTORY | windows.FILE_ATTRIBUTE_REPARSE_POINT
	return time.Since(time.Unix(0, info.LastWriteTime.Nanoseconds())),
		info.FileAttributes&special == 0 && sizeOf(&info) == 0, nil
}

func (disk) fileSize(dir int, name string) (int, error) {
	info, err := look(dir, name)
	return int(sizeOf(&info)), err
}

// extendFile writes zero bytes at the end of the file, also if others write to it at the same time.
func (d disk) extendFile(dir int, name string, size int) error {
	handle, err := openAt(dir, name, toAppend, shareAll, windows.FILE_OPEN, aFile)
	if err != nil {
		return err
	}
	defer d.closeHandle(handle)
	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(windows.Handle(handle), &info); err != nil {
		return systemError(err)
	}
	return d.writeAll(handle, make([]byte, max(0, size-int(sizeOf(&info)))), false)
}

func (d disk) readFile(dir int, name string, limit int) ([]byte, error) {
	handle, err := openAt(dir, name, toRead, shareAll, windows.FILE_OPEN, aFile)
	if err != nil {
		return nil, err
	}
	defer d.closeHandle(handle)
	buf := make([]byte, blockSize+1) // a byte more than most files have, which shows at once where they end
	for have := 0; ; {
		var n uint32
		err := windows.ReadFile(windows.Handle(handle), buf[have:], &n, nil)
		if err != nil && !errors.Is(err, windows.ERROR_HANDLE_EOF) {
			return nil, systemError(err)
		}
		have += int(n)
		if n == 0 || have > limit {
			return buf[:have], nil
		}
		if have == len(buf) {
			buf = append(buf, make([]byte, 3*len(buf))...)
		}
	}
}

func (d disk) writeNewFile(dir int, name string, data []byte, sync bool) error {
	handle, err := openAt(dir, name, toWrite, shareAll, windows.FILE_CREATE, aFile)
	if err != nil {
		return err
	}
	defer d.closeHandle(handle)
	return d.writeAll(handle, data, sync)
}

// maxStaleTail is how many bytes of a file's old content may remain.
const maxStaleTail = 4096

// overwriteFile writes the data over those of an existing file, in its own blocks, so that it needs no room on a
// full disk.
func (d disk) overwriteFile(dir int, name string, data []byte, sync bool) error {
	handle, err := d.openFile(dir, name)
	if err != nil {
		return err
	}
	defer d.closeHandle(handle)
	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(windows.Handle(handle), &info); err != nil {
		return systemError(err)
	}
	if sizeOf(&info) > int64(len(data)+maxStaleTail) {
		if err := windows.Ftruncate(windows.Handle(handle), int64(countReserved(len(data))*blockSize)); err != nil {
			return systemError(err)
		}
	}
	return d.writeAll(handle, data, sync)
}

// writeAll writes all data at the handle's place, and syncs them if wanted.
func (d disk) writeAll(handle int, data []byte, sync bool) error {
	for len(data) > 0 {
		var n uint32
		if err := windows.WriteFile(windows.Handle(handle), data, &n, nil); err != nil {
			return systemError(err)
		}
		data = data[n:]
	}
	if sync {
		return d.syncHandle(handle)
	}
	return nil
}

func (disk) openFile(dir int, name string) (int, error) {
	return openAt(dir, name, toWrite, shareAll, windows.FILE_OPEN, aFile)
}

func (d disk) overwriteHandle(handle int, data []byte) error {
	if _, err := windows.Seek(windows.Handle(handle), 0, 0); err != nil {
		return systemError(err)
	}
	return d.writeAll(handle, data, false)
}

// syncHandle puts a file's content on the disk, or the names in a directory.
func (disk) syncHandle(handle int) error {
	return systemError(windows.FlushFileBuffers(windows.Handle(handle)))
}

// makeDir makes a directory that takes over who may use it from the one above.
func (d disk) makeDir(dir int, name string) error {
	handle, err := openAt(dir, name, toLook, shareAll, windows.FILE_CREATE, aDirectory)
	if err == nil {
		d.closeHandle(handle)
	}
	return err
}

// linkFile leaves it to the caller to rename: that a link fails when its file has no name left is not known here.
func (disk) linkFile(int, string, string) error { return errors.ErrUnsupported }

func (d disk) renameExclusive(dir int, name, to string) error { return d.rename(dir, name, dir, to) }

// renameInformation is what the kernel wants to know of a rename (FILE_RENAME_INFORMATION). The name follows it.
type renameInformation struct {
	replace   uint32
	root      windows.Handle
	nameBytes uint32
}

// rename renames an entry, unless the new name exists.
func (d disk) rename(dir int, name string, toDir int, to string) error {
	handle, err := openToChange(dir, name, 0)
	if err != nil {
		return err
	}
	defer d.closeHandle(handle)
	text, err := windows.UTF16FromString(to)
	if err != nil {
		return err
	}
	text = text[:len(text)-1]
	const nameAt = unsafe.Offsetof(renameInformation{}.nameBytes) + 4
	size := max(int(nameAt)+2*len(text), int(unsafe.Sizeof(renameInformation{})))
	buf := make([]uint64, (size+7)/8)
	*(*renameInformation)(unsafe.Pointer(&buf[0])) = renameInformation{
		root: windows.Handle(toDir), nameBytes: uint32(2 * len(text)),
	}
	copy(unsafe.Slice((*uint16)(unsafe.Add(unsafe.Pointer(&buf[0]), nameAt)), len(text)), text)
	return setInformation(handle, unsafe.Pointer(&buf[0]), uintptr(size), windows.FileRenameInformation)
}

// renameEntry removes an empty directory that is in the way: no rename replaces a directory here. It renames a
// directory again for a while if that is refused, because it is as long as a file in it is open: a scanner may look at
// new files.
func (d disk) renameEntry(dir int, name string, toDir int, to string) error {
	began := time.Now()
	for {
		err := d.rename(dir, name, toDir, to)
		switch {
		case errors.Is(err, fs.ErrExist) && d.removeDir(toDir, to) == nil:
		case errors.Is(err, fs.ErrPermission) && time.Since(began) < busyTimeout:
			time.Sleep(time.Millisecond)
		default:
			return err
		}
	}
}

func (d disk) removeFile(dir int, name string) error { return d.remove(dir, name, aFile) }

func (d disk) removeDir(dir int, name string) error { return d.remove(dir, name, aDirectory) }

// remove removes an entry at once, even if it is open (POSIX semantics: Windows 10, version 1809, on NTFS). What Force
// allows may not have that: there the name stays until the last handle is closed, and can be opened by nobody.
func (d disk) remove(dir int, name string, kind uint32) error {
	handle, err := openToChange(dir, name, kind)
	if err != nil {
		return err
	}
	defer d.closeHandle(handle)
	flags := uint32(windows.FILE_DISPOSITION_DELETE | windows.FILE_DISPOSITION_POSIX_SEMANTICS |
		windows.FILE_DISPOSITION_IGNORE_READONLY_ATTRIBUTE)
	err = setInformation(handle, unsafe.Pointer(&flags), 4, windows.FileDispositionInformationEx)
	if errors.Is(err, windows.ERROR_INVALID_FUNCTION) || errors.Is(err, windows.ERROR_INVALID_PARAMETER) {
		remove := true
		err = setInformation(handle, unsafe.Pointer(&remove), 1, windows.FileDispositionInformation)
	}
	return err
}

// setInformation changes something about an open file.
func setInformation(handle int, to unsafe.Pointer, size uintptr, class uint32) error {
	var status windows.IO_STATUS_BLOCK
	return systemError(windows.NtSetInformationFile(windows.Handle(handle), &status, (*byte)(to), uint32(size), class))
}

// createLocked makes a file that nobody else can open for writing, which is how it is locked. Like flock, and unlike
// LockFileEx, this belongs to the open file: it ends when the last handle of that is closed, in whichever process. A
// lock of LockFileEx belongs to the process, and would not pass to another one with the handle.
func (disk) createLocked(dir int, name string) (int, error) {
	return openAt(dir, name, toWrite, shareNoWrite, windows.FILE_CREATE, aFile)
}

func (disk) shareHandle(handle int) (*os.File, error) {
	self, shared := windows.CurrentProcess(), windows.Handle(0)
	err := windows.DuplicateHandle(self, windows.Handle(handle), self, &shared, 0, false, windows.DUPLICATE_SAME_ACCESS)
	runtime.KeepAlive(handle)
	if err != nil {
		return nil, fmt.Errorf("duplicate the handle: %w", err)
	}
	return os.NewFile(uintptr(shared), "liveness file"), nil
}

// isLocked tries to open the file for writing. It shares the file, so that two clients that check at the same time do
// not take each other for the owner.
func (d disk) isLocked(dir int, name string) (bool, error) {
	handle, err := openOnce(dir, name, toWrite, shareAll, windows.FILE_OPEN, aFile)
	if errors.Is(err, windows.ERROR_SHARING_VIOLATION) {
		return true, nil
	}
	if err == nil {
		d.closeHandle(handle)
	}
	return false, err
}

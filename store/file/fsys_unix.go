//go:build linux || darwin

package file

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// disk is the real fsys. Handles are file descriptors.
type disk struct {
	sharing
	oneName bool // linkFile gives no file a second name
}

// errNotDirectory is the error for a file in the place of a directory.
const errNotDirectory = unix.ENOTDIR

const openFlags = unix.O_NOFOLLOW | unix.O_CLOEXEC

// retryInterrupted repeats a call as long as signals interrupt it.
func retryInterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func openAt(dir int, name string, flags int) (fd int, err error) {
	err = retryInterrupted(func() error {
		fd, err = unix.Openat(dir, name, flags|openFlags, 0o600)
		return err
	})
	return fd, err
}

func (disk) openDir(dir int, name string) (int, error) {
	return openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

func (disk) closeHandle(handle int) { _ = unix.Close(handle) }

// maxListBuffer is the size in bytes up to which the buffer for a list grows. It has room for 10,000 names and more.
const maxListBuffer = 1 << 20

// listNames reads a directory that is not too large in one system call, during which the kernel lets nobody change it.
func (disk) listNames(dir int) (names []string, whole bool, err error) {
	names = make([]string, 0, 5*removeEvery) // enough for a record's directory
	for buf := make([]byte, 8<<10); ; buf = make([]byte, 2*len(buf)) {
		var fits bool
		if names, fits, err = appendList(names[:0], dir, buf); fits || err != nil || len(buf) >= maxListBuffer {
			return names, fits, err
		}
	}
}

// appendList appends the names in a directory. fits reports whether the buffer had room for all of them. If it had not,
// and is not the largest one, the list is not complete.
func appendList(names []string, dir int, buf []byte) (list []string, fits bool, err error) {
	if _, err := unix.Seek(dir, 0, 0); err != nil {
		return nil, false, err
	}
	for calls := 1; ; calls++ {
		var n int
		err := retryInterrupted(func() (err error) { n, err = unix.ReadDirent(dir, buf); return err })
		if err != nil || n <= 0 {
			return names, err == nil && calls <= 2, err
		}
		if names = appendNames(names, buf[:n]); calls == 2 && len(buf) < maxListBuffer {
			return names, false, nil
		}
	}
}

// appendNames appends the names in what the kernel has said of a directory, except "." and "..". It is unix.ParseDirent
// with one allocation for all names: they are parts of one string.
func appendNames(names []string, entries []byte) []string {
	var d unix.Dirent
	for text := string(entries); len(text) > int(unsafe.Offsetof(d.Name)); {
		size := int(binary.NativeEndian.Uint16(entries[unsafe.Offsetof(d.Reclen):]))
		inode := binary.NativeEndian.Uint64(entries[unsafe.Offsetof(d.Ino):])
		name, _, _ := strings.Cut(text[unsafe.Offsetof(d.Name):size], "\x00")
		if inode != 0 && name != "." && name != ".." { // 0: it was removed
			names = append(names, name)
		}
		entries, text = entries[size:], text[size:]
	}
	return names
}

func (disk) entryExists(dir int, name string) (bool, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

func (disk) entryAge(dir int, name string) (age time.Duration, emptyFile bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return 0, false, err
	}
	return time.Since(time.Unix(st.Mtim.Unix())), st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size == 0, nil
}

func (disk) fileSize(dir int, name string) (int, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return int(st.Size), err
}

// extendFile writes zero bytes, because a hole would allocate no blocks. It appends, so that it overwrites nothing
// that another process writes at the same time.
func (d disk) extendFile(dir int, name string, size int) error {
	fd, err := openAt(dir, name, unix.O_WRONLY|unix.O_APPEND|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := d.checkWritable(&st, name); err != nil {
		return err
	}
	return d.writeAll(fd, make([]byte, max(0, size-int(st.Size))), false)
}

// readFile does not block if somebody put a FIFO in a record's place (O_NONBLOCK): a FIFO reads as empty.
func (disk) readFile(dir int, name string, limit int) ([]byte, error) {
	fd, err := openAt(dir, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, blockSize+1) // a byte more than most files have, which shows at once where they end
	for have := 0; ; {
		n, err := unix.Read(fd, buf[have:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, err
		}
		have += n
		if n == 0 || have > limit {
			return buf[:have], nil
		}
		if have == len(buf) {
			buf = append(buf, make([]byte, 3*len(buf))...)
		}
	}
}

// createAt makes a new file, for those who share the store.
func (d disk) createAt(dir int, name string) (int, error) {
	fd, err := openAt(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err == nil {
		if err = d.shareFile(fd); err != nil {
			unix.Close(fd)
			_ = d.removeFile(dir, name)
			return -1, err
		}
	}
	return fd, err
}

func (d disk) writeNewFile(dir int, name string, data []byte, sync bool) error {
	fd, err := d.createAt(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return d.writeAll(fd, data, sync)
}

// maxStaleTail is how many bytes of a file's old content may remain. To truncate the file costs more than to read them.
const maxStaleTail = 4096

// overwriteFile writes the data over those of an existing file, in its own blocks, so that it needs no room on a
// full disk.
func (d disk) overwriteFile(dir int, name string, data []byte, sync bool) error {
	fd, err := openAt(dir, name, unix.O_WRONLY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := d.checkWritable(&st, name); err != nil {
		return err
	}
	if st.Size > int64(len(data)+maxStaleTail) {
		size := int64(countReserved(len(data)) * blockSize) // which keeps the room of a whole block, where blocks are smaller
		if err := retryInterrupted(func() error { return unix.Ftruncate(fd, size) }); err != nil {
			return err
		}
	}
	return d.writeAll(fd, data, sync)
}

// writeAll writes all data at the descriptor's place, and syncs them if wanted.
func (d disk) writeAll(fd int, data []byte, sync bool) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		data = data[max(n, 0):]
	}
	if sync {
		return d.syncHandle(fd)
	}
	return nil
}

func (disk) openFile(dir int, name string) (int, error) {
	return openAt(dir, name, unix.O_WRONLY|unix.O_NONBLOCK)
}

// overwriteHandle writes the data at the beginning of an open file.
func (disk) overwriteHandle(handle int, data []byte) error {
	for at := 0; at < len(data); {
		n, err := unix.Pwrite(handle, data[at:], int64(at))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		at += max(n, 0)
	}
	return nil
}

// makeDir makes directories for this user, or this group, alone: anyone who can write in one can take locks away.
func (d disk) makeDir(dir int, name string) error {
	if d.shared {
		return d.makeSharedDir(dir, name)
	}
	return unix.Mkdirat(dir, name, 0o700)
}

// mustHaveOneName reports whether no file may have a second name. Members of a shared store write to no file that has
// two (see checkWritable). And on what Force allows, such as NFS and FUSE, a file that is removed while it is open gets
// another name in its directory, which then is not empty.
func mustHaveOneName(o Options) bool { return o.Group != "" || o.Force }

// linkFile gives the file a second name. It is ErrUnsupported where the caller must rename it instead.
func (d disk) linkFile(dir int, name, to string) error {
	if d.oneName {
		return errors.ErrUnsupported
	}
	err := unix.Linkat(dir, name, dir, to, 0)
	switch {
	// EPERM is what Linux says if the file system has no links, and EACCES if a policy allows none.
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.EMLINK):
		return errors.ErrUnsupported
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT): // a rename does not need the room of another name
		return errors.ErrUnsupported
	}
	return err
}

func (disk) renameEntry(dir int, name string, toDir int, to string) error {
	return unix.Renameat(dir, name, toDir, to)
}

func (disk) removeFile(dir int, name string) error { return unix.Unlinkat(dir, name, 0) }

func (disk) removeDir(dir int, name string) error {
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

// createLocked locks with flock(2), whose lock belongs to the open file: it ends when the last descriptor of that open
// file is closed, in whichever process. A lock of fcntl(2) would not do, because it belongs to the process, does not
// pass to another one with the descriptor, and ends when the process closes any descriptor of the file.
func (d disk) createLocked(dir int, name string) (int, error) {
	fd, err := d.createAt(dir, name)
	if err != nil {
		return -1, err
	}
	if err := retryInterrupted(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("flock: %w", err)
	}
	return fd, nil
}

func (disk) shareHandle(handle int) (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(handle), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "liveness file"), nil
}

// isLocked tries to get a shared lock, so that two clients that check at the same time do not take each other for the
// owner.
func (disk) isLocked(dir int, name string) (bool, error) {
	fd, err := openAt(dir, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	err = retryInterrupted(func() error { return unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// linkExclusive is renameExclusive for file systems whose rename cannot refuse to replace a file. link fails if the
// new name exists, and also if the old name was removed meanwhile, since no link can be made to a file that has none.
func linkExclusive(dir int, name, to string) error {
	if err := unix.Linkat(dir, name, dir, to, 0); err != nil {
		return err
	}
	_ = unix.Unlinkat(dir, name, 0) // if it remains, the next removal of old versions removes it
	return nil
}

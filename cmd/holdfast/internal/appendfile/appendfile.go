// Package appendfile appends lines to files that others rotate, that several processes may write to, and whose disk may
// be full.
package appendfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/system"
)

// lockTimeout is how long a line waits for another process that appends to the file.
const lockTimeout = 5 * time.Second

// pipeTimeout is how long a line may wait for the reader of a pipe that is full.
const pipeTimeout = 2 * time.Second

// File is a file to which lines are appended. Its methods may be called from any goroutine.
type File struct {
	path string // empty: an inherited descriptor
	perm os.FileMode

	mu   sync.Mutex
	file *os.File
	torn bool // the last write has ended within a line, as far as this process knows
}

// Open opens a file, or creates it with perm, or takes the descriptor fd:N that this program was started with. A FIFO
// must have a reader. Anyone who can write to the directory could lead a symbolic link to any file, so links are
// refused.
func Open(where string, perm os.FileMode) (*File, error) {
	if number, ok := strings.CutPrefix(where, "fd:"); ok {
		file, err := openInherited(number)
		if err != nil {
			return nil, err
		}
		return &File{file: file}, nil
	}
	f := &File{path: where, perm: perm}
	return f, f.open()
}

// open opens the file at the path, in place of the one that was open. Nothing changes after an error.
func (f *File) open() error {
	// Without O_NONBLOCK, opening a FIFO that has no reader would wait for one.
	const flags = os.O_APPEND | os.O_CREATE | system.NonBlock | system.NoFollow
	mode := os.O_RDWR // to see how the file ends
	if info, err := os.Lstat(f.path); err == nil && !info.Mode().IsRegular() {
		mode = os.O_WRONLY
	}
	file, err := os.OpenFile(f.path, mode|flags, f.perm)
	if errors.Is(err, fs.ErrPermission) && mode == os.O_RDWR { // it may be for writers only
		file, err = os.OpenFile(f.path, os.O_WRONLY|flags, f.perm)
	}
	switch {
	case errors.Is(err, syscall.ELOOP):
		return errors.New("it is a symbolic link; name the file itself, or an open descriptor, such as fd:1")
	case errors.Is(err, syscall.ENXIO):
		return errors.New("it is a FIFO that nobody reads; start its reader first")
	case err != nil:
		return err
	}
	if f.file != nil {
		_ = f.file.Close()
	}
	f.file, f.torn = file, false
	return nil
}

// Reopen opens the file at the path if it is another one by now, as after a rotation. Append does that, too.
func (f *File) Reopen() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.follow()
}

func (f *File) follow() error {
	if f.path == "" {
		return nil
	}
	open, err := f.file.Stat()
	if err != nil {
		return err
	}
	if now, err := os.Lstat(f.path); err == nil && os.SameFile(open, now) {
		return nil
	}
	return f.open()
}

// Append appends a line, which ends in \n, in one write. If the file was renamed or removed, it creates a new one. A
// line before it that has no end, because a disk was full or a process died, is ended first, so that the new line can
// be read. For that, processes append one after the other, by a lock on the file. durably waits until the line is on
// the disk.
func (f *File) Append(line []byte, durably bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.follow(); err != nil {
		return err
	}
	unlock := f.lock()
	if !f.endsWithLine() {
		line = append([]byte{'\n'}, line...)
	}
	n, err := f.write(line)
	unlock()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("its reader does not read: %w", err)
	}
	f.torn = n > 0 && n < len(line) || n == 0 && f.torn
	if err != nil || !durably {
		return err
	}
	return f.sync(int64(n))
}

// lock keeps other processes from appending. If the file has no locks, or another process keeps one for longer than
// lockTimeout, the line is written nevertheless.
func (f *File) lock() (unlock func()) {
	unlock = func() {}
	info, err := f.file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return unlock
	}
	for end := time.Now().Add(lockTimeout); time.Now().Before(end); time.Sleep(time.Millisecond) {
		switch err := system.TryLock(f.file); {
		case err == nil:
			return func() { system.Unlock(f.file) }
		case !errors.Is(err, system.ErrLocked):
			return unlock
		}
	}
	return unlock
}

// write writes a line, for pipeTimeout at most if the file is no regular one.
func (f *File) write(line []byte) (n int, err error) {
	deadline := time.Now().Add(pipeTimeout)
	_ = f.file.SetWriteDeadline(deadline) // only a FIFO that this process has opened has one
	if info, err := f.file.Stat(); f.path != "" || err == nil && info.Mode().IsRegular() {
		return f.file.Write(line)
	}
	for n < len(line) && err == nil {
		if err = awaitRoom(f.file, deadline); err == nil {
			var written int
			written, err = f.file.Write(line[n:min(n+pipeRoom, len(line))])
			n += written
		}
	}
	return n, err
}

// pipeRoom is how many bytes a pipe takes without a wait if it is ready for any: PIPE_BUF of POSIX.
const pipeRoom = 512

// endsWithLine reports whether the file is empty or ends in \n.
func (f *File) endsWithLine() bool {
	info, err := f.file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return !f.torn
	}
	last := make([]byte, 1)
	if _, err := f.file.ReadAt(last, info.Size()-1); err != nil { // only this process's own writes are known
		return !f.torn
	}
	return last[0] == '\n'
}

// sync waits until a line of n bytes is on the disk, and the name of the file, if it is the first line.
func (f *File) sync(n int64) error {
	if err := syncFile(f.file); err != nil {
		return err
	}
	info, err := f.file.Stat()
	if err != nil || f.path == "" || info.Size() > n {
		return err
	}
	dir, err := os.Open(filepath.Dir(f.path))
	if errors.Is(err, fs.ErrPermission) { // for writers only
		return nil
	} else if err != nil {
		return err
	}
	defer dir.Close()
	return syncFile(dir)
}

func syncFile(f *os.File) error {
	if err := f.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) { // pipes and devices have no disk
		return err
	}
	return nil
}

// Close closes the file.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file.Close()
}

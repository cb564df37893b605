//go:build linux || darwin

package file

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// noticeDir is the open directory turns, through which clients that wait are notified. Each makes a pipe (FIFO) there
// that it alone reads, and to notify it others write a byte into it. File events would not do: a user may have 128
// watchers on most machines, and each process needs one. A pipe needs none, and nobody can open one for writing whose
// reader is dead.
type noticeDir struct {
	disk
	dir  int
	path string
}

// listen makes a pipe, and returns a channel that is closed when somebody writes into it.
func (d noticeDir) listen(name string) (noticed <-chan struct{}, stop func(), err error) {
	fd, err := d.openPipe(name)
	if err != nil {
		return nil, nil, err
	}
	pipe, done, ended := os.NewFile(uintptr(fd), filepath.Join(d.path, name)), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := pipe.Read(make([]byte, 1)); err == nil {
			close(done)
		}
	}()
	return done, func() {
		if d.isSameFile(name, fd) {
			_ = d.removeFile(d.dir, name)
		}
		_ = pipe.Close()
		<-ended
	}, nil
}

// openPipe makes a pipe and opens it.
func (d noticeDir) openPipe(name string) (fd int, err error) {
	_ = d.removeFile(d.dir, name) // of an earlier call for the same name, which is just ending
	for {
		if err := makePipe(d, name); err != nil {
			return -1, err
		}
		// Open for writing too: else a read would not block while nobody has it open for that.
		fd, err = openAt(d.dir, name, unix.O_RDWR|unix.O_NONBLOCK)
		if !errors.Is(err, unix.ENOENT) { // else it was taken for that of a dead client, and removed
			break
		}
	}
	if err == nil {
		if err = d.shareFile(fd); err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		_ = d.removeFile(d.dir, name)
		return -1, err
	}
	return fd, nil
}

// sendNotice notifies the client that reads a pipe, if there is one.
func (d noticeDir) sendNotice(name string) {
	if fd, err := d.openForNotice(name); err == nil {
		writeNotice(fd)
		unix.Close(fd)
	}
}

// openForNotice opens a pipe. The error is ENXIO if nobody reads it. It opens nothing but a pipe: in a shared store a
// member could put a link to another file in its place.
func (d noticeDir) openForNotice(name string) (fd int, err error) {
	fd, err = openAt(d.dir, name, unix.O_WRONLY|unix.O_NONBLOCK)
	switch {
	case errors.Is(err, unix.ELOOP):
		return -1, errNoPipe
	case err != nil:
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || uint32(st.Mode)&unix.S_IFMT != unix.S_IFIFO {
		unix.Close(fd)
		return -1, errNoPipe
	}
	return fd, nil
}

// errNoPipe is the error if a file has the place of a pipe.
var errNoPipe = errors.New("no pipe")

// writeNotice notifies the client that reads an open pipe, and reports whether there is one.
func writeNotice(fd int) bool {
	_, err := unix.Write(fd, []byte("\n"))
	return err == nil || errors.Is(err, unix.EAGAIN) // it was notified often and has not read yet
}

// isSameFile reports whether a name still leads to an open file.
func (d noticeDir) isSameFile(name string, fd int) bool {
	var opened, there unix.Stat_t
	return unix.Fstat(fd, &opened) == nil &&
		unix.Fstatat(d.dir, name, &there, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		opened.Dev == there.Dev && opened.Ino == there.Ino
}

// notifyClients sends notices for a lock. It does nothing if nobody has ever waited for a notice in this directory.
func (t *table) notifyClients(name string, sessions []string) {
	d, ok := t.fsys.(disk)
	if !ok || len(sessions) == 0 {
		return
	}
	dir, err := t.openDir(t.root, "turns")
	if err != nil {
		return
	}
	defer t.closeHandle(dir)
	for _, session := range sessions {
		if isValidSession(session) {
			noticeDir{d, dir, ""}.sendNotice(noticePrefix(name) + session)
		}
	}
}

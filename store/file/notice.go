//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// noticeDir is the open directory turns, in which clients that wait are called. Each makes a pipe (FIFO) there that it
// alone reads, and others write a byte into it. File events would not do: a user may have 128 watchers on most
// machines, and each process needs one. A pipe needs none, and nobody can open one for writing whose reader is dead.
type noticeDir struct {
	disk
	dir  int
	path string
}

// listen makes a pipe, and returns a channel that is closed when it is called.
func (d noticeDir) listen(name string) (called <-chan struct{}, stop func(), err error) {
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

// call calls the client that reads a pipe, and reports whether there is one. It writes into nothing but a pipe: in a
// shared store a member could put a link to another file in its place.
func (d noticeDir) call(name string) bool {
	fd, err := openAt(d.dir, name, unix.O_WRONLY|unix.O_NONBLOCK)
	if err != nil { // it is gone, or nobody reads it
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || uint32(st.Mode)&unix.S_IFMT != unix.S_IFIFO {
		return false
	}
	_, err = unix.Write(fd, []byte("\n"))
	return err == nil || errors.Is(err, unix.EAGAIN) // it was called often and has not read yet
}

// isSameFile reports whether a name still leads to an open file.
func (d noticeDir) isSameFile(name string, fd int) bool {
	var opened, there unix.Stat_t
	return unix.Fstat(fd, &opened) == nil &&
		unix.Fstatat(d.dir, name, &there, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		opened.Dev == there.Dev && opened.Ino == there.Ino
}

// ListenForNotice makes a pipe that is named after the lock and this client's session.
func (t *table) ListenForNotice(
	ctx context.Context, name string,
) (noticed <-chan struct{}, stop func(), err error) {
	f, err := t.openTurns(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	t.noticeMu.Lock()
	defer t.noticeMu.Unlock()
	noticed, stopListening, err := f.listen(f.prefix + t.liveness.session)
	if err != nil {
		t.closeHandle(f.dir)
		return nil, nil, fmt.Errorf("make a pipe in turns: %w", err)
	}
	return noticed, func() {
		t.noticeMu.Lock()
		defer t.noticeMu.Unlock()
		stopListening()
		t.closeHandle(f.dir)
	}, nil
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
			noticeDir{d, dir, ""}.call(noticePrefix(name) + session)
		}
	}
}

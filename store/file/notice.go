//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

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

// call calls the client that reads a pipe, if there is one.
func (d noticeDir) call(name string) {
	if fd, err := d.openForCall(name); err == nil {
		writeCall(fd)
		unix.Close(fd)
	}
}

// openForCall opens a pipe. The error is ENXIO if nobody reads it. It opens nothing but a pipe: in a shared store a member
// could put a link to another file in its place.
func (d noticeDir) openForCall(name string) (fd int, err error) {
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

// writeCall calls the client that reads an open pipe, and reports whether there is one.
func writeCall(fd int) bool {
	_, err := unix.Write(fd, []byte("\n"))
	return err == nil || errors.Is(err, unix.EAGAIN) // it was called often and has not read yet
}

// isSameFile reports whether a name still leads to an open file.
func (d noticeDir) isSameFile(name string, fd int) bool {
	var opened, there unix.Stat_t
	return unix.Fstat(fd, &opened) == nil &&
		unix.Fstatat(d.dir, name, &there, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		opened.Dev == there.Dev && opened.Ino == there.Ino
}

// noticePipe is the pipe on which this client is notified of one lock. It stays for a while when nobody listens: on a busy
// lock a client listens many times per second, and to make a file and to remove it costs more than all else. ext4 looks
// at each file that was removed in the last seconds before it makes one.
type noticePipe struct {
	turnFile
	pipe    *os.File
	fd      int
	noticed chan struct{} // closed with the next notice; nil if nobody listens; guarded by noticeMu, like removal
	removal *time.Timer   // set while nobody listens
	ended   chan struct{} // closed when run has returned
}

const (
	// noticePipeKeep is how long a pipe stays when nobody listens.
	noticePipeKeep = time.Second
	// maxNoticePipes is how many pipes a client may have for one of them to stay. Each takes two file descriptors, and a
	// client may wait for thousands of locks, one after the other.
	maxNoticePipes = 64
)

// ListenForNotice makes a pipe that is named after the lock and this client's session, unless there is one.
func (t *table) ListenForNotice(
	ctx context.Context, name string,
) (noticed <-chan struct{}, stop func(), err error) {
	if err := t.beginCall(ctx); err != nil { // before noticeMu, which Close locks when it has locked callsMu
		return nil, nil, err
	}
	defer t.endCall()
	t.noticeMu.Lock()
	defer t.noticeMu.Unlock()
	p := t.pipes[name]
	if p != nil && !p.isSameFile(p.pipeName(t), p.fd) {
		t.removePipe(name, p)
		p = nil
	}
	if p == nil {
		if p, err = t.makePipe(name); err != nil {
			return nil, nil, err
		}
	}
	if p.removal != nil {
		p.removal.Stop()
		p.removal = nil
	}
	p.notify() // the listener of an earlier call, which is just ending
	listening := make(chan struct{})
	p.noticed = listening
	return listening, func() {
		t.noticeMu.Lock()
		defer t.noticeMu.Unlock()
		if t.pipes[name] != p || p.removal != nil || p.noticed != nil && p.noticed != listening {
			return // a later call listens
		}
		if len(t.pipes) > maxNoticePipes {
			t.removePipe(name, p)
			return
		}
		p.noticed = nil
		p.removal = time.AfterFunc(t.pipeKeep, func() { t.removeUnusedPipe(name, p) })
	}, nil
}

func (p *noticePipe) pipeName(t *table) string { return p.prefix + t.liveness.session }

// makePipe is called within a call, with noticeMu held.
func (t *table) makePipe(name string) (*noticePipe, error) {
	f, err := t.openTurnFile(name)
	if err != nil {
		return nil, err
	}
	p := &noticePipe{turnFile: f, ended: make(chan struct{})}
	if p.fd, err = f.openPipe(p.pipeName(t)); err != nil {
		t.closeHandle(f.dir)
		return nil, fmt.Errorf("make a pipe in turns: %w", err)
	}
	p.pipe = os.NewFile(uintptr(p.fd), filepath.Join(f.path, p.pipeName(t)))
	if t.pipes == nil {
		t.pipes = map[string]*noticePipe{}
	}
	t.pipes[name] = p
	go p.run(t)
	return p, nil
}

// run reads notices until the pipe is closed.
func (p *noticePipe) run(t *table) {
	defer close(p.ended)
	for buf := make([]byte, 64); ; {
		if _, err := p.pipe.Read(buf); err != nil {
			return
		}
		t.noticeMu.Lock()
		p.notify()
		t.noticeMu.Unlock()
	}
}

// notify notifies who listens. It is called with noticeMu held.
func (p *noticePipe) notify() {
	if p.noticed != nil {
		close(p.noticed)
		p.noticed = nil
	}
}

func (t *table) removeUnusedPipe(name string, p *noticePipe) {
	t.noticeMu.Lock()
	defer t.noticeMu.Unlock()
	if t.pipes[name] == p && p.removal != nil {
		t.removePipe(name, p)
	}
}

// removePipe is called with noticeMu held.
func (t *table) removePipe(name string, p *noticePipe) {
	delete(t.pipes, name)
	p.notify()
	if p.isSameFile(p.pipeName(t), p.fd) {
		_ = p.removeFile(p.dir, p.pipeName(t))
	}
	_ = p.pipe.Close()
	t.closeHandle(p.dir)
}

// closePipes removes all pipes, and waits for their goroutines.
func (t *table) closePipes() {
	t.noticeMu.Lock()
	var ended []chan struct{}
	for name, p := range t.pipes {
		if p.removal != nil {
			p.removal.Stop()
		}
		t.removePipe(name, p)
		ended = append(ended, p.ended)
	}
	t.noticeMu.Unlock()
	for _, done := range ended {
		<-done
	}
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

// removeDeadPipes removes pipes that killed clients have left in turns. On a lock that is never idle nobody else removes
// them. It looks at some of the files, as removeDeadFiles does.
func (t *table) removeDeadPipes() {
	dir, err := t.openDir(t.root, "turns")
	if err != nil {
		return
	}
	defer t.closeHandle(dir)
	names, err := t.listNames(dir)
	if err != nil || len(names) == 0 {
		return
	}
	first := mathrand.IntN(len(names))
	for i := range min(len(names), maxDeadChecks) {
		name := names[(first+i)%len(names)]
		_, client, isPipe := strings.Cut(name, "+")
		if isPipe && len(client) >= sessionLength && t.liveness.isDead(client[len(client)-sessionLength:]) {
			_ = t.removeFile(dir, name)
		}
	}
}

//go:build linux || darwin

package file

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// noticePipe is the pipe on which this client is notified of one lock. It stays for a while when nobody listens: on a
// busy lock a client listens many times per second, and to make a file and to remove it costs more than all else.
// ext4 looks at each file that was removed in the last seconds before it makes one.
type noticePipe struct {
	noticeDir
	prefix   string // of its name
	lock     string
	pipe     *os.File
	fd       int
	listener chan struct{} // of the last call of listenForNotice; nil if nobody listens; guarded by noticeMu, like removal
	removal  *time.Timer   // set while nobody listens
	ended    chan struct{} // closed when run has returned
}

// maxNoticePipes is how many pipes a client may have for one of them to stay. Each takes two file descriptors, and a
// client may wait for thousands of locks, one after the other.
const maxNoticePipes = 64

// listenForNotice makes a pipe that is named after the lock and this client's session, unless there is one. The channel
// gets the notices.
func (t *table) listenForNotice(
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
		t.removePipe(p)
		p = nil
	}
	if p == nil {
		if p, err = t.makePipe(name); err != nil {
			return nil, nil, err
		}
	}
	p.keep()
	p.notify() // an earlier call, which is just ending
	l := make(chan struct{}, 1)
	p.listener = l
	return l, func() { t.stopListening(p, l) }, nil
}

// listens reports whether a channel of listenForNotice still gets the notices: the pipe may have been removed by hand.
func (t *table) listens(name string, noticed <-chan struct{}) bool {
	t.noticeMu.Lock()
	defer t.noticeMu.Unlock()
	p := t.pipes[name]
	return p != nil && p.listener == noticed && p.isSameFile(p.pipeName(t), p.fd)
}

// stopListening ends the call of a listener. The pipe then stays for a while.
func (t *table) stopListening(p *noticePipe, l chan struct{}) {
	t.noticeMu.Lock()
	defer t.noticeMu.Unlock()
	switch {
	case t.pipes[p.lock] != p, p.listener != l: // it was removed, or a later call listens
	case len(t.pipes) > maxNoticePipes:
		t.removePipe(p)
	default:
		p.listener = nil
		p.removal = time.AfterFunc(t.pipeKeep, func() { t.removeUnusedPipe(p) })
	}
}

func (p *noticePipe) pipeName(t *table) string { return p.prefix + t.liveness.session }

// makePipe is called within a call, with noticeMu held.
func (t *table) makePipe(name string) (*noticePipe, error) {
	f, err := t.openTurnFile(name)
	if err != nil {
		return nil, err
	}
	p := &noticePipe{noticeDir: f.noticeDir, prefix: f.prefix, lock: name, ended: make(chan struct{})}
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

// run reads notices until the pipe is closed, or cannot be read.
func (p *noticePipe) run(t *table) {
	defer close(p.ended)
	for buf := make([]byte, 64); ; {
		_, err := p.pipe.Read(buf)
		t.noticeMu.Lock()
		p.notify()
		if err != nil && t.pipes[p.lock] == p {
			t.removePipe(p)
		}
		t.noticeMu.Unlock()
		if err != nil {
			return
		}
	}
}

// notify notifies the listener, if there is one. It is called with noticeMu held.
func (p *noticePipe) notify() {
	select {
	case p.listener <- struct{}{}:
	default: // it has not taken the one before yet
	}
}

// keep ends the time after which the pipe is removed. It is called with noticeMu held.
func (p *noticePipe) keep() {
	if p.removal != nil {
		p.removal.Stop()
		p.removal = nil
	}
}

// removeUnusedPipe removes the pipe unless somebody listens again.
func (t *table) removeUnusedPipe(p *noticePipe) {
	t.noticeMu.Lock()
	defer t.noticeMu.Unlock()
	if t.pipes[p.lock] == p && p.removal != nil {
		t.removePipe(p)
	}
}

// removePipe is called with noticeMu held.
func (t *table) removePipe(p *noticePipe) {
	delete(t.pipes, p.lock)
	p.keep()
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
	for _, p := range t.pipes {
		t.removePipe(p)
		ended = append(ended, p.ended)
	}
	t.noticeMu.Unlock()
	for _, done := range ended {
		<-done
	}
}

// removeDeadPipes removes pipes that killed clients have left in turns. On a lock that is never idle nobody else
// removes them. It looks at some of the files, as removeDeadFiles does.
func (t *table) removeDeadPipes() {
	dir, err := t.openDir(t.root, "turns")
	if err != nil {
		return
	}
	defer t.closeHandle(dir)
	names, _, err := t.listNames(dir)
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

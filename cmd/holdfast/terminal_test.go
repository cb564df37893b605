//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pipe keeps what is written into it.
type pipe struct {
	*testing.T
	read, write *os.File
	mu          sync.Mutex
	got         strings.Builder
	closed      chan struct{}
}

func newPipe(t *testing.T) *pipe {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &pipe{T: t, read: r, write: w, closed: make(chan struct{})}
	go p.listen()
	t.Cleanup(func() { r.Close(); w.Close() })
	return p
}

func (p *pipe) listen() {
	defer close(p.closed)
	buf := make([]byte, 4096)
	for {
		n, err := p.read.Read(buf)
		p.mu.Lock()
		p.got.Write(buf[:n])
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// text is all that was written, once nobody writes any more.
func (p *pipe) text() string {
	p.Helper()
	p.write.Close()
	<-p.closed
	return p.now()
}

func (p *pipe) now() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.got.String()
}

// screen is a terminal as its user has it.
type screen struct {
	*pipe
	*world
}

// atTerminal starts the program as the leader of a session at a terminal of its own. Its command is a helper that prints
// signals.
func (w *world) atTerminal(args ...string) (*running, screen) {
	w.Helper()
	r, s := w.prepareTerminal(args...)
	r.cmd.Env = append(r.cmd.Env, "HOLDFAST_TEST_HELPER=signals")
	s.begin(r)
	return r, s
}

func (w *world) prepareTerminal(args ...string) (*running, screen) {
	w.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		w.Skip("no pseudo terminals here: ", err)
	}
	number, err := 0, error(nil)
	conn, connErr := master.SyscallConn() // Fd would make reads such that Close waits for them
	if connErr != nil {
		w.Fatal(connErr)
	}
	ctlErr := conn.Control(func(fd uintptr) {
		if number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN); err == nil {
			err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		}
	})
	if err := errors.Join(err, ctlErr); err != nil {
		w.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		w.Fatal(err)
	}
	r := w.command(args...)
	r.cmd.Stdin, r.cmd.Stdout = slave, slave
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	w.Cleanup(func() { slave.Close(); master.Close() })
	return r, screen{&pipe{T: w.T, read: master, write: slave, closed: make(chan struct{})}, w}
}

func (s screen) begin(r *running) {
	r.begin(s.pipe.write)
	go s.listen()
}

func (s screen) shows(text string) {
	s.world.Helper()
	s.await(fmt.Sprintf("%q at the terminal", text), func() bool { return strings.Contains(s.now(), text) })
}

// kills types Ctrl-C twice: as two, which come further apart than one that comes twice.
func (s screen) kills(r *running, record string) {
	s.world.Helper()
	s.types("\x03")
	s.await("the first SIGINT", func() bool { return strings.Contains(s.world.read(s.world.path(record)), "SIGINT") })
	first := s.when(record, "signal")
	s.await("the time between two", func() bool { return time.Since(first) > sameCtrlC+groupLag })
	select {
	case <-r.ended:
		s.world.Error("the first Ctrl-C ended it")
	default:
	}
	s.types("\x03")
}

func (s screen) types(keys string) {
	s.world.Helper()
	if _, err := s.pipe.read.WriteString(keys); err != nil {
		s.world.Fatal(err)
	}
}

//go:build linux

package cli

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

// capturedPipe is a pipe that records what is written to it.
type capturedPipe struct {
	*testing.T
	read, write *os.File
	mu          sync.Mutex
	got         strings.Builder
	closed      chan struct{}
}

func newPipe(t *testing.T) *capturedPipe {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &capturedPipe{T: t, read: r, write: w, closed: make(chan struct{})}
	go p.readAll()
	t.Cleanup(func() { r.Close(); w.Close() })
	return p
}

func (p *capturedPipe) readAll() {
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

// finalText closes the pipe, and returns all that was written.
func (p *capturedPipe) finalText() string {
	p.Helper()
	p.write.Close()
	<-p.closed
	return p.textSoFar()
}

func (p *capturedPipe) textSoFar() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.got.String()
}

// terminalScreen is a terminal with a user: it types keys and records the output.
type terminalScreen struct {
	*capturedPipe
	*workspace
}

// atTerminal starts the program as the leader of a session at a terminal of its own. Its command is a helper that
// prints signals.
func (w *workspace) atTerminal(args ...string) (*startedProgram, terminalScreen) {
	w.Helper()
	r, s := w.prepareTerminal(args...)
	r.cmd.Env = append(r.cmd.Env, "TEST_HELPER=signals")
	s.begin(r)
	return r, s
}

func (w *workspace) prepareTerminal(args ...string) (*startedProgram, terminalScreen) {
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
	r := w.newProgram(args...)
	r.cmd.Stdin, r.cmd.Stdout = slave, slave
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	w.Cleanup(func() { slave.Close(); master.Close() })
	return r, terminalScreen{&capturedPipe{T: w.T, read: master, write: slave, closed: make(chan struct{})}, w}
}

func (s terminalScreen) begin(r *startedProgram) {
	r.launch(s.capturedPipe.write)
	go s.readAll()
}

func (s terminalScreen) awaitText(text string) {
	s.workspace.Helper()
	s.awaitTrue(fmt.Sprintf("%q at the terminal", text), func() bool { return strings.Contains(s.textSoFar(), text) })
}

// TestListNothing: list and runs say on a terminal that there is nothing; elsewhere they print nothing.
func TestListNothing(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for subcommand, words := range map[string]string{"list": "no lock is held or waited for", "ledger": "no key of this ledger"} {
		r, terminal := w.prepareTerminal(subcommand)
		terminal.begin(r)
		terminal.awaitText(words)
		if got := w.runProgram(subcommand); got.code != 0 || got.out+got.err != "" {
			t.Error(got.description)
		}
	}
}

// pressCtrlCTwice types Ctrl-C twice, with a longer pause than between two deliveries of the same signal.
func (s terminalScreen) pressCtrlCTwice(r *startedProgram, record string) {
	s.workspace.Helper()
	s.typeKeys("\x03")
	s.awaitTrue("the first SIGINT", func() bool {
		return strings.Contains(s.workspace.readFile(s.workspace.filePath(record)), "SIGINT")
	})
	first := s.eventTime(record, "signal_received")
	s.awaitTrue("the time between two", func() bool { return time.Since(first) > sameCtrlCWindow+groupSignalDelay })
	select {
	case <-r.ended:
		s.workspace.Error("the first Ctrl-C ended it")
	default:
	}
	s.typeKeys("\x03")
}

func (s terminalScreen) typeKeys(keys string) {
	s.workspace.Helper()
	if _, err := s.capturedPipe.read.WriteString(keys); err != nil {
		s.workspace.Fatal(err)
	}
}

package cli

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/serve"
)

// parentProgram is the program that has started serve for itself (--exit-with-stdin). However it dies, the system
// closes its end of the pipe that is stdin here. Rejected: PR_SET_PDEATHSIG, which follows the thread that has started
// serve, and pools of threads end their threads.
type parentProgram struct {
	access *serve.Access
	ended  atomic.Bool
	remove func() // removes the directory of the socket; nil: none
}

// readParent reads the token. At the end of stdin it then sends SIGTERM to signals, which gets no other: a terminal
// that sends SIGINT, and a service manager that sends SIGTERM, send them to the parent as well, which decides what they
// mean.
func readParent(in io.Reader, signals chan<- os.Signal) (*parentProgram, error) {
	lines := bufio.NewReader(in)
	token, err := lines.ReadString('\n')
	if errors.Is(err, io.EOF) {
		return nil, usageError("stdin has ended before a line with the token: with --exit-with-stdin a program that " +
			"starts serve writes it there")
	} else if err != nil {
		return nil, usageError("the token cannot be read from stdin: %s", rootCause(err))
	}
	access, err := serve.NewTokenAccess(strings.TrimSpace(token))
	if err != nil {
		return nil, usageError("stdin: %s", errorText(err))
	}
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	p := &parentProgram{access: access}
	go func() {
		_, _ = io.Copy(io.Discard, lines)
		p.ended.Store(true)
		signals <- syscall.SIGTERM
	}()
	return p, nil
}

func (p *parentProgram) hasEnded() bool { return p.ended.Load() }

// listen listens where only this user can call.
func (p *parentProgram) listen() (net.Listener, error) {
	l, remove, err := serve.ListenPrivately()
	if err == nil {
		p.remove = remove
	}
	return l, err
}

func (p *parentProgram) cleanUp() {
	if p.remove != nil {
		p.remove()
	}
}

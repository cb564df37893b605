// Package servertest runs clusters of servers for tests. The servers are separate processes on free ports of the
// loopback interface. Tests can stop, kill and restart them, and cut them off from each other and from their clients.
// They are started by package childtest, so that none outlives a test run that was killed.
package servertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/childtest"
)

// Server is the process of one server.
type Server struct {
	Name     string
	Endpoint string   // host:port for clients
	Dir      string   // of its data, within that of the cluster
	Args     []string // the command that runs it

	mu   sync.Mutex
	proc *exec.Cmd
	done chan struct{}
}

// Start starts the process, also again after it has ended.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	proc, done := exec.Command(s.Args[0], s.Args[1:]...), make(chan struct{})
	proc.Stdout, proc.Stderr = log, log
	if err := childtest.Start(proc); err != nil {
		return err
	}
	s.proc, s.done = proc, done
	go func() { _ = proc.Wait(); close(done) }()
	return nil
}

func (s *Server) logFile() string { return filepath.Clean(s.Dir) + ".log" }

// LogTail returns the end of the server's output.
func (s *Server) LogTail() string {
	text, _ := os.ReadFile(s.logFile())
	return string(text[max(0, len(text)-1500):])
}

// Running reports whether the process exists. It may be stopped.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.done:
		return false
	default:
		return s.proc != nil
	}
}

// Stop stops the process (SIGSTOP); Continue continues it.
func (s *Server) Stop() { s.sendSignal(syscall.SIGSTOP) }

// Continue continues a stopped process.
func (s *Server) Continue() { s.sendSignal(syscall.SIGCONT) }

// Terminate ends the process by SIGTERM, and kills it if it has not ended after 3 s.
func (s *Server) Terminate() { s.endProcess(syscall.SIGTERM) }

// Kill kills the process.
func (s *Server) Kill() { s.endProcess(syscall.SIGKILL) }

func (s *Server) sendSignal(sig os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		_ = s.proc.Process.Signal(sig)
	}
}

func (s *Server) endProcess(sig os.Signal) {
	s.sendSignal(sig)
	s.mu.Lock()
	done := s.done
	s.mu.Unlock()
	if done == nil {
		return
	}
	select {
	case <-done:
	case <-time.After(3 * time.Second):
		s.sendSignal(syscall.SIGKILL)
		<-done
	}
}

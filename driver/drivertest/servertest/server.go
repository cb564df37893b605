package servertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Server is the process of one server. The test kit of a store fills the fields in and calls Start. The methods are for
// tests, and may be called concurrently.
type Server struct {
	Name     string
	Endpoint string   // host:port for clients
	Dir      string   // of its data, within that of the cluster; its output goes to a file next to it, Dir + ".log"
	Args     []string // the command that runs it, in the foreground

	mu   sync.Mutex
	proc *exec.Cmd
	done chan struct{}
}

// Start starts the process, for the first time or again after it has ended. It does not wait until the server accepts
// requests.
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
	if err := StartProcess(proc); err != nil {
		return err
	}
	s.proc, s.done = proc, done
	go func() { _ = proc.Wait(); close(done) }()
	return nil
}

func (s *Server) logFile() string { return filepath.Clean(s.Dir) + ".log" }

// LogTail returns the end of the server's output, at most 1,500 bytes, for the message of a test that failed.
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

// PID is the id of the process, for tools that send it signals; 0: it is not running.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.Process.Pid
}

// maxStopping is how long Stop waits for the process.
const maxStopping = time.Second

// Stop stops the process by SIGSTOP, like a machine that hangs: its connections remain. Continue continues it. On
// Linux, Stop returns when no thread of the process runs any more.
func (s *Server) Stop() {
	s.sendSignal(stopSignal)
	for start := time.Now(); isRunning(s.PID()) && time.Since(start) < maxStopping; {
		time.Sleep(time.Millisecond)
	}
}

// Continue continues a process that Stop has stopped.
func (s *Server) Continue() { s.sendSignal(continueSignal) }

// Terminate ends the process by SIGTERM, and kills it if it has not ended after 3 s.
func (s *Server) Terminate() { s.endProcess(syscall.SIGTERM) }

// Kill kills the process, and returns when it has ended.
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

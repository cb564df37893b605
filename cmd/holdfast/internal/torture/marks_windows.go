package torture

import (
	"errors"
	"os"
	"os/exec"
	"time"
)

// now is the time in nanoseconds.
func now() int64 { return time.Now().UnixNano() }

// marks are not kept here: see openMarks.
type marks struct{}

// openMarks refuses: workers are stopped by signals, which this system does not have.
func openMarks(string) (*marks, error) {
	return nil, errors.New("torture runs on Linux and macOS, not on Windows: it stops processes by signals")
}

func (m *marks) set(int, int64) {}

func (m *marks) get(int) int64 { return 0 }

func (m *marks) close() {}

func leadGroup(c *exec.Cmd) {}

func killGroup(p *os.Process) { _ = p.Kill() }

//go:build unix

package redistest

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

//go:embed shim/clock.c
var shim []byte

// Clock is a wall clock for servers that are started on it, which a test can step. The steps are made by a library that
// is preloaded into the servers (shim/clock.c), since Redis reads the system's clock, and a test must not change that.
// It needs cc in the PATH, and Linux.
type Clock struct {
	dir  string
	file *os.File
}

// NewClock makes a clock, which agrees with the machine's until its first step. Call Close when its servers have
// stopped.
func NewClock() (*Clock, error) {
	dir, err := os.MkdirTemp("", "holdfast-clock-")
	if err != nil {
		return nil, err
	}
	c := &Clock{dir: dir}
	source := filepath.Join(dir, "clock.c")
	if err = os.WriteFile(source, shim, 0o600); err == nil {
		out, cerr := exec.Command("cc", "-shared", "-fPIC", "-O1", "-o", c.libraryPath(), source).CombinedOutput()
		if err = cerr; err != nil {
			err = fmt.Errorf("compiling the clock: %w: %s", err, out)
		}
	}
	if err == nil {
		c.file, err = os.Create(filepath.Join(dir, "offset"))
	}
	if err == nil {
		err = c.Step(0)
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return c, nil
}

// libraryPath is the file of the library that is preloaded.
func (c *Clock) libraryPath() string { return filepath.Join(c.dir, "clock.so") }

// Step sets how far the clock is ahead of the machine's; a negative duration sets it behind. Running servers notice it
// at once, because they share the file that it writes.
func (c *Clock) Step(ahead time.Duration) error {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], uint64(ahead.Microseconds()))
	_, err := c.file.WriteAt(b[:], 0)
	return err
}

// Start starts a server as the function Start does, on this clock.
func (c *Clock) Start(args ...string) (*Server, error) {
	s, err := newServer(args)
	if err != nil {
		return nil, err
	}
	s.env = []string{"LD_PRELOAD=" + c.libraryPath(), "HOLDFAST_CLOCK=" + c.file.Name()}
	return s, s.startProcess()
}

// Close removes the files of the clock. Its servers must have stopped.
func (c *Clock) Close() {
	c.file.Close()
	os.RemoveAll(c.dir)
}

//go:build unix

package torture

import (
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// now is the time in nanoseconds of a clock that all processes of this machine share, and that nobody can set.
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return time.Now().UnixNano()
	}
	return t.Nano()
}

// marks are numbers that survive the process that wrote them: one per lock, when its holder believed for the last time.
// They are in a file that both the worker and the command have mapped.
type marks struct{ data []byte }

const maxMarks = 512

// openMarks maps the file that all workers share. What one writes is there for the others even if it is killed at
// the next instruction.
func openMarks(path string) (*marks, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(8 * maxMarks); err != nil {
		return nil, err
	}
	data, err := unix.Mmap(int(f.Fd()), 0, 8*maxMarks, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &marks{data}, nil
}

func (m *marks) slot(lock int) *int64 { return (*int64)(unsafe.Pointer(&m.data[8*lock])) }

func (m *marks) set(lock int, at int64) { atomic.StoreInt64(m.slot(lock), at) }

func (m *marks) get(lock int) int64 { return atomic.LoadInt64(m.slot(lock)) }

func (m *marks) close() { _ = unix.Munmap(m.data) }

// leadGroup makes a process lead a process group of its own.
func leadGroup(c *exec.Cmd) {
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.SysProcAttr.Setpgid = true
}

// killGroup kills the process group that a process leads.
func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }

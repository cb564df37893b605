package servertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

func dieWithUs(c *exec.Cmd) {
	attr := syscall.SysProcAttr{}
	if c.SysProcAttr != nil {
		attr = *c.SysProcAttr // it may be shared
	}
	attr.Pdeathsig = syscall.SIGKILL
	c.SysProcAttr = &attr
}

// isRunning reports whether a thread of a process is neither stopped nor ended, by its state in /proc (proc(5)).
func isRunning(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(fields) > 0 && !strings.Contains("TtZX", fields[0]) {
			return true
		}
	}
	return false
}

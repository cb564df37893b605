package guard

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/text"
)

// Process is one process of a tree.
type Process struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`

	parent, group int
	started       string // start time in the kernel's ticks; distinguishes two processes that had one number
	exited        bool   // all its threads have ended, so there is no use in naming it; it is signaled until it is reaped
}

// hasEnded reports whether the error of a look at a process, or of a signal to it, says that there is no such
// process. All other errors say that nothing was seen: a descriptor or a permission was missing, or memory.
func hasEnded(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// OwnFiles are the input, the output and the error output of this process.
func OwnFiles() []uintptr { return []uintptr{os.Stdin.Fd(), os.Stdout.Fd(), os.Stderr.Fd()} }

// startBeside starts another process of the tree. It fails if the first process has ended: the tree may then be gone.
func (t *Tree) startBeside(path string, argv []string) (pid int, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	env := append(os.Environ(), "HOLDFAST_COMMAND_PID="+strconv.Itoa(t.command))
	return t.fork(path, argv, &syscall.ProcAttr{Env: env, Files: append([]uintptr{null.Fd()}, OwnFiles()[1:]...)})
}

var errCommandEnded = errors.New("the command has ended")

// processNames lists the first processes for a message: name[number].
func processNames(all []Process) []string {
	const maxShown = 5
	var names []string
	for i, p := range all {
		if i == maxShown {
			return append(names, fmt.Sprintf("%d more", len(all)-maxShown))
		}
		name := text.Printable(p.Name)
		if p.PID != 0 {
			name += fmt.Sprintf("[%d]", p.PID)
		}
		names = append(names, name)
	}
	return names
}

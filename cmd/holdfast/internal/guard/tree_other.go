//go:build unix && !linux

package guard

import (
	"errors"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DescendantsHelp is the part of the help that depends on the system.
const DescendantsHelp = `  On this system descendants of the command are found by their process group. A process that leaves the group, by setsid
  for instance, is neither ended nor waited for. At a terminal the command stays in this program's group, so that Ctrl-Z
  works, and only the command itself is signaled and waited for. On Linux all descendants are found.`

// LastSignal is the largest number of a signal.
const LastSignal = syscall.Signal(31)

// groupPoll is the time between two checks whether a process group is empty: there is no event for it.
const groupPoll = 50 * time.Millisecond

// Tree is a process that this one has started and, if it leads a process group of its own, all that stays in that
// group.
type Tree struct {
	Exited chan syscall.WaitStatus // how the first process ended; sent once
	Gone   chan struct{}           // closed when the last process of the tree has ended

	command int
	grouped bool         // the command leads a group of its own
	guarded atomic.Int64 // the command, which the first process has started if that is a guard
}

// StartTree starts a process with these files as its input, output and error output. A bound one leads a process group
// of its own, unless it runs at a terminal. These systems cannot kill it when this process dies.
func StartTree(path string, argv, env []string, files []uintptr, bound bool) (*Tree, error) {
	t := &Tree{Exited: make(chan syscall.WaitStatus, 1), Gone: make(chan struct{}), grouped: bound && !IsForeground()}
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Env: env, Files: files, Sys: &syscall.SysProcAttr{Setpgid: t.grouped},
	})
	if err != nil {
		return nil, err
	}
	t.command = pid
	go t.reapAll()
	return t, nil
}

func (t *Tree) reapAll() {
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(t.command, &status, 0, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	t.Exited <- syscall.WaitStatus(status)
	for t.isAlive() {
		time.Sleep(groupPoll)
	}
	close(t.Gone)
}

// StartListener starts the listener. It returns nil if that fails.
func (t *Tree) StartListener(program string) *Listener { return startListener(program) }

// KillListener does nothing: nobody waits for the listener.
func (t *Tree) KillListener() {}

// AddGuardedCommand makes the command of a guard part of the guard's tree, for when the guard dies.
func (t *Tree) AddGuardedCommand(command int) { t.guarded.Store(int64(command)) }

func (t *Tree) isAlive() bool {
	guarded := int(t.guarded.Load())
	return t.grouped && exists(-t.command) || guarded > 0 && (exists(-guarded) || exists(guarded))
}

// exists reports whether there is a process, or a group if the number is negative. It may be one that this user may not
// signal.
func exists(pid int) bool { return !hasEnded(unix.Kill(pid, 0)) }

// fork starts a process in the group of the tree, if that has one.
func (t *Tree) fork(path string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	if t.grouped {
		attr.Sys = &syscall.SysProcAttr{Setpgid: true, Pgid: t.command}
	}
	pid, err = syscall.ForkExec(path, argv, attr)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ESRCH) { // there is no such group any more
		return 0, errCommandEnded
	}
	if err == nil {
		go func() { // until it is reaped, its group exists
			for {
				if _, err := unix.Wait4(pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
					return
				}
			}
		}()
	}
	return pid, err
}

// SignalCommand signals only the first process.
func (t *Tree) SignalCommand(sig syscall.Signal) { _ = unix.Kill(t.command, sig) }

// signalAll sends signals to every process of the tree, one after the other.
func (t *Tree) signalAll(signals ...syscall.Signal) {
	for _, sig := range signals {
		t.signalGroup(sig)
	}
}

func (t *Tree) signalGroup(sig syscall.Signal) {
	guarded := int(t.guarded.Load())
	switch {
	case t.grouped:
		_ = unix.Kill(-t.command, sig)
	case guarded > 0:
		if unix.Kill(-guarded, sig) != nil {
			_ = unix.Kill(guarded, sig)
		}
	default:
		_ = unix.Kill(t.command, sig)
	}
}

// signalMembers signals what is left after the command, unless the terminal has done so.
func (t *Tree) signalMembers(onlyOutside bool, signals ...syscall.Signal) {
	if t.grouped && !onlyOutside {
		t.signalAll(signals...)
	}
}

// signalNewChildren does nothing: a signal to a process group reaches all its members.
func (t *Tree) signalNewChildren(syscall.Signal) {}

// whyPartlyHidden returns nil: a process group is signaled without listing it.
func (t *Tree) whyPartlyHidden() error { return nil }

// ListRunning returns all that is known of what is left: the process group.
func (t *Tree) ListRunning() []Process {
	if t.isAlive() {
		return []Process{{PID: t.command, Name: "process group"}}
	}
	return nil
}

package guard

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// DescendantsHelp is the part of the help that depends on the system.
const DescendantsHelp = `  All descendants of the command are found, even those that left its process group or session, and those whose parents
  have ended. The lock is released when the last of them has ended. (Only on Linux. Other systems find them by their
  process group.)`

// LastSignal is the largest number of a signal.
const LastSignal = syscall.Signal(64)

// tree is a process that this one has started, and all its descendants: the command, or the guard. This process is
// their subreaper: a descendant that loses its parent becomes a child of this process, so that none can escape, by
// setsid or by a double fork. descendants_linux.go finds them.
type Tree struct {
	Exited chan syscall.WaitStatus // how the first process ended; sent once
	Gone   chan struct{}           // closed when the last process of the tree has ended

	command          int
	group            int          // of the first process
	cookie           string       // environment variable that only the command's tree has; may be empty
	earlierChildren  map[int]bool // from before this program's exec; they may outlive the tree
	signaledChildren map[int]bool // children that were signaled, where only children can be found

	// mu is held while reaping and while signaling. So a child that is signaled is still that child, and not another
	// process that got its number.
	mu     sync.Mutex
	reaped bool // the first process was reaped

	listener int // a child that does not belong to the tree; 0 if there is none; guarded by mu
}

// StartTree starts a process with these files as its input, output and error output. If it is bound, the kernel kills it
// when this process dies. That is only a second safety net: it does not reach what the process has started.
func StartTree(path string, argv, env []string, files []uintptr, bound bool) (*Tree, error) {
	t := &Tree{
		Exited: make(chan syscall.WaitStatus, 1), Gone: make(chan struct{}), group: unix.Getpgrp(),
		signaledChildren: map[int]bool{},
		cookie:           findCookie(env),
	}
	started := make(chan error)
	go t.startAndReap(path, argv, &syscall.ProcAttr{Env: env, Files: files}, bound, started)
	return t, <-started
}

// startAndReap starts the process and reaps until the last one has ended. It keeps its thread for as long: the kernel
// kills a bound process when the thread that started it ends.
func (t *Tree) startAndReap(path string, argv []string, attr *syscall.ProcAttr, bound bool, started chan<- error) {
	runtime.LockOSThread()
	err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	if err != nil {
		started <- fmt.Errorf("become a subreaper: %w", err)
		return
	}
	t.earlierChildren = existingChildren()
	attr.Sys = &syscall.SysProcAttr{}
	if bound {
		attr.Sys.Pdeathsig = unix.SIGKILL
	}
	t.command, err = syscall.ForkExec(path, argv, attr)
	started <- err
	if err == nil {
		if bound || t.awaitGuard() {
			t.reapAll()
		}
		close(t.Gone)
	}
}

// existingChildren are the children that this program has from before its exec, if it has not started any yet. Almost
// always there are none, and then all processes of the machine need not be listed.
func existingChildren() map[int]bool {
	found := map[int]bool{}
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	if errors.Is(err, unix.ECHILD) {
		return found
	}
	for _, pid := range (&Tree{}).ownChildren() {
		found[pid] = true
	}
	return found
}

// awaitGuard waits for a first process that is a guard, and reaps only that: this program may have other children, such as
// a program that a store runs for its credentials, and the code that starts those waits for them. It reports whether the
// guard may have left something of its tree. One that ends with one of its own exit codes has left nothing.
func (t *Tree) awaitGuard() (left bool) {
	for errors.Is(unix.Waitid(unix.P_PID, t.command, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var status unix.WaitStatus
	_, _ = unix.Wait4(t.command, &status, 0, nil) // does not wait
	t.reaped = true
	t.Exited <- syscall.WaitStatus(status)
	return !status.Exited() || status.ExitStatus() != 0 && status.ExitStatus() != exitCannotRun
}

// reapAll waits until nothing of the tree is left. A process without children has no descendants either, because each
// orphan among them would have become its child.
func (t *Tree) reapAll() {
	for {
		if t.reapExited(); t.reaped && len(t.earlierChildren) > 0 && !t.hasChild() {
			return
		}
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.ECHILD) {
			return
		}
	}
}

// reapExited reaps all children that have ended. Orphans among the descendants are children too, and would stay zombies
// otherwise.
func (t *Tree) reapExited() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || pid <= 0:
			return
		case pid == t.command:
			t.reaped = true
			t.Exited <- syscall.WaitStatus(status)
		default:
			delete(t.earlierChildren, pid)
			if pid == t.listener {
				t.listener = 0
			}
			delete(t.signaledChildren, pid)
		}
	}
}

// hasChild reports whether this process has a child that belongs to the tree, even one that is not reaped yet.
func (t *Tree) hasChild() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.ownChildren(), func(pid int) bool { return !t.isOther(pid) })
}

// isOther reports whether a child of this process does not belong to the tree.
func (t *Tree) isOther(pid int) bool { return pid == t.listener || t.earlierChildren[pid] }

// StartListener starts the listener, which is a child of this process beside the tree. It returns nil if that fails.
func (t *Tree) StartListener(program string) *Listener {
	t.mu.Lock() // it must not be reaped before it is known
	defer t.mu.Unlock()
	l := startListener(program)
	if l != nil {
		t.listener = l.pid
	}
	return l
}

// KillListener ends the listener even if it was stopped, because reapAll waits for it.
func (t *Tree) KillListener() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.listener != 0 {
		_ = unix.Kill(t.listener, unix.SIGKILL)
	}
}

// fork starts a process in the tree. While mu is held, the first process is not reaped, so the tree is not gone.
func (t *Tree) fork(path string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reaped {
		return 0, errCommandEnded
	}
	return syscall.ForkExec(path, argv, attr)
}

// SignalCommand signals only the first process.
func (t *Tree) SignalCommand(sig syscall.Signal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.reaped {
		_ = unix.Kill(t.command, sig)
	}
}

// signalAll signals every process of the tree.
func (t *Tree) signalAll(sig syscall.Signal) { t.signalMembers(sig, false) }

// signalMembers signals every process of the tree, or only those outside the process group in which the tree was
// started.
func (t *Tree) signalMembers(sig syscall.Signal, onlyOutside bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	members, err := t.listDescendants()
	if err != nil {
		t.signalChildren(sig, onlyOutside)
		return
	}
	for _, p := range members {
		if !onlyOutside || p.group != t.group {
			p.sendSignal(sig)
		}
	}
}

// signalChildren is signalMembers where only children can be found: see eachChild. The children of a child become
// children of this process when it has ended, so that repeated killing reaches all.
func (t *Tree) signalChildren(sig syscall.Signal, onlyOutside bool) {
	t.eachChild(func(pid int) {
		if group, err := unix.Getpgid(pid); !onlyOutside || err == nil && group != t.group {
			t.signaledChildren[pid] = true
			_ = unix.Kill(pid, sig)
		}
	})
}

// signalNewChildren signals the children that were not signaled yet, where only children can be found. Elsewhere
// signalAll has reached all descendants.
func (t *Tree) signalNewChildren(sig syscall.Signal) {
	if t.whyPartlyHidden() == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.eachChild(func(pid int) {
		if !t.signaledChildren[pid] {
			t.signaledChildren[pid] = true
			_ = unix.Kill(pid, sig)
		}
	})
}

// whyPartlyHidden returns why only this program's own children can be found, or nil if all descendants can.
func (t *Tree) whyPartlyHidden() error { return CheckProcNamespace() }

// ListRunning lists the processes of the tree that have not ended.
func (t *Tree) ListRunning() []Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	members, err := t.listDescendants()
	if err != nil {
		t.eachChild(func(pid int) { members = append(members, hiddenProcess(pid, os.Getpid())) })
	}
	return members
}

// AddGuardedCommand does nothing: the kernel makes this process the parent of the children of a guard that dies.
func (t *Tree) AddGuardedCommand(int) {}

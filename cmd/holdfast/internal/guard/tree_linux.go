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

// Tree is a process that this one has started, and all its descendants: the command, or the guard. This process is
// their subreaper: a descendant that loses its parent becomes a child of this process, so that none can escape, by
// setsid or by a double fork. descendants_linux.go finds them.
type Tree struct {
	Exited chan syscall.WaitStatus // how the first process ended; sent once
	Gone   chan struct{}           // closed when the last process of the tree has ended

	command int
	group   int    // of the first process
	cookie  string // environment variable that only the command's tree has; may be empty

	// All that follows is guarded by children.

	started          map[int]bool // what was started here and is not reaped: alive, whatever is seen of it
	listener         int          // a child that does not belong to the tree; 0 if there is none
	unseen           error        // why the processes could not be listed when they were signaled last; nil if they could
	signaledChildren map[int]bool // children that were signaled while processes could not be listed
	reserve          [2]int       // see freeDescriptors
}

// children is what this process knows of its children, whatever tree they belong to. It is locked while reaping and
// while signaling. So a child that is signaled is still that child, and not another process that got its number.
var children struct {
	sync.Mutex
	earlier   map[int]bool // from before this program started any: from before its exec, or orphans that process 1 was given
	inOneTree bool         // the tree reaps all that is left, and counts it, so that nobody else may
}

// StartTree starts a process with these files as its input, output and error output. If it is bound, the kernel kills
// it when this process dies. That is only a second safety net: it does not reach what the process has started.
func StartTree(path string, argv, env []string, files []uintptr, bound bool) (*Tree, error) {
	t := &Tree{
		Exited: make(chan syscall.WaitStatus, 1), Gone: make(chan struct{}), group: unix.Getpgrp(),
		started: map[int]bool{}, signaledChildren: map[int]bool{},
		cookie: findCookie(env),
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
	attr.Sys = &syscall.SysProcAttr{}
	if bound {
		attr.Sys.Pdeathsig = unix.SIGKILL
	}
	err = t.start(path, argv, attr)
	started <- err
	if err == nil {
		if bound || t.awaitGuard() {
			t.reapAll()
		}
		close(t.Gone)
	}
}

// start starts the first process.
func (t *Tree) start(path string, argv []string, attr *syscall.ProcAttr) (err error) {
	children.Lock()
	defer children.Unlock()
	children.earlier, children.inOneTree = existingChildren(), false
	if t.command, err = syscall.ForkExec(path, argv, attr); err == nil {
		t.started[t.command] = true
		t.keepDescriptors()
	}
	return err
}

// existingChildren are the children that this program has from before its exec, if it has not started any yet, and the
// orphans that it was given. Almost always there are none, and then all processes of the machine need not be listed.
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

// awaitGuard waits for a first process that is a guard, and reaps only that: this program may have other children,
// such as a program that a store runs for its credentials, and the code that starts those waits for them. It reports
// whether the guard may have left something of its tree. One that ends with one of its own exit codes has left
// nothing.
func (t *Tree) awaitGuard() (left bool) {
	for errors.Is(unix.Waitid(unix.P_PID, t.command, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	children.Lock()
	defer children.Unlock()
	var status unix.WaitStatus
	_, err := unix.Wait4(t.command, &status, 0, nil) // does not wait
	delete(t.started, t.command)
	t.Exited <- syscall.WaitStatus(status)
	children.inOneTree = err != nil || !status.Exited() || status.ExitStatus() != 0 && status.ExitStatus() != exitCannotRun
	return children.inOneTree
}

// reapAll waits until nothing of the tree is left. A process without children has no descendants either, because each
// orphan among them would have become its child.
func (t *Tree) reapAll() {
	for {
		if t.reapExited() && !t.hasChild() {
			return
		}
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.ECHILD) {
			return
		}
	}
}

// reapExited reaps all children that have ended. Orphans among the descendants are children too, and would stay zombies
// otherwise. It reports whether the first process was reaped and there are children that may outlive the tree.
func (t *Tree) reapExited() (mayBeLast bool) {
	children.Lock()
	defer children.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return !t.started[t.command] && len(children.earlier) > 0
		}
		if pid == t.command && t.started[pid] {
			t.Exited <- syscall.WaitStatus(status)
		}
		if pid == t.listener {
			t.listener = 0
		}
		delete(t.started, pid)
		delete(t.signaledChildren, pid)
		delete(children.earlier, pid)
	}
}

// hasChild reports whether this process has a child that belongs to the tree, even one that is not reaped yet.
func (t *Tree) hasChild() bool {
	children.Lock()
	defer children.Unlock()
	defer t.freeDescriptors()()
	return slices.ContainsFunc(t.ownChildren(), func(pid int) bool { return !t.isOther(pid) })
}

// isOther reports whether a child of this process does not belong to the tree.
func (t *Tree) isOther(pid int) bool { return pid == t.listener || children.earlier[pid] }

// keepDescriptors takes the reserve of descriptors.
func (t *Tree) keepDescriptors() {
	if err := unix.Pipe2(t.reserve[:], unix.O_CLOEXEC); err != nil {
		t.reserve = [2]int{}
	}
}

// freeDescriptors frees the reserve until the function that it returns is called: to find a process takes one
// descriptor, and to signal it two, and the tree must be ended even if this process has no other descriptor free, or
// the machine none. What takes them meanwhile cannot be helped: see signalChildren.
func (t *Tree) freeDescriptors() (keep func()) {
	for _, fd := range t.reserve {
		if fd > 0 {
			_ = unix.Close(fd)
		}
	}
	t.reserve = [2]int{}
	return t.keepDescriptors
}

// StartListener starts the listener, which is a child of this process next to the tree. It returns nil if that fails.
func (t *Tree) StartListener(program string) *Listener {
	children.Lock() // it must not be reaped before it is known
	defer children.Unlock()
	l := startListener(program)
	if l != nil {
		t.listener = l.pid
	}
	return l
}

// KillListener ends the listener even if it was stopped, because reapAll waits for it.
func (t *Tree) KillListener() {
	children.Lock()
	defer children.Unlock()
	if t.listener != 0 {
		_ = unix.Kill(t.listener, unix.SIGKILL)
	}
}

// fork starts a process in the tree. While children is locked, the first process is not reaped, so the tree is not
// gone.
func (t *Tree) fork(path string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	children.Lock()
	defer children.Unlock()
	if !t.started[t.command] {
		return 0, errCommandEnded
	}
	if pid, err = syscall.ForkExec(path, argv, attr); err == nil {
		t.started[pid] = true
	}
	return pid, err
}

// SignalCommand signals only the first process.
func (t *Tree) SignalCommand(sig syscall.Signal) {
	children.Lock()
	defer children.Unlock()
	if t.started[t.command] {
		_ = unix.Kill(t.command, sig)
	}
}

// signalAll sends signals to every process of the tree, one after the other.
func (t *Tree) signalAll(signals ...syscall.Signal) { t.signalMembers(false, signals...) }

// signalMembers signals every process of the tree, or only those outside the process group in which the tree was
// started. Those that have ended are signaled, too, until they are reaped: a process with threads can look like them.
func (t *Tree) signalMembers(onlyOutside bool, signals ...syscall.Signal) {
	children.Lock()
	defer children.Unlock()
	defer t.freeDescriptors()()
	members, err := t.listDescendants()
	t.unseen = err
	for _, sig := range signals {
		if err != nil {
			t.signalChildren(sig, onlyOutside)
		}
		for _, p := range members {
			if !onlyOutside || p.group != t.group {
				p.sendSignal(sig)
			}
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

// signalNewChildren signals the children that were not signaled yet, if signalAll has found children only. Otherwise
// it has reached all descendants.
func (t *Tree) signalNewChildren(sig syscall.Signal) {
	children.Lock()
	defer children.Unlock()
	if t.unseen == nil {
		return
	}
	t.eachChild(func(pid int) {
		if !t.signaledChildren[pid] {
			t.signaledChildren[pid] = true
			_ = unix.Kill(pid, sig)
		}
	})
}

// whyPartlyHidden returns why signalAll has found only this program's own children, or nil if it has found all
// descendants.
func (t *Tree) whyPartlyHidden() error {
	children.Lock()
	defer children.Unlock()
	return t.unseen
}

// ListRunning lists the processes of the tree that are worth a word: those that are not merely to be reaped.
func (t *Tree) ListRunning() []Process {
	children.Lock()
	defer children.Unlock()
	defer t.freeDescriptors()()
	members, err := t.listDescendants()
	if err != nil {
		t.eachChild(func(pid int) { members = append(members, hiddenProcess(pid, os.Getpid())) })
	}
	return slices.DeleteFunc(members, func(p Process) bool { return p.exited })
}

// AddGuardedCommand does nothing: the kernel makes this process the parent of the children of a guard that dies.
func (t *Tree) AddGuardedCommand(int) {}

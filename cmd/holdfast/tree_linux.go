package main

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

// descendantsHelp is the part of the help that depends on the system.
const descendantsHelp = `  All descendants of the command are found, even those that left its process group or session, and those whose parents
  have ended. The lock is released when the last of them has ended. (Only on Linux. Other systems find them by their
  process group.)`

const lastSignal = syscall.Signal(64)

// tree is a process that this one has started and all that descends from it: the command, or its guard. This process is
// their subreaper: whoever loses its parent becomes a child of this process, so no descendant can get out of its sight, by
// setsid or by a double fork. How they are found is in descendants_linux.go.
type tree struct {
	exited chan syscall.WaitStatus // how the first process ended; sent once
	gone   chan struct{}           // closed when no process of the tree is left

	command          int
	group            int          // of the first process
	cookie           string       // of the environment of all that descends from the command; empty if there is none
	earlierChildren  map[int]bool // children from before: what a shell had started that became this program by exec, and the listener
	signaledChildren map[int]bool // children that have had a signal, where only children can be found

	// Held to reap and to signal: so a child that is signalled still is that child, and no other process under a number
	// that has been used again.
	mu     sync.Mutex
	reaped bool // the command
}

// startTree starts a process with the input and output of this one. One that is bound is killed by the kernel should this
// process be killed: a net that catches it alone, and not what it has started.
func startTree(path string, argv, env []string, bound bool) (*tree, error) {
	t := &tree{
		exited: make(chan syscall.WaitStatus, 1), gone: make(chan struct{}), group: unix.Getpgrp(), signaledChildren: map[int]bool{},
		cookie: findCookie(env),
	}
	started := make(chan error)
	go t.startAndReap(path, argv, env, bound, started)
	return t, <-started
}

// startAndReap starts the process and reaps until all are gone. That it is bound is tied to the thread that started it, so that
// thread must not end before.
func (t *tree) startAndReap(path string, argv, env []string, bound bool, started chan<- error) {
	runtime.LockOSThread()
	err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	if err != nil {
		started <- fmt.Errorf("become a subreaper: %w", err)
		return
	}
	t.earlierChildren = t.existingChildren()
	sys := &syscall.SysProcAttr{}
	if bound {
		sys.Pdeathsig = unix.SIGKILL
	}
	t.command, err = syscall.ForkExec(path, argv, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: sys})
	started <- err
	if err == nil {
		t.reapAll()
		close(t.gone)
	}
}

// existingChildren are the children that this program has before it starts its tree.
func (t *tree) existingChildren() map[int]bool {
	found := map[int]bool{}
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil); errors.Is(err, unix.ECHILD) {
		return found
	}
	for _, pid := range t.ownChildren() {
		found[pid] = true
	}
	return found
}

// reapAll waits until nothing of the tree is left. A process without children of its own has no descendants either, since
// each orphan would have become its child.
func (t *tree) reapAll() {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.ECHILD) {
			return
		}
		if t.reapExited(); t.reaped && len(t.earlierChildren) > 0 && !t.hasChild() {
			return
		}
	}
}

func (t *tree) reapExited() {
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
			t.exited <- syscall.WaitStatus(status)
		default:
			delete(t.earlierChildren, pid)
			delete(t.signaledChildren, pid)
		}
	}
}

// hasChild reports whether there is a child that belongs to the tree, or has not been reaped.
func (t *tree) hasChild() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.ownChildren(), func(pid int) bool { return !t.earlierChildren[pid] })
}

// signalCommand signals the command alone.
func (t *tree) signalCommand(sig syscall.Signal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.reaped {
		_ = unix.Kill(t.command, sig)
	}
}

// signalAll signals every process of the tree.
func (t *tree) signalAll(sig syscall.Signal) { t.signalMembers(sig, false) }

// signalMembers signals every process of the tree, or only those outside of the process group that it began in.
func (t *tree) signalMembers(sig syscall.Signal, onlyOutside bool) {
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

// signalChildren is for where only children can be found: see eachChild. What stands below a child becomes a child when that
// has ended, so who kills again and again reaches all.
func (t *tree) signalChildren(sig syscall.Signal, onlyOutside bool) {
	t.eachChild(func(pid int) {
		if group, err := unix.Getpgid(pid); !onlyOutside || err == nil && group != t.group {
			t.signaledChildren[pid] = true
			_ = unix.Kill(pid, sig)
		}
	})
}

// signalNewChildren signals the children that have had no signal yet, where only children can be found.
func (t *tree) signalNewChildren(sig syscall.Signal) {
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

// whyPartlyHidden returns why nothing but this program's own children can be found, if so.
func (t *tree) whyPartlyHidden() error { return checkProcNamespace() }

// listRunning are the processes of the tree that run.
func (t *tree) listRunning() []process {
	t.mu.Lock()
	defer t.mu.Unlock()
	members, err := t.listDescendants()
	if err != nil {
		t.eachChild(func(pid int) { members = append(members, hiddenProcess(pid, os.Getpid())) })
	}
	return members
}

// addGuardedCommand has nothing to do: the kernel hands over the children of a guard that dies.
func (t *tree) addGuardedCommand(int) {}

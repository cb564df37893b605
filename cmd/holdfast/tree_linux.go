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

const treeHelp = `All descendants are found, also those that have left the process group or the session, or whose parents are gone. (Only
on Linux: elsewhere they are found by their process group.)`

const lastSignal = syscall.Signal(64)

// tree is a process that this one has started and all that descends from it: the command, or its guard. This process is
// their subreaper: whoever loses its parent becomes a child of this process, so no descendant can get out of its sight, by
// setsid or by a double fork. How they are found is in members_linux.go.
type tree struct {
	exited chan syscall.WaitStatus // how the first process ended; sent once
	gone   chan struct{}           // closed when no process of the tree is left

	command int
	group   int          // of the first process
	cookie  string       // of the environment of all that descends from the command; empty if there is none
	foreign map[int]bool // children from before: what a shell had started that became this program by exec, and the listener
	told    map[int]bool // children that have had a signal, where only children can be found

	// Held to reap and to signal: so a child that is signalled still is that child, and no other process under a number
	// that has been used again.
	mu     sync.Mutex
	reaped bool // the command
}

// startTree starts a process with the input and output of this one. One that is bound is killed by the kernel should this
// process be killed: a net that catches it alone, and not what it has started.
func startTree(path string, argv, env []string, bound bool) (*tree, error) {
	t := &tree{
		exited: make(chan syscall.WaitStatus, 1), gone: make(chan struct{}), group: unix.Getpgrp(), told: map[int]bool{},
		cookie: cookieOf(env),
	}
	started := make(chan error)
	go t.live(path, argv, env, bound, started)
	return t, <-started
}

// live starts the process and reaps until all are gone. That it is bound is tied to the thread that started it, so that
// thread must not end before.
func (t *tree) live(path string, argv, env []string, bound bool, started chan<- error) {
	runtime.LockOSThread()
	err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	if err != nil {
		started <- fmt.Errorf("become a subreaper: %w", err)
		return
	}
	t.foreign = t.childrenBefore()
	sys := &syscall.SysProcAttr{}
	if bound {
		sys.Pdeathsig = unix.SIGKILL
	}
	t.command, err = syscall.ForkExec(path, argv, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: sys})
	started <- err
	if err == nil {
		t.reap()
		close(t.gone)
	}
}

// childrenBefore are the children that this program has before it starts its tree.
func (t *tree) childrenBefore() map[int]bool {
	found := map[int]bool{}
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil); errors.Is(err, unix.ECHILD) {
		return found
	}
	for _, pid := range t.ownChildren() {
		found[pid] = true
	}
	return found
}

// reap waits until nothing of the tree is left. A process without children of its own has no descendants either, since
// each orphan would have become its child.
func (t *tree) reap() {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.ECHILD) {
			return
		}
		if t.reapEnded(); t.reaped && len(t.foreign) > 0 && !t.hasChild() {
			return
		}
	}
}

func (t *tree) reapEnded() {
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
			delete(t.foreign, pid)
			delete(t.told, pid)
		}
	}
}

// hasChild reports whether there is a child that belongs to the tree, or has not been reaped.
func (t *tree) hasChild() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.ownChildren(), func(pid int) bool { return !t.foreign[pid] })
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
func (t *tree) signalAll(sig syscall.Signal) { t.signalLeft(sig, false) }

// signalLeft signals every process of the tree, or only those outside of the process group that it began in.
func (t *tree) signalLeft(sig syscall.Signal, onlyOutside bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	members, err := t.members()
	if err != nil {
		t.signalChildren(sig, onlyOutside)
		return
	}
	for _, p := range members {
		if !onlyOutside || p.group != t.group {
			p.signal(sig)
		}
	}
}

// signalChildren is for where only children can be found: see eachChild. What stands below a child becomes a child when that
// has ended, so who kills again and again reaches all.
func (t *tree) signalChildren(sig syscall.Signal, onlyOutside bool) {
	t.eachChild(func(pid int) {
		if group, err := unix.Getpgid(pid); !onlyOutside || err == nil && group != t.group {
			t.told[pid] = true
			_ = unix.Kill(pid, sig)
		}
	})
}

// signalNew signals the children that have had no signal yet, where only children can be found.
func (t *tree) signalNew(sig syscall.Signal) {
	if t.blind() == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.eachChild(func(pid int) {
		if !t.told[pid] {
			t.told[pid] = true
			_ = unix.Kill(pid, sig)
		}
	})
}

// blind returns why nothing but this program's own children can be found, if so.
func (t *tree) blind() error { return procIsOurs() }

// running are the processes of the tree that run.
func (t *tree) running() []process {
	t.mu.Lock()
	defer t.mu.Unlock()
	members, err := t.members()
	if err != nil {
		t.eachChild(func(pid int) { members = append(members, hidden(pid, os.Getpid())) })
	}
	return members
}

// watchOver has nothing to do: the kernel hands over the children of a guard that dies.
func (t *tree) watchOver(int) {}

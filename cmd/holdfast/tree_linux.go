package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const treeHelp = `All descendants are found, also those that have left the process group or the session, or whose parents are gone. (Only
on Linux: elsewhere they are found by their process group.)`

const lastSignal = syscall.Signal(64)

// tree is a process that this one has started and all that descends from it: the command, or its guard. This process is
// their subreaper: whoever loses its parent becomes a child of this process, so no descendant can get out of its sight, by
// setsid or by a double fork.
type tree struct {
	exited chan syscall.WaitStatus // how the first process ended; sent once
	gone   chan struct{}           // closed when no process of the tree is left

	command int
	group   int          // of the first process
	foreign map[int]bool // children that a shell had when it became this program by exec: none of ours

	// Held to reap and to signal: so a child that is signalled still is that child, and no other process under a number
	// that has been used again.
	mu     sync.Mutex
	reaped bool // the command
}

// startTree starts a process with the input and output of this one. One that is bound is killed by the kernel should this
// process be killed: a net that catches it alone, and not what it has started.
func startTree(path string, argv, env []string, bound bool) (*tree, error) {
	t := &tree{exited: make(chan syscall.WaitStatus, 1), gone: make(chan struct{}), group: unix.Getpgrp()}
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
	t.foreign = children()
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

// children are those of this program, hardly ever any.
func children() map[int]bool {
	found := map[int]bool{}
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	if errors.Is(err, unix.ECHILD) {
		return found
	}
	all, _ := processes() // without a /proc the command alone is looked after
	for _, p := range all {
		if p.parent == os.Getpid() {
			found[p.PID] = true
		}
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
		}
	}
}

// hasChild reports whether there is a child that belongs to the tree, or has not been reaped.
func (t *tree) hasChild() bool {
	all, err := processes()
	return err != nil || slices.ContainsFunc(all, func(p process) bool {
		return p.parent == os.Getpid() && !t.foreign[p.PID]
	})
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
	if err != nil && !t.reaped { // better the command alone than nothing
		_ = unix.Kill(t.command, sig)
	}
	for _, p := range members {
		if !onlyOutside || p.group != t.group {
			p.signal(sig)
		}
	}
}

// running are the processes of the tree that run.
func (t *tree) running() []process {
	t.mu.Lock()
	defer t.mu.Unlock()
	members, _ := t.members()
	return members
}

// members are the descendants that run.
func (t *tree) members() ([]process, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	children := map[int][]process{}
	for _, p := range all {
		if !t.foreign[p.PID] {
			children[p.parent] = append(children[p.parent], p)
		}
	}
	found := children[os.Getpid()]
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].PID]...)
	}
	return slices.DeleteFunc(found, func(p process) bool { return p.dead }), nil
}

// watchOver has nothing to do: the kernel hands over the children of a guard that dies.
func (t *tree) watchOver(int) {}

// signal signals this process and no other that got its number since.
func (p process) signal(sig syscall.Signal) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil { // an old kernel, a sandbox, too many open files: better a small risk than a process that runs on
		_ = unix.Kill(p.PID, sig)
		return
	}
	defer unix.Close(fd)
	if now, err := processOf(p.PID); err == nil && now.started == p.started {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}

// processes lists all of the machine, or of this container.
func processes() ([]process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []process
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, err := processOf(pid); err == nil { // else it ended meanwhile
				all = append(all, p)
			}
		}
	}
	return all, nil
}

var errStat = errors.New("/proc: a stat file is malformed")

// processOf reads /proc/PID/stat: see proc_pid_stat(5). The name stands in parentheses and may contain any character.
func processOf(pid int) (process, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, err
	}
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return process{}, errStat
	}
	fields := bytes.Fields(stat[end+1:]) // from the third on: state, parent, group, ...
	if len(fields) < 20 {
		return process{}, errStat
	}
	parent, err1 := strconv.Atoi(string(fields[1]))
	group, err2 := strconv.Atoi(string(fields[2]))
	state := fields[0][0]
	return process{
		PID: pid, Name: string(stat[open+1 : end]), parent: parent, group: group,
		started: string(fields[19]), dead: state == 'Z' || state == 'X',
	}, errors.Join(err1, err2)
}

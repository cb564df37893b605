package main

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The descendants of this program are found in /proc, by their parents. Two kinds of /proc do not show them:
//
// One that hides other users' processes (the mount option hidepid; ProtectProc= of systemd). What stands below a set-uid
// program then seems to have no parent. Such processes are found by the lists of children, which hide nothing, and by the
// id of the lock's claim in their environment.
//
// One of another pid namespace ("unshare --pid" without --mount-proc, a chroot with the /proc of its host). Its numbers mean
// other processes here, so that nothing read there may be signalled. Then children alone are found, which the kernel tells
// apart without /proc; see eachChild.

// hiddenName stands for the name of a process that cannot be looked at.
const hiddenName = "(hidden)"

func hiddenProcess(pid, parent int) process {
	return process{PID: pid, Name: hiddenName, parent: parent}
}

// listDescendants are the descendants that run, or an error where /proc is of no use.
func (t *tree) listDescendants() ([]process, error) {
	all, hides, err := listProcesses()
	if err != nil {
		return nil, err
	}
	f := newDescendantFinder(all, t.earlierChildren, hides)
	f.addDescendants(os.Getpid())
	if hides && t.cookie != "" {
		f.findByCookie(t.cookie)
	}
	return slices.DeleteFunc(f.found, func(p process) bool { return p.dead }), nil
}

// descendantFinder collects descendants.
type descendantFinder struct {
	hides    bool
	all      map[int]process
	children map[int][]process
	skip     map[int]bool // none of the tree, or found already
	found    []process
}

func newDescendantFinder(all []process, foreign map[int]bool, hides bool) *descendantFinder {
	f := &descendantFinder{hides: hides, all: map[int]process{}, children: map[int][]process{}, skip: map[int]bool{os.Getpid(): true}}
	for pid := range foreign {
		f.skip[pid] = true
	}
	for _, p := range all {
		f.all[p.PID] = p
		f.children[p.parent] = append(f.children[p.parent], p)
	}
	return f
}

// addDescendants adds all that is below a process.
func (f *descendantFinder) addDescendants(pid int) {
	from := len(f.found)
	f.addChildren(pid)
	for i := from; i < len(f.found); i++ {
		f.addChildren(f.found[i].PID)
	}
}

func (f *descendantFinder) addChildren(pid int) {
	for _, p := range f.children[pid] {
		f.add(p)
	}
	if !f.hides {
		return
	}
	for _, child := range readChildren(pid) {
		if _, visible := f.all[child]; visible {
			continue
		}
		p, err := readProcess(child) // it may be new
		if err != nil {
			p = hiddenProcess(child, pid)
		}
		f.add(p)
	}
}

func (f *descendantFinder) add(p process) {
	if !f.skip[p.PID] {
		f.skip[p.PID] = true
		f.found = append(f.found, p)
	}
}

// findByCookie adds the processes whose parents are hidden and whose environment has the cookie. Others are not read: that may
// take as long as their memory is locked.
func (f *descendantFinder) findByCookie(cookie string) {
	for pid, p := range f.all {
		if _, visible := f.all[p.parent]; !visible && !f.skip[pid] && hasVariable(pid, cookie) {
			f.add(p)
			f.addDescendants(pid)
		}
	}
}

// findCookie is the variable that only what was started by this run has.
func findCookie(env []string) string {
	for _, v := range env {
		if strings.HasPrefix(v, "HOLDFAST_ID=") {
			return v
		}
	}
	return ""
}

func hasVariable(pid int, variable string) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && bytes.Contains(append([]byte{0}, env...), []byte("\x00"+variable+"\x00"))
}

// readChildren reads the lists of children that the kernel keeps for each thread, if it does. They hide nothing.
func readChildren(pid int) (found []int) {
	tasks := "/proc/" + strconv.Itoa(pid) + "/task"
	threads, _ := os.ReadDir(tasks)
	for _, thread := range threads {
		list, _ := os.ReadFile(tasks + "/" + thread.Name() + "/children")
		for number := range strings.FieldsSeq(string(list)) {
			if child, err := strconv.Atoi(number); err == nil {
				found = append(found, child)
			}
		}
	}
	return found
}

// sendSignal signals this process and no other that got its number since.
func (p process) sendSignal(sig syscall.Signal) {
	if p.parent == os.Getpid() { // nobody else reaps it, and not now
		_ = unix.Kill(p.PID, sig)
		return
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil { // an old kernel, a sandbox, too many open files: better a small risk than a process that runs on
		_ = unix.Kill(p.PID, sig)
		return
	}
	defer unix.Close(fd)
	if p.isSameProcess() {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}

// isSameProcess reports whether the process has its number still.
func (p process) isSameProcess() bool {
	if p.started == "" { // a hidden one
		return slices.Contains(readChildren(p.parent), p.PID)
	}
	now, err := readProcess(p.PID)
	return err == nil && now.started == p.started
}

// ownChildren are all children of this program, also those that have ended and are not reaped.
func (t *tree) ownChildren() (found []int) {
	all, hides, err := listProcesses()
	if err != nil {
		t.scanChildren(func(pid int, _ bool) { found = append(found, pid) })
		return found
	}
	for _, p := range all {
		if p.parent == os.Getpid() {
			found = append(found, p.PID)
		}
	}
	if hides {
		found = append(found, readChildren(os.Getpid())...)
	}
	return found
}

// eachChild calls f with each child of this program that runs and is not from before, found without /proc.
func (t *tree) eachChild(f func(pid int)) {
	t.scanChildren(func(pid int, runs bool) {
		if runs && !t.earlierChildren[pid] {
			f(pid)
		}
	})
}

// scanChildren asks the kernel of every number that a process can have whether that is a child of this program. It takes up to a
// second where there are four million; the most likely come first, and the rest only if they are none. Nothing may be reaped meanwhile.
func (t *tree) scanChildren(f func(pid int, runs bool)) {
	most := readNumber("/proc/sys/kernel/pid_max", 1<<22) // the same in all namespaces, or this one's
	last := readNumber("/proc/sys/kernel/ns_last_pid", most)
	found := false
	look := func(from, to int) {
		for pid := max(from, 1); pid <= to; pid++ {
			if is, runs := isChild(pid); is {
				found = found || !t.earlierChildren[pid]
				f(pid, runs)
			}
		}
	}
	look(t.command, last)
	look(1, t.command-1)
	if !found {
		look(last+1, most)
	}
}

// isChild reports whether a number is that of a child of this program, and whether that runs.
func isChild(pid int) (is, runs bool) {
	var info unix.Siginfo
	_, _, errno := unix.RawSyscall6(unix.SYS_WAITID, unix.P_PID, uintptr(pid), uintptr(unsafe.Pointer(&info)),
		unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
	return errno == 0, info.Signo == 0
}

// readNumber reads a setting of the kernel's. These are told for the namespace of who reads, whatever /proc it is read in.
func readNumber(file string, otherwise int) int {
	data, _ := os.ReadFile(file)
	if n, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil && n > 0 {
		return n
	}
	return otherwise
}

var errForeignProc = errors.New("/proc is not that of this pid namespace")

// checkProcNamespace returns an error if /proc does not show this pid namespace: the numbers in it are then those of other processes.
// A process of a namespace below has a number in each on the way there, of which this takes one.
func checkProcNamespace() error {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	me := strconv.Itoa(os.Getpid())
	for line := range strings.Lines(string(status)) {
		if numbers, ok := strings.CutPrefix(line, "NSpid:"); ok {
			if strings.TrimSpace(numbers) != me {
				return errForeignProc
			}
			return nil
		}
	}
	if self, err := os.Readlink("/proc/self"); err != nil || self != me { // a kernel before 4.1
		return errForeignProc
	}
	return nil
}

// hidesProcesses reports whether /proc is mounted so that it does not show all.
func hidesProcesses() bool {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	hides := false
	for line := range strings.Lines(string(mounts)) {
		mount, super, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(mount); len(fields) < 5 || fields[4] != "/proc" {
			continue
		}
		_, option, ok := strings.Cut(super, "hidepid=")
		hides = ok && !strings.HasPrefix(option, "0") && !strings.HasPrefix(option, "off") // the last one is on top
	}
	return hides
}

// listProcesses lists all of the machine, or of this container, that can be seen, and reports whether others may be hidden.
func listProcesses() (all []process, hides bool, err error) {
	if err := checkProcNamespace(); err != nil {
		return nil, false, err
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, false, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, false, err
	}
	hides = hidesProcesses()
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		p, err := readProcess(pid)
		switch {
		case err == nil:
			all = append(all, p)
		case errors.Is(err, os.ErrPermission): // else it ended meanwhile
			hides = true
		}
	}
	return all, hides, nil
}

var errBadStat = errors.New("/proc: a stat file is malformed")

// readProcess reads /proc/PID/stat: see proc_pid_stat(5). The name stands in parentheses and may contain any character.
func readProcess(pid int) (process, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, err
	}
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return process{}, errBadStat
	}
	fields := bytes.Fields(stat[end+1:]) // from the third on: state, parent, group, ...
	if len(fields) < 20 {
		return process{}, errBadStat
	}
	parent, err1 := strconv.Atoi(string(fields[1]))
	group, err2 := strconv.Atoi(string(fields[2]))
	state := fields[0][0]
	return process{
		PID: pid, Name: string(stat[open+1 : end]), parent: parent, group: group,
		started: string(fields[19]), dead: state == 'Z' || state == 'X',
	}, errors.Join(err1, err2)
}

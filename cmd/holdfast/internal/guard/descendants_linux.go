package guard

import (
	"bytes"
	"errors"
	"maps"
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
// A /proc that hides other users' processes (the mount option hidepid; ProtectProc= of systemd). Descendants of a
// set-uid program then seem to have no parent. They are found by the kernel's lists of children, which hide nothing,
// and by the id of the lock's claim in their environment.
//
// The /proc of another pid namespace ("unshare --pid" without --mount-proc, a chroot with the /proc of its host). Its
// numbers belong to other processes here, so that nothing read there may be signaled. Then only children are found,
// which the kernel identifies without /proc; see eachChild.

// HiddenName is shown for a process whose name cannot be read.
const HiddenName = "(hidden)"

func hiddenProcess(pid, parent int) Process {
	return Process{PID: pid, Name: HiddenName, parent: parent}
}

// listDescendants lists the descendants that are not reaped. It returns an error if /proc cannot be used.
func (t *Tree) listDescendants() ([]Process, error) {
	all, hides, err := listProcesses()
	if err != nil {
		return nil, err
	}
	f := newDescendantFinder(all, t.otherProcesses(), hides)
	err = f.addDescendants(os.Getpid())
	if hides && t.cookie != "" {
		err = errors.Join(err, f.findByCookie(t.cookie))
	}
	if err != nil {
		return nil, err
	}
	for pid := range t.started { // whatever /proc shows of them
		f.add(hiddenProcess(pid, os.Getpid()))
	}
	return f.found, nil
}

// descendantFinder collects the descendants of a process from one listing of /proc.
type descendantFinder struct {
	hides    bool
	all      map[int]Process
	children map[int][]Process
	skip     map[int]bool // not part of the tree, or found already
	found    []Process
}

// otherProcesses are this process and its children that do not belong to the tree.
func (t *Tree) otherProcesses() map[int]bool {
	found := map[int]bool{os.Getpid(): true, t.listener: true}
	maps.Copy(found, children.earlier)
	return found
}

// newDescendantFinder makes a finder of one listing of /proc. The processes in skip, and the children of those that are
// not this process, are left out.
func newDescendantFinder(all []Process, skip map[int]bool, hides bool) *descendantFinder {
	f := &descendantFinder{hides: hides, all: map[int]Process{}, children: map[int][]Process{}, skip: skip}
	for _, p := range all {
		f.all[p.PID] = p
		f.children[p.parent] = append(f.children[p.parent], p)
	}
	return f
}

// addDescendants adds all descendants of a process.
func (f *descendantFinder) addDescendants(pid int) error {
	from := len(f.found)
	err := f.addChildren(pid)
	for i := from; i < len(f.found) && err == nil; i++ {
		err = f.addChildren(f.found[i].PID)
	}
	return err
}

// addChildren adds the children of a process: those that the listing has and, if /proc hides some, those that only the
// kernel's lists of children have.
func (f *descendantFinder) addChildren(pid int) error {
	for _, p := range f.children[pid] {
		f.add(p)
	}
	if !f.hides {
		return nil
	}
	list, err := ReadChildren(pid)
	for _, child := range list {
		if _, visible := f.all[child]; visible {
			continue
		}
		p, err := ReadProcess(child) // it may have started after the listing
		if err != nil {
			p = hiddenProcess(child, pid)
		}
		f.add(p)
	}
	return err
}

// add adds a process once.
func (f *descendantFinder) add(p Process) {
	if !f.skip[p.PID] {
		f.skip[p.PID] = true
		f.found = append(f.found, p)
	}
}

// findByCookie adds the processes whose parents are hidden and whose environment has the cookie. It does not read other
// environments, because reading one blocks while the memory of its process is locked.
func (f *descendantFinder) findByCookie(cookie string) error {
	for pid, p := range f.all {
		if _, visible := f.all[p.parent]; visible || f.skip[pid] {
			continue
		}
		has, err := hasVariable(pid, cookie)
		if has {
			f.add(p)
			err = f.addDescendants(pid)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findCookie returns the variable that only the processes of this run have, with its value.
func findCookie(env []string) string {
	for _, v := range env {
		if strings.HasPrefix(v, "HOLDFAST_ID=") {
			return v
		}
	}
	return ""
}

// hasVariable reports whether a process has an environment variable, given as NAME=VALUE. Only processes of the same
// user can be read. A thread that has ended shows none, and that may be the first one.
func hasVariable(pid int, variable string) (has bool, err error) {
	err = readThreads(pid, "environ", func(env []byte) (more bool) {
		has = bytes.Contains(append([]byte{0}, env...), []byte("\x00"+variable+"\x00"))
		return len(env) == 0
	})
	return has, err
}

// ReadChildren reads the lists of children that the kernel keeps per thread, if it was built with them. They hide
// nothing.
func ReadChildren(pid int) (found []int, err error) {
	err = readThreads(pid, "children", func(list []byte) (more bool) {
		for number := range strings.FieldsSeq(string(list)) {
			if child, err := strconv.Atoi(number); err == nil {
				found = append(found, child)
			}
		}
		return true
	})
	return found, err
}

// readThreads calls f with a file of each thread of a process, until f wants no more. What has ended, and what this
// user may not read, is left out.
func readThreads(pid int, file string, f func(data []byte) (more bool)) error {
	unread := func(err error) error {
		if hasEnded(err) || errors.Is(err, os.ErrPermission) {
			return nil
		}
		return err
	}
	tasks := "/proc/" + strconv.Itoa(pid) + "/task"
	threads, err := os.ReadDir(tasks)
	if unread(err) != nil {
		return err
	}
	for _, thread := range threads {
		data, err := os.ReadFile(tasks + "/" + thread.Name() + "/" + file)
		if unread(err) != nil {
			return err
		}
		if !f(data) {
			break
		}
	}
	return nil
}

// sendSignal signals this process, and no other process that got its number meanwhile.
func (p Process) sendSignal(sig syscall.Signal) {
	if p.parent == os.Getpid() { // only this program reaps it, and not while children is locked
		_ = unix.Kill(p.PID, sig)
		return
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		// An old kernel, a sandbox, or too many open files. A small risk is better than a process that is not ended.
		_ = unix.Kill(p.PID, sig)
		return
	}
	defer unix.Close(fd)
	if p.isSameProcess() {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}

// isSameProcess reports whether the number still belongs to this process. If that cannot be seen, it does: a small
// risk is better than a process that is not ended.
func (p Process) isSameProcess() bool {
	if p.started == "" { // a hidden one
		list, err := ReadChildren(p.parent)
		return err != nil || slices.Contains(list, p.PID)
	}
	now, err := ReadProcess(p.PID)
	if err != nil {
		return !hasEnded(err)
	}
	return now.started == p.started
}

// ownChildren lists all children of this program, even those that have ended and are not reaped.
func (t *Tree) ownChildren() (found []int) {
	all, hides, err := listProcesses()
	for _, p := range all {
		if p.parent == os.Getpid() {
			found = append(found, p.PID)
		}
	}
	if err == nil && hides {
		var hidden []int
		hidden, err = ReadChildren(os.Getpid())
		found = append(found, hidden...)
	}
	if err != nil {
		t.scanChildren(func(pid int, _ bool) { found = append(found, pid) })
	}
	return found
}

// eachChild calls f with each child of this program that has not ended and is not from before. It needs no /proc, and
// no descriptor.
func (t *Tree) eachChild(f func(pid int)) {
	t.scanChildren(func(pid int, runs bool) {
		if runs && !t.isOther(pid) {
			f(pid)
		}
	})
}

// scanChildren asks the kernel for every possible process number whether it is a child of this program. That takes up
// to a second if there are four million numbers. The most likely ones come first, and the rest only if there is no
// child among them. Nothing may be reaped meanwhile.
func (t *Tree) scanChildren(f func(pid int, runs bool)) {
	maxPID := readNumber("/proc/sys/kernel/pid_max", 1<<22) // of this namespace, or of all
	last := readNumber("/proc/sys/kernel/ns_last_pid", maxPID)
	found := false
	look := func(from, to int) {
		for pid := max(from, 1); pid <= to; pid++ {
			if is, runs := isChild(pid); is {
				found = found || !t.isOther(pid)
				f(pid, runs)
			}
		}
	}
	look(t.command, last)
	look(1, t.command-1)
	if !found {
		look(last+1, maxPID)
	}
}

// isChild reports whether a number is that of a child of this program, and whether the child has not ended.
func isChild(pid int) (is, runs bool) {
	var info unix.Siginfo
	_, _, errno := unix.RawSyscall6(unix.SYS_WAITID, unix.P_PID, uintptr(pid), uintptr(unsafe.Pointer(&info)),
		unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
	return errno == 0, info.Signo == 0
}

// readNumber reads a kernel setting. The kernel answers for the namespace of the reading process, even in another's
// /proc.
func readNumber(file string, otherwise int) int {
	data, _ := os.ReadFile(file)
	if n, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil && n > 0 {
		return n
	}
	return otherwise
}

var errForeignProc = errors.New("/proc is not that of this pid namespace")

// CheckProcNamespace returns an error if /proc does not show this pid namespace: its numbers are then those of other
// processes. NSpid lists the numbers of a process, one per pid namespace, from that of /proc down to that of the
// process. So it is just this process's own number if /proc shows this namespace, and only then.
func CheckProcNamespace() error {
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

// hidesProcesses reports whether /proc is mounted with an option that hides processes, or may be.
func hidesProcesses() bool {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	hides := err != nil
	for line := range strings.Lines(string(mounts)) {
		mount, super, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(mount); len(fields) < 5 || fields[4] != "/proc" {
			continue
		}
		_, option, ok := strings.Cut(super, "hidepid=")
		// The last mount is the one in use.
		hides = ok && !strings.HasPrefix(option, "0") && !strings.HasPrefix(option, "off")
	}
	return hides
}

// listProcesses lists all processes of the machine, or of this container, that can be seen. hides is true if others
// may be hidden.
func listProcesses() (all []Process, hides bool, err error) {
	if err := CheckProcNamespace(); err != nil {
		return nil, false, err
	}
	all, hides, err = readProcesses("/proc")
	return all, hides || hidesProcesses(), err
}

// readProcesses reads all processes of a /proc. denied is true if some may not be read. It never has two descriptors
// open.
func readProcesses(proc string) (all []Process, denied bool, err error) {
	dir, err := os.Open(proc)
	if err != nil {
		return nil, false, err
	}
	names, err := dir.Readdirnames(-1)
	_ = dir.Close()
	if err != nil {
		return nil, false, err
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		p, err := readStat(proc, pid)
		switch {
		case err == nil:
			all = append(all, p)
		case errors.Is(err, os.ErrPermission):
			denied = true
		case !hasEnded(err):
			return nil, false, err
		}
	}
	return all, denied, nil
}

var errBadStat = errors.New("/proc: a stat file is malformed")

// ReadProcess reads what /proc shows of a process.
func ReadProcess(pid int) (Process, error) { return readStat("/proc", pid) }

// readStat reads the stat file of a process: see proc_pid_stat(5). The name is in parentheses and may contain any
// character. The state is that of the first thread alone: if that has ended and others have not, it is Z, as that of a
// process that is to be reaped.
func readStat(proc string, pid int) (Process, error) {
	stat, err := os.ReadFile(proc + "/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Process{}, err
	}
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return Process{}, errBadStat
	}
	fields := bytes.Fields(stat[end+1:]) // from the third field on: state, parent, group, ...
	if len(fields) < 20 {
		return Process{}, errBadStat
	}
	parent, err1 := strconv.Atoi(string(fields[1]))
	group, err2 := strconv.Atoi(string(fields[2]))
	threads, err3 := strconv.Atoi(string(fields[17])) // with the first one, even if that has ended
	state := fields[0][0]
	return Process{
		PID: pid, Name: string(stat[open+1 : end]), parent: parent, group: group,
		started: string(fields[19]), exited: (state == 'Z' || state == 'X') && threads <= 1,
	}, errors.Join(err1, err2, err3)
}

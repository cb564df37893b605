package guard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/system"
)

// DescendantsHelp is the part of the help that depends on the system.
const DescendantsHelp = `  On this system all descendants of the command belong to a job object, which none can
  leave. The lock is released when the last of them has ended. There are no signals: the command is asked to end by
  Ctrl-Break, if it has a console, and is ended after the grace.`

// LastSignal is the largest number of a signal.
const LastSignal = syscall.SIGTERM

// jobPoll is the time between two checks whether a job is empty.
const jobPoll = 20 * time.Millisecond

// killedStatus is the exit code of processes that are ended by force: what a shell shows for SIGKILL elsewhere.
const killedStatus = 128 + uint32(syscall.SIGKILL)

// Tree is a process that this one has started, and all its descendants: the command, or the guard. They are found by
// the job object of the command, which is named after the guard. Both the wrapper and the guard have it open, and the
// kernel ends all its processes when the last of the two has ended.
type Tree struct {
	Exited chan syscall.WaitStatus // how the first process ended; sent once
	Gone   chan struct{}           // closed when the last process of the tree has ended

	command int
	job     windows.Handle
	guarded atomic.Int64 // the command, which the first process has started if that is a guard

	mu     sync.Mutex
	handle windows.Handle // of the first process; 0 when it has ended
}

// StartTree starts a process with these files as its input, output and error output. A bound one is the command, and
// belongs to the job before its first instruction. The other one is the guard, which has the handles that its arguments
// name.
func StartTree(path string, argv, env []string, files []uintptr, bound bool) (*Tree, error) {
	t := &Tree{Exited: make(chan syscall.WaitStatus, 1), Gone: make(chan struct{})}
	attr := &syscall.ProcAttr{Env: env, Files: files}
	if bound {
		if err := t.openJob(os.Getpid()); err != nil {
			return nil, err
		}
		pid, handle, err := t.startInJob(path, argv, attr)
		if err != nil {
			return nil, err
		}
		t.command, t.handle = pid, handle
		go t.awaitEnd(handle)
		return t, nil
	}
	attr.Sys = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
	for _, arg := range argv[1:min(len(argv), 6)] {
		if number, err := strconv.Atoi(arg); err == nil && number >= 0 {
			attr.Sys.AdditionalInheritedHandles = append(attr.Sys.AdditionalInheritedHandles, syscall.Handle(number))
		}
	}
	pid, handle, err := syscall.StartProcess(path, argv, attr)
	if err != nil {
		return nil, err
	}
	if err := t.openJob(pid); err != nil {
		_ = windows.TerminateProcess(windows.Handle(handle), killedStatus)
		_ = windows.CloseHandle(windows.Handle(handle))
		return nil, err
	}
	t.command, t.handle = pid, windows.Handle(handle)
	go t.awaitEnd(t.handle)
	return t, nil
}

// openJob makes or opens the job of a guard.
func (t *Tree) openJob(guard int) error {
	name, err := windows.UTF16PtrFromString(fmt.Sprintf(`Local\holdfast-guard-%d`, guard))
	if err != nil {
		return err
	}
	if t.job, err = windows.CreateJobObject(nil, name); t.job == 0 {
		return fmt.Errorf("make a job object: %w", err)
	}
	var limits windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	limits.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	_, err = windows.SetInformationJobObject(t.job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits)))
	if err != nil {
		return fmt.Errorf("make a job object that ends its processes: %w", err)
	}
	return nil
}

var ntResumeProcess = windows.NewLazySystemDLL("ntdll.dll").NewProc("NtResumeProcess")

// startInJob starts a process that belongs to the job from its first instruction on, and leads a process group of its
// own, to which Ctrl-Break can be sent.
func (t *Tree) startInJob(path string, argv []string, attr *syscall.ProcAttr) (int, windows.Handle, error) {
	attr.Sys = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP | windows.CREATE_SUSPENDED}
	pid, number, err := syscall.StartProcess(path, argv, attr)
	if err != nil {
		return 0, 0, err
	}
	handle := windows.Handle(number)
	if err = windows.AssignProcessToJobObject(t.job, handle); err == nil {
		if status, _, _ := ntResumeProcess.Call(number); status != 0 {
			err = windows.NTStatus(status)
		}
	}
	if err != nil {
		_ = windows.TerminateProcess(handle, killedStatus)
		_ = windows.CloseHandle(handle)
		return 0, 0, fmt.Errorf("start it in a job object: %w", err)
	}
	return pid, handle, nil
}

// awaitEnd waits until the first process has ended, and then until the job is empty.
func (t *Tree) awaitEnd(handle windows.Handle) {
	var code uint32
	_, _ = windows.WaitForSingleObject(handle, windows.INFINITE)
	_ = windows.GetExitCodeProcess(handle, &code)
	t.mu.Lock()
	t.handle = 0
	_ = windows.CloseHandle(handle)
	t.mu.Unlock()
	t.Exited <- syscall.WaitStatus{ExitCode: code}
	for len(t.listMembers()) > 0 {
		time.Sleep(jobPoll)
	}
	close(t.Gone)
}

// listMembers lists the processes of the job. If it cannot be asked, it is taken for not empty.
func (t *Tree) listMembers() []uintptr {
	const most = 1024
	var list struct {
		assigned, listed uint32
		ids              [most]uintptr
	}
	err := windows.QueryInformationJobObject(t.job, windows.JobObjectBasicProcessIdList,
		uintptr(unsafe.Pointer(&list)), uint32(unsafe.Sizeof(list)), nil)
	if err != nil && !errors.Is(err, windows.ERROR_MORE_DATA) {
		return []uintptr{0}
	}
	return list.ids[:min(list.listed, most)]
}

// StartListener starts none: see Listener.
func (t *Tree) StartListener(string) *Listener { return nil }

// KillListener does nothing.
func (t *Tree) KillListener() {}

// AddGuardedCommand notes the command of a guard, for when the guard dies.
func (t *Tree) AddGuardedCommand(command int) { t.guarded.Store(int64(command)) }

// fork starts a process in the job.
func (t *Tree) fork(path string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.handle == 0 {
		return 0, errCommandEnded
	}
	pid, handle, err := t.startInJob(path, argv, attr)
	if err == nil {
		_ = windows.CloseHandle(handle)
	}
	return pid, err
}

// SignalCommand ends the first process by SIGKILL, and asks it to end by all other signals that can end it.
func (t *Tree) SignalCommand(sig syscall.Signal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.handle == 0:
	case sig == syscall.SIGKILL:
		_ = windows.TerminateProcess(t.handle, killedStatus)
	default:
		t.signalAll(sig)
	}
}

// signalAll ends every process of the job by SIGKILL, and asks them to end by Ctrl-Break for all other signals that can
// end a process.
func (t *Tree) signalAll(signals ...syscall.Signal) {
	for _, sig := range signals {
		switch sig {
		case syscall.SIGKILL:
			_ = windows.TerminateJobObject(t.job, killedStatus)
		case system.SIGCONT, system.SIGWINCH, system.SIGTSTP:
		default:
			group := t.command
			if guarded := t.guarded.Load(); guarded > 0 {
				group = int(guarded)
			}
			_ = windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(group))
		}
	}
}

// signalMembers signals what is left after the command.
func (t *Tree) signalMembers(onlyOutside bool, signals ...syscall.Signal) {
	if !onlyOutside {
		t.signalAll(signals...)
	}
}

// signalNewChildren does nothing: a Ctrl-Break reaches the whole process group.
func (t *Tree) signalNewChildren(syscall.Signal) {}

// whyPartlyHidden returns nil: a job knows all its processes.
func (t *Tree) whyPartlyHidden() error { return nil }

// ListRunning lists the processes of the job.
func (t *Tree) ListRunning() (all []Process) {
	for _, pid := range t.listMembers() {
		all = append(all, Process{PID: int(pid), Name: processName(uint32(pid))})
	}
	return all
}

// processName is the name of the file that a process runs.
func processName(pid uint32) string {
	handle, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, pid)
	if err != nil {
		return "process"
	}
	defer windows.CloseHandle(handle)
	var path [windows.MAX_LONG_PATH]uint16
	size := uint32(len(path))
	if err := windows.QueryFullProcessImageName(handle, 0, &path[0], &size); err != nil {
		return "process"
	}
	return filepath.Base(windows.UTF16ToString(path[:size]))
}

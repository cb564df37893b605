package guard

import (
	"os"
	"syscall"

	"golang.org/x/sys/windows"
)

// OwnProgram is the path of the running binary.
func OwnProgram() (string, error) { return os.Executable() }

// NameProcess does nothing: a process has the name of its file here.
func NameProcess(string) {}

// ReapOrphansDuring calls f: processes are not reaped here.
func ReapOrphansDuring(f func()) { f() }

// PassOn lets the guard inherit a handle under its own number, which it returns. The number is -1 for no file.
func PassOn(f *os.File) (int, error) {
	if f == nil {
		return -1, nil
	}
	handle := f.Fd()
	return int(handle), windows.SetHandleInformation(windows.Handle(handle), windows.HANDLE_FLAG_INHERIT,
		windows.HANDLE_FLAG_INHERIT)
}

// keepToItself keeps children of this process from inheriting a handle.
func keepToItself(handle int) {
	_ = windows.SetHandleInformation(windows.Handle(handle), windows.HANDLE_FLAG_INHERIT, 0)
}

// leaveSession does nothing: the guard was started in a process group of its own, which Ctrl-C does not reach.
func leaveSession() {}

// IsForeground is false: what a terminal sends does not reach the command, which has a process group of its own.
func IsForeground() bool { return false }

// Listener knows nothing: there are no signals to a process group that this program could miss.
type Listener struct{}

// GroupHadSignal knows nothing.
func (*Listener) GroupHadSignal(syscall.Signal) (had, known bool) { return false, false }

// ClosePipes does nothing.
func (*Listener) ClosePipes() {}

func runListener() int { return exitUsage }

package guard

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// OwnProgram is the path of the running binary, even if its file has been replaced by an upgrade meanwhile: the helper
// processes must understand the same messages.
func OwnProgram() (string, error) {
	const path = "/proc/self/exe"
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return os.Executable()
}

// NameProcess sets the name that ps and top show for this process. Otherwise it would be "exe", the last part of
// OwnProgram's path.
func NameProcess(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

// ownThreads lists the threads of this process; none where there is no /proc.
func ownThreads() (threads []int) {
	entries, _ := os.ReadDir("/proc/self/task")
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			threads = append(threads, n)
		}
	}
	return threads
}

// signalThread sends a signal to one thread of this process.
func signalThread(thread int, sig syscall.Signal) error { return unix.Tgkill(os.Getpid(), thread, sig) }

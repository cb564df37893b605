package guard

import (
	"os"
	"runtime"
)

// init makes a process that was started as a helper do its work, and never return. The helper processes are the same
// binary as the program, and the packages of all stores with their libraries are linked into it: to initialize them
// takes several times as long as all that a helper does. Go initializes packages in the order of their import paths,
// each after those that it imports. This package imports only a few, so it comes before almost all others, and a
// helper neither waits for the rest nor has memory for it. If the order were another one, helpers would start later,
// and do the same.
func init() {
	if os.Getpid() == 1 {
		runtime.LockOSThread() // for ReapOrphansDuring, which needs the first thread
	}
	if len(os.Args) == 0 {
		return
	}
	switch os.Args[0] {
	case Name:
		exitWith(func() int { return runGuard(os.Args[1:]) })
	case ListenerName:
		exitWith(runListener)
	}
}

// ListenerName is the listener's name in process lists. It does not contain this program's name, so that somebody who
// sends a signal to all processes of that name does not reach the listener.
const ListenerName = "signal-listener"

// exitWith ends this process with the code that run returns. It calls run in a goroutine of its own, because that which
// initializes packages is bound to a thread, and each of its waits would be a change of threads.
func exitWith(run func() int) {
	code := make(chan int)
	go func() { code <- run() }()
	os.Exit(<-code)
}

// The exit codes of helpers. For the same reasons the program has the same codes. Nobody depends on them.
const (
	exitUsage       = 64
	exitUnavailable = 69
	exitCannotRun   = 126
)

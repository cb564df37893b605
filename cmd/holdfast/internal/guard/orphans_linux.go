package guard

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// ReapOrphansDuring calls f and, if this is process 1 of a container, reaps meanwhile the orphans that the kernel
// gives to it: what programs leave that others start in the container, such as docker exec. Nobody else can reap
// them.
//
// It must not reap a process that this program has started itself: the code that did so waits for it, such as
// os/exec. The kernel tells them apart. A child belongs to the thread that started it, and an orphan is given to the
// first thread of process 1. So the first thread does nothing but this, and waits for its own children alone. (Were a
// thread to end that has started a process, that would be given to the first thread, too. Go ends none, besides that
// of a tree that is gone.)
func ReapOrphansDuring(f func()) {
	if os.Getpid() != 1 || unix.Gettid() != 1 {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	reapOrphans(done)
}

// reapOrphans reaps the children of its own thread, which must be the caller's alone, until done is closed.
func reapOrphans(done <-chan struct{}) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	for {
		for reapOrphan() {
		}
		select {
		case <-ended:
		case <-done:
			return
		}
	}
}

// reapOrphan reaps one child of this thread, if one has ended.
func reapOrphan() (reaped bool) {
	children.Lock()
	defer children.Unlock()
	if children.inOneTree {
		return false
	}
	pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WNOTHREAD, nil)
	delete(children.earlier, pid)
	return err == nil && pid > 0
}

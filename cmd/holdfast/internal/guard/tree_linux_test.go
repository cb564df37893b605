package guard

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOtherChildrenAreNotReaped: the wrapper does not reap children that do not belong to its tree, such as a program
// that a store runs for its credentials: the code that starts those waits for them. It is not parallel, since the other
// tests signal all descendants of this process.
func TestOtherChildrenAreNotReaped(t *testing.T) {
	in, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	files := OwnFiles()
	files[0] = in.Fd()
	tree, err := StartTree("/bin/sh", []string{"sh", "-c", "read x; exit 0"}, nil, files, false)
	if err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	other := exec.Command("true")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	_ = hold.Close()
	if status := <-tree.Exited; status != 0 {
		t.Errorf("it ended with %v", status)
	}
	<-tree.Gone // a tree that waits for all children has reaped that one as well by now
	if err := other.Wait(); err != nil {
		t.Error(err)
	}
}

// TestOrphansAreReaped: what a first process has left that was killed is waited for.
func TestOrphansAreReaped(t *testing.T) {
	tree, err := StartTree("/bin/sh", []string{"sh", "-c", "(exec sleep 600 >/dev/null 2>&1) & kill -KILL $$"}, nil,
		OwnFiles(), false)
	if err != nil {
		t.Fatal(err)
	}
	if status := <-tree.Exited; !status.Signaled() {
		t.Errorf("it ended with %v", status)
	}
	select {
	case <-tree.Gone:
		t.Error("nothing is left, although a child runs")
	default:
	}
	tree.signalAll(unix.SIGKILL)
	<-tree.Gone
}

package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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

// TestWhoHasEnded: a process has ended if there is none of its number. If its first thread has ended and others have
// not, it has not. A process that cannot be read does not count as ended: then nothing is known of any.
func TestWhoHasEnded(t *testing.T) {
	t.Parallel()
	const stat = "%d (a) b) %c 1 7 7 0 -1 4227148 67 0 0 0 0 0 0 0 20 0 %d 0 198204 0 0 1\n"
	proc := t.TempDir()
	for pid, content := range map[int]string{
		10: fmt.Sprintf(stat, 10, 'S', 1), 11: fmt.Sprintf(stat, 11, 'Z', 1), 12: fmt.Sprintf(stat, 12, 'Z', 2), 13: "",
	} {
		dir := filepath.Join(proc, strconv.Itoa(pid))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if content != "" {
			if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	all, _, err := readProcesses(proc)
	if err != nil {
		t.Fatal(err)
	}
	exited := map[int]bool{}
	for _, p := range all {
		exited[p.PID] = p.exited
	}
	if want := map[int]bool{10: false, 11: true, 12: false}; !maps.Equal(exited, want) {
		t.Errorf("who has ended: %v instead of %v", exited, want)
	}
	// A directory cannot be read as a file, not even by root.
	if err := os.MkdirAll(filepath.Join(proc, "14", "stat"), 0o700); err != nil {
		t.Fatal(err)
	}
	if all, _, err := readProcesses(proc); err == nil {
		t.Errorf("one of them cannot be read, and the others are taken for all: %v", all)
	}
}

// TestStartedIsAlive: what was started here and is not reaped belongs to the tree, whatever /proc shows.
func TestStartedIsAlive(t *testing.T) {
	t.Parallel()
	const unseen = 1 << 30 // no process has such a number
	all := (&Tree{started: map[int]bool{unseen: true}}).ListRunning()
	if !slices.ContainsFunc(all, func(p Process) bool { return p.PID == unseen }) {
		t.Errorf("it lists %v", all)
	}
}

// runAsHelper runs this test binary with a main function of its own, because what that does concerns its whole
// process. It must print "done". The caller is not parallel, since the other tests signal all descendants of this
// process.
func runAsHelper(t *testing.T, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, os.Args[0])
	c.Env = append(os.Environ(), "TEST_HELPER="+what, "GORACE=atexit_sleep_ms=0")
	c.WaitDelay = time.Second // what it has left may have its output
	if out, err := c.CombinedOutput(); err != nil || string(out) != "done\n" {
		t.Errorf("%v: %s", err, out)
	}
}

func TestMain(m *testing.M) {
	helper := map[string]func() error{
		"exhausted": endTreeWithoutDescriptors, "single": endTreeWithOneDescriptor, "orphans": reapAsProcessOne,
	}[os.Getenv("TEST_HELPER")]
	if helper == nil {
		os.Exit(m.Run())
	}
	if err := helper(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("done")
}

func init() {
	if os.Getenv("TEST_HELPER") == "orphans" {
		runtime.LockOSThread() // as in process 1
	}
}

// TestTreeEndedWithoutDescriptors: the tree is found and ended by a process that has no descriptor left besides its
// reserve, and by one that has a single one.
func TestTreeEndedWithoutDescriptors(t *testing.T) {
	for _, what := range []string{"exhausted", "single"} {
		t.Run(what, func(t *testing.T) { runAsHelper(t, what) })
	}
}

// startGenerations starts a tree of a command and its child, and returns when the child is a process of its own
// program.
func startGenerations() (*Tree, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	files := OwnFiles()
	files[1] = in.Fd()
	t, err := StartTree("/bin/sh", []string{"sh", "-c", "sh -c 'echo; exec sleep 600' & wait"}, nil, files, true)
	_ = in.Close()
	if err != nil {
		return nil, err
	}
	_, err = out.Read(make([]byte, 1))
	return t, err
}

// limitDescriptors lets this process open no file whose number is not below a limit.
func limitDescriptors(limit int) error {
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(limit), Max: uint64(limit)})
}

// fillDescriptors opens files until no number below a limit is free.
func fillDescriptors(limit int) error {
	for {
		fd, err := unix.Dup(0)
		if err != nil {
			return err
		}
		if fd >= limit {
			return unix.Close(fd)
		}
	}
}

func endTreeWithoutDescriptors() error {
	t, err := startGenerations()
	if err != nil {
		return err
	}
	limit := max(t.reserve[0], t.reserve[1]) + 1
	if err := errors.Join(fillDescriptors(limit), limitDescriptors(limit)); err != nil {
		return err
	}
	if all := t.ListRunning(); len(all) != 2 || all[0].Name == HiddenName || all[1].Name == HiddenName {
		return fmt.Errorf("it lists %v", all)
	}
	t.signalAll(unix.SIGKILL)
	return awaitGone(t)
}

func endTreeWithOneDescriptor() error {
	t, err := startGenerations()
	if err != nil {
		return err
	}
	limit := max(t.reserve[0], t.reserve[1]) // so that one of the reserve cannot be used
	if err := errors.Join(fillDescriptors(limit), limitDescriptors(limit)); err != nil {
		return err
	}
	t.signalAll(unix.SIGKILL)
	return awaitGone(t)
}

// awaitGone waits until nothing is left of a tree that was killed.
func awaitGone(t *Tree) error {
	select {
	case <-t.Gone:
		return nil
	case <-time.After(20 * time.Second):
		t.signalAll(unix.SIGKILL)
		return fmt.Errorf("some of it were not signaled")
	}
}

// TestOrphansReapedByProcessOne: orphans are reaped, but neither the processes that this program has started itself,
// nor any while a tree reaps all that is left and counts it.
func TestOrphansReapedByProcessOne(t *testing.T) {
	runAsHelper(t, "orphans")
}

// startOrphan starts a process that ends when its parent has ended.
func startOrphan() (pid int, err error) {
	in, hold, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer CloseAll(in, hold)
	c := exec.Command("/bin/sh", "-c", "(exec cat <&3 >/dev/null 2>&1) & echo $!")
	c.ExtraFiles = []*os.File{in}
	out, err := c.Output()
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(out)))
}

// awaitExit waits until a child has ended, and does not reap it.
func awaitExit(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func reapAsProcessOne() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	done, result := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(done)
		result <- func() error {
			own := exec.Command("true")
			if err := own.Start(); err != nil {
				return err
			}
			if err := awaitExit(own.Process.Pid); err != nil {
				return fmt.Errorf("a process that was started here was reaped: %w", err)
			}
			orphan, err := startOrphan()
			if err != nil {
				return err
			}
			for end := time.Now().Add(20 * time.Second); !errors.Is(unix.Kill(orphan, 0), unix.ESRCH); {
				if time.Now().After(end) {
					return fmt.Errorf("the orphan %d was not reaped", orphan)
				}
				time.Sleep(time.Millisecond)
			}
			return own.Wait()
		}()
	}()
	reapOrphans(done)
	if err := <-result; err != nil {
		return err
	}
	orphan, err := startOrphan()
	if err != nil {
		return err
	}
	if err := awaitExit(orphan); err != nil {
		return err
	}
	children.inOneTree = true
	if reapOrphan() {
		return errors.New("an orphan was reaped that a tree counts")
	}
	if children.inOneTree = false; !reapOrphan() {
		return errors.New("an orphan was not reaped")
	}
	return nil
}

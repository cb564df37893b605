package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
	_ "github.com/holdfast-go/holdfast/cmd/holdfast/stores"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

// These tests run the built program, as its users do. Each has a store of its own.

// program is the built command. self is this test's own binary, which the tests run under a lock where a shell is not
// exact enough; see runHelper.
var program, self string

// leaderless is a program whose processes work on after their first thread has ended; see testdata/leaderless.c. It
// exists on Linux only.
var leaderless string

// raceEnvironment prevents the race detector from adding a second to each run.
const raceEnvironment = "GORACE=atexit_sleep_ms=0"

// testTimeout is how long any step may take that has no time limit of its own.
const testTimeout = time.Minute

func TestMain(m *testing.M) {
	if what := os.Getenv("TEST_HELPER"); what != "" {
		runHelper(what)
		return
	}
	os.Exit(build(m))
}

func build(m *testing.M) int {
	dir, err := os.MkdirTemp("", "holdfast-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	_ = os.Chmod(dir, 0o755) // also another user runs it
	program, self = filepath.Join(dir, "holdfast"), os.Args[0]
	if abs, err := filepath.Abs(self); err == nil {
		self = abs
	}
	args := []string{"build", "-o", program}
	if raceEnabled {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, "..")...).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	leaderless = filepath.Join(dir, "leaderless")
	if runtime.GOOS == "linux" {
		c := exec.Command("gcc", "-pthread", "-o", leaderless, filepath.Join("testdata", "leaderless.c"))
		if out, err := c.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "gcc: %v\n%s", err, out)
			return 1
		}
	}
	// A shell that runs the tests in the background may ignore signals for them, and all commands would inherit that.
	for _, s := range []syscall.Signal{unix.SIGINT, unix.SIGQUIT, unix.SIGHUP} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	return m.Run()
}

// commandView is a command's arguments and environment.
type commandView struct {
	Args  [][]byte // JSON's strings are UTF-8 only
	Env   []string
	Stdin []byte
}

// runHelper is the main function of this test binary when it is run as the command under a lock.
func runHelper(what string) {
	switch what {
	case "see":
		in, _ := io.ReadAll(os.Stdin)
		s := commandView{Env: os.Environ(), Stdin: in}
		for _, arg := range os.Args[1:] {
			s.Args = append(s.Args, []byte(arg))
		}
		_ = json.NewEncoder(os.Stdout).Encode(s)
	case "check": // print which of the processes whose numbers are in the files are alive
		if lines, err := os.OpenFile("lines", os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600); err == nil {
			_, _ = lines.WriteString(nextHolderLine)
		}
		for _, file := range os.Args[1:] {
			var pid int
			data, _ := os.ReadFile(file)
			if _, err := fmt.Sscan(string(data), &pid); err != nil {
				fmt.Println(file, err)
			} else if isAlive(pid) {
				fmt.Println(file, pid, "runs")
			}
		}
		fmt.Println("checked")
	case "unreported": // the wrapper of a guard that dies before it reports the command that it has started
		client, _ := holdfast.New(memory.New(nil).Open(), nil)
		lease, _ := client.Mutex("a", nil).Lock(context.Background())
		tree, _ := guard.StartTree("/bin/sh", []string{"sh", "-c", os.Args[1] + "; kill -KILL $$"}, nil, guard.OwnFiles(),
			false)
		policy := guard.KillPolicy{Signal: unix.SIGTERM, CheckInterval: time.Second}
		w := &wrapper{name: "a", lease: lease, clock: driver.SystemClock, ttl: 30 * time.Second, policy: policy,
			tree: tree, lost: lease.Context().Done()}
		w.sentExpiry = w.leaseExpiry()
		w.takeOverTree()
		fmt.Println("nothing is left")
	case "setuid": // this binary belongs to root and is set-uid
		if os.Args[1] == "true" {
			_ = syscall.Setreuid(0, 0)
			signal.Ignore(unix.SIGINT)
		}
		fmt.Println("held as", os.Geteuid(), os.Getpid())
		time.Sleep(time.Hour)
	case "hidden": // this binary belongs to root and is set-uid: as sudo does, root starts a program of the caller's
		runInner(os.Args[1], os.Args[2])
	case "ends": // in its own time, some time after the first signal
		ch := make(chan os.Signal, 100)
		signal.Notify(ch, unix.SIGINT, unix.SIGTERM)
		fmt.Println("ready")
		<-ch
		time.Sleep(300 * time.Millisecond)
		fmt.Println("ended by itself after", 1+len(ch), "signals")
		os.Exit(42)
	case "unit": // start a program, called as systemd is
		guard.NameProcess("systemd")
		c := exec.Command(os.Args[1], os.Args[2:]...)
		c.Env = append(os.Environ(), "TEST_HELPER=signals")
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		_ = c.Run()
		os.Exit(c.ProcessState.ExitCode())
	case "worker": // begin a run, and report its success when a line comes
		client, _ := holdfast.Open(context.Background(), os.Getenv("HOLDFAST_STORE"), &holdfast.Options{TTL: 5 * time.Second})
		run, err := client.Ledger(defaultLedger, nil).Begin(context.Background(), os.Args[1], nil)
		fmt.Println("begun", err)
		_, _ = fmt.Scanln()
		fmt.Println("reported", run.Succeed(context.Background(), []byte("done")))
	case "signals": // print each, and end by SIGTERM
		ch := make(chan os.Signal, 100)
		signal.Notify(ch)
		fmt.Println("ready")
		for s := range ch {
			switch s {
			case unix.SIGURG, unix.SIGCHLD: // the Go runtime's own
			case unix.SIGTERM:
				fmt.Println("SIGTERM")
				os.Exit(3)
			default:
				fmt.Println(unix.SignalName(s.(syscall.Signal)))
			}
		}
	}
}

// runInner becomes root and runs a script as the calling user: directly and without an environment, as sudo does, or
// below another program of root.
func runInner(depth, script string) {
	caller := os.Getuid()
	if err := syscall.Setreuid(0, 0); err != nil {
		fmt.Println(err)
		return
	}
	c := exec.Command("/bin/sh", "-c", script)
	c.Env = []string{"PATH=" + os.Getenv("PATH")}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(caller), Gid: uint32(caller)}}
	if depth == "2" {
		c = exec.Command("/bin/sh", "-c", `setpriv --reuid `+strconv.Itoa(caller)+` --clear-groups sh -c "$1" & wait`,
			"sh", script)
	}
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Start(); err != nil {
		fmt.Println(err)
		return
	}
	_ = c.Wait()
	time.Sleep(time.Hour) // only root may end this
}

// workspace is a store and a directory of one test.
type workspace struct {
	*testing.T
	dir   string
	store string // URL
}

func newWorkspace(t *testing.T) *workspace {
	t.Helper()
	dir := t.TempDir()
	w := &workspace{T: t, dir: dir, store: "file://" + filepath.Join(dir, "store")}
	t.Cleanup(w.killLeftovers)
	return w
}

// killLeftovers kills the processes that a failed test has left: those whose working directory is the test's.
func (w *workspace) killLeftovers() {
	for end := time.Now().Add(testTimeout); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		left := w.findProcesses()
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if len(left) == 0 {
			w.checkLines()
			return
		}
	}
	w.Errorf("processes of this test cannot be killed")
}

// findProcesses returns the processes whose working directory is the test's or below it. The first thread shows none
// once it has ended; the others still do.
func (w *workspace) findProcesses() (found []int) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range all {
		cwd, err := os.Readlink(process + "/cwd")
		if os.IsNotExist(err) {
			threads, _ := filepath.Glob(process + "/task/*/cwd")
			for _, link := range threads {
				if of, err := os.Readlink(link); err == nil {
					cwd = of
				}
			}
		}
		pid, err := strconv.Atoi(filepath.Base(process))
		if err == nil && (cwd == w.dir || strings.HasPrefix(cwd, w.dir+"/")) && pid != os.Getpid() && isAlive(pid) {
			found = append(found, pid)
		}
	}
	return found
}

// nextHolderLine is what the next holder of a lock writes to the file to which the processes of the one before write.
const nextHolderLine = "next\n"

// checkLines checks that no process of a command has written a line after the next holder of its lock had started.
func (w *workspace) checkLines() {
	lines := w.readFile(w.filePath("lines"))
	if _, after, _ := strings.Cut(lines, nextHolderLine); after != "" {
		w.Errorf("lines that were written after the next holder had started: %q", after)
	}
}

// filePath returns the path of a file in the test's directory.
func (w *workspace) filePath(name string) string { return filepath.Join(w.dir, name) }

// storeAlias returns another name of the workspace's store.
func (w *workspace) storeAlias() string {
	link := w.filePath("alias")
	if err := os.Symlink(w.dir, link); err != nil {
		w.Fatal(err)
	}
	return "file://" + filepath.Join(link, "store")
}

// testEnvironment returns this process's environment with the store, and without other variables and the configuration
// files that the program reads.
func (w *workspace) testEnvironment(more ...string) []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "HOLDFAST_") && !strings.HasPrefix(v, "OTEL_") && !strings.HasPrefix(v, "TRACE") {
			env = append(env, v)
		}
	}
	env = append(env, "HOLDFAST_STORE="+w.store, "HOLDFAST_CONFIG=", raceEnvironment)
	return append(env, more...)
}

// startedProgram is a running program.
type startedProgram struct {
	*workspace
	cmd      *exec.Cmd
	out, err string // files
	ended    chan struct{}
}

// newProgram prepares the program. It runs in a session of its own: these tests may run at a terminal, which would
// change how signals go.
func (w *workspace) newProgram(args ...string) *startedProgram {
	r := &startedProgram{workspace: w, cmd: exec.Command(program, args...), ended: make(chan struct{})}
	r.cmd.Dir, r.cmd.Env = w.dir, w.testEnvironment()
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return r
}

// launch starts a prepared program. Its output goes to files, so that the test does not wait for processes that it
// leaves behind. Its stderr may go elsewhere.
func (r *startedProgram) launch(stderr ...*os.File) *startedProgram {
	r.Helper()
	out, err1 := os.CreateTemp(r.dir, "out-")
	errs, err2 := os.CreateTemp(r.dir, "err-")
	if err1 != nil || err2 != nil {
		r.Fatal(err1, err2)
	}
	defer out.Close()
	defer errs.Close()
	r.out, r.err = out.Name(), errs.Name()
	if r.cmd.Stderr = errs; len(stderr) > 0 {
		r.cmd.Stderr = stderr[0]
	}
	if r.cmd.Stdout == nil {
		r.cmd.Stdout = out
	}
	if err := r.cmd.Start(); err != nil {
		r.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait()
		close(r.ended)
	}()
	r.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.ended
	})
	return r
}

func (w *workspace) startProgram(args ...string) *startedProgram {
	w.Helper()
	return w.newProgram(args...).launch()
}

// runProgram runs the program to its end.
func (w *workspace) runProgram(args ...string) result {
	w.Helper()
	return w.startProgram(args...).wait()
}

type result struct {
	code        int
	out, err    string
	description string
}

func (r *startedProgram) wait() result {
	r.Helper()
	return r.waitFor(testTimeout)
}

func (r *startedProgram) waitFor(limit time.Duration) result {
	r.Helper()
	select {
	case <-r.ended:
	case <-time.After(limit):
		r.Fatalf("%q did not end; stderr:\n%s", r.cmd.Args, r.readStderr())
	}
	code := r.cmd.ProcessState.ExitCode()
	if status, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() { // as a shell says it
		code = 128 + int(status.Signal())
	}
	r.checkPrintedRecords()
	return result{code: code, out: r.readStdout(), err: waitNotice.ReplaceAllString(r.readStderr(), ""),
		description: fmt.Sprintf("%q: exit %d, stdout %q, stderr %q", r.cmd.Args[1:], code, r.readStdout(),
			r.readStderr())}
}

func (r *startedProgram) readStdout() string { return r.readFile(r.out) }
func (r *startedProgram) readStderr() string { return r.readFile(r.err) }

func (w *workspace) readFile(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return string(data)
}

// writeFile writes a file that may be run at once. The system refuses to run a file that a process has open for
// writing, so no process that is started during the write inherits it.
func (w *workspace) writeFile(name, data string) {
	w.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(w.filePath(name), []byte(data), 0o600); err != nil {
		w.Fatal(err)
	}
}

func (r *startedProgram) signal(s syscall.Signal) {
	r.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.Fatal(err)
	}
}

// awaitOutput waits until the command has written something on its output.
func (r *startedProgram) awaitOutput(text string) *startedProgram {
	r.Helper()
	defer func() {
		if r.Failed() {
			r.Logf("on stdout is %q", r.readStdout())
		}
	}()
	r.awaitTrue(fmt.Sprintf("%q on stdout", text), func() bool {
		select {
		case <-r.ended:
			if !strings.Contains(r.readStdout(), text) {
				r.Fatalf("ended without saying %q; %s", text, r.wait().description)
			}
		default:
		}
		return strings.Contains(r.readStdout(), text)
	})
	return r
}

// awaitTrue waits until something is true.
func (w *workspace) awaitTrue(what string, true func() bool) {
	w.Helper()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(testTimeout); !true(); <-ticker.C {
		if time.Now().After(end) {
			w.Fatalf("this did not happen: %s", what)
		}
	}
}

// readPID waits until a file contains a complete line, and returns the number in it. A shell creates a file
// before it writes.
func (w *workspace) readPID(file string) (n int) {
	w.Helper()
	w.awaitTrue("a number in "+file, func() bool {
		text, whole := strings.CutSuffix(w.readFile(w.filePath(file)), "\n")
		if !whole {
			return false
		}
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			w.Fatalf("%s: %v", file, err)
		}
		return true
	})
	return n
}

// awaitDead waits until the process whose number is in a file has ended.
func (w *workspace) awaitDead(file string) {
	w.Helper()
	pid := w.readPID(file)
	w.awaitTrue(fmt.Sprintf("the end of %s, process %d", file, pid), func() bool { return !isAlive(pid) })
}

// isAlive reports whether a process has a thread that has not ended. The state that the system shows for a process says
// only how its first thread is.
func isAlive(pid int) bool {
	if unix.Kill(pid, 0) == unix.ESRCH {
		return false
	}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, f := range threads {
		stat, err := os.ReadFile(f)
		if err == nil && !bytes.Contains(stat[bytes.LastIndexByte(stat, ')'):], []byte(" Z ")) {
			return true
		}
	}
	return false
}

// messageStart is what begins a message on stderr that is not a terminal.
var messageStart = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d) holdfast: `)

// waitNotice is a line about a wait. Whether there is one depends on how long the program had to wait.
var waitNotice = regexp.MustCompile(`(?m)^\S+ holdfast: (still )?waiting .*\n`)

// slowKillNotice is a line about processes that were killed and have not ended a second later. On a busy machine that
// is how long they may wait for a processor.
var slowKillNotice = regexp.MustCompile(`(?m)^\S+ holdfast: not all of the command can be killed, .*\n`)

// check checks the exit code, that stderr has one line if the program itself failed, and that this line has all words.
func (r result) check(t *testing.T, code int, words ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("want exit %d; %s", code, r.description)
	}
	if len(words) == 0 {
		return
	}
	if !messageStart.MatchString(r.err) || strings.Count(slowKillNotice.ReplaceAllString(r.err, ""), "\n") != 1 {
		t.Errorf("want one line on stderr; %s", r.description)
	}
	for _, word := range words {
		if !strings.Contains(r.err, word) {
			t.Errorf("want %q on stderr; %s", word, r.description)
		}
	}
}

// awaitSecondClient waits until a run that waits behind a holder has opened the store: until there is a second session
// file, besides the holder's, or it has said that it waits.
func (r *startedProgram) awaitSecondClient() *startedProgram {
	r.Helper()
	r.awaitTrue("a second client of the store", func() bool {
		select {
		case <-r.ended:
			r.Fatalf("ended instead of waiting; %s", r.wait().description)
		default:
		}
		if !strings.HasPrefix(r.store, "file://") {
			return strings.Contains(r.readStderr(), "waiting for ")
		}
		present, err := os.ReadDir(strings.TrimPrefix(r.store, "file://") + "/clients")
		return err == nil && len(present) >= 2
	})
	return r
}

// startHolder starts a run that holds the lock until release is called.
func (w *workspace) startHolder(name string, flags ...string) (r *startedProgram, release func()) {
	w.Helper()
	gate := fmt.Sprintf("gate-%d", time.Now().UnixNano())
	args := append(append([]string{"run"}, flags...), name, "sh", "-c", "echo held; "+waitForFile(gate))
	r = w.startProgram(args...).awaitOutput("held")
	return r, func() { w.writeFile(gate, "") }
}

// waitForFile is a shell command that waits until a file exists.
func waitForFile(file string) string { return "while [ ! -e '" + file + "' ]; do sleep 0.01; done" }

// wholeLines returns the lines that are complete.
func wholeLines(text string) iter.Seq[string] {
	return strings.Lines(text[:strings.LastIndexByte(text, '\n')+1])
}

// eventTime returns the time of an event in a record.
func (w *workspace) eventTime(file, event string) (at time.Time) {
	w.Helper()
	for line := range wholeLines(w.readFile(w.filePath(file))) {
		var e struct {
			Event string
			Time  time.Time
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			w.Fatalf("%q: %v", line, err)
		}
		if e.Event == event {
			at = e.Time
		}
	}
	return at
}

// readRecord returns the last line of a record, and the codes of all events. Each line must be as the schema says.
func (w *workspace) readRecord(file string) (last map[string]any, events []string) {
	w.Helper()
	for line := range wholeLines(w.readFile(file)) {
		checkRecord(w.T, line)
		last = nil
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			w.Fatalf("%q: %v", line, err)
		}
		events = append(events, fmt.Sprint(last["event"]))
	}
	return last, events
}

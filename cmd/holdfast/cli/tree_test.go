//go:build linux

package cli

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// familyScript returns a script with descendants of all kinds: a child, one in a session of its own, one whose parent
// has ended, and three whose first thread has ended: a child, its child, and a daemon. Each writes its process number
// to a file and, if stubborn, ignores SIGTERM. The script prints "held" when all are running. Messages of the shell
// about killed children are discarded.
func familyScript(stubborn bool) string {
	trap := ""
	if stubborn {
		trap = `trap "" TERM; `
	}
	member := func(name string) string {
		return fmt.Sprintf(`sh -c '%secho $$ >%s.new; mv %s.new %s; while :; do sleep 0.05; done'`, trap, name, name,
			name)
	}
	return "exec 2>/dev/null; " + trap + "echo $$ >self; " + member("child") + " & setsid " + member("session") +
		" & (setsid setsid " + member("orphan") + " &) ; " +
		leaderless + " leaderless leaderless-child & " + leaderless + " -d leaderless-daemon; " +
		awaitFamily + "echo held; while :; do sleep 0.05; done"
}

var familyFiles = []string{"self", "child", "session", "orphan", "leaderless", "leaderless-child", "leaderless-daemon"}

// awaitFamily are shell commands that wait until a family is complete.
var awaitFamily = func() (all string) {
	for _, f := range familyFiles {
		all += waitForFile(f) + "; "
	}
	return all
}()

func (w *workspace) awaitFamilyDead() {
	w.Helper()
	for _, f := range familyFiles {
		w.awaitDead(f)
	}
}

// TestBrokenLockEndsTree: when an operator breaks the lock, the whole tree of its command is ended, even if it ignores
// signals, and the next holder starts.
func TestBrokenLockEndsTree(t *testing.T) {
	t.Parallel()
	for _, stubborn := range []bool{false, true} {
		t.Run(fmt.Sprintf("stubborn %v", stubborn), func(t *testing.T) {
			t.Parallel()
			w := newWorkspace(t)
			r := w.startProgram("run", "--ttl", "18s", "a", "sh", "-c", familyScript(stubborn)).awaitOutput("held")
			next := w.startProgram("run", "a", "echo", "mine")
			if got := w.runProgram("break", "a"); got.code != 0 || !strings.Contains(got.out, "a is taken from ") {
				t.Error(got.description)
			}
			r.wait().check(t, 76, "a is lost", "an operator broke it")
			w.awaitFamilyDead()
			next.wait().check(t, 0)
		})
	}
}

func TestTerminatedCommandCleansUp(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]string{"running": "while :; do sleep 0.01; done", "stopped": "kill -STOP $$"} {
		// a stopped one must be continued to handle it
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorkspace(t)
			script := `exec 2>/dev/null; trap "sleep 0.2; echo told; exit 0" TERM; echo held; ` + then
			r := w.startProgram("run", "--ttl", "24s", "--grace", "6s", "a", "sh", "-c", script).awaitOutput("held")
			w.runProgram("break", "a").check(t, 0)
			got := r.wait()
			got.check(t, 76, "an operator broke it") // though the command succeeded
			if !strings.Contains(got.out, "told") {
				t.Errorf("the command was killed without a signal before; %s", got.description)
			}
		})
	}
}

func TestForcedBreakEndsTree(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.startProgram("run", "--ttl", "18s", "a", "sh", "-c", familyScript(true)).awaitOutput("held")
	w.runProgram("break", "--force", "a").check(t, 0, "may still be working")
	w.runProgram("run", "-n", "a", "true").check(t, 0)
	r.wait().check(t, 76, "a is lost")
	w.awaitFamilyDead()
}

// failStore makes the store fail for this program: a limit on the size of files stops all its writes.
func (r *startedProgram) failStore() {
	r.Helper()
	limit := &unix.Rlimit{Cur: 0, Max: unix.RLIM_INFINITY}
	if err := unix.Prlimit(r.cmd.Process.Pid, unix.RLIMIT_FSIZE, limit, nil); err != nil {
		r.Fatal(err)
	}
}

// withPipe starts the program with a pipe as its stderr: failStore's limit would stop writes to a file.
func (w *workspace) withPipe(args ...string) (*startedProgram, *capturedPipe) {
	w.Helper()
	r := w.newProgram(args...)
	p := newPipe(w.T)
	r.launch(p.write)
	return r, p
}

// TestFailedStoreEndsTreeInTime: when the store fails, the command is asked to end, and is dead before the next holder
// starts.
func TestFailedStoreEndsTreeInTime(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	script := `trap "date +%s%N >told" TERM; while :; do date +%s%N >alive.new; mv alive.new alive; [ -e up ] || { echo held; : >up; }; done`
	r, stderr := w.withPipe("run", "--ttl", "18s", "--grace", "6s", "a", "sh", "-c", script)
	r.awaitOutput("held")
	next := w.startProgram("run", "a", "date", "+%s%N").awaitSecondClient()
	r.failStore()
	if got := r.wait(); got.code != 76 {
		t.Errorf("want exit 76; %s", got.description)
	}
	text := stderr.finalText()
	if !strings.Contains(text, "a cannot be renewed and will be lost in") || !strings.Contains(text, "a is lost: ") {
		t.Errorf("stderr: %q", text)
	}
	got := next.wait()
	got.check(t, 0)
	told, alive := w.parseNanos(w.readFile(w.filePath("told"))), w.parseNanos(w.readFile(w.filePath("alive")))
	granted := w.parseNanos(got.out)
	t.Logf("told %v, killed about %v before the next holder ran", time.Duration(granted-told),
		time.Duration(granted-alive))
	if told == 0 || alive >= granted {
		t.Errorf("told at %d, alive at %d, the next ran at %d", told, alive, granted)
	}
}

func (w *workspace) parseNanos(s string) (n int64) {
	w.Helper()
	if _, err := fmt.Sscan(s, &n); err != nil {
		w.Errorf("%q: %v", s, err)
	}
	return n
}

func TestFailedReleaseWarns(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r, stderr := w.withPipe("run", "a", "sh", "-c", "echo held; "+waitForFile("gate")+"; exit 7")
	r.awaitOutput("held").failStore()
	w.writeFile("gate", "")
	if got := r.wait(); got.code != 7 {
		t.Errorf("want exit 7; %s", got.description)
	}
	if got := stderr.finalText(); !strings.Contains(got, "a could not be released") {
		t.Errorf("stderr: %q", got)
	}
	w.runProgram("run", "a", "true").check(t, 0)
}

// TestStoppedWrapperLosesLock: while the wrapper is stopped, the guard ends the tree in time, and the wrapper then
// exits 76.
func TestStoppedWrapperLosesLock(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.startProgram("run", "--ttl", "9s", "a", "sh", "-c", familyScript(true)).awaitOutput("held")
	r.signal(unix.SIGSTOP)
	w.runProgram("run", "a", "true").check(t, 0) // waits for as long as the TTL
	w.awaitFamilyDead()                          // without any help from the wrapper
	r.signal(unix.SIGCONT)
	got := r.wait()
	if got.code != 76 || !strings.Contains(got.err, "a cannot be renewed and will be lost in") ||
		!strings.Contains(got.err, "a is lost: ") {
		t.Error(got.description)
	}
}

// TestExitUnderStoppedWrapperIsNoSuccess: a command that ends well while its wrapper is stopped and the lock is lost
// gives exit code 76.
func TestExitUnderStoppedWrapperIsNoSuccess(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.startProgram("run", "--ttl", "9s", "a", "sh", "-c", "echo held; "+waitForFile("gate")).awaitOutput("held")
	r.signal(unix.SIGSTOP)
	w.runProgram("run", "a", "true").check(t, 0)
	w.writeFile("gate", "")
	r.signal(unix.SIGCONT)
	// A second line says that the lock is lost if the signaled command needs longer than the grace period to end.
	if got := r.wait(); got.code != 76 || !strings.Contains(strings.SplitN(got.err, "\n", 2)[0], " holdfast: a cannot be renewed") {
		t.Error(got.description)
	}
}

// keptFor precedes the names of the processes that a command has left. The names differ: a process may be about to
// exec.
const keptFor = "stays held until that has ended: "

// TestLockKeptUntilTreeEnds: a process that has left the session of its command keeps the lock until it ends.
func TestLockKeptUntilTreeEnds(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.startProgram("run", "a", "sh", "-c", "(setsid sh -c '"+strings.ReplaceAll(waitForFile("gate"), "'", `"`)+
		"' &); echo held; exit 3").awaitOutput("held")
	r.awaitTrue("word of what is left", func() bool { return strings.Contains(r.readStderr(), keptFor) })
	w.runProgram("run", "-n", "a", "true").check(t, 75)
	w.writeFile("gate", "")
	r.wait().check(t, 3, "the command has ended")
	w.runProgram("run", "-n", "a", "true").check(t, 0)
}

func TestSignalsReachLeftoverProcesses(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.startProgram("run", "a", "sh", "-c", "(setsid sleep 1000 &); exit 3")
	r.awaitTrue("word of what is left", func() bool { return strings.Contains(r.readStderr(), keptFor) })
	r.signal(unix.SIGTERM)
	r.wait().check(t, 3, "the command has ended")
}

func TestEarlierChildrenLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.newProgram()
	r.cmd.Path, r.cmd.Args = "/bin/sh", []string{"sh", "-c", "sleep 1000 & echo $! >before; exec " + program +
		" run a sh -c 'echo held; exit 4'"}
	r.launch().wait().check(t, 4)
	pid := w.readPID("before")
	if !isAlive(pid) {
		t.Errorf("the earlier child %d has ended", pid)
	}
	_ = unix.Kill(pid, unix.SIGKILL)
}

func TestKilledWrapperReplacedSoon(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	var took []time.Duration // beyond what the machine was late, and what a program takes at that time
	var machine pace.Pace
	defer machine.Watch()()
	for range 5 {
		r := w.startProgram("run", "a", "sh", "-c", "echo $$ >self; echo held; exec sleep 1000").awaitOutput("held")
		next := w.startProgram("run", "a", "echo", "mine").awaitSecondClient()
		start := time.Now()
		w.runProgram("run", "free", "echo", "mine").check(t, 0)
		alone := time.Since(start)
		start = time.Now()
		r.signal(unix.SIGKILL)
		next.awaitOutput("mine")
		took = append(took, time.Since(start)-machine.Lost(start)-alone)
		w.awaitDead("self")
		next.wait().check(t, 0)
	}
	slices.Sort(took)
	t.Logf("the next ran after %v", took)
	if took[0] > 500*time.Millisecond { // the other rounds may have waited for a processor
		t.Errorf("the next ran only after %v", took)
	}
}

func TestSignalsReachCommandOnce(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.newProgram("run", "a", self)
	r.cmd.Env = w.testEnvironment("TEST_HELPER=signals")
	r.launch().awaitOutput("ready")
	var want strings.Builder
	want.WriteString("ready\n")
	for _, s := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM,
		unix.SIGCONT,
		unix.SIGWINCH, unix.SIGTSTP, unix.SIGIO, unix.SIGPWR, unix.SIGUSR1, unix.SIGTERM} {
		r.signal(s) // to the wrapper alone
		want.WriteString(unix.SignalName(s) + "\n")
		r.awaitOutput(want.String())
	}
	if got := r.wait(); got.code != 3 || got.out != want.String() || got.err != "" {
		t.Errorf("want %q; %s", want.String(), got.description)
	}
}

func TestKillSignalIsExitCode(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
		r := w.startProgram("run", "a", "sh", "-c", "echo held; exec sleep 1000").awaitOutput("held")
		r.signal(s)
		if got := r.wait(); got.code != 128+int(s) || got.err != "" {
			t.Errorf("want exit %d; %s", 128+int(s), got.description)
		}
	}
}

func TestSignalEndsWait(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	_, release := w.startHolder("a", "--fair")
	for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1} {
		r := w.startProgram("run", "--fair", "-E", "9", "a", "true")
		w.awaitWaiters("a", 1)
		r.signal(unix.SIGWINCH)
		r.signal(s)
		r.wait().check(t, 128+int(s), unix.SignalName(s), "while waiting for a")
		w.awaitWaiters("a", 0)
	}
	release()
}

func TestIgnoredSignals(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.newProgram()
	r.cmd.Path, r.cmd.Args = "/bin/sh", []string{"sh", "-c", "trap '' HUP; exec " + program +
		" run a sh -c 'echo held; " +
		strings.ReplaceAll(waitForFile("gate"), "'", `"`) + "; kill -HUP $$; exit 5'"}
	r.launch().awaitOutput("held")
	r.signal(unix.SIGHUP)
	w.writeFile("gate", "")
	r.wait().check(t, 5)
}

func TestClosedStderr(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r, stderr := w.withPipe("run", "a", "sh", "-c", "(setsid sh -c '"+strings.ReplaceAll(waitForFile("gate"), "'", `"`)+
		"; sleep 0.3; echo done >done' 2>/dev/null &); echo held; exit 3")
	stderr.read.Close()
	r.awaitOutput("held")
	w.writeFile("gate", "")
	if got := r.wait(); got.code != 3 || w.readFile(w.filePath("done")) == "" {
		t.Errorf("want exit 3 after the tree; %s", got.description)
	}
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	holder, release := w.startHolder("a")
	r, terminal := w.atTerminal("run", "--events", "record", "a", self)
	terminal.awaitText(fmt.Sprintf("holdfast: waiting for a, held by %s", ""))
	terminal.awaitText(fmt.Sprintf("holdfast[%d] (sh) since ", holder.cmd.Process.Pid))
	release()
	terminal.awaitText("ready")
	w.awaitListener(r.cmd.Process.Pid, "record")
	terminal.typeKeys("\x03") // Ctrl-C: the terminal sends SIGINT to the wrapper and the command
	terminal.awaitText("SIGINT")
	r.signal(unix.SIGTERM)
	if got := r.wait(); got.code != 3 {
		t.Error(got.description)
	}
	terminal.awaitText("SIGTERM")
	if got := terminal.finalText(); strings.Count(got, "SIGINT") != 1 {
		t.Errorf("want SIGINT once; the terminal shows %q", got)
	}
}

func TestCtrlCEndsWait(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	_, release := w.startHolder("a")
	defer release()
	r, terminal := w.atTerminal("run", "a", self)
	terminal.awaitText("waiting for a")
	terminal.typeKeys("\x03")
	if got := r.wait(); got.code != 130 {
		t.Error(got.description)
	}
	terminal.awaitText("ended by SIGINT while waiting for a")
}

// TestCtrlZAndFg: in an interactive shell, Ctrl-Z stops the command and holdfast run, and fg continues both.
func TestCtrlZAndFg(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here")
	}
	r, terminal := w.prepareTerminal()
	r.cmd.Path, r.cmd.Args = shell, []string{"bash", "--norc", "--noediting", "-i"}
	r.cmd.Env = append(r.cmd.Env, "PS1=$ ", "HISTFILE=/dev/null")
	terminal.begin(r)
	// One process: a shell that is just starting another may have to wait for that one, stopped, before it stops
	// itself.
	terminal.typeKeys(program + ` run a sh -c 'echo $$ >self; echo up-$((1+1)); exec sleep 1000'` + "\n")
	terminal.awaitText("up-2")
	terminal.typeKeys("\x1a")
	terminal.awaitText("Stopped")
	terminal.awaitTrue("the command to stop", func() bool {
		return strings.Contains(w.readFile("/proc/"+strings.TrimSpace(w.readFile(w.filePath("self")))+"/stat"), ") T ")
	})
	terminal.typeKeys("fg; echo code $((1000+$?))\n")
	terminal.awaitTrue("the command to continue", func() bool {
		return strings.Contains(w.readFile("/proc/"+strings.TrimSpace(w.readFile(w.filePath("self")))+"/stat"), ") S ")
	})
	terminal.typeKeys("\x03")
	terminal.typeKeys("echo code $((1000+$?))\n")
	terminal.awaitText("code 1130")
	terminal.typeKeys("exit\n")
	r.wait()
}

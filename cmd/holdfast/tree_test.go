//go:build linux

package main

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

// family is a script with descendants of all kinds, each of which notes its number in a file and, if stubborn, cannot be
// told to end: a child, one in a session of its own, and one whose parent is gone. It says "held" when all are there, and nothing
// of whom a shell has seen killed.
func family(stubborn bool) string {
	trap := ""
	if stubborn {
		trap = `trap "" TERM; `
	}
	member := func(name string) string {
		return fmt.Sprintf(`sh -c '%secho $$ >%s.new; mv %s.new %s; while :; do sleep 0.05; done'`, trap, name, name, name)
	}
	return "exec 2>/dev/null; " + trap + "echo $$ >self; " + member("child") + " & setsid " + member("session") + " & (setsid setsid " + member("orphan") + " &) ; " +
		waitFor("child") + "; " + waitFor("session") + "; " + waitFor("orphan") + "; echo held; while :; do sleep 0.05; done"
}

var familyFiles = []string{"self", "child", "session", "orphan"}

func (w *world) familyDead() {
	w.Helper()
	for _, f := range familyFiles {
		w.dead(f)
	}
}

func TestABrokenLockEndsTheWholeTree(t *testing.T) {
	t.Parallel()
	for _, stubborn := range []bool{false, true} {
		w := newWorld(t)
		r := w.start("run", "--ttl", "6s", "a", "sh", "-c", family(stubborn)).says("held")
		next := w.start("run", "a", "echo", "mine")
		if got := w.run("break", "a"); got.code != 0 || !strings.Contains(got.out, "a is taken from ") {
			t.Error(got.description)
		}
		r.wait().want(t, 76, "a is lost", "an operator broke it")
		w.familyDead()
		next.wait().want(t, 0)
	}
}

func TestACommandThatIsToldToEndMayEndInGoodOrder(t *testing.T) {
	t.Parallel()
	for _, then := range []string{"while :; do sleep 0.01; done", "kill -STOP $$"} { // a stopped one must go on to hear it
		w := newWorld(t)
		script := `exec 2>/dev/null; trap "sleep 0.2; echo told; exit 0" TERM; echo held; ` + then
		r := w.start("run", "--ttl", "12s", "--grace", "6s", "a", "sh", "-c", script).says("held")
		w.run("break", "a").want(t, 0)
		got := r.wait()
		got.want(t, 76, "an operator broke it") // though the command succeeded
		if !strings.Contains(got.out, "told") {
			t.Errorf("killed without a word; %s", got.description)
		}
	}
}

func TestALockTakenByForceEndsTheWholeTree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.start("run", "--ttl", "6s", "a", "sh", "-c", family(true)).says("held")
	w.run("break", "--force", "a").want(t, 0, "may still be working")
	w.run("run", "-n", "a", "true").want(t, 0)
	r.wait().want(t, 76, "a is lost")
	w.familyDead()
}

// A store that takes no writes any more, to which a limit on the size of its files makes this program's.
func (r *running) cutOff() {
	r.Helper()
	if err := unix.Prlimit(r.cmd.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 0, Max: unix.RLIM_INFINITY}, nil); err != nil {
		r.Fatal(err)
	}
}

// The program says nothing when its own stderr is cut off as well, so it gets a pipe, to which the limit does not apply.
func (w *world) withPipe(args ...string) (*running, *pipe) {
	w.Helper()
	r := w.command(args...)
	p := newPipe(w.T)
	r.begin(p.write)
	return r, p
}

func TestAStoreThatFailsEndsTheTreeBeforeOthersGetTheLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	script := `trap "date +%s%N >told" TERM; while :; do date +%s%N >alive.new; mv alive.new alive; [ -e up ] || { echo held; : >up; }; done`
	r, stderr := w.withPipe("run", "--ttl", "10s", "--grace", "4s", "a", "sh", "-c", script)
	r.says("held")
	next := w.start("run", "a", "date", "+%s%N").behind()
	r.cutOff()
	if got := r.wait(); got.code != 76 {
		t.Errorf("want exit 76; %s", got.description)
	}
	if got := stderr.text(); !strings.Contains(got, "a cannot be renewed and will be lost in") || !strings.Contains(got, "a is lost: ") {
		t.Errorf("stderr: %q", got)
	}
	got := next.wait()
	got.want(t, 0)
	told, alive, granted := w.nanos(w.read(w.path("told"))), w.nanos(w.read(w.path("alive"))), w.nanos(got.out)
	t.Logf("told %v, killed about %v before the next holder ran", time.Duration(granted-told), time.Duration(granted-alive))
	if told == 0 || alive >= granted {
		t.Errorf("told at %d, alive at %d, the next ran at %d", told, alive, granted)
	}
}

func (w *world) nanos(s string) (n int64) {
	w.Helper()
	if _, err := fmt.Sscan(s, &n); err != nil {
		w.Errorf("%q: %v", s, err)
	}
	return n
}

func TestAStoreThatFailsAtReleaseCostsAWarning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, stderr := w.withPipe("run", "a", "sh", "-c", "echo held; "+waitFor("gate")+"; exit 7")
	r.says("held").cutOff()
	w.write("gate", "")
	if got := r.wait(); got.code != 7 {
		t.Errorf("want exit 7; %s", got.description)
	}
	if got := stderr.text(); !strings.Contains(got, "a could not be given back") {
		t.Errorf("stderr: %q", got)
	}
	w.run("run", "a", "true").want(t, 0)
}

func TestAStoppedWrapperLosesTheLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.start("run", "--ttl", "5s", "a", "sh", "-c", family(true)).says("held")
	r.signal(unix.SIGSTOP)
	w.run("run", "a", "true").want(t, 0) // waits for as long as the TTL
	w.familyDead()                       // without any help from the wrapper
	r.signal(unix.SIGCONT)
	if got := r.wait(); got.code != 76 || !strings.Contains(got.err, "a cannot be renewed and will be lost in") || !strings.Contains(got.err, "a is lost: ") {
		t.Error(got.description)
	}
}

func TestACommandThatEndsUnderAStoppedWrapperIsNoSuccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.start("run", "--ttl", "5s", "a", "sh", "-c", "echo held; "+waitFor("gate")).says("held")
	r.signal(unix.SIGSTOP)
	w.run("run", "a", "true").want(t, 0)
	w.write("gate", "")
	r.signal(unix.SIGCONT)
	r.wait().want(t, 76, "a")
}

// keptFor is what a run says before the names of what its command has left: whatever is just becoming of a process there.
const keptFor = "is kept until that is gone: "

func TestTheLockOutlivesTheCommandWhileItsTreeLives(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.start("run", "a", "sh", "-c", "(setsid sh -c '"+strings.ReplaceAll(waitFor("gate"), "'", `"`)+"' &); echo held; exit 3").says("held")
	r.await("word of what is left", func() bool { return strings.Contains(r.stderr(), keptFor) })
	w.run("run", "-n", "a", "true").want(t, 75)
	w.write("gate", "")
	r.wait().want(t, 3, "the command has ended")
	w.run("run", "-n", "a", "true").want(t, 0)
}

func TestSignalsReachWhatIsLeftOfTheTree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.start("run", "a", "sh", "-c", "(setsid sleep 1000 &); exit 3")
	r.await("word of what is left", func() bool { return strings.Contains(r.stderr(), keptFor) })
	r.signal(unix.SIGTERM)
	r.wait().want(t, 3, "the command has ended")
}

func TestChildrenFromBeforeAreNotTheCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.command()
	r.cmd.Path, r.cmd.Args = "/bin/sh", []string{"sh", "-c", "sleep 1000 & echo $! >before; exec " + program + " run a sh -c 'echo held; exit 4'"}
	r.begin().wait().want(t, 4)
	pid := w.number("before")
	if !alive(pid) {
		t.Errorf("the child from before, %d, is gone", pid)
	}
	_ = unix.Kill(pid, unix.SIGKILL)
}

func TestAKilledWrapperTakesItsCommandAlongAndTheNextGetsInSoon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var took []time.Duration // beyond what the machine was late
	var machine pace.Pace
	defer machine.Watch()()
	for range 5 {
		r := w.start("run", "a", "sh", "-c", "echo $$ >self; echo held; exec sleep 1000").says("held")
		next := w.start("run", "a", "echo", "mine").behind()
		start := time.Now()
		r.signal(unix.SIGKILL)
		next.says("mine")
		took = append(took, time.Since(start)-machine.Lost(start))
		w.dead("self")
		next.wait().want(t, 0)
	}
	slices.Sort(took)
	t.Logf("the next ran after %v", took)
	if took[0] > 500*time.Millisecond { // the others may have had to wait for a processor, for each of the processes that start
		t.Errorf("the next ran only after %v", took)
	}
}

func TestEverySignalReachesTheCommandOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.command("run", "a", self)
	r.cmd.Env = w.env("HOLDFAST_TEST_HELPER=signals")
	r.begin().says("ready")
	var want strings.Builder
	want.WriteString("ready\n")
	for _, s := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGCONT,
		unix.SIGWINCH, unix.SIGTSTP, unix.SIGIO, unix.SIGPWR, unix.SIGUSR1, unix.SIGTERM} {
		r.signal(s) // to the wrapper alone
		want.WriteString(unix.SignalName(s) + "\n")
		r.says(want.String())
	}
	if got := r.wait(); got.code != 3 || got.out != want.String() || got.err != "" {
		t.Errorf("want %q; %s", want.String(), got.description)
	}
}

func TestASignalThatKillsTheCommandIsTheExitCode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
		r := w.start("run", "a", "sh", "-c", "echo held; exec sleep 1000").says("held")
		r.signal(s)
		if got := r.wait(); got.code != 128+int(s) || got.err != "" {
			t.Errorf("want exit %d; %s", 128+int(s), got.description)
		}
	}
}

func TestASignalEndsTheWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, release := w.hold("a", "--fair")
	for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1} {
		r := w.start("run", "--fair", "-E", "9", "a", "true")
		w.waiting("a", 1)
		r.signal(unix.SIGWINCH)
		r.signal(s)
		r.wait().want(t, 128+int(s), unix.SignalName(s), "while waiting for a")
		w.waiting("a", 0)
	}
	release()
}

func TestIgnoredSignalsStayIgnored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.command()
	r.cmd.Path, r.cmd.Args = "/bin/sh", []string{"sh", "-c", "trap '' HUP; exec " + program + " run a sh -c 'echo held; " +
		strings.ReplaceAll(waitFor("gate"), "'", `"`) + "; kill -HUP $$; exit 5'"}
	r.begin().says("held")
	r.signal(unix.SIGHUP)
	w.write("gate", "")
	r.wait().want(t, 5)
}

func TestClosedStderrDoesNotEndTheRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, stderr := w.withPipe("run", "a", "sh", "-c", "(setsid sh -c '"+strings.ReplaceAll(waitFor("gate"), "'", `"`)+"; sleep 0.3; echo done >done' 2>/dev/null &); echo held; exit 3")
	stderr.read.Close()
	r.says("held")
	w.write("gate", "")
	if got := r.wait(); got.code != 3 || w.read(w.path("done")) == "" {
		t.Errorf("want exit 3 after the tree; %s", got.description)
	}
}

func TestAtATerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	holder, release := w.hold("a")
	r, terminal := w.atTerminal("run", "a", self)
	terminal.shows(fmt.Sprintf("holdfast: waiting for a, held by %s", ""))
	terminal.shows(fmt.Sprintf("holdfast[%d] (sh) since ", holder.cmd.Process.Pid))
	release()
	terminal.shows("ready")
	terminal.types("\x03") // Ctrl-C: the terminal sends SIGINT to the wrapper and the command
	terminal.shows("SIGINT")
	r.signal(unix.SIGTERM)
	if got := r.wait(); got.code != 3 {
		t.Error(got.description)
	}
	terminal.shows("SIGTERM")
	if got := terminal.text(); strings.Count(got, "SIGINT") != 1 {
		t.Errorf("want SIGINT once; the terminal shows %q", got)
	}
}

func TestCtrlCEndsTheWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, release := w.hold("a")
	defer release()
	r, terminal := w.atTerminal("run", "a", self)
	terminal.shows("waiting for a")
	terminal.types("\x03")
	if got := r.wait(); got.code != 130 {
		t.Error(got.description)
	}
	terminal.shows("ended by SIGINT while waiting for a")
}

func TestCtrlZStopsTheTreeAndFgGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here")
	}
	r, terminal := w.prepareTerminal()
	r.cmd.Path, r.cmd.Args = shell, []string{"bash", "--norc", "--noediting", "-i"}
	r.cmd.Env = append(r.cmd.Env, "PS1=$ ", "HISTFILE=/dev/null")
	terminal.begin(r)
	// One process: a shell that is just starting another may have to wait for that one, stopped, before it stops itself.
	terminal.types(program + ` run a sh -c 'echo $$ >self; echo up-$((1+1)); exec sleep 1000'` + "\n")
	terminal.shows("up-2")
	terminal.types("\x1a")
	terminal.shows("Stopped")
	terminal.await("the command to stop", func() bool {
		return strings.Contains(w.read("/proc/"+strings.TrimSpace(w.read(w.path("self")))+"/stat"), ") T ")
	})
	terminal.types("fg; echo code $((1000+$?))\n")
	terminal.await("the command to go on", func() bool {
		return strings.Contains(w.read("/proc/"+strings.TrimSpace(w.read(w.path("self")))+"/stat"), ") S ")
	})
	terminal.types("\x03")
	terminal.types("echo code $((1000+$?))\n")
	terminal.shows("code 1130")
	terminal.types("exit\n")
	r.wait()
}

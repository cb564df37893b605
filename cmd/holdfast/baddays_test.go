//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/internal/pace"
)

func TestAGraceMustFit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		code  int
		words string
		flags []string
	}{
		{64, "does not fit: with a TTL of 10s it can be 5.16", []string{"--ttl", "10s", "--grace", "6s"}},
		{64, "does not fit", []string{"--grace", "30s"}},
		{64, "with --max-hold 4s it can be 2s at most", []string{"--max-hold", "4s", "--grace", "3s"}},
		{64, "negative", []string{"--grace", "-1s"}},
		{64, "is no signal", []string{"--signal", "NONSENSE"}},
		{64, "is no signal", []string{"--signal", "65"}},
		{64, "ends nothing", []string{"--signal", "SIGSTOP"}},
		{64, "at least 1s", []string{"--max-hold", "10ms"}},
		{64, "at least 5s", []string{"--max-hold", "4s", "--min-hold", "5s"}},
		{64, "negative", []string{"--min-hold", "-1s"}},
		{0, "", []string{"--ttl", "10s", "--grace", "5s"}},
		{0, "", []string{"--grace", "0s"}},
		{0, "", []string{"--signal", "SIGUSR1"}},
		{0, "", []string{"--signal", "int"}},
		{0, "", []string{"--signal", "9"}},
		{0, "", []string{"--max-hold", "4s"}},
	} {
		got := w.run(append(append([]string{"run"}, c.flags...), "a", "true")...)
		if got.want(t, c.code); !strings.Contains(got.err, c.words) {
			t.Errorf("want %q; %s", c.words, got.description)
		}
	}
}

func TestSignalAndGraceAreTheUsers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var machine pace.Pace
	defer machine.Watch()()
	start := time.Now()
	script := `trap "echo told" USR1; echo held; while :; do sleep 0.01; done`
	r := w.start("run", "--ttl", "12s", "--grace", "5s", "--signal", "USR1", "--json", "record", "a", "sh", "-c", script).says("held")
	w.run("break", "a").want(t, 0)
	got := r.wait()
	if got.want(t, 76); !strings.Contains(got.out, "told") {
		t.Errorf("another signal; %s", got.description)
	}
	// It would have 2 s by default. How late either is noted depends on the machine.
	if took := w.when("record", "killed").Sub(w.when("record", "told to end")); took < 3*time.Second || took > 8*time.Second+machine.Lost(start) {
		t.Errorf("killed %v after it was told", took)
	}
}

func TestMinHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const least = 12 * time.Second
	start := time.Now()
	w.run("run", "--min-hold", least.String(), "a", "sh", "-c", "exit 3").want(t, 3)
	if took := time.Since(start); took >= least {
		t.Errorf("the run waited for its --min-hold: %v", took)
	}
	w.run("run", "-n", "a", "true").want(t, 75)
	w.run("run", "a", "true").want(t, 0)
	if took := time.Since(start); took < least {
		t.Errorf("the lock was free after %v", took)
	}
}

func TestMaxHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.start("run", "--ttl", "2m", "--max-hold", "8s", "--json", "record", "a", "sh", "-c", family(true)).says("held")
	got := r.wait()
	got.want(t, 76)
	if !strings.Contains(got.err, "a has been held for as long as --max-hold allows, and will be lost in") {
		t.Error(got.description)
	}
	w.familyDead()
	w.run("run", "--wait", "30s", "a", "true").want(t, 0) // and not the rest of the TTL
	if last, _ := w.last(w.path("record")); last["outcome"] != "lost" || last["exit_code"] != 76.0 {
		t.Errorf("record: %v", last)
	}
}

func TestARunWithinItselfIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run("run", "a", program, "run", "b", program, "run", "a", "true").want(t, 64, "a is held already around this")
	w.run("run", "a", program, "run", "b", program, "run", "c", "true").want(t, 0)
	w.run("run", "a b", program, "run", "-n", "a b", "true").want(t, 64, "held already")
	w.run("run", "-s", "a", program, "run", "a", "true").want(t, 64, "held already")
	w.run("run", "a", program, "run", "-s", "a", "true").want(t, 64, "held already")
	w.run("run", "a", program, "hold", "a").want(t, 64, "held already")
	w.run("run", "a", program, "acquire", "a").want(t, 64, "held already")
	// Together with what is around it, but only if it gives up should somebody come between.
	w.run("run", "-s", "a", program, "run", "-s", "a", "true").want(t, 64, "give --wait or --no-wait")
	w.run("run", "-s", "a", program, "run", "-s", "-n", "a", "true").want(t, 0)
	w.run("run", "-s", "a", program, "run", "-s", "--wait", "30s", "a", "true").want(t, 0)
	w.run("run", "--limit", "3", "a", program, "run", "--limit", "3", "--wait", "30s", "a", "true").want(t, 0)
	w.run("run", "--limit", "3", "--permits", "2", "a", program, "run", "--limit", "3", "--permits", "2", "-n", "a", "true").want(t, 64, "held already")
	// Another store's lock of that name is another lock.
	w.run("run", "a", program, "--store", w.store+"2", "run", "a", "true").want(t, 0)
	// An environment that was kept for longer than the lock says nothing.
	w.run("run", "a", "sh", "-c", `echo "$HOLDFAST_HELD" >kept`).want(t, 0)
	r := w.command("run", "a", "true")
	r.cmd.Env = w.env("HOLDFAST_HELD=nonsense " + strings.TrimSpace(w.read(w.path("kept"))) + " %%#")
	r.begin().wait().want(t, 0)
}

func TestHeldEntriesComeBackAsTheyWere(t *testing.T) {
	for _, h := range []held{{"file:/a b", "ü#\n%41", 5, 1, 1}, {"", "$(x)", 1 << 52, 2, 1 << 20}} {
		t.Setenv(heldVariable, "x "+h.String()+" "+h.String())
		if got := heldHere(); len(got) != 2 || got[0] != h || got[1] != h {
			t.Errorf("%q: got %+v", h, got)
		}
		if strings.ContainsAny(h.String(), " \n$") {
			t.Errorf("%q", h)
		}
	}
}

// The lock stays until the daemon ends, and nothing that the command does to its descriptors hides it.
func TestACommandThatDaemonizesAndClosesItsDescriptors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := `exec 0<&- 1>&- 2>&- 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; cd /; echo $$ >` + w.path("daemon") + `; while [ ! -e ` + w.path("gate") + ` ]; do sleep 0.01; done`
	w.write("daemon.sh", daemon)
	r := w.start("run", "a", "sh", "-c", "setsid setsid sh daemon.sh & exit 0")
	w.number("daemon")
	w.run("run", "-n", "a", "true").want(t, 75)
	w.write("gate", "")
	if got := r.wait(); got.code != 0 {
		t.Error(got.description)
	}
	w.run("run", "-n", "a", "true").want(t, 0)
}

// What belongs to holdfast is not the command's: neither the guard's pipes nor the store's files.
func TestTheCommandInheritsNothingOfTheGuard(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("gift", "gift\n")
	finds := func(before string) string {
		r := w.command()
		r.cmd.Path, r.cmd.Args = "/bin/sh", []string{"sh", "-c", "exec 8<gift " + before + ` sh -c 'cat <&8; ls /proc/$$/fd'`}
		got := r.begin().wait()
		got.want(t, 0)
		return got.out
	}
	if want, got := finds("; exec"), finds("9>record; exec "+program+" run --json fd:9 a"); got != want {
		t.Errorf("want %q, got %q", want, got)
	}
	if last, _ := w.last(w.path("record")); last["outcome"] != "exited" {
		t.Errorf("record: %v", last)
	}
}

func TestTheGuardIsDeafAndOutlivesHangUps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.start("run", "a", "sh", "-c", "echo held; "+waitFor("gate")+"; exit 3").says("held")
	guard := r.guard()
	for n := syscall.Signal(1); n <= lastSignal; n++ {
		if !faults[n] && (n < 32 || n > 34) { // those are the C library's, and Go cannot catch them

			_ = unix.Kill(guard, n)
		}
	}
	w.await("the guard to have taken them", func() bool {
		return strings.Contains(w.read(fmt.Sprintf("/proc/%d/status", guard)), "ShdPnd:\t0000000000000000\n")
	})
	if got := r.guard(); got != guard {
		t.Errorf("the guard was %d and is %d", guard, got)
	}
	w.write("gate", "")
	r.wait().want(t, 3)
}

func TestARecordThatCannotBeWrittenChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct{ where, words string }{
		{"/dev/full", "no space left"}, {"fd:99", "bad file descriptor"}, {"fd:5", "bad file descriptor"},
	} {
		w.run("run", "--json", c.where, "a", "sh", "-c", "exit 7").want(t, 7, "the record of --json is not complete", c.words)
	}
	for _, where := range []string{"no/such/dir", ".", "fd:x", "fd:"} {
		w.run("run", "--json", where, "a", "true").want(t, 64, "--json")
	}
	// A pipe whose reader has gone, and one whose reader does not read.
	for _, script := range []string{"| true", "| sleep 1000"} {
		r := w.command()
		r.cmd.Path, r.cmd.Args = "/bin/bash", []string{"bash", "-c", "{ " + program + " run --json fd:4 a sh -c 'sleep 0.1; exit 7' 4>&1 >out; echo $? >code; } " + script}
		if _, err := exec.LookPath("bash"); err != nil {
			t.Skip("no bash here")
		}
		r.begin()
		w.await("the end of the run", func() bool { return strings.TrimSpace(w.read(w.path("code"))) == "7" })
		_ = os.Remove(w.path("code"))
		_ = unix.Kill(-r.cmd.Process.Pid, unix.SIGKILL)
	}
}

func TestTheRecordStatesTheOutcome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	holder, release := w.hold("held")
	for i, c := range []struct {
		outcome string
		code    int
		args    []string
	}{
		{"exited", 0, []string{"a", "true"}},
		{"exited", 76, []string{"a", "sh", "-c", "exit 76"}}, // no loss, though the code says so
		{"killed", 137, []string{"a", "sh", "-c", "kill -KILL $$"}},
		{"not acquired", 75, []string{"-n", "held", "true"}},
		{"not acquired", 0, []string{"-n", "--skip-ok", "held", "true"}},
		{"not acquired", 75, []string{"--wait", "50ms", "held", "true"}},
		{"unavailable", 69, []string{"--store", "file:///dev/null", "a", "true"}},
		{"usage", 64, []string{"--limit", "3", "held", "true"}},
		{"usage", 64, []string{"--permits", "2", "a", "true"}},
		{"usage", 64, []string{"a"}},
		{"cannot run", 126, []string{"a", "./broken"}},
		{"cannot run", 126, []string{"held", "/etc"}},
		{"cannot run", 127, []string{"held", "no-such-command"}},
		{"not acquired", 9, []string{"-E", "9", "-n", "held", "true"}},
	} {
		w.write("broken", "\x7fnonsense")
		_ = os.Chmod(w.path("broken"), 0o700)
		file := fmt.Sprintf("record%d", i)
		got := w.run(append([]string{"run", "--json", file}, c.args...)...)
		got.want(t, c.code)
		last, events := w.last(w.path(file))
		if last["event"] != "outcome" || last["outcome"] != c.outcome || last["exit_code"] != float64(c.code) || last["lock"] == "" {
			t.Errorf("%q: %v", c.args, last)
		}
		if n := slices.Index(events, "outcome"); n != len(events)-1 {
			t.Errorf("%q: %q", c.args, events)
		}
	}
	release()
	holder.wait()
}

func TestTheRecordOfALoss(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.start("run", "--json", "record", "--ttl", "12s", "--grace", "6s", "a", "sh", "-c", "trap 'exit 0' TERM; echo held; while :; do sleep 0.01; done").says("held")
	w.run("break", "a").want(t, 0)
	r.wait().want(t, 76)
	last, events := w.last(w.path("record"))
	if last["outcome"] != "lost" || last["exit_code"] != 76.0 || !strings.Contains(fmt.Sprint(last["reason"]), "an operator broke it") ||
		last["token"] == nil || last["store"] != "file:"+w.path("store") {
		t.Errorf("record: %v", last)
	}
	want := []string{"waiting", "acquired", "started", "lost", "told to end", "exited"}
	if slices.Contains(events, "guard gone") { // the machine was too busy for the guard, and the wrapper has ended the tree
		want = want[:4]
	}
	for _, event := range want {
		if !slices.Contains(events, event) {
			t.Errorf("no event %q in %q", event, events)
		}
	}
}

// asNobody lets the program run as a user who cannot do everything, on a store of their own.
func (w *world) asNobody(r *running) {
	w.Helper()
	const nobody = 65534
	if os.Geteuid() != 0 {
		w.Skip("needs root to become somebody else")
	}
	w.openToAll()
	r.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
}

// openToAll lets any user make files in the test's directory.
func (w *world) openToAll() {
	for dir := w.dir; strings.Contains(dir, "Test"); dir = dir[:strings.LastIndexByte(dir, '/')] {
		_ = os.Chmod(dir, os.ModeSticky|0o777)
	}
}

func TestASetuidProgramIsEnded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		whole  bool // it becomes another user altogether, whom nobody may signal
		escape bool
	}{{false, false}, {true, true}} {
		w := newWorld(t)
		if err := exec.Command("cp", self, w.path("setuid")).Run(); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(w.path("setuid"), os.ModeSetuid|0o755); err != nil {
			t.Fatal(err)
		}
		r := w.command("run", "--json", "record", "--ttl", "6s", "a", "./setuid", strconv.FormatBool(c.whole))
		r.cmd.Env = w.env("HOLDFAST_TEST_HELPER=setuid")
		w.asNobody(r)
		r.begin().says("held as 0")
		var pid int
		r.await("the whole line", func() bool {
			_, err := fmt.Sscanf(r.stdout(), "held as 0 %d\n", &pid)
			return err == nil && strings.HasSuffix(r.stdout(), "\n")
		})
		start := time.Now()
		b := w.command("break", "a")
		w.asNobody(b)
		b.begin().wait().want(t, 0)
		if got := r.wait(); got.code != 76 {
			t.Error(got.description)
		}
		if got := alive(pid); got != c.escape {
			t.Errorf("becomes another user: %v; it runs: %v", c.whole, got)
		}
		last, _ := w.last(w.path("record"))
		if got := fmt.Sprint(last["escaped"]); strings.Contains(got, fmt.Sprint(pid)) != c.escape {
			t.Errorf("becomes another user: %v; record: %v", c.whole, last)
		}
		t.Logf("becomes another user: %v; ended after %v", c.whole, time.Since(start))
	}
}

func TestACommandThatCannotBeKilledKeepsTheLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := exec.Command("cp", self, w.path("setuid")).Run(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(w.path("setuid"), os.ModeSetuid|0o755); err != nil {
		t.Fatal(err)
	}
	r, terminal := w.prepareTerminal("run", "--json", "record", "a", "./setuid", "true")
	r.cmd.Env = append(r.cmd.Env, "HOLDFAST_TEST_HELPER=setuid")
	w.asNobody(r)
	terminal.begin(r)
	var pid int
	terminal.await("the command", func() bool {
		_, line, _ := strings.Cut(terminal.now(), "held as 0 ")
		number, _, whole := strings.Cut(line, "\n")
		pid, _ = strconv.Atoi(strings.TrimSpace(number))
		return whole
	})
	terminal.kills(r, "record")
	terminal.shows("the lock is kept until that is gone")
	terminal.shows(fmt.Sprintf("[%d]", pid))
	b := w.command("run", "-n", "a", "true")
	w.asNobody(b)
	b.begin().wait().want(t, 75)
	_ = unix.Kill(pid, unix.SIGKILL)
	if got := r.wait(); got.code != 137 {
		t.Error(got.description)
	}
}

func TestATerminalThatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, terminal := w.prepareTerminal("run", "a", "sh", "-c", "echo $$ >self; echo up; while :; do sleep 0.05; done")
	terminal.begin(r)
	terminal.shows("up")
	_ = terminal.pipe.write.Close()
	_ = terminal.pipe.read.Close() // the other end hangs up
	if got := r.wait(); got.code != 128+1 {
		t.Errorf("want exit 129; %s", got.description)
	}
	w.dead("self")
	w.run("run", "-n", "a", "true").want(t, 0)
}

func TestASecondCtrlCKills(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, terminal := w.prepareTerminal("run", "--json", "record", "a", "sh", "-c", `trap "" INT TERM; (setsid sh -c 'trap "" INT; echo $$ >session; while :; do sleep 0.05; done' &); echo $$ >self; echo up; while :; do sleep 0.05; done`)
	terminal.begin(r)
	terminal.shows("up")
	terminal.kills(r, "record")
	if got := r.wait(); got.code != 137 {
		t.Errorf("want exit 137; %s", got.description)
	}
	w.dead("self")
	w.dead("session")
	w.run("run", "-n", "a", "true").want(t, 0)
}

func TestCtrlZBeyondTheTTLLosesTheLock(t *testing.T) {
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
	terminal.types(program + ` run --ttl 5s a sh -c 'echo $$ >self; echo up-$((1+1)); while :; do sleep 0.05; done'` + "\n")
	terminal.shows("up-2")
	terminal.types("\x1a")
	terminal.shows("Stopped")
	w.run("run", "a", "true").want(t, 0)
	w.dead("self")
	terminal.types("fg\n")
	terminal.types("echo code $((1000+$?))\n")
	terminal.shows("code 1076")
	terminal.types("exit\n")
	r.wait()
}

func TestWaitingTellsThePlaceInLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, release := w.hold("a", "--fair")
	first := w.start("run", "--fair", "a", "true")
	w.waiting("a", 1)
	r, terminal := w.prepareTerminal("run", "--fair", "a", "true")
	terminal.begin(r)
	terminal.shows("waiting for a, held by ")
	terminal.shows("; place 2 of 2 in line")
	release()
	first.wait().want(t, 0)
	r.wait()
}

func TestOutputThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, release := w.hold("held")
	defer release()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range [][]string{
		{"list"}, {"show", "held"}, {"show", "free"}, {"stores"}, {"explain", "a"}, {"version"}, {"watch", "a"}, {"watch", "--json", "a"},
		{"acquire", "a"}, {"hold", "--json", "record", "a"},
	} {
		r := w.command(args...)
		r.cmd.Stdout = full
		r.begin().wait().want(t, 74, "cannot be", "no space left")
		w.run("run", "-n", "a", "true").want(t, 0)
	}
	if last, _ := w.last(w.path("record")); last["outcome"] != "not printed" || last["exit_code"] != 74.0 {
		t.Errorf("record: %v", last)
	}
}

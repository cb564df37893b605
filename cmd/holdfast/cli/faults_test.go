//go:build linux

package cli

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

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-go/holdfast/internal/pace"
)

func TestGraceLimits(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for _, c := range []struct {
		code  int
		words string
		flags []string
	}{
		{64, "does not fit: with a TTL of 10s it can be 5.16", []string{"--ttl", "10s", "--grace", "6s"}},
		{64, "does not fit", []string{"--grace", "30s"}},
		{64, "with --max-hold 4s it can be 2s at most", []string{"--max-hold", "4s", "--grace", "3s"}},
		{64, "negative", []string{"--grace", "-1s"}},
		{64, "is not a signal", []string{"--signal", "NONSENSE"}},
		{64, "is not a signal", []string{"--signal", "65"}},
		{64, "does not end a process", []string{"--signal", "SIGSTOP"}},
		{64, "at least 1s", []string{"--max-hold", "10ms"}},
		{64, "at least 5s", []string{"--max-hold", "4s", "--min-hold", "5s"}},
		{64, "negative", []string{"--min-hold", "-1s"}},
		{0, "", []string{"--grace", "0s"}},
		{0, "", []string{"--signal", "SIGUSR1"}},
		{0, "", []string{"--signal", "int"}},
		{0, "", []string{"--signal", "9"}},
	} {
		got := w.runProgram(append(append([]string{"run"}, c.flags...), "a", "true")...)
		if got.check(t, c.code); !strings.Contains(got.err, c.words) {
			t.Errorf("want %q; %s", c.words, got.description)
		}
	}
	// These are accepted, the second one with a grace that is shorter by default. To run a command so would take a
	// machine that starts it in time.
	w.runProgram("explain", "--ttl", "10s", "--grace", "5s", "a").check(t, 0)
	w.runProgram("explain", "--max-hold", "4s", "a").check(t, 0)
}

func TestSignalAndGraceFlags(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	var machine pace.Pace
	defer machine.Watch()()
	start := time.Now()
	script := `trap "echo told" USR1; echo held; while :; do sleep 0.01; done`
	r := w.startProgram("run", "--ttl", "12s", "--grace", "5s", "--signal", "USR1", "--events", "record", "a", "sh", "-c",
		script)
	r.awaitOutput("held")
	w.runProgram("break", "a").check(t, 0)
	got := r.wait()
	if got.check(t, 76); !strings.Contains(got.out, "told") {
		t.Errorf("another signal; %s", got.description)
	}
	// It would have 2 s by default. How late either is noted depends on the machine.
	took := w.eventTime("record", "command_killed").Sub(w.eventTime("record", "command_terminating"))
	if took < 3*time.Second || took > 8*time.Second+machine.Lost(start) {
		t.Errorf("killed %v after it was signaled", took)
	}
}

func TestMinHold(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	const minHold = 12 * time.Second
	start := time.Now()
	w.runProgram("run", "--min-hold", minHold.String(), "a", "sh", "-c", "exit 3").check(t, 3)
	if took := time.Since(start); took >= minHold {
		t.Errorf("the run waited for its --min-hold: %v", took)
	}
	w.runProgram("run", "-n", "a", "true").check(t, 75)
	w.runProgram("run", "a", "true").check(t, 0)
	if took := time.Since(start); took < minHold {
		t.Errorf("the lock was free after %v", took)
	}
}

// TestMinHoldOfUnstartedCommand: --min-hold keeps no lock under which nothing was run.
func TestMinHoldOfUnstartedCommand(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.writeFile("badinterp", "#!/no/such/interpreter\n")
	if err := os.Chmod(w.filePath("badinterp"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.runProgram("run", "--min-hold", "5m", "a", "./badinterp").check(t, 127, "cannot be run")
	w.runProgram("run", "-n", "a", "true").check(t, 0)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	r := w.newProgram("hold", "--min-hold", "5m", "a")
	r.cmd.Stdout = full
	r.launch().wait().check(t, 74, "the lock was released")
	w.runProgram("run", "-n", "a", "true").check(t, 0)
}

// TestUnreadStderr: a message that nobody reads keeps no lock: the command runs, and the lock is released.
func TestUnreadStderr(t *testing.T) {
	t.Parallel()
	unread, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer guard.CloseAll(unread, stderr)
	fill := []byte{'.'}
	for _ = stderr.SetWriteDeadline(time.Now().Add(time.Second)); err == nil; {
		_, err = stderr.Write(fill)
	}
	for _, c := range []struct{ holder, next []string }{
		{[]string{"run", "a"}, []string{"run", "-v", "a"}},
		{[]string{"once", "k"}, []string{"once", "-v", "--wait=10m", "--ledger", "once", "k"}},
	} {
		w := newWorkspace(t)
		holder := w.startProgram(append(c.holder, "sh", "-c", "echo held; "+waitForFile("gate")+"; exit 3")...).
			awaitOutput("held")
		next := w.newProgram(append(c.next, "sh", "-c", "echo ran")...).launch(stderr)
		time.Sleep(2 * time.Second) // until it has tried to tell what it waits for; if it is late, this tests less
		w.writeFile("gate", "")
		holder.wait().check(t, 3)
		next.awaitOutput("ran").wait().check(t, 0)
	}
}

// TestMaxHold: a command that runs for longer than --max-hold is ended with its whole tree, and run exits 76.
func TestMaxHold(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.startProgram("run", "--ttl", "2m", "--max-hold", "16s", "--events", "record", "a", "sh", "-c",
		familyScript(true))
	r.awaitOutput("held")
	got := r.wait()
	got.check(t, 76)
	if !strings.Contains(got.err, "a has been held for as long as --max-hold allows, and will be lost in") {
		t.Error(got.description)
	}
	w.awaitFamilyDead()
	w.runProgram("run", "--wait", "30s", "a", "true").check(t, 0) // and not the rest of the TTL
	if last, _ := w.readRecord(w.filePath("record")); last["outcome"] != "lost" || last["exit_code"] != 76.0 {
		t.Errorf("record: %v", last)
	}
}

// TestProgressEndsTree: with --progress, a command that writes to its descriptor goes on, and one that stops to do so
// is ended, with all its descendants, and the lock is free soon.
func TestProgressEndsTree(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.startProgram("run", "--ttl", "2m", "--progress", "12s", "--grace", "500ms", "--events", "record", "a", "sh", "-c",
		`for i in 1 2 3 4; do sleep 3.5; echo "step $i" >/dev/fd/$HOLDFAST_PROGRESS_FD; done; echo worked; `+familyScript(true))
	r.awaitOutput("held")
	got := r.wait()
	got.check(t, 76)
	if !strings.Contains(got.out, "worked") ||
		!strings.Contains(got.err, "a has seen no progress for nearly as long as --progress allows, and will be lost in") {
		t.Error(got.description)
	}
	w.awaitFamilyDead()
	w.runProgram("run", "--wait", "30s", "a", "true").check(t, 0) // and not the rest of the TTL
	if last, _ := w.readRecord(w.filePath("record")); last["outcome"] != "lost" || last["cause"] != "no-progress" {
		t.Errorf("record: %v", last)
	}
}

// TestProgressByFile: with --progress-file, a file that changes is progress. A worker of once that hangs is ended,
// too, and the next one gets the key at once.
func TestProgressByFile(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	got := w.runProgram("once", "--ttl", "2m", "--progress", "12s", "--grace", "500ms", "--progress-file", w.filePath("log"), "k",
		"sh", "-c", `for i in 1 2 3 4; do sleep 3.5; echo "step $i" >>log; done; echo worked; sleep 600`)
	got.check(t, 76)
	if !strings.Contains(got.out, "worked") || !strings.Contains(got.err, "k has seen no progress") {
		t.Error(got.description)
	}
	w.runProgram("once", "k", "echo", "again").check(t, 0)
}

// TestProgressFlags: values that make no sense are refused.
func TestProgressFlags(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.runProgram("run", "--progress", "10ms", "a", "true").check(t, 64, "--progress must be at least 1s")
	w.runProgram("once", "--progress-file", "f", "k", "true").check(t, 64, "--progress-file needs --progress")
	w.runProgram("run", "--progress", "10s", "--grace", "6s", "a", "true").
		check(t, 64, "--grace 6s does not fit: with --progress 10s it can be 5s at most")
	w.runProgram("run", "a", "sh", "-c", `test -z "$HOLDFAST_PROGRESS_FD"`).check(t, 0)
}

// TestNewestOnlyOnTheCommandLine: with --newest-only, an older waiter exits 81, or 0 with --skip-ok, when a newer one
// waits.
func TestNewestOnlyOnTheCommandLine(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.runProgram("run", "--newest-only", "--shared", "a", "true").check(t, 64, "--newest-only and --shared exclude each other")
	holder := w.startProgram("run", "a", "sh", "-c", "echo held; while ! test -e go; do sleep 0.05; done")
	holder.awaitOutput("held")
	first := w.startProgram("run", "--newest-only", "--events", "record", "a", "echo", "ran")
	w.awaitWaiters("a", 1)
	second := w.startProgram("run", "--newest-only", "--skip-ok", "a", "echo", "ran")
	first.wait().check(t, 81, "a newer --newest-only caller waits for a")
	if last, _ := w.readRecord(w.filePath("record")); last["outcome"] != "not-acquired" || last["reason"] != "superseded" {
		t.Errorf("record: %v", last)
	}
	w.awaitWaiters("a", 1)
	third := w.startProgram("run", "--newest-only", "a", "echo", "ran")
	second.wait().check(t, 0)
	w.awaitWaiters("a", 1)
	w.writeFile("go", "")
	got := third.wait()
	got.check(t, 0)
	if got.out != "ran\n" {
		t.Error(got.description)
	}
	holder.wait().check(t, 0)
}

// TestNestedRunRefused: a run of a lock that an enclosing run holds is refused, since it would wait for itself.
func TestNestedRunRefused(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.runProgram("run", "a", program, "run", "b", program, "run", "a", "true").
		check(t, 64, "a is already held by an enclosing holdfast run")
	w.runProgram("run", "a", program, "run", "b", program, "run", "c", "true").check(t, 0)
	w.runProgram("run", "a b", program, "run", "-n", "a b", "true").check(t, 64, "already held")
	w.runProgram("run", "-s", "a", program, "run", "a", "true").check(t, 64, "already held")
	w.runProgram("run", "a", program, "run", "-s", "a", "true").check(t, 64, "already held")
	w.runProgram("run", "a", program, "hold", "a").check(t, 64, "already held")
	w.runProgram("run", "a", program, "acquire", "--ttl", "30s", "a").check(t, 64, "already held")
	// A nested run may share the lock with the enclosing one, but only with a wait limit: another claim may come
	// between.
	w.runProgram("run", "-s", "a", program, "run", "-s", "a", "true").check(t, 64, "give --wait or --no-wait")
	w.runProgram("run", "-s", "a", program, "run", "-s", "-n", "a", "true").check(t, 0)
	w.runProgram("run", "-s", "a", program, "run", "-s", "--wait", "30s", "a", "true").check(t, 0)
	w.runProgram("run", "--limit", "3", "a", program, "run", "--limit", "3", "--wait", "30s", "a", "true").check(t, 0)
	two := []string{"--limit", "3", "--permits", "2"}
	inner := slices.Concat([]string{"a", program, "run", "-n"}, two, []string{"a", "true"})
	w.runProgram(slices.Concat([]string{"run"}, two, inner)...).check(t, 64, "already held")
	// The weight of an entry counts only while its claim exists.
	w.runProgram(slices.Concat([]string{"run"}, two, []string{"a", "sh", "-c", `echo "$HOLDFAST_HELD" >old`})...).check(t, 0)
	outer := w.newProgram(slices.Concat([]string{"run", "--limit", "3"}, inner)...)
	outer.cmd.Env = w.testEnvironment("HOLDFAST_HELD=" + strings.TrimSpace(w.readFile(w.filePath("old"))))
	outer.launch().wait().check(t, 0)
	// Another store's lock of that name is another lock.
	w.runProgram("run", "a", program, "--store", w.store+"2", "run", "a", "true").check(t, 0)
	// One store has many names.
	alias := w.storeAlias()
	w.runProgram("run", "a", program, "--store", alias, "run", "a", "true").check(t, 64, "already held")
	w.runProgram("run", "a", program, "--store", alias, "run", "b", "true").check(t, 0)
	w.runProgram("run", "a", program, "--store", "file:///dev/null", "run", "a", "true").check(t, 69)
	// An environment that was kept for longer than the lock proves nothing.
	w.runProgram("run", "a", "sh", "-c", `echo "$HOLDFAST_HELD" >kept`).check(t, 0)
	r := w.newProgram("run", "a", "true")
	r.cmd.Env = w.testEnvironment("HOLDFAST_HELD=nonsense " + strings.TrimSpace(w.readFile(w.filePath("kept"))) +
		" %%#")
	r.launch().wait().check(t, 0)
}

func TestHeldEntriesRoundTrip(t *testing.T) {
	for _, h := range []heldLock{{"file:/a b", "ü#\n%41", "k@5", 5, 1, 1}, {"", "$(x)", "#", 1 << 52, 2, 1 << 20},
		{"file:/a", "ledger/key", "id", 7, 0, 0}} {
		t.Setenv(heldVariable, "x "+h.String()+" "+h.String())
		runs := inheritedRuns(func(key string) bool { return key == h.name })
		if got := slices.Concat(inheritedLocks(h.name), runs); len(got) != 2 || got[0] != h || got[1] != h {
			t.Errorf("%q: got %+v", h, got)
		}
		if strings.ContainsAny(h.String(), " \n$") {
			t.Errorf("%q", h)
		}
	}
}

// TestDaemonWithClosedDescriptors: the lock is held until the daemon ends, even if the daemon closes all descriptors.
func TestDaemonWithClosedDescriptors(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	daemon := `exec 0<&- 1>&- 2>&- 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; cd /; echo $$ >` + w.filePath("daemon") +
		`; while [ ! -e ` + w.filePath("gate") + ` ]; do sleep 0.01; done`
	w.writeFile("daemon.sh", daemon)
	r := w.startProgram("run", "a", "sh", "-c", "setsid setsid sh daemon.sh & exit 0")
	w.readPID("daemon")
	w.runProgram("run", "-n", "a", "true").check(t, 75)
	w.writeFile("gate", "")
	if got := r.wait(); got.code != 0 {
		t.Error(got.description)
	}
	w.runProgram("run", "-n", "a", "true").check(t, 0)
}

// TestCommandInheritsNoGuardDescriptors: the command inherits the descriptors of its caller, and neither the guard's
// pipes nor the store's files.
func TestCommandInheritsNoGuardDescriptors(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.writeFile("gift", "gift\n")
	finds := func(before string) string {
		r := w.newProgram()
		r.cmd.Path, r.cmd.Args = "/bin/sh", []string{"sh", "-c", "exec 8<gift " + before +
			` sh -c 'cat <&8; ls /proc/$$/fd'`}
		got := r.launch().wait()
		got.check(t, 0)
		return got.out
	}
	if want, got := finds("; exec"), finds("9>record; exec "+program+" run --events fd:9 a"); got != want {
		t.Errorf("want %q, got %q", want, got)
	}
	if last, _ := w.readRecord(w.filePath("record")); last["outcome"] != "exited" {
		t.Errorf("record: %v", last)
	}
}

func TestGuardSurvivesSignals(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.startProgram("run", "a", "sh", "-c", "echo held; "+waitForFile("gate")+"; exit 3").awaitOutput("held")
	pid := r.guard()
	for n := syscall.Signal(1); n <= guard.LastSignal; n++ {
		if !guard.UncaughtSignals[n] && (n < 32 || n > 34) { // those are the C library's, and Go cannot catch them

			_ = unix.Kill(pid, n)
		}
	}
	w.awaitTrue("the guard to have taken them", func() bool { return w.hasTakenSignals(pid) })
	if got := r.guard(); got != pid {
		t.Errorf("the guard was %d and is %d", pid, got)
	}
	w.writeFile("gate", "")
	r.wait().check(t, 3)
}

// TestUnwritableRecord: a record that cannot be written changes neither the run nor the exit code, and is reported.
func TestUnwritableRecord(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for _, c := range []struct{ where, words string }{
		{"/dev/full", "no space left"}, {"fd:99", "bad file descriptor"}, {"fd:5", "bad file descriptor"},
	} {
		w.runProgram("run", "--events", c.where, "a", "sh", "-c", "exit 7").check(t, 7,
			"the file of --events is not complete", c.words)
	}
	for _, where := range []string{"no/such/dir", ".", "fd:x", "fd:"} {
		w.runProgram("run", "--events", where, "a", "true").check(t, 64, "--events")
	}
	// A pipe whose reader has ended, and one whose reader does not read.
	for _, script := range []string{"| true", "| sleep 1000"} {
		r := w.newProgram()
		r.cmd.Path, r.cmd.Args = "/bin/bash", []string{"bash", "-c", "{ " + program +
			" run --events fd:4 a sh -c 'sleep 0.1; exit 7' 4>&1 >out; echo $? >code; } " + script}
		if _, err := exec.LookPath("bash"); err != nil {
			t.Skip("no bash here")
		}
		r.launch()
		w.awaitTrue("the end of the run",
			func() bool { return strings.TrimSpace(w.readFile(w.filePath("code"))) == "7" })
		_ = os.Remove(w.filePath("code"))
		_ = unix.Kill(-r.cmd.Process.Pid, unix.SIGKILL)
	}
}

// TestRecordOutcome: the file of --events has the outcome of each kind of end, with its exit code.
func TestRecordOutcome(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	holder, release := w.startHolder("held")
	for i, c := range []struct {
		outcome string
		code    int
		args    []string
	}{
		{"exited", 0, []string{"a", "true"}},
		{"exited", 76, []string{"a", "sh", "-c", "exit 76"}}, // no loss, although the code is that of a loss
		{"killed", 137, []string{"a", "sh", "-c", "kill -KILL $$"}},
		{"not-acquired", 75, []string{"-n", "held", "true"}},
		{"not-acquired", 0, []string{"-n", "--skip-ok", "held", "true"}},
		{"not-acquired", 75, []string{"--wait", "50ms", "held", "true"}},
		{"unavailable", 69, []string{"--store", "file:///dev/null", "a", "true"}},
		{"usage", 64, []string{"--limit", "3", "held", "true"}},
		{"usage", 64, []string{"--permits", "2", "a", "true"}},
		{"usage", 64, []string{"a"}},
		{"cannot-run", 126, []string{"a", "./broken"}},
		{"cannot-run", 126, []string{"held", "/etc"}},
		{"cannot-run", 127, []string{"held", "no-such-command"}},
		{"not-acquired", 9, []string{"-E", "9", "-n", "held", "true"}},
	} {
		w.writeFile("broken", "\x7fnonsense")
		_ = os.Chmod(w.filePath("broken"), 0o700)
		file := fmt.Sprintf("record%d", i)
		got := w.runProgram(append([]string{"run", "--events", file}, c.args...)...)
		got.check(t, c.code)
		last, events := w.readRecord(w.filePath(file))
		if last["event"] != "outcome" || last["outcome"] != c.outcome || last["exit_code"] != float64(c.code) ||
			last["lock"] == "" {
			t.Errorf("%q: %v", c.args, last)
		}
		at, _ := last["time"].(string)
		if last["host"] == "" || last["user"] != userName() || last["version"] == "" || !strings.HasSuffix(at, "Z") {
			t.Errorf("%q does not say where it comes from: %v", c.args, last)
		}
		if n := slices.Index(events, "outcome"); n != len(events)-1 {
			t.Errorf("%q: %q", c.args, events)
		}
	}
	release()
	holder.wait()
}

func TestRecordOfLoss(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	script := "trap 'exit 0' TERM; echo held; while :; do sleep 0.01; done"
	r := w.startProgram("run", "--events", "record", "--ttl", "24s", "--grace", "6s", "a", "sh", "-c", script)
	r.awaitOutput("held")
	w.runProgram("break", "a").check(t, 0)
	r.wait().check(t, 76)
	last, events := w.readRecord(w.filePath("record"))
	message := fmt.Sprint(last["message"])
	if last["outcome"] != "lost" || last["exit_code"] != 76.0 || last["cause"] != "broken" ||
		!strings.Contains(message, "an operator broke it") ||
		last["token"] == nil || last["store"] != "file:"+w.filePath("store") {
		t.Errorf("record: %v", last)
	}
	want := []string{"lock_acquire_attempt", "lock_acquired", "command_started", "lock_lost", "command_terminating",
		"command_exited"}
	if slices.Contains(events, "guard_gone") { // on a busy machine the wrapper ended the tree
		want = want[:4]
	}
	for _, event := range want {
		if !slices.Contains(events, event) {
			t.Errorf("no event %q in %q", event, events)
		}
	}
}

func TestSetuidCommand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		whole  bool // it becomes another user entirely, whose processes only root may signal
		escape bool
	}{{false, false}, {true, true}} {
		w := newWorkspace(t)
		if err := exec.Command("cp", self, w.filePath("setuid")).Run(); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(w.filePath("setuid"), os.ModeSetuid|0o755); err != nil {
			t.Fatal(err)
		}
		r := w.newProgram("run", "--events", "record", "--ttl", "9s", "a", "./setuid", strconv.FormatBool(c.whole))
		r.cmd.Env = w.testEnvironment("TEST_HELPER=setuid")
		w.runAsNobody(r)
		r.launch().awaitOutput("held as 0")
		var pid int
		r.awaitTrue("the whole line", func() bool {
			_, err := fmt.Sscanf(r.readStdout(), "held as 0 %d\n", &pid)
			return err == nil && strings.HasSuffix(r.readStdout(), "\n")
		})
		start := time.Now()
		b := w.newProgram("break", "a")
		w.runAsNobody(b)
		b.launch().wait().check(t, 0)
		if got := r.wait(); got.code != 76 {
			t.Error(got.description)
		}
		if got := isAlive(pid); got != c.escape {
			t.Errorf("becomes another user: %v; it runs: %v", c.whole, got)
		}
		last, _ := w.readRecord(w.filePath("record"))
		if got := fmt.Sprint(last["escaped"]); strings.Contains(got, fmt.Sprint(pid)) != c.escape {
			t.Errorf("becomes another user: %v; record: %v", c.whole, last)
		}
		t.Logf("becomes another user: %v; ended after %v", c.whole, time.Since(start))
	}
}

// TestUnkillableCommandKeepsLock: a command that its user wants killed, and that cannot be, keeps the lock. Once that
// is lost, nobody waits for the command any more.
func TestUnkillableCommandKeepsLock(t *testing.T) {
	t.Parallel()
	for _, broken := range []bool{false, true} {
		w := newWorkspace(t)
		if err := exec.Command("cp", self, w.filePath("setuid")).Run(); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(w.filePath("setuid"), os.ModeSetuid|0o755); err != nil {
			t.Fatal(err)
		}
		r, terminal := w.prepareTerminal("run", "--ttl", "15s", "--events", "record", "a", "./setuid", "true")
		r.cmd.Env = append(r.cmd.Env, "TEST_HELPER=setuid")
		w.runAsNobody(r)
		terminal.begin(r)
		var pid int
		terminal.awaitTrue("the command", func() bool {
			_, line, _ := strings.Cut(terminal.textSoFar(), "held as 0 ")
			number, _, whole := strings.Cut(line, "\n")
			pid, _ = strconv.Atoi(strings.TrimSpace(number))
			return whole
		})
		terminal.pressCtrlCTwice(r, "record")
		terminal.awaitText("a stays held until that has ended")
		terminal.awaitText(fmt.Sprintf("[%d]", pid))
		other := func(code int, args ...string) {
			r := w.newProgram(args...)
			w.runAsNobody(r)
			r.launch().wait().check(t, code)
		}
		other(75, "run", "-n", "a", "true")
		code := 137
		if broken {
			other(0, "break", "a")
			code = 76
		} else {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if got := r.wait(); got.code != code {
			t.Errorf("want exit %d; %s", code, got.description)
		}
		last, _ := w.readRecord(w.filePath("record"))
		if escaped := strings.Contains(fmt.Sprint(last["escaped"]), fmt.Sprint(pid)); escaped != broken {
			t.Errorf("broken: %v; record: %v", broken, last)
		}
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// TestTerminalHangUp: when the terminal hangs up, the command ends and the lock is released.
func TestTerminalHangUp(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r, terminal := w.prepareTerminal("run", "a", "sh", "-c", "echo $$ >self; echo up; while :; do sleep 0.05; done")
	terminal.begin(r)
	terminal.awaitText("up")
	_ = terminal.capturedPipe.write.Close()
	_ = terminal.capturedPipe.read.Close() // the other end hangs up
	if got := r.wait(); got.code != 128+1 {
		t.Errorf("want exit 129; %s", got.description)
	}
	w.awaitDead("self")
	w.runProgram("run", "-n", "a", "true").check(t, 0)
}

// TestSecondCtrlCKills: a second Ctrl-C kills the command and all its descendants, even those that ignore the first.
func TestSecondCtrlCKills(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r, terminal := w.prepareTerminal("run", "--events", "record", "a", "sh", "-c",
		`trap "" INT TERM; (setsid sh -c 'trap "" INT; echo $$ >session; while :; do sleep 0.05; done' &); echo $$ >self; echo up; while :; do sleep 0.05; done`)
	terminal.begin(r)
	terminal.awaitText("up")
	terminal.pressCtrlCTwice(r, "record")
	if got := r.wait(); got.code != 137 {
		t.Errorf("want exit 137; %s", got.description)
	}
	w.awaitDead("self")
	w.awaitDead("session")
	w.runProgram("run", "-n", "a", "true").check(t, 0)
}

// TestCtrlZLongerThanTTL: a command that was stopped for longer than the TTL does not continue after fg.
func TestCtrlZLongerThanTTL(t *testing.T) {
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
	terminal.typeKeys(program + ` run --ttl 9s a sh -c 'echo $$ >self; echo up-$((1+1)); while :; do sleep 0.05; done'` + "\n")
	terminal.awaitText("up-2")
	terminal.typeKeys("\x1a")
	terminal.awaitText("Stopped")
	w.runProgram("run", "a", "true").check(t, 0)
	w.awaitDead("self")
	terminal.typeKeys("fg\n")
	terminal.typeKeys("echo code $((1000+$?))\n")
	terminal.awaitText("code 1076")
	terminal.typeKeys("exit\n")
	r.wait()
}

func TestQueuePositionShown(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	_, release := w.startHolder("a", "--fair")
	first := w.startProgram("run", "--fair", "a", "true")
	w.awaitWaiters("a", 1)
	r, terminal := w.prepareTerminal("run", "--fair", "a", "true")
	terminal.begin(r)
	terminal.awaitText("waiting for a, held by ")
	terminal.awaitText("; place 2 of 2 in the queue")
	release()
	first.wait().check(t, 0)
	r.wait()
}

// TestOutputFailure: output that cannot be written gives exit code 74.
func TestOutputFailure(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	_, release := w.startHolder("held")
	defer release()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range [][]string{
		{"list"}, {"show", "held"}, {"show", "free"}, {"stores"}, {"explain", "a"}, {"version"}, {"watch", "a"},
		{"watch", "--json", "a"}, {"token", "show", "held"}, {"--help"}, {"run", "--help"}, {"help", "configuration"},
		{"acquire", "--ttl", "30s", "a"}, {"hold", "--events", "record", "a"},
	} {
		r := w.newProgram(args...)
		r.cmd.Stdout = full
		r.launch().wait().check(t, 74, "cannot ", "no space left")
		w.runProgram("run", "-n", "a", "true").check(t, 0)
	}
	if last, _ := w.readRecord(w.filePath("record")); last["outcome"] != "not-printed" || last["exit_code"] != 74.0 {
		t.Errorf("record: %v", last)
	}
}

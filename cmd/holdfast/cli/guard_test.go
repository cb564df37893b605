//go:build linux

package cli

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// guardRounds is how often each faultCase is run. make prove runs more rounds.
var guardRounds = flag.Int("guard.times", 2,
	"how often each case of TestNothingRunsWhenNextHolderStarts is run")

// faultCase is a fault that happens while a command runs.
type faultCase struct {
	name   string
	inject func(w *workspace, r *startedProgram)
	// repair undoes the fault, once no process of the tree runs. If repair is nil, the tree ends only when the next
	// holder starts.
	repair func(w *workspace, r *startedProgram)
	code   int
	ttl    string // short if the test waits for it to pass

	flags    []string
	mild     bool // the family must not ignore SIGTERM
	anyStore bool // it is tried on a server, too
}

var faultCases = []faultCase{
	{name: "the wrapper is stopped beyond its TTL", inject: func(_ *workspace, r *startedProgram) { r.signal(unix.SIGSTOP) },
		repair: func(_ *workspace, r *startedProgram) { r.signal(unix.SIGCONT) }, code: 76, ttl: "9s"},
	{name: "the wrapper is killed", inject: func(_ *workspace, r *startedProgram) { r.signal(unix.SIGKILL) }, code: 137,
		ttl: "30s", anyStore: true},
	{name: "the wrapper and its group are killed", inject: func(_ *workspace, r *startedProgram) {
		_ = unix.Kill(-r.cmd.Process.Pid, unix.SIGKILL)
	}, code: 137, ttl: "30s"},
	{name: "the wrapper is told to end", inject: func(_ *workspace, r *startedProgram) {
		r.signal(unix.SIGTERM) // for the command, and then for what that leaves
		r.awaitTrue("word of what is left", func() bool { return strings.Contains(r.readStderr(), keptFor) })
		r.signal(unix.SIGTERM)
	}, code: 128 + int(unix.SIGTERM), ttl: "30s", mild: true, anyStore: true},
	{name: "the lock was held for as long as it may be", inject: func(*workspace, *startedProgram) {}, code: 76, ttl: "9s",
		flags: []string{"--max-hold", "12s"}, anyStore: true},
	{name: "the guard has no descriptor left, and the lock is broken", inject: func(w *workspace, r *startedProgram) {
		w.takeDescriptors(r.guard())
		w.runProgram("break", "a").check(w.T, 0)
	}, code: 76, ttl: "9s", anyStore: true},
	{name: "the guard is killed", inject: func(_ *workspace, r *startedProgram) { _ = unix.Kill(r.guard(), unix.SIGKILL) },
		code: 76, ttl: "30s"},
	{name: "the guard is stopped, and the lock broken", inject: func(w *workspace, r *startedProgram) {
		_ = unix.Kill(r.guard(), unix.SIGSTOP)
		w.runProgram("break", "a").check(w.T, 0)
	}, code: 76, ttl: "12s"},
	{name: "the guard is stopped, and the store fails", inject: func(_ *workspace, r *startedProgram) {
		_ = unix.Kill(r.guard(), unix.SIGSTOP)
		r.failStore()
	}, code: 76, ttl: "9s"},
	{name: "the store fails", inject: func(_ *workspace, r *startedProgram) { r.failStore() }, code: 76, ttl: "9s"},
	{name: "the lock is broken", inject: func(w *workspace, _ *startedProgram) { w.runProgram("break", "a").check(w.T, 0) },
		code: 76, ttl: "12s"},
	{name: "the wrapper is stopped and the lock broken", inject: func(w *workspace, r *startedProgram) {
		r.signal(unix.SIGSTOP)
		w.runProgram("break", "a").check(w.T, 0)
	}, repair: func(_ *workspace, r *startedProgram) { r.signal(unix.SIGCONT) }, code: 76, ttl: "9s"},
	{name: "the guard is stopped, and killed after all that runs", inject: func(w *workspace, r *startedProgram) {
		guard := r.guard()
		_ = unix.Kill(guard, unix.SIGSTOP)
		w.awaitStopped(guard) // so it reports nothing
		for _, f := range familyFiles {
			_ = unix.Kill(w.readPID(f), unix.SIGKILL)
		}
		w.awaitFamilyDead()
		_ = unix.Kill(guard, unix.SIGKILL)
	}, code: 76, ttl: "30s"},
	{name: "the wrapper is stopped, then killed", inject: func(w *workspace, r *startedProgram) {
		r.signal(unix.SIGSTOP)
		w.awaitStopped(r.cmd.Process.Pid)
		r.signal(unix.SIGKILL)
	}, code: 137, ttl: "30s"},
}

// takeDescriptors lets a process open no more files: its limit becomes the lowest number that is free.
func (w *workspace) takeDescriptors(pid int) {
	w.Helper()
	free := uint64(0)
	for {
		if _, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", pid, free)); err != nil {
			break
		}
		free++
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: free, Max: free}, nil); err != nil {
		w.Fatal(err)
	}
}

// awaitStopped waits until all threads of a process have stopped: after the signal they go on for a moment.
func (w *workspace) awaitStopped(pid int) {
	w.Helper()
	w.awaitTrue("the stop", func() bool {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		for _, f := range threads {
			if !strings.Contains(w.readFile(f), ") T ") {
				return false
			}
		}
		return len(threads) > 0
	})
}

// guard returns the process number of the guard.
func (r *startedProgram) guard() int {
	r.Helper()
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", r.cmd.Process.Pid))
	for _, f := range files {
		for number := range strings.FieldsSeq(r.readFile(f)) {
			if r.readFile("/proc/"+number+"/comm") == guard.Name+"\n" {
				pid, _ := strconv.Atoi(number)
				return pid
			}
		}
	}
	r.Fatal("no guard found")
	return 0
}

// startChecker starts a run whose command checks at once whether any process of a family is alive.
func (w *workspace) startChecker(flags ...string) *startedProgram {
	w.Helper()
	return w.startCheckerOf(familyFiles, flags...)
}

func (w *workspace) startCheckerOf(files []string, flags ...string) *startedProgram {
	w.Helper()
	r := w.newProgram(append(append(append([]string{"run"}, flags...), "a", self), files...)...)
	r.cmd.Env = w.testEnvironment("TEST_HELPER=check")
	return r.launch()
}

// TestNothingRunsWhenNextHolderStarts: the wrapper or the guard is stopped or killed, or the store fails, at a random
// moment; no process of the old tree is alive when the next holder starts.
func TestNothingRunsWhenNextHolderStarts(t *testing.T) {
	t.Parallel()
	for _, s := range faultCases {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for i := range *guardRounds {
				s.runOnce(newWorkspace(t), i%2 == 0)
			}
		})
	}
}

// TestNothingRunsOnServerWhenNextHolderStarts: as TestNothingRunsWhenNextHolderStarts, on a real Redis, which keeps the
// lock of a killed wrapper until its TTL has passed, whatever still runs.
func TestNothingRunsOnServerWhenNextHolderStarts(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	for database, s := range faultCases {
		if !s.anyStore {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			w := newWorkspace(t)
			w.store = fmt.Sprintf("redis://%s/%d", server.Addr, database)
			s.ttl = "9s"
			s.runOnce(w, true)
		})
	}
}

// startFamily starts a program whose command is a family.
func (s *faultCase) startFamily(w *workspace, stubborn bool, args ...string) *startedProgram {
	w.Helper()
	args = append(args, "a", "sh", "-c", familyScript(stubborn && !s.mild))
	if s.mild { // the case reads its messages
		return w.startProgram(args...).awaitOutput("held")
	}
	r, _ := w.withPipe(args...) // a store that fails takes files of the wrapper's own along
	return r.awaitOutput("held")
}

func (s *faultCase) runOnce(w *workspace, stubborn bool) {
	w.Helper()
	r := s.startFamily(w, stubborn, append([]string{"run", "--ttl", s.ttl}, s.flags...)...)
	next := w.startChecker()
	next.awaitSecondClient()
	s.inject(w, r)
	if s.repair != nil {
		w.awaitFamilyDead()
	}
	got := next.wait()
	got.check(w.T, 0)
	if got.out != "checked\n" {
		w.Errorf("when the next holder starts: %s", got.out)
	}
	w.awaitFamilyDead()
	if s.repair != nil {
		s.repair(w, r)
	}
	if end := r.wait(); end.code != s.code {
		w.Errorf("want exit %d; %s", s.code, end.description)
	}
	w.killLeftovers()
}

// TestLossReportedOnce: a guard that is killed after it has signaled the tree and printed why is not followed by a
// second signal and message, even if that happens so late that the lock has expired.
func TestLossReportedOnce(t *testing.T) {
	t.Parallel()
	const ttl = 18 * time.Second
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late %v", late), func(t *testing.T) {
			t.Parallel()
			w := newWorkspace(t)
			r := w.startProgram("run", "--ttl", ttl.String(), "--grace", "5s", "--events", "record", "a", "sh", "-c",
				`exec 2>/dev/null; trap "echo told" TERM; echo held; while :; do sleep 0.01; done`).awaitOutput("held")
			expired := time.Now().Add(ttl)
			w.runProgram("break", "a").check(t, 0)
			r.awaitOutput("told")
			r.awaitTrue("the loss on stderr", func() bool { return strings.Contains(r.readStderr(), "\n") })
			w.awaitEvent("record", "command_terminating") // so the wrapper knows as well
			_ = unix.Kill(r.guard(), unix.SIGSTOP)
			if late {
				r.signal(unix.SIGSTOP)
				time.Sleep(time.Until(expired))
				r.signal(unix.SIGCONT)
			}
			got := r.wait()
			got.check(t, 76, "an operator broke it")
			_, events := w.readRecord(w.filePath("record"))
			if strings.Count(got.out, "told") != 1 || !slices.Contains(events, "guard_gone") {
				t.Errorf("events %q; %s", events, got.description)
			}
		})
	}
}

// TestLossOfKilledGuardIsReported: a run whose guard was killed says why it is lost, whether the kernel has killed the
// command by then or not, and says it once.
func TestLossOfKilledGuardIsReported(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for i := range 5 {
		record := fmt.Sprint("record", i)
		r := w.startProgram("run", "--ttl", "30s", "--events", record, "a", "sh", "-c", "echo held; exec sleep 600").
			awaitOutput("held")
		w.awaitEvent(record, "command_started") // before that, nobody could tell it from a command that was not started
		_ = unix.Kill(r.guard(), unix.SIGKILL)
		got := r.wait()
		got.check(t, 76, "a is lost: the guard of the command has ended")
		if strings.Count(got.err, "is lost") != 1 {
			t.Errorf("stderr: %s", got.err)
		}
	}
}

// TestGuardDiesBeforeFirstReport: the processes that a guard has started are ended even if it died before it reported
// them.
func TestGuardDiesBeforeFirstReport(t *testing.T) {
	t.Parallel()
	for _, script := range []string{
		"sleep 1000 >/dev/null 2>&1 & echo $!",
		leaderless + " -d child >/dev/null 2>&1; " + waitForFile("child") + "; cat child",
	} {
		w := newWorkspace(t)
		c := exec.Command(self, script)
		c.Dir, c.Env = w.dir, append(os.Environ(), "TEST_HELPER=unreported", raceEnvironment)
		out, err := c.CombinedOutput()
		var child int
		_, scanned := fmt.Sscan(string(out), &child)
		if err != nil || scanned != nil || !strings.HasSuffix(string(out), "nothing is left\n") {
			t.Fatalf("%v: %s", err, out)
		}
		if isAlive(child) {
			t.Errorf("process %d runs", child)
		}
	}
}

// TestLateGuardIsNotTheCause: a guard that does not act before the lease ends is killed, and the run says why the
// lease has ended, not that the guard has.
func TestLateGuardIsNotTheCause(t *testing.T) {
	t.Parallel()
	const script = "echo held; exec sleep 1000"
	t.Run("max-hold", func(t *testing.T) {
		t.Parallel()
		w := newWorkspace(t)
		r := w.startProgram("run", "--ttl", "9s", "--max-hold", "8s", "--events", "record", "a", "sh", "-c", script).
			awaitOutput("held")
		_ = unix.Kill(r.guard(), unix.SIGSTOP)
		got := r.wait()
		if last, _ := w.readRecord(w.filePath("record")); got.code != 76 || last["cause"] != guard.CodeMaxHold {
			t.Errorf("cause %v; %s", last["cause"], got.description)
		}
	})
	for name, script := range map[string]string{
		"expired": script,
		// Then nothing is left to end when the guard is killed.
		"expired after the command has ended": "echo held; sleep 2",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorkspace(t)
			r, stderr := w.withPipe("run", "--ttl", "9s", "a", "sh", "-c", script)
			r.awaitOutput("held")
			_ = unix.Kill(r.guard(), unix.SIGSTOP)
			r.failStore()
			got := r.wait()
			text := stderr.finalText()
			if got.code != 76 || !strings.Contains(text, "lost") || strings.Contains(text, guard.ErrGuardGone.Why) {
				t.Errorf("exit %d: %s", got.code, text)
			}
		})
	}
}

// TestLockLostBeforeStart: the wrapper was stopped before it started the guard, for longer than the TTL.
func TestLockLostBeforeStart(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	orders, give, err1 := os.Pipe()
	take, reports, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer guard.CloseAll(orders, give, take, reports)
	r := w.newProgram()
	r.cmd.Args = []string{guard.Name, "3", "4", "-1", "-1", "-1", "/bin/sh", "sh", "-c", "echo started"}
	r.cmd.ExtraFiles = []*os.File{orders, reports}
	r.launch()
	_, _ = give.WriteString(`{"begin":{"lock":"a","until":1}}` + "\n")
	got := r.wait()
	if got.check(t, 0, "a is lost", "without a renewal", "not started"); got.out != "" {
		t.Error(got.description)
	}
}

// TestGuardWithClosedStderr: a message to a stderr that is closed does not end the guard before its last report.
func TestGuardWithClosedStderr(t *testing.T) {
	t.Parallel()
	for range *guardRounds {
		w := newWorkspace(t)
		controlRead, control, err1 := os.Pipe()
		reports, reportsWrite, err2 := os.Pipe()
		unread, stderr, err3 := os.Pipe()
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		unread.Close()
		r := w.newProgram()
		r.cmd.Args = []string{guard.Name, "3", "4", "-1", "-1", "-1", "/bin/sh", "sh", "-c", "echo started"}
		r.cmd.ExtraFiles = []*os.File{controlRead, reportsWrite}
		r.launch(stderr)
		guard.CloseAll(controlRead, reportsWrite, stderr)
		_, _ = control.WriteString(`{"begin":{"lock":"a","until":1}}` + "\n") // expired, so it has a message
		r.wait().check(t, 0)
		if got, err := io.ReadAll(reports); err != nil || !strings.Contains(string(got), `"gone"`) {
			t.Errorf("want the last report: %s, %v", got, err)
		}
		guard.CloseAll(control, reports)
	}
}

// TestForcedBreakEndsTreeAtNextRenewal: a lock that is broken by force is free at once, so its next holder may start
// while the old one still runs. But the old one ends soon, and gets no grace.
func TestForcedBreakEndsTreeAtNextRenewal(t *testing.T) {
	t.Parallel()
	var machine pace.Pace
	defer machine.Watch()()
	const ttl = 12 * time.Second
	for range *guardRounds {
		w := newWorkspace(t)
		r := w.startProgram("run", "--ttl", ttl.String(), "--grace", "6s", "a", "sh", "-c", familyScript(true)).
			awaitOutput("held")
		w.runProgram("break", "--force", "a").check(t, 0, "may still be working")
		start := time.Now()
		r.wait().check(t, 76)
		w.awaitFamilyDead()
		if took, late := time.Since(start), max(machine.Lost(start), 10*machine.Worst(start)); took > ttl/3+time.Second+late {
			t.Errorf("the tree ran %v longer than it had its lock; the machine was late by %v", took, late)
		}
	}
}

// TestExitUnderTakenLockIsNoSuccess: a command that exits 0 under a lock that was broken by force is no success, even
// if the loss is found only when the lock is released.
func TestExitUnderTakenLockIsNoSuccess(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.runProgram("run", "--events", "record", "a", program, "break", "--force", "a")
	if r.code != 76 || !strings.Contains(r.err, "a was lost meanwhile") {
		t.Errorf("want exit 76 and the loss reported; %s", r.description)
	}
	if last, _ := w.readRecord(w.filePath("record")); last["outcome"] != "lost" || last["command_exit_code"] != 0.0 {
		t.Errorf("record: %v", last)
	}
}

// TestFrozenDisk: a disk that hangs, as on a dead network or a broken controller. Making one needs root and a file
// system of its own.
func TestFrozenDisk(t *testing.T) {
	t.Parallel()
	for i := range *guardRounds {
		w := newWorkspace(t)
		freeze, thaw := w.moveToOwnDisk()
		r := w.startProgram("run", "--ttl", "9s", "a", "sh", "-c", familyScript(i%2 == 0)).awaitOutput("held")
		next := w.startChecker().awaitSecondClient()
		freeze()
		w.awaitFamilyDead()
		thaw()
		if got := next.wait(); got.code != 0 || got.out != "checked\n" {
			t.Errorf("when the next holder starts: %s", got.description)
		}
		if got := r.wait(); got.code != 76 {
			t.Errorf("want exit 76; %s", got.description)
		}
	}
}

// moveToOwnDisk gives the store a file system of its own.
func (w *workspace) moveToOwnDisk() (freeze, thaw func()) {
	w.Helper()
	if os.Geteuid() != 0 {
		w.Skip("needs root to freeze a disk")
	}
	image, at := w.filePath("image"), w.filePath("disk")
	must := func(name string, args ...string) {
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			w.Skipf("no disk to freeze here: %s: %v: %s", name, err, out)
		}
	}
	w.writeFile("image", "")
	if err := errors.Join(os.Truncate(image, 16<<20), os.Mkdir(at, 0o700)); err != nil {
		w.Fatal(err)
	}
	must("mkfs.ext4", "-q", image)
	must("mount", "-o", "loop", image, at)
	w.Cleanup(func() {
		_ = exec.Command("fsfreeze", "-u", at).Run()
		_ = exec.Command("umount", "-l", at).Run()
	})
	w.store = "file://" + at + "/store"
	return func() { w.Helper(); must("fsfreeze", "-f", at) }, func() { w.Helper(); must("fsfreeze", "-u", at) }
}

// TestManySignals: signals that cannot be classified as fast as they come do not block the wrapper.
func TestManySignals(t *testing.T) {
	t.Parallel()
	w := &wrapper{unclassified: make(chan receivedSignal, 1)}
	for range 3 {
		w.recordSignal(unix.SIGUSR1)
	}
}

// TestLastReportHasStatus: the last report of a guard says how the command has ended, and the wrapper believes it if
// the report of the exit itself was dropped.
func TestLastReportHasStatus(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	controlRead, control, err1 := os.Pipe()
	reports, reportsWrite, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer guard.CloseAll(control, reports)
	r := w.newProgram()
	r.cmd.Args = []string{guard.Name, "3", "4", "-1", "-1", "-1", "/bin/sh", "sh", "-c", "exit 3"}
	r.cmd.ExtraFiles = []*os.File{controlRead, reportsWrite}
	r.launch()
	guard.CloseAll(controlRead, reportsWrite)
	start := guard.StartMessage{Lock: "a", Until: guard.BoottimeNow() + time.Hour,
		Policy: guard.KillPolicy{Signal: unix.SIGTERM, Grace: time.Second, CheckInterval: time.Second}}
	if err := json.NewEncoder(control).Encode(guard.ControlMessage{Start: &start}); err != nil {
		t.Fatal(err)
	}
	r.wait().check(t, 0)
	all := &wrapper{}
	for d := json.NewDecoder(reports); ; {
		var report guard.Report
		if err := d.Decode(&report); err != nil {
			t.Fatal(err)
		}
		if report.Event != guard.ReportExited && all.handleReport(report) {
			break
		}
	}
	if !all.result.exited || all.result.status.ExitStatus() != 3 {
		t.Errorf("exited %v with %v", all.result.exited, all.result.status)
	}
}

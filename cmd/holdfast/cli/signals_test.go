//go:build linux

package cli

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
)

// signalRounds is how often each way to send signals is tried. make prove runs more rounds.
var signalRounds = flag.Int("signals.times", 3, "how often TestSignaledCommandEndsUnkilled sends its signals")

// childrenOf returns the processes that another one has started.
func childrenOf(parent int) []int {
	found, _ := guard.ReadChildren(parent)
	return found
}

// childrenByName returns the processes that another one has started, by their names.
func childrenByName(parent int) map[string]int {
	found := map[string]int{}
	for _, pid := range childrenOf(parent) {
		if p, err := guard.ReadProcess(pid); err == nil {
			found[p.Name] = pid
		}
	}
	return found
}

// hasTakenSignals reports whether no signal to a process is pending.
func (w *workspace) hasTakenSignals(pid int) bool {
	return strings.Contains(w.readFile(fmt.Sprintf("/proc/%d/status", pid)), "ShdPnd:\t0000000000000000\n")
}

// signalGuard sends a signal to the guard, and waits until the wrapper knows that from the guard's report. While it
// sends the signal, the wrapper is stopped, so that the report can be seen to be in their pipe. A second report follows,
// which the wrapper writes to the file of --events. It handles one report after the other, so when the second is in the
// file it knows the first. The command receives the SIGCONT that lets the wrapper go on.
func (w *workspace) signalGuard(wrapper, guard int, record string, sig unix.Signal) {
	w.Helper()
	reports := strings.Split(w.readFile(fmt.Sprintf("/proc/%d/cmdline", guard)), "\x00")[2] // its number in the guard
	pipe, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%s", guard, reports), os.O_RDWR, 0)
	if err != nil {
		w.Fatal(err)
	}
	defer pipe.Close()
	_ = unix.Kill(wrapper, unix.SIGSTOP)
	w.awaitStopped(wrapper)
	_ = unix.Kill(guard, sig)
	w.awaitTrue("the guard's report", func() bool {
		n, err := unix.IoctlGetInt(int(pipe.Fd()), unix.TIOCINQ)
		return err == nil && n > 0
	})
	if _, err := pipe.WriteString(`{"event":"beside","pid":1}` + "\n"); err != nil {
		w.Fatal(err)
	}
	_ = unix.Kill(wrapper, unix.SIGCONT)
	w.awaitTrue("the wrapper to know of the signal", func() bool {
		return strings.Contains(w.readFile(w.filePath(record)), `"script_started"`)
	})
}

// withSignals starts a run whose command prints its signals, below a process that is called as systemd is or not.
func (w *workspace) withSignals(systemd bool) *startedProgram {
	w.Helper()
	r := w.newProgram("run", "--events", "record", "a", self)
	r.cmd.Env = w.testEnvironment("TEST_HELPER=signals")
	if systemd {
		r.cmd.Path, r.cmd.Args = self, append([]string{"unit", program}, r.cmd.Args[1:]...)
		r.cmd.Env = w.testEnvironment("TEST_HELPER=unit")
	}
	r.launch().awaitOutput("ready")
	wrapper := r.cmd.Process.Pid
	if systemd {
		wrapper = childrenOf(wrapper)[0]
	}
	w.awaitListener(wrapper, "record")
	return r
}

// awaitListener waits until a run knows that its command was started, and can tell the group's signals from its own.
func (w *workspace) awaitListener(wrapper int, record string) {
	w.Helper()
	w.awaitTrue("the run to know of its command",
		func() bool { return strings.Contains(w.readFile(w.filePath(record)), `"command_started"`) })
	w.awaitTrue("the listener", func() bool { return childrenByName(wrapper)[guard.ListenerName] != 0 })
}

// TestMessageToGuardIsNotDropped: a message to the guard is written even if its deadline has passed before the write
// begins, as on a machine that does not schedule this program. A full pipe does not block the caller forever.
func TestMessageToGuardIsNotDropped(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer guard.CloseAll(read, write)
	w := &wrapper{control: write}
	if err := w.writeControl(guard.ControlMessage{Signal: unix.SIGUSR1}, -time.Second); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil || !strings.Contains(line, `"signal":10`) {
		t.Errorf("the guard reads %q: %v", line, err)
	}
	for range 1 << 16 {
		if err = w.writeControl(guard.ControlMessage{Signal: unix.SIGUSR1}, time.Millisecond); err != nil {
			break
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the full pipe gives %v", err)
	}
}

// TestGroupSignalReachesCommandOnce: a signal to the process group, and one to holdfast run alone, each reach the
// command once.
func TestGroupSignalReachesCommandOnce(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.withSignals(false)
	var want strings.Builder
	want.WriteString("ready\n")
	for _, s := range []unix.Signal{unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGWINCH, unix.SIGALRM,
		unix.SIGINT} {
		for _, to := range []int{-r.cmd.Process.Pid, r.cmd.Process.Pid} {
			// a signal received twice would come before the second one
			sig := s
			if to > 0 {
				sig = unix.SIGUSR2
			}
			if err := unix.Kill(to, sig); err != nil {
				t.Fatal(err)
			}
			want.WriteString(unix.SignalName(sig) + "\n")
			r.awaitOutput(want.String())
		}
	}
	r.signal(unix.SIGTERM)
	if got := r.wait(); got.code != 3 || got.out != want.String()+"SIGTERM\n" {
		t.Errorf("want %q; %s", want.String(), got.description)
	}
}

// TestLateStopIsContinued: a command that a late guard stops, after its process group was continued, is continued too.
func TestLateStopIsContinued(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.withSignals(false)
	wrapper, guard := r.cmd.Process.Pid, r.guard()
	for _, s := range []struct {
		to  int
		sig unix.Signal
	}{{guard, unix.SIGSTOP}, {wrapper, unix.SIGTSTP}, {-wrapper, unix.SIGCONT}} {
		if err := unix.Kill(s.to, s.sig); err != nil {
			t.Fatal(err)
		}
		if s.to != guard {
			w.awaitTrue("the wrapper to receive it", func() bool {
				return strings.Contains(w.readFile(w.filePath("record")), unix.SignalName(s.sig))
			})
		}
	}
	r.awaitOutput("ready\nSIGCONT\n")
	_ = unix.Kill(guard, unix.SIGCONT)
	w.awaitTrue("SIGCONT by the guard", func() bool { return strings.Count(r.readStdout(), "SIGCONT") == 2 })
	r.signal(unix.SIGTERM)
	if got := r.wait(); got.code != 3 {
		t.Error(got.description)
	}
}

// TestSignalToAllProcesses: systemd signals all processes of a unit, one by one. Other tools signal the processes that
// run this program's file. In both cases the command must receive the signal.
func TestSignalToAllProcesses(t *testing.T) {
	t.Parallel()
	for _, systemd := range []bool{true, false} {
		w := newWorkspace(t)
		r := w.withSignals(systemd)
		wrapper := r.cmd.Process.Pid
		if systemd {
			wrapper = childrenOf(wrapper)[0]
		}
		ours := childrenByName(wrapper)
		if ours[guard.ListenerName] == 0 || ours[guard.Name] == 0 {
			t.Fatalf("children: %v", ours)
		}
		// The wrapper must know that the others have the signal when it comes to it. Of the guard it knows by a
		// report. The listener is asked, and looks then for what was sent to it before.
		w.signalGuard(wrapper, ours[guard.Name], "record", unix.SIGUSR1)
		r.awaitOutput("ready\nSIGCONT\n")
		to := []int{ours[guard.ListenerName]}
		if systemd {
			to = append(to, childrenOf(ours[guard.Name])...)
		}
		for _, pid := range append(to, wrapper) {
			_ = unix.Kill(pid, unix.SIGUSR1)
		}
		r.awaitOutput("SIGUSR1\n")
		_ = unix.Kill(wrapper, unix.SIGUSR2)
		r.awaitOutput("SIGUSR2\n")
		_ = unix.Kill(wrapper, unix.SIGTERM)
		if got := r.wait(); got.code != 3 || got.out != "ready\nSIGCONT\nSIGUSR1\nSIGUSR2\nSIGTERM\n" {
			t.Errorf("systemd %v: %s", systemd, got.description)
		}
	}
}

// TestSignaledCommandEndsUnkilled: a signal to this program, to its group, or to both, as timeout sends it, lets the
// command end in its own time.
func TestSignaledCommandEndsUnkilled(t *testing.T) {
	t.Parallel()
	timeout, err := exec.LookPath("timeout")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		start func(w *workspace) *startedProgram
	}{
		{"timeout -s INT", func(w *workspace) *startedProgram {
			r := w.newProgram()
			r.cmd.Path, r.cmd.Args = timeout, []string{"timeout", "--preserve-status", "-s", "INT", "1", program, "run",
				"a", self}
			r.cmd.Env = w.testEnvironment("TEST_HELPER=ends")
			return r.launch()
		}},
		{"SIGTERM to the group", func(w *workspace) *startedProgram {
			r := w.newProgram("run", "--events", "record", "a", self)
			r.cmd.Env = w.testEnvironment("TEST_HELPER=ends")
			r.launch().awaitOutput("ready")
			w.awaitListener(r.cmd.Process.Pid, "record")
			if err := unix.Kill(-r.cmd.Process.Pid, unix.SIGTERM); err != nil {
				w.Fatal(err)
			}
			return r
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			killed, twice := 0, 0
			for range *signalRounds {
				w := newWorkspace(t)
				got := c.start(w).wait()
				switch {
				case strings.Contains(got.out, "ready") && got.code != 42:
					killed++
					t.Error(got.description)
				case got.out == "ready\nended by itself after 2 signals\n":
					twice++
				}
			}
			t.Logf("%d times: %d commands were killed; %d had the signal twice", *signalRounds, killed, twice)
			// On a slow machine there may be a longer time between two processes, so a few rounds prove nothing.
			if *signalRounds >= 100 && twice > *signalRounds/20 {
				t.Errorf("%d of %d commands received the signal twice", twice, *signalRounds)
			}
		})
	}
}

// TestCtrlCEndsALoop: a shell ends a loop at Ctrl-C only if its child died of the signal.
func TestCtrlCEndsALoop(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} {
		w := newWorkspace(t)
		if waits {
			_, release := w.startHolder("a")
			defer release()
		}
		shell, err := exec.LookPath("bash")
		if err != nil {
			t.Fatal(err)
		}
		r, terminal := w.prepareTerminal()
		r.cmd.Path, r.cmd.Args = shell, []string{"bash", "-c",
			"for i in 1 2 3; do " + program + " run a sh -c 'echo up; exec sleep 1000'; echo round-$i-$?; done"}
		terminal.begin(r)
		if waits {
			terminal.awaitText("waiting for a")
		} else {
			terminal.awaitText("up")
		}
		terminal.typeKeys("\x03")
		if got := r.wait(); got.code != 130 || strings.Contains(terminal.textSoFar(), "round-") {
			t.Errorf("waits: %v; the terminal shows %q; %s", waits, terminal.textSoFar(), got.description)
		}
	}
}

// TestProgramDiesOfCommandSignal: if a signal of the terminal or SIGTERM killed the command, holdfast run dies of the
// same signal.
func TestProgramDiesOfCommandSignal(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT} {
		r := w.startProgram("run", "a", "sh", "-c", fmt.Sprintf("kill -%d $$", int(s)))
		r.wait().check(t, 128+int(s))
		if got := r.cmd.ProcessState.String(); !strings.HasPrefix(got, "signal: ") {
			t.Errorf("%s: %s", unix.SignalName(s), got)
		}
		if cores, _ := filepath.Glob(w.filePath("core*")); len(cores) > 0 {
			t.Errorf("%s leaves %q", unix.SignalName(s), cores)
		}
	}
	// The first process of a container cannot die of a signal.
	r := w.startInNamespaces("exec "+program+" run a sh -c 'kill -TERM $$'", "-pf", "--mount-proc")
	r.wait().check(t, 143)
}

// TestQuitAtStart: SIGQUIT ends a program that catches no signals yet as it ends others: without the stacks of its
// goroutines. Here it reads a handle.
func TestQuitAtStart(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	input, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer guard.CloseAll(input, write)
	r := w.newProgram("release", "-")
	r.cmd.Stdin = input
	r.launch()
	if _, err := write.WriteString("{"); err != nil {
		t.Fatal(err)
	}
	w.awaitTrue("a program that reads", func() bool {
		unread, err := unix.IoctlGetInt(int(input.Fd()), unix.TIOCINQ)
		return err == nil && unread == 0
	})
	r.signal(unix.SIGQUIT)
	if got := r.wait(); got.code != 131 || got.err != "" || !strings.HasPrefix(r.cmd.ProcessState.String(), "signal: quit") {
		t.Errorf("%s; %s", r.cmd.ProcessState, got.description)
	}
}

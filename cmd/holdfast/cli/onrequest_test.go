//go:build linux

package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// startAsked starts a run that answers a request for its release, asks for it, and waits until the run has learned it.
// It needs no more than a third of the TTL.
func (w *workspace) startAsked(action, script string, flags ...string) *startedProgram {
	w.Helper()
	args := append([]string{"run", "--ttl", "9s", "--events", "record", "--on-request", action}, flags...)
	r := w.startProgram(append(args, "a", "sh", "-c", script)...).awaitOutput("held")
	w.runProgram("request-release", "a").check(w.T, 0)
	w.awaitEvent("record", "release_requested")
	return r
}

// TestOnRequestRelease: a run ends its command and everything that it has started, and then releases the lock. Its exit
// code says so, whatever that of the command is.
func TestOnRequestRelease(t *testing.T) {
	t.Parallel()
	for script, killed := range map[string]bool{
		"trap 'echo told; exit 0' TERM; echo $$ >pid; echo held; while :; do sleep 0.01; done":   false,
		"trap '' TERM; (setsid sleep 1000 & echo $! >pid; echo held); while :; do sleep 1; done": true,
	} {
		w := newWorkspace(t)
		var flags []string
		if !killed { // it has the time that it needs on a busy machine
			flags = []string{"--ttl", "18s", "--grace", "5s"}
		}
		r := w.startAsked("release", script, flags...)
		next := w.startCheckerOf([]string{"pid"})
		got := r.wait()
		got.check(t, exitOnRequest)
		if !strings.Contains(got.err, "the release of a was requested; the command was signaled to end") {
			t.Error(got.description)
		}
		if !killed && !strings.Contains(got.out, "told") {
			t.Errorf("the command was not signaled; %s", got.description)
		}
		if got := next.wait(); got.code != 0 || got.out != "checked\n" {
			t.Errorf("when the next holder starts: %s", got.description)
		}
		last, events := w.readRecord(w.filePath("record"))
		if last["outcome"] != "released-on-request" || killed && last["command_signal"] != "SIGKILL" ||
			!killed && last["command_exit_code"] != 0.0 {
			t.Errorf("record: %v", last)
		}
		for event, want := range map[string]bool{"command_terminating": true, "command_killed": killed,
			"lock_released": true, "lock_lost": false} {
			if slices.Contains(events, event) != want {
				t.Errorf("%s: want %v in %q", event, want, events)
			}
		}
	}
}

// TestOnRequestReleaseAfterCommand: if the command has ended when the request comes, what it has left is ended, and the
// exit code is that of the command: its work is done.
func TestOnRequestReleaseAfterCommand(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.startProgram("run", "--ttl", "9s", "--events", "record", "--on-request", "release", "a", "sh", "-c",
		"setsid sleep 1000 & echo $! >pid; exit 5")
	w.awaitEvent("record", "processes_left")
	w.runProgram("request-release", "a").check(t, 0)
	r.wait().check(t, 5)
	w.awaitDead("pid")
	if last, events := w.readRecord(w.filePath("record")); last["outcome"] != "exited" ||
		!slices.Contains(events, "command_terminating") {
		t.Errorf("record: %v, %q", last, events)
	}
}

// TestOnRequestScript: a script runs next to the command, and can signal it. The lock is kept until the script has
// ended too. Its exit code does not matter.
func TestOnRequestScript(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.startAsked("echo $HOLDFAST_LOCK asked; kill -USR1 $HOLDFAST_COMMAND_PID; "+waitForFile("gate")+"; exit 9",
		"trap 'echo signaled; exit 5' USR1; echo held; while :; do sleep 0.01; done")
	r.awaitOutput("a asked\n").awaitOutput("signaled\n")
	w.awaitEvent("record", "processes_left")
	w.runProgram("run", "-n", "a", "true").check(t, 75)
	w.writeFile("gate", "")
	r.wait().check(t, 5)
	if last, events := w.readRecord(w.filePath("record")); last["outcome"] != "exited" ||
		!slices.Contains(events, "script_started") {
		t.Errorf("record: %v, %q", last, events)
	}
}

// TestOnRequestScriptEnds: a script is ended with the command when the lock is lost.
func TestOnRequestScriptEnds(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.startAsked("echo $$ >script; echo script; exec sleep 1000", "echo held; exec sleep 1000")
	r.awaitOutput("script\n")
	w.runProgram("break", "a").check(t, 0)
	r.wait().check(t, 76)
	w.awaitDead("script")
}

// TestHoldOnRequest: hold releases its lock when somebody asks for it, and its exit code says so.
func TestHoldOnRequest(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.startProgram("hold", "--ttl", "9s", "--events", "record", "--on-request", "release", "a").awaitOutput("\n")
	next := w.startProgram("run", "a", "true").awaitSecondClient()
	w.runProgram("request-release", "a").check(t, 0)
	r.wait().check(t, exitOnRequest)
	next.wait().check(t, 0)
	if last, events := w.readRecord(w.filePath("record")); last["outcome"] != "released-on-request" ||
		!slices.Contains(events, "lock_released") {
		t.Errorf("record: %v, %q", last, events)
	}
	w.runProgram("hold", "--on-request", "echo asked", "a").check(t, 64, "is ignore or release")
}

// TestOnRequestUsage: what cannot be meant is refused before the store is asked.
func TestOnRequestUsage(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for _, c := range []struct{ action, words string }{
		{"", "give ignore, release or a script"},
		{strings.Repeat("x", maxRequestScript+1), fmt.Sprintf("may have %d", maxRequestScript)},
	} {
		w.runProgram("run", "--on-request", c.action, "a", "true").check(t, 64, c.words)
	}
	w.runProgram("run", "--on-request", "ignore", "a", "sh", "-c", "exit 3").check(t, 3)
	w.runProgram("explain", "--on-request", "release", "a").check(t, 0)
}

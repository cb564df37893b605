//go:build linux

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
)

// TestOnceUntilSuccess: a key is run again after each failure, and never after a success.
func TestOnceUntilSuccess(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for _, c := range []struct {
		script string
		code   int
	}{
		{"exit 7", 7}, {"kill -KILL $$", 128 + 9}, {"echo done; exit 0", 0},
	} {
		if r := w.runProgram("once", "k", "sh", "-c", c.script); r.code != c.code || r.err != "" {
			t.Errorf("want exit %d and no message; %s", c.code, r.description)
		}
	}
	runs := w.checkStates("k", holdfast.RunFailed, holdfast.RunFailed, holdfast.RunSucceeded)
	if runs[0].Error != "exit status 7" || runs[1].Error != "killed by SIGKILL" || runs[0].Meta != "sh" {
		t.Errorf("runs: %+v", runs)
	}
	w.runProgram("once", "k", "sh", "-c", "echo again >again").
		check(t, 0, "k is not run again: it has succeeded, in attempt 3 by ")
	w.runProgram("once", "--done-code", "3", "k", "true").check(t, 3, "k is not run again")
	if w.readFile(w.filePath("again")) != "" {
		t.Error("the command was run again")
	}
	w.runProgram("once", "--ledger", "other", "k", "sh", "-c", "exit 8").check(t, 8)
	// A command that cannot be run is a failure, or no run at all if it is known before.
	w.writeFile("broken", "\x7fnonsense")
	_ = os.Chmod(w.filePath("broken"), 0o700)
	w.runProgram("once", "b", "./broken").check(t, 126, "does not say which program reads it")
	w.runProgram("once", "b", "no-such-command").check(t, 127, "no-such-command")
	w.runProgram("once", "b", "-n", "true").check(t, 127, "there is no command -n; flags come before KEY")
	if runs := w.checkStates("b", holdfast.RunFailed); !strings.Contains(runs[0].Error, "could not be started") {
		t.Errorf("runs: %+v", runs)
	}
}

// TestOnceUsageErrors: wrong usage of once is refused with a message that says what is wrong.
func TestOnceUsageErrors(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for _, c := range []struct {
		words string
		args  []string
	}{
		{"the KEY is missing", nil},
		{"the COMMAND to run once for k is missing", []string{"k"}},
		{"the KEY is missing: it comes before --", []string{"--", "true"}},
		{"a key must not be empty", []string{"", "true"}},
		{"a key of this ledger is at most", []string{strings.Repeat("x", 513), "true"}},
		{"use a hash of it", []string{"--every", "24h", strings.Repeat("x", 480), "true"}},
		{"a key must be UTF-8", []string{"\xff", "true"}},
		{"a ledger's name", []string{"--ledger", "a/b", "k", "true"}},
		{"leave the flag out", []string{"--ledger", "", "k", "true"}},
		{"exclude each other", []string{"--every", "1h", "--schedule", "@daily", "--tz", "UTC", "k", "true"}},
		{"--schedule needs --tz", []string{"--schedule", "0 3 * * *", "k", "true"}},
		{"--tz needs --schedule", []string{"--tz", "UTC", "k", "true"}},
		{"there is no time zone Asia/Tokio", []string{"--schedule", "@daily", "--tz", "Asia/Tokio", "k", "true"}},
		{"there is no time zone Local", []string{"--schedule", "@daily", "--tz", "Local", "k", "true"}},
		{"give the five fields", []string{"--schedule", "0 3 * *", "--tz", "UTC", "k", "true"}},
		{"give the five fields", []string{"--schedule", "61 3 * * *", "--tz", "UTC", "k", "true"}},
		{"give the five fields", []string{"--schedule", "@reboot", "--tz", "UTC", "k", "true"}},
		{"use --every", []string{"--schedule", "@every 1h", "--tz", "UTC", "k", "true"}},
		{"with --tz", []string{"--schedule", "TZ=UTC 0 3 * * *", "--tz", "UTC", "k", "true"}},
		{"there is no such day", []string{"--schedule", "0 3 30 2 *", "--tz", "UTC", "k", "true"}},
		{"1s or more", []string{"--every", "999ms", "k", "true"}},
		{"1s or more", []string{"--every", "-1h", "k", "true"}},
		{"unit", []string{"--every", "24", "k", "true"}},
		{"within 20 years", []string{"--every", "900000h", "k", "true"}},
		{"needs --every or --schedule", []string{"--start-within", "1h", "k", "true"}},
		{"--catch-up needs --schedule", []string{"--catch-up", "k", "true"}},
		{"--catch-up is for --schedule", []string{"--every", "1h", "--catch-up", "k", "true"}},
		{"exclude each other", []string{"--every", "1h", "--start-within", "1h", "--catch-up", "k", "true"}},
		{"more than 0", []string{"--every", "1h", "--start-within", "0s", "k", "true"}},
		{"--allow-overlap needs --every or --schedule", []string{"--allow-overlap", "k", "true"}},
		{"would be run twice", []string{"--every", "24h", "--keep-for", "1h", "k", "true"}},
		{"more than 0", []string{"--keep-for", "0s", "k", "true"}},
		{"1 or more", []string{"--attempts", "0", "k", "true"}},
		{"not a number", []string{"--attempts", "two", "k", "true"}},
		{"negative", []string{"--pause", "-1s", "k", "true"}},
		{"0 to 255", []string{"--done-code", "256", "k", "true"}},
		{"1 to 64k", []string{"--keep-output", "0", "k", "true"}},
		{"1 to 64k", []string{"--keep-output", "65k", "k", "true"}},
		{"1 to 64k", []string{"--keep-output", "4m", "k", "true"}},
		{"1 to 64k", []string{"--keep-output", "99999999999999999999k", "k", "true"}},
		{"give a value, or leave the flag out", []string{"--fingerprint", "", "k", "true"}},
		{"at most 256 bytes", []string{"--fingerprint", strings.Repeat("x", 257), "k", "true"}},
		{"write --wait=10m; as it is, 10m is the KEY", []string{"--wait", "10m", "k", "true"}},
		{"or forever", []string{"--wait=soon", "k", "true"}},
		{"1s to 24h", []string{"--ttl", "25h", "k", "true"}},
		{"does not fit", []string{"--ttl", "10s", "--grace", "9s", "k", "true"}},
		{"unknown flag --min-hold", []string{"--min-hold", "1s", "k", "true"}},
	} {
		w.runProgram(append([]string{"once"}, c.args...)...).check(t, 64, c.words)
	}
	if files, err := filepath.Glob(w.filePath("store/runs/locks*/*")); len(files) > 0 || err != nil {
		t.Errorf("a refused command line has left %q, %v", files, err)
	}
}

// TestOnceTerms: attempts, pauses and fingerprints of a key are kept.
func TestOnceTerms(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	fails := []string{"sh", "-c", "exit 3"}
	run := func(flags ...string) result {
		return w.runProgram(slices.Concat([]string{"once"}, flags, fails)...)
	}
	run("--attempts", "2", "--fingerprint", "one", "k").check(t, 3)
	run("--pause", "1h", "k").check(t, 75, "k is not run yet: attempt 1 by", "the pause after it ends in 59m")
	run("--fingerprint", "two", "k").check(t, 64, "k was run with another --fingerprint, one, in attempt 1",
		"a key of its own")
	run("--attempts", "2", "--fingerprint", "one", "k").check(t, 3)
	run("--attempts", "2", "k").check(t, 77, "all attempts are used, and attempt 2 by", "has failed (exit status 3)",
		"use: holdfast ledger retry k\n")
	run("--ledger", "l", "--attempts", "1", "k").check(t, 3)
	run("--ledger", "l", "--attempts", "1", "k").check(t, 77, "use: holdfast ledger retry --ledger l k\n")
	run("--attempts", "3", "k").check(t, 3)
	w.checkStates("k", holdfast.RunFailed, holdfast.RunFailed, holdfast.RunFailed)
}

// startOnce starts a run that is in progress until release is called. It exits with the code that is in the file.
func (w *workspace) startOnce(key string, flags ...string) (r *startedProgram, end func(code string)) {
	w.Helper()
	args := slices.Concat([]string{"once"}, flags,
		[]string{key, "sh", "-c", "echo running; " + waitForFile("gate-"+key) + `; exit $(cat 'gate-` + key + `')`})
	r = w.startProgram(args...).awaitOutput("running")
	return r, func(code string) {
		w.writeFile("new", code)
		if err := os.Rename(w.filePath("new"), w.filePath("gate-"+key)); err != nil {
			w.Fatal(err)
		}
	}
}

// TestOnceInProgress: a second once for a key in progress exits 75 and names the worker, at once or after --wait.
func TestOnceInProgress(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	first, endFirst := w.startOnce("k")
	who := fmt.Sprintf("attempt 1 by %s since ", ownerOf(first))
	w.runProgram("once", "k", "true").check(t, 75, "a run of k is in progress", who)
	start := time.Now()
	w.runProgram("once", "--wait=300ms", "k", "true").check(t, 75, who, "it has not ended within 300ms")
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("waited only %v", took)
	}
	// A key of another ledger is another key, and so is a lock of this name.
	w.runProgram("once", "--ledger", "other", "k", "true").check(t, 0)
	w.runProgram("run", "-n", "k", "true").check(t, 0)

	waiter := w.startProgram("once", "--wait", "--events", "record", "k", "sh", "-c", "echo second; exit 4")
	w.awaitEvent("record", "run_waiting")
	endFirst("3")
	first.wait().check(t, 3)
	if r := waiter.wait(); r.code != 4 || r.out != "second\n" {
		t.Errorf("want the second attempt; %s", r.description)
	}
	w.checkStates("k", holdfast.RunFailed, holdfast.RunFailed)

	// A run that succeeds leaves the waiter nothing to do.
	good, endGood := w.startOnce("good")
	waiter = w.startProgram("once", "--wait=1m", "--done-code=9", "--events", "record2", "good", "true")
	w.awaitEvent("record2", "run_waiting")
	endGood("0")
	good.wait().check(t, 0)
	waiter.wait().check(t, 9, "good is not run again: it has succeeded, in attempt 1 by")
}

// ownerOf is the owner's name of a program that was given none.
func ownerOf(r *startedProgram) string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s@%s holdfast[%d]", userName(), host, r.cmd.Process.Pid)
}

// awaitEvent waits until a record has an event.
func (w *workspace) awaitEvent(file, event string) {
	w.Helper()
	w.awaitTrue(fmt.Sprintf("the event %q in %s", event, file), func() bool {
		_, events := w.readRecord(w.filePath(file))
		return slices.Contains(events, event)
	})
}

// TestOnceInterrupted: Ctrl-C ends a wait, and begins no run.
func TestOnceInterrupted(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	holder, end := w.startOnce("k")
	soon, _ := slotsFrom(time.Now().Add(50 * time.Second))
	for i, args := range [][]string{
		{"--wait", "--events", "record0", "k", "touch", "ran"},
		{"--every", soon, "--events", "record1", "early", "touch", "ran"},
	} {
		record := fmt.Sprintf("record%d", i)
		r := w.startProgram(append([]string{"once"}, args...)...)
		w.awaitEvent(record, []string{"run_waiting", "slot_early"}[i])
		r.signal(unix.SIGINT)
		r.wait().check(t, 130, "ended by SIGINT before a run of")
		if last, _ := w.readRecord(w.filePath(record)); last["outcome"] != "interrupted" {
			t.Errorf("record: %v", last)
		}
	}
	end("0")
	holder.wait().check(t, 0)
	w.checkStates("k", holdfast.RunSucceeded)
	if w.readFile(w.filePath("ran")) != "" || len(w.historyOf("early")) > 0 {
		t.Error("the command was run")
	}
}

func TestOnceEnvironment(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.runProgram("once", "a key", "false").check(t, 1)
	find := func(env []string, name string) string {
		var found []string
		for _, v := range env {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				found = append(found, value)
			}
		}
		if len(found) > 1 {
			t.Errorf("%s: got %q", name, found)
		}
		return strings.Join(found, ",")
	}
	env := w.runViewer("run", "outer", program, "once", "a key", self).Env
	run := w.checkStates("a key", holdfast.RunFailed, holdfast.RunSucceeded)[1]
	for name, want := range map[string]string{
		"HOLDFAST_KEY": "a key", "HOLDFAST_ATTEMPT": "2", "HOLDFAST_TOKEN": fmt.Sprint(run.Token), "HOLDFAST_ID": run.ID,
		"HOLDFAST_SLOT": "", "HOLDFAST_LOCK": "", "HOLDFAST_STORE": w.store,
	} {
		if got := find(env, name); got != want {
			t.Errorf("%s: want %q, got %q", name, want, got)
		}
	}
	// A run inside once adds its own.
	every, slot := slotsFrom(time.Now().Add(-time.Hour))
	env = w.runViewer("once", "--every", every, "job", program, "run", "inner", self).Env
	if key := "job@" + formatSlot(slot); find(env, "HOLDFAST_KEY") != key || find(env, "HOLDFAST_LOCK") != "inner" ||
		find(env, "HOLDFAST_SLOT") != formatSlot(slot) {
		t.Errorf("want the key %s, and the lock inner; got %q", key, env)
	}
}

func TestOnceInsideOnce(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.runProgram("once", "a", program, "once", "b", program, "once", "--wait", "a", "true").
		check(t, 64, "a is already being run by an enclosing holdfast once")
	w.checkStates("a", holdfast.RunFailed)
	w.runProgram("once", "c", program, "run", "c", program, "once", "d", "true").check(t, 0)
	w.runProgram("once", "e", program, "once", "--ledger", "other", "e", "true").check(t, 0)
	// One store has many names, and another store's ledger is another one.
	w.runProgram("once", "f", program, "--store", w.storeAlias(), "once", "--wait", "f", "true").check(t, 64, "f is already being run")
	w.runProgram("once", "g", program, "--store", w.store+"2", "once", "g", "true").check(t, 0)
}

// TestOnceKeepsOutput: the command's output is copied exactly, and the end of it is kept.
func TestOnceKeepsOutput(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for _, c := range []struct {
		script, out, err, kept string
	}{
		{"printf 0123456789abcdef", "0123456789abcdef", "", "6789abcdef"},
		{"printf 0123456789abcdef >&2", "", "0123456789abcdef", "6789abcdef"},
		{"printf short", "short", "", "short"},
		{"printf xxxäääää", "xxxäääää", "", "äääää"},
		{"printf xxxääääay", "xxxääääay", "", "ääääay"},
		{"true", "", "", ""},
	} {
		key := fmt.Sprintf("k%d", rand.Int())
		r := w.runProgram("once", "--keep-output", "10", key, "sh", "-c", c.script)
		run := w.checkStates(key, holdfast.RunSucceeded)[0]
		if r.code != 0 || r.out != c.out || r.err != c.err || string(run.Result) != c.kept {
			t.Errorf("%s: kept %q; %s", c.script, run.Result, r.description)
		}
	}
	w.runProgram("once", "--keep-output", "1k", "bad", "sh", "-c", "echo oops >&2; exit 3")
	if run := w.checkStates("bad", holdfast.RunFailed)[0]; run.Error != "exit status 3; its output ends with: oops" {
		t.Errorf("error: %q", run.Error)
	}
	data := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(data)
	r := w.newProgram("once", "--keep-output", "64k", "big", "cat")
	r.cmd.Stdin = bytes.NewReader(data)
	got := r.launch().wait()
	run := w.checkStates("big", holdfast.RunSucceeded)[0]
	if got.code != 0 || got.out != string(data) || len(run.Result) < 64<<10-3 || !bytes.HasSuffix(data, run.Result) {
		t.Errorf("%d bytes were copied, or other bytes; %d were kept", len(got.out), len(run.Result))
	}
	// Without the flag, nothing is kept, and the output is the program's own.
	w.runProgram("once", "plain", "echo", "text")
	if run := w.checkStates("plain", holdfast.RunSucceeded)[0]; len(run.Result) > 0 {
		t.Errorf("kept: %q", run.Result)
	}
}

// TestOnceOutputUnread: a reader that does not read delays the end of the program, and not the report of the run. One
// that has ended makes the command die of a SIGPIPE, as it would without the copy.
func TestOnceOutputUnread(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	r := w.newProgram("once", "--keep-output", "1k", "--events", "record", "k", "head", "-c", "100000", "/dev/zero")
	r.cmd.Stdout = write
	r.launch()
	write.Close()
	w.awaitEvent("record", "run_succeeded")
	select {
	case <-r.ended:
		t.Error("the program ended before its output was read")
	default:
	}
	data := make([]byte, 200000)
	n := 0
	for err == nil {
		var more int
		more, err = read.Read(data[n:])
		n += more
	}
	if r.wait().check(t, 0); n != 100000 {
		t.Errorf("%d bytes were read", n)
	}
	read2, write2, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read2.Close()
	r = w.newProgram("once", "--keep-output", "1k", "yes", "yes")
	r.cmd.Stdout = write2
	r.launch()
	write2.Close()
	if got := r.wait(); got.code != 128+13 {
		t.Errorf("want exit 141; %s", got.description)
	}
}

// TestOnceCommandInheritsNoDescriptors: with --keep-output, too, the command inherits only what its caller has given.
func TestOnceCommandInheritsNoDescriptors(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	list := func(before string) string {
		r := w.newProgram()
		r.cmd.Path, r.cmd.Args = "/bin/sh", []string{"sh", "-c", before + ` sh -c 'ls /proc/$$/fd'`}
		got := r.launch().wait()
		got.check(t, 0)
		return got.out
	}
	if want, got := list("exec"), list("exec "+program+" once --keep-output 1k k"); got != want {
		t.Errorf("want %q, got %q", want, got)
	}
}

// TestOnceNotRecorded: a success that the store has not confirmed is no success.
func TestOnceNotRecorded(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for _, c := range []struct {
		command, outcome, words string
		code                    int
	}{
		{"0", "not-recorded", "the command has succeeded, but the store has not confirmed", 73},
		{"5", "exited", "could not be recorded", 5},
	} {
		key, record := "k"+c.command, "record"+c.command
		r := w.newProgram("once", "--ttl", "20s", "--events", "fd:3", key, "sh", "-c",
			"echo running; "+waitForFile("gate-"+key)+"; exit "+c.command)
		stderr, lines := newPipe(t), newPipe(t)
		r.cmd.ExtraFiles = []*os.File{lines.write}
		r.launch(stderr.write)
		r.awaitOutput("running")
		r.failStore()
		w.writeFile("gate-"+key, "")
		if got := r.wait(); got.code != c.code {
			t.Errorf("want exit %d; %s", c.code, got.description)
		}
		if text := stderr.finalText(); !strings.Contains(text, c.words) {
			t.Errorf("want %q on stderr, got %q", c.words, text)
		}
		w.writeFile(record, lines.finalText())
		if last, _ := w.readRecord(w.filePath(record)); last["outcome"] != c.outcome {
			t.Errorf("record: %v", last)
		}
		w.awaitTrue("the end of the run, when the guard has ended", func() bool {
			runs := w.historyOf(key)
			return len(runs) == 1 && runs[0].State == holdfast.RunAbandoned
		})
	}
}

// TestOnceUnreachableStore: nothing is run.
func TestOnceUnreachableStore(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.writeFile("file", "")
	for _, args := range [][]string{{"k"}, {"--every", "24h", "k"}, {"--wait", "k"}} {
		for _, store := range []string{"file://" + w.filePath("file"), "redis://127.0.0.1:1"} {
			r := w.newProgram(slices.Concat([]string{"once", "--ttl", "2s", "--store-wait", "0"}, args, []string{"touch", "ran"})...)
			r.cmd.Env = w.testEnvironment("HOLDFAST_STORE=" + store)
			r.launch().wait().check(t, 69, "holdfast: ")
		}
	}
	if _, err := os.Stat(w.filePath("ran")); !errors.Is(err, os.ErrNotExist) {
		t.Error("the command was run")
	}
}

// TestOnceRecord: the file of --events has the outcome of each kind of end, with its exit code.
func TestOnceRecord(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	holder, end := w.startOnce("busy")
	w.runProgram("once", "done", "true").check(t, 0)
	w.runProgram("once", "failed", "false").check(t, 1)
	every, _ := slotsFrom(time.Now().Add(-time.Hour))
	for i, c := range []struct {
		outcome string
		code    int
		args    []string
	}{
		{"exited", 0, []string{"a", "true"}},
		{"exited", 76, []string{"b", "sh", "-c", "exit 76"}},
		{"killed", 137, []string{"b", "sh", "-c", "kill -KILL $$"}},
		{"done-before", 0, []string{"done", "true"}},
		{"done-before", 4, []string{"--done-code", "4", "done", "true"}},
		{"missed", 0, []string{"--every", every, "--start-within", "1m", "job", "true"}},
		{"not-acquired", 75, []string{"busy", "true"}},
		{"not-acquired", 75, []string{"--wait=1ms", "busy", "true"}},
		{"not-acquired", 75, []string{"--pause", "1h", "failed", "true"}},
		{"attempts-used", 77, []string{"--attempts", "1", "failed", "true"}},
		{"unavailable", 69, []string{"--store", "file:///dev/null", "a", "true"}},
		{"usage", 64, []string{"--attempts", "0", "a", "true"}},
		{"cannot-run", 127, []string{"busy", "no-such-command"}},
	} {
		file := fmt.Sprintf("record%d", i)
		w.runProgram(append([]string{"once", "--events", file}, c.args...)...).check(t, c.code)
		last, _ := w.readRecord(w.filePath(file))
		if last["event"] != "outcome" || last["outcome"] != c.outcome || last["exit_code"] != float64(c.code) ||
			last["key"] == "" {
			t.Errorf("%q: %v", c.args, last)
		}
	}
	end("0")
	holder.wait().check(t, 0)
}

// TestOnceByManyMachines: many machines with the same crontab line run the job once per slot, and try again only if it
// has failed.
func TestOnceByManyMachines(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	every, slot := slotsFrom(time.Now().Add(-10 * time.Second))
	key := "job@" + formatSlot(slot)
	round := func(codes []int, flags []string, script string) {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				args := slices.Concat([]string{"once", "--every", every}, flags,
					[]string{"job", "sh", "-c", script})
				if r := w.runProgram(args...); !slices.Contains(codes, r.code) {
					t.Error(r.description)
				}
			})
		}
		all.Wait()
	}
	round([]int{0, 75}, nil, "echo $HOLDFAST_ATTEMPT >>ran")
	round([]int{0}, []string{"--wait"}, "echo $HOLDFAST_ATTEMPT >>ran")
	if got := w.readFile(w.filePath("ran")); got != "1\n" {
		t.Errorf("the job was run as attempts %q", got)
	}
	w.checkStates(key, holdfast.RunSucceeded)

	// A job that fails at first is run by the next machine, and not after it has succeeded.
	every, slot = slotsFrom(time.Now().Add(-30 * time.Second))
	round([]int{0, 128 + 15}, []string{"--wait"}, "echo $HOLDFAST_ATTEMPT >>tried; [ $HOLDFAST_ATTEMPT = 3 ] || kill -TERM $$")
	if got := w.readFile(w.filePath("tried")); got != "1\n2\n3\n" {
		t.Errorf("the job was run as attempts %q", got)
	}
	w.checkStates("job@"+formatSlot(slot), holdfast.RunFailed, holdfast.RunFailed, holdfast.RunSucceeded)
}

// onceFaultCases are faults of a program that runs a command once. Codes are those of the program.
var onceFaultCases = func() (cases []faultCase) {
	for _, c := range faultCases {
		if !strings.Contains(c.name, "broken") && len(c.flags) == 0 { // nobody can break a run; the flags are those of run
			cases = append(cases, c)
		}
	}
	return cases
}()

// TestOnceNothingRunsWhenNextRunBegins: whatever becomes of the processes of one run, the next run of the key begins
// when nothing of the first is alive.
func TestOnceNothingRunsWhenNextRunBegins(t *testing.T) {
	t.Parallel()
	for _, c := range onceFaultCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for i := range *guardRounds {
				c.runKeyTwice(newWorkspace(t), i%2 == 0, "--ttl", c.ttl)
			}
		})
	}
}

func (c *faultCase) runKeyTwice(w *workspace, stubborn bool, flags ...string) {
	w.Helper()
	r := c.startFamily(w, stubborn, append([]string{"once"}, flags...)...)
	next := w.newProgram(append([]string{"once", "--wait", "--events", "next", "a", self}, familyFiles...)...)
	next.cmd.Env = w.testEnvironment("TEST_HELPER=check")
	next.launch()
	w.awaitEvent("next", "run_waiting")
	c.inject(w, r)
	if c.repair != nil {
		w.awaitFamilyDead()
	}
	got := next.wait()
	got.check(w.T, 0)
	if got.out != "checked\n" {
		w.Errorf("when the next run begins: %s", got.out)
	}
	w.awaitFamilyDead()
	if c.repair != nil {
		c.repair(w, r)
	}
	if end := r.wait(); end.code != c.code {
		w.Errorf("want exit %d; %s", c.code, end.description)
	}
	runs := w.historyOf("a")
	if len(runs) != 2 || runs[0].State == holdfast.RunSucceeded || runs[1].State != holdfast.RunSucceeded ||
		runs[1].Token <= runs[0].Token {
		w.Errorf("runs: %+v", runs)
	}
	w.killLeftovers()
}

// TestOnceGuardKeepsRunOfKilledProgram: the run of a program that was killed stays in progress until its guard has
// ended the command, however soon the store notices the death.
func TestOnceGuardKeepsRunOfKilledProgram(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	long := faultCase{name: "the program is killed, and the command needs its grace", code: 137,
		inject: func(_ *workspace, r *startedProgram) { r.signal(unix.SIGKILL) }}
	long.runKeyTwice(w, true, "--ttl", "30s", "--grace", "10s")
}

// TestOnceSlotsDoNotOverlap: a slot waits while another slot of its job is run, and is missed if that takes longer
// than the slot does.
func TestOnceSlotsDoNotOverlap(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	before, slot := slotsFrom(time.Now().Add(-2 * time.Hour))
	every, _ := slotsFrom(time.Now().Add(-time.Hour))
	holder, end := w.startOnce("job", "--every", before)
	running := "job@" + formatSlot(slot) + " is run by " + ownerOf(holder)
	w.runProgram("once", "--every", before, "job", "true").check(t, 75, "a run of job@"+formatSlot(slot)+" is in progress")
	for _, wait := range []string{"1ms", "300ms"} {
		w.runProgram("once", "--wait="+wait, "--every", every, "job", "touch", "ran").
			check(t, 75, running, "has not ended within "+wait)
	}
	w.runProgram("once", "-q", "--every", "3s", "--events", "missed", "job", "touch", "ran").
		check(t, 80, "is missed, because another slot took too long: "+running, "--allow-overlap")
	last, events := w.readRecord(w.filePath("missed"))
	if last["outcome"] != "missed" || last["exit_code"] != 80.0 || last["holders"] == nil ||
		!slices.Contains(events, "slot_waiting") {
		t.Errorf("record: %v, %v", last, events)
	}
	if key, _ := last["key"].(string); len(w.historyOf(key)) > 0 {
		t.Errorf("%s has a history", key)
	}
	if w.readFile(w.filePath("ran")) != "" {
		t.Error("the command was run")
	}
	w.runProgram("once", "--every", "3s", "--allow-overlap", "job", "true").check(t, 0)
	w.runProgram("once", "--every", "3s", "other", "true").check(t, 0)
	w.runProgram("run", "-n", "job", "true").check(t, 0)

	interrupted := w.startProgram("once", "--every", every, "--events", "record0", "job", "touch", "ran")
	w.awaitEvent("record0", "slot_waiting")
	interrupted.signal(unix.SIGINT)
	interrupted.wait().check(t, 130, "ended by SIGINT before a run of")
	waiter := w.startProgram("once", "--every", every, "--attempts", "1", "--events", "record1", "job",
		"sh", "-c", "cat gate-job; exit 4")
	w.awaitEvent("record1", "slot_waiting")
	end("0")
	holder.wait().check(t, 0)
	const waiting = "waiting for the end of another slot of job: "
	if got := waiter.wait(); got.code != 4 || got.out != "0" || !strings.Contains(waiter.readStderr(), waiting+running) {
		t.Errorf("the next slot: %s", got.description)
	}

	w.runProgram("once", "--every", before, "nested", program, "once", "--wait=2s", "--every", every, "nested", "true").
		check(t, 64, "another slot of it, is being run by an enclosing holdfast once")
	w.runProgram("once", "--every", before, "apart", program, "once", "--allow-overlap", "--every", every, "apart", "true").
		check(t, 0)
}

// TestOnceSlotAfterKilledProgram: when the program that runs a slot is killed, the next slot begins when nothing of
// it is alive.
func TestOnceSlotAfterKilledProgram(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	before, _ := slotsFrom(time.Now().Add(-2 * time.Hour))
	every, _ := slotsFrom(time.Now().Add(-time.Hour))
	c := faultCase{code: 137}
	r := c.startFamily(w, true, "once", "--ttl", "30s", "--grace", "10s", "--every", before)
	next := w.newProgram(append([]string{"once", "--every", every, "--events", "next", "a", self}, familyFiles...)...)
	next.cmd.Env = w.testEnvironment("TEST_HELPER=check")
	next.launch()
	w.awaitEvent("next", "slot_waiting")
	r.signal(unix.SIGKILL)
	if got := next.wait(); got.code != 0 || got.out != "checked\n" {
		t.Errorf("when the next slot begins: %s", got.description)
	}
	w.awaitFamilyDead()
	r.wait()
	w.killLeftovers()
}

// TestOnceSignals: a signal is forwarded to the command, whose end decides.
func TestOnceSignals(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.startProgram("once", "k", "sh", "-c", `trap "echo told; exit 4" TERM; echo running; while :; do sleep 0.01; done`)
	r.awaitOutput("running")
	r.signal(unix.SIGTERM)
	if got := r.wait(); got.code != 4 || !strings.Contains(got.out, "told") {
		t.Errorf("want exit 4; %s", got.description)
	}
	r = w.startProgram("once", "k", "sh", "-c", "echo running; exec sleep 1000").awaitOutput("running")
	r.signal(unix.SIGTERM)
	if got := r.wait(); got.code != 128+15 {
		t.Errorf("want exit 143; %s", got.description)
	}
	runs := w.checkStates("k", holdfast.RunFailed, holdfast.RunFailed)
	if runs[1].Error != "killed by SIGTERM" {
		t.Errorf("runs: %+v", runs)
	}
}

// TestOnceAtTerminal: a user at a terminal learns what the program waits for.
func TestOnceAtTerminal(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	holder, end := w.startOnce("k")
	r, terminal := w.prepareTerminal("once", "--wait", "k", "true")
	terminal.begin(r)
	terminal.awaitText("waiting for the end of a run: a run of k is in progress: attempt 1 by")
	terminal.typeKeys("\x03")
	if got := r.wait(); got.code != 130 {
		t.Errorf("want exit 130; %s", got.description)
	}
	end("0")
	holder.wait().check(t, 0)
}

func BenchmarkOnce(b *testing.B) {
	store := "file://" + filepath.Join(b.TempDir(), "store")
	for i := 0; b.Loop(); i++ {
		key := fmt.Sprint(i)
		if out, err := exec.Command(program, "--store", store, "once", key, "true").CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
}

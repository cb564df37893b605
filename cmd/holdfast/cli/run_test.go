package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// TestCommandExitCode: run exits with the exit code of its command, or 128 and the signal that killed it.
func TestCommandExitCode(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for _, c := range []struct {
		script string
		code   int
	}{
		{"exit 0", 0}, {"exit 7", 7}, {"exit 255", 255},
		{"kill -KILL $$", 128 + 9}, {"kill -TERM $$", 128 + 15}, {"kill -USR1 $$", 128 + 10},
	} {
		if r := w.runProgram("run", "a", "sh", "-c", c.script); r.code != c.code || r.err != "" {
			t.Errorf("want exit %d and no output; %s", c.code, r.description)
		}
	}
}

// TestUsageErrors: wrong usage is refused with exit code 64 and a message that says what is wrong.
func TestUsageErrors(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for _, c := range []struct {
		words string
		args  []string
	}{
		{"subcommand", nil},
		{`did you mean run`, []string{"rnu"}},
		{"a port is a number from 1 to 65535", []string{"run", "--store", "redis://host:99999", "a", "true"}},
		{"the option prefix of the store's URL has no value; write prefix=VALUE",
			[]string{"run", "--store", "redis://host?prefix", "a", "true"}},
		{"redlock://[[user]:password@]host[:6379][,host...]", []string{"run", "--store", "redlock://host", "a", "true"}},
		{`unknown subcommand "rnu"; did you mean run?`, []string{"help", "rnu"}},
		{`unknown subcommand "nosuch"`, []string{"help", "nosuch"}},
		{`unknown subcommand "shwo"; did you mean show?`, []string{"help", "ledger", "shwo"}},
		{"unknown flag -t; did you mean --ttl?", []string{"run", "-ttl", "30s", "a", "true"}},
		{"unknown flag -t; did you mean --ttl?", []string{"acquire", "-ttl=30s", "a"}},
		{"did you mean --store?", []string{"run", "-store", "redis://:s3cret@h", "a", "true"}},
		{"--quiet: \"maybe\": give true or false, or the flag alone", []string{"run", "--quiet=maybe", "a", "true"}},
		{"run has no --schedule; use: holdfast once", []string{"run", "--schedule", "0", "3", "*", "*", "*", "a", "true"}},
		{"put the whole schedule in quotes", []string{"once", "--schedule", "0", "3", "*", "*", "*", "--tz", "UTC", "a", "true"}},
		{"quote all of them", []string{"once", "--schedule", "0 3", "--tz", "UTC", "a", "true"}},
		{"once has no -n: it waits only with --wait", []string{"once", "-n", "a", "true"}},
		{"once has no --skip-ok: it waits only with --wait", []string{"once", "--skip-ok", "a", "true"}},
		{"NAME", []string{"run"}},
		{"COMMAND", []string{"run", "a"}},
		{"COMMAND", []string{"run", "a", "--"}},
		{"--bad", []string{"run", "--bad", "a", "true"}},
		{"unknown flag --tll; did you mean --ttl?", []string{"run", "--tll", "3s", "a", "true"}},
		{"unknown flag --skipok; did you mean --skip-ok?", []string{"acquire", "--skipok", "a"}},
		{"unknown flag --xyzzy; see", []string{"run", "--xyzzy", "a", "true"}},
		{"did you mean 30s?", []string{"run", "--ttl", "30", "a", "true"}},
		{"did you mean 30s?", []string{"run", "--wait", "30", "a", "true"}},
		{"did you mean 24h?", []string{"once", "--every", "1d", "a", "true"}},
		{`unknown unit "x"`, []string{"once", "--every", "1x", "a", "true"}},
		{`crontab(5) has no L, W and #, as in "L"`, []string{"once", "--schedule", "0 3 L * *", "--tz", "UTC", "a", "true"}},
		{"crontab(5) has no seconds", []string{"once", "--schedule", "0 0 3 * * *", "--tz", "UTC", "a", "true"}},
		{"failed to parse int from soon; give", []string{"once", "--schedule", "soon 3 * * *", "--tz", "UTC", "a", "true"}},
		{"unknown store postgress:// (did you mean postgres://?); known are", []string{"list", "--store", "postgress://host/db"}},
		{"unknown store xyzzy://; known are", []string{"list", "--store", "xyzzy://host/db"}},
		{"a path of Windows cannot be used here", []string{"list", "--store", `C:\locks`}},
		{"a path of Windows cannot be used here", []string{"list", "--store", `file:///c:/locks`}},
		{"begins with a quotation mark", []string{"list", "--store", `"redis://:p4ssw0rd@host"`}},
		{"unknown flag -x", []string{"run", "-xyz", "a", "true"}},
		{"needs a value", []string{"run", "--ttl"}},
		{"unit", []string{"run", "--ttl", "10", "a", "true"}},
		{"1s to 24h", []string{"run", "--ttl", "0s", "a", "true"}},
		{"1s to 24h", []string{"run", "--ttl", "-1s", "a", "true"}},
		{"1s to 24h", []string{"run", "--ttl", "999ms", "a", "true"}},
		{"1s to 24h", []string{"run", "--ttl", "25h", "a", "true"}},
		{"whole milliseconds", []string{"run", "--ttl", "1.0000001s", "a", "true"}},
		{"forever", []string{"run", "--wait", "-1s", "a", "true"}},
		{"forever", []string{"run", "--wait", "soon", "a", "true"}},
		{"exclude", []string{"run", "-n", "--wait", "1s", "a", "true"}},
		{"exclude", []string{"run", "--shared", "--limit", "2", "a", "true"}},
		{"--permits needs", []string{"run", "--permits", "2", "a", "true"}},
		{"1 or more", []string{"run", "--limit", "0", "a", "true"}},
		{"1 to the limit", []string{"run", "--limit", "2", "--permits", "3", "a", "true"}},
		{"not a number", []string{"run", "--limit", "two", "a", "true"}},
		{"0 to 255", []string{"run", "-E", "256", "a", "true"}},
		{"exclude", []string{"run", "--skip-ok", "-E", "3", "a", "true"}},
		{"must not be empty", []string{"run", "", "true"}},
		{"at most 512 bytes", []string{"run", strings.Repeat("x", 513), "true"}},
		{"UTF-8", []string{"run", "\xff", "true"}},
		{"nats", []string{"run", "--store", "nats://host", "a", "true"}},
		{"did you mean file:///var/lib/holdfast?", []string{"run", "--store", "/var/lib/holdfast", "a", "true"}},
		{"did you mean redis://localhost:6379?", []string{"run", "--store", "localhost:6379", "a", "true"}},
		{"did you mean etcd://127.0.0.1:2379?", []string{"list", "--store", "127.0.0.1:2379"}},
		{"--store", []string{"list", "redis://host"}},
		{"did you mean --wait?", []string{"run", "--timeout", "3s", "a", "true"}},
		{"did you mean --wait?", []string{"acquire", "-w", "3s", "a"}},
		{"unknown flag --timeout", []string{"list", "--timeout", "3s"}},
		{"it looks like file:///absolute/directory", []string{"run", "--store", "file://host/dir", "a", "true"}},
		{"unknown option colour", []string{"run", "--store", w.store + "?colour=red", "a", "true"}},
		{"leave the flag out", []string{"run", "--store", "", "a", "true"}},
		{"leave the flag out", []string{"--store=", "list"}},
		{"leave the flag out", []string{"run", "--events", "", "a", "true"}},
		{"leave the flag out", []string{"break", "--holder", "", "a"}},
		{"NAME is missing", []string{"show"}},
		{"the lock's NAME is missing: it comes before --", []string{"run", "--", "true"}},
		{"is no port", []string{"serve", "--listen", "127.0.0.1:99999"}},
		{"HANDLE is missing", []string{"renew"}},
		{`the handle was split at a blank: put it in quotes, as in holdfast release "$h"`, []string{"release", `{"v":"1`, `2"}`}},
		{"give one shell", []string{"completion"}},
		{"give one shell", []string{"completion", "bsh"}},
		{"too many arguments: 2 instead of 1", []string{"list", "a", "b"}},
		{"too many arguments: 1 instead of 0", []string{"stores", "a"}},
	} {
		w.runProgram(c.args...).check(t, 64, c.words)
	}
	w.runProgram("run", "--shared", "--limit", "2", "a", "true").check(t, 64, "see holdfast run --help")
	for value, words := range map[string]string{
		"":                  "HOLDFAST_STORE is set, and empty",
		`"` + w.store + `"`: "the URL from HOLDFAST_STORE begins with a quotation mark",
		`'` + w.store + `'`: "leave the quotation marks out",
	} {
		r := w.newProgram("run", "a", "true")
		r.cmd.Env = append(w.testEnvironment("HOLDFAST_STORE="+value), "XDG_STATE_HOME="+w.dir)
		r.launch().wait().check(t, 64, words)
	}
}

// TestStoreURLWithNewline: a newline at the end of a URL, as secrets from a file often have it, changes nothing.
func TestStoreURLWithNewline(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.startHolder("a")
	r := w.newProgram("run", "-n", "a", "true")
	r.cmd.Env = w.testEnvironment("HOLDFAST_STORE=" + w.store + "\n")
	r.launch().wait().check(t, 75, "a is held")
}

// TestUnstartableScripts: a script that the system does not start is reported with the reason, and with what to do.
func TestUnstartableScripts(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for name, c := range map[string]struct {
		text  string
		code  int
		words string
	}{
		"plain":  {"echo ran\n", 126, "begin it with #!/bin/sh, or write sh before its name"},
		"crlf":   {"#!/bin/sh\r\necho ran\r\n", 127, "its lines end as on Windows (CRLF)"},
		"absent": {"#!/no/such/interpreter\n", 127, "its first line names /no/such/interpreter, which does not exist"},
		"binary": {"\x7fELF\x00\n", 126, "exec format error"},
	} {
		w.writeFile(name, c.text)
		if err := os.Chmod(w.filePath(name), 0o700); err != nil {
			t.Fatal(err)
		}
		w.runProgram("run", "a", "./"+name).check(t, c.code, c.words)
	}
	w.runProgram("run", "a", "--", "true && true").check(t, 127, "a line for a shell is run by: sh -c LINE")
	w.runProgram("run", "a", "no such").check(t, 127, "sh -c LINE")
}

// TestRunHelp: the help of run is short, and the details are in run-details.
func TestRunHelp(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	short, details := w.runProgram("run", "--help"), w.runProgram("help", "run-details")
	for _, text := range []string{"--shared", "76", "ends with 69 if the store is", "--store URL", "help run-details"} {
		if short.code != 0 || !strings.Contains(short.out, text) {
			t.Errorf("want %q in the help; %s", text, short.description)
		}
	}
	for _, text := range []string{"setsid", "KillMode=mixed", "HOLDFAST_HELD", "does not matter how the store is",
		"not-acquired", "nohup"} {
		if text == "setsid" && runtime.GOOS == "linux" {
			text = "even those that left its process group"
		}
		if details.code != 0 || !strings.Contains(strings.Join(strings.Fields(details.out), " "), text) {
			t.Errorf("want %q in run-details; %s", text, details.description)
		}
	}
	for line := range strings.Lines(short.out + details.out) {
		if len(line) > 121 {
			t.Errorf("a line of the help is too long: %s", line)
		}
	}
	command := newRoot()
	for _, c := range command.Commands() { // each flag of a grouped help is in one of the groups
		if c.Name() != "run" && c.Name() != "once" && c.Name() != "hold" && c.Name() != "acquire" && c.Name() != "explain" {
			continue
		}
		help := w.runProgram(c.Name(), "--help").out
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if line := regexp.MustCompile(`(?m)^ +(-., )?--` + f.Name + `\b`); !line.MatchString(help) {
				t.Errorf("the help of %s does not have --%s", c.Name(), f.Name)
			}
		})
	}
}

// TestCommandCannotRun: a command that does not exist gives exit code 127, one that cannot be run 126, and the lock is
// released.
func TestCommandCannotRun(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.writeFile("plain", "#!/bin/sh\n")
	w.writeFile("broken", "\x7fnonsense")
	if err := os.Chmod(w.filePath("broken"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, release := w.startHolder("held")
	defer release()
	// These errors come before the lock is requested: otherwise the runs would wait forever.
	w.runProgram("run", "held", "no-such-command").check(t, 127, "no-such-command")
	w.runProgram("run", "held", "-n", "true").check(t, 127, "no command -n", "before NAME")
	w.runProgram("run", "held", "./no-such-file").check(t, 127, "./no-such-file")
	w.runProgram("run", "held", "./plain").check(t, 126, "permission denied")
	w.runProgram("run", "held", w.dir).check(t, 126, "directory")
	// This error comes when the command is started, and the lock is released.
	w.runProgram("run", "b", "./broken").check(t, 126, "its first line does not say which program reads it")
	w.runProgram("run", "-n", "b", "true").check(t, 0)
}

// TestStdinIsExact: the command receives the input byte for byte.
func TestStdinIsExact(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	data := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	r := w.newProgram("run", "a", "cat")
	r.cmd.Stdin = bytes.NewReader(data)
	got := r.launch().wait()
	got.check(t, 0)
	if got.out != string(data) {
		t.Errorf("%d bytes of %d were received, or other bytes", len(got.out), len(data))
	}
}

// runViewer runs this test binary under a lock, and returns its arguments and environment.
func (w *workspace) runViewer(args ...string) commandView {
	w.Helper()
	r := w.newProgram(args...)
	r.cmd.Env = w.testEnvironment("TEST_HELPER=see", "HOLDFAST_LOCK=outer", "HOLDFAST_TOKEN=1",
		"HOLDFAST_ID=outer", "HOLDFAST_ID=twice")
	got := r.launch().wait()
	got.check(w.T, 0)
	var s commandView
	if err := json.Unmarshal([]byte(got.out), &s); err != nil {
		w.Fatalf("%v; %s", err, got.description)
	}
	return s
}

func (s commandView) args() (args []string) {
	for _, arg := range s.Args {
		args = append(args, string(arg))
	}
	return args
}

// TestArgumentsAreExact: the command receives its arguments byte for byte, even those that look like flags of run.
func TestArgumentsAreExact(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	args := []string{"", " ", "a b", "'", `"`, "$(x)", "`x`", "\n", "*", "--", "--ttl", "-n", "--help", "run", "\\",
		"ü", "\xff"}
	for _, before := range [][]string{
		{"run", "run"}, {"run", "a", "--"}, {"run", "--ttl", "1m", "a"}, {"run", "--", "a"}, {"run", "--", "a", "--"},
		{"--store", w.store, "run", "a"}, {"run", "--store=" + w.store, "--", "--store"},
	} {
		if s := w.runViewer(append(append(before, self), args...)...); !slices.Equal(s.args(), args) {
			t.Errorf("after %q: want %q, got %q", before, args, s.Args)
		}
	}
	s := w.runViewer("run", "a", self, "--", "x")
	if want := []string{"--", "x"}; !slices.Equal(s.args(), want) {
		t.Errorf("want %q, got %q", want, s.Args)
	}
}

// TestEnvironmentIsReplaced: a run inside a run gives its command its own lock, token and id, and each variable once.
func TestEnvironmentIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	env := w.runViewer("run", "outer", program, "run", "inner lock", self).Env
	find := func(name string) string {
		var found []string
		for _, v := range env {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				found = append(found, value)
			}
		}
		if len(found) != 1 {
			t.Fatalf("%s: want it once, got %q", name, found)
		}
		return found[0]
	}
	if got := find("HOLDFAST_LOCK"); got != "inner lock" {
		t.Errorf("HOLDFAST_LOCK: got %q", got)
	}
	if token, err := strconv.ParseInt(find("HOLDFAST_TOKEN"), 10, 64); err != nil || token <= 1 {
		t.Errorf("HOLDFAST_TOKEN: %d, %v", token, err)
	}
	if id := find("HOLDFAST_ID"); len(id) != 26 {
		t.Errorf("HOLDFAST_ID: %q", id)
	}
	if got := find("HOLDFAST_STORE"); got != w.store {
		t.Errorf("HOLDFAST_STORE: got %q", got)
	}
}

// TestPermitVariable: the command of a run with a limit finds the numbers of its permits, and no command finds those
// of an outer run.
func TestPermitVariable(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	const show = "echo [$HOLDFAST_PERMIT]"
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "--limit", "3", "a", "sh", "-c", show}, "[0]"},
		{[]string{"run", "--limit", "5", "--permits", "3", "b", "sh", "-c", show}, "[0,1,2]"},
		{[]string{"run", "--limit", "1000", "--permits", "65", "c", "sh", "-c", show}, "[]"},
		{[]string{"run", "d", "sh", "-c", show}, "[]"},
		{[]string{"run", "--limit", "3", "e", program, "run", "f", "sh", "-c", show}, "[]"},
		{[]string{"run", "--limit", "3", "g", program, "once", "--ledger", "l", "h", "sh", "-c", show}, "[]"},
		{[]string{"run", "--limit", "2", "i", program, "run", "-n", "--limit", "2", "i", "sh", "-c", show}, "[1]"},
	} {
		if r := w.runProgram(test.args...); r.code != 0 || strings.TrimSpace(r.out) != test.want {
			t.Errorf("%q: want %s; %s", test.args, test.want, r.description)
		}
	}
	if r := w.runProgram("acquire", "--ttl", "1m", "--limit", "3", "j"); !strings.Contains(r.out, `"permits":[0]`) {
		t.Error(r.description)
	}
}

// TestBusy: a lock that is held gives the exit code that was asked for, and a message that names the holder.
func TestBusy(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	holder, release := w.startHolder("a")
	who := fmt.Sprintf("holdfast[%d] (sh)", holder.cmd.Process.Pid)
	w.runProgram("run", "-n", "a", "true").check(t, 75, "a is held by", who)
	w.runProgram("run", "--wait", "0s", "a", "true").check(t, 75, "a is held by", who)
	w.runProgram("run", "-n", "-E", "5", "a", "true").check(t, 5, who)
	w.runProgram("run", "-n", "--skip-ok", "a", "true").check(t, 0, who)
	start := time.Now()
	w.runProgram("run", "--wait", "300ms", "a", "true").check(t, 75, "within 300ms", who)
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("waited only %v", took)
	}
	w.runProgram("run", "--wait", "300ms", "-E", "6", "a", "true").check(t, 6, who)
	w.runProgram("run", "-n", "b", "sh", "-c", "exit 75").check(t, 75) // the command's own, and so nothing is said
	waiter := w.startProgram("run", "a", "echo", "mine")
	release()
	holder.wait().check(t, 0)
	if r := waiter.wait(); r.code != 0 || r.out != "mine\n" {
		t.Error(r.description)
	}
}

func TestRunsExcludeEachOther(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.writeFile("count", "0")
	var all sync.WaitGroup
	for i := range 24 {
		flags := [][]string{{"run", "a"}, {"run", "--fair", "a"}, {"run", "--ttl", "1m", "a"}}[i%3]
		all.Go(func() {
			w.runProgram(append(flags, "sh", "-c", "n=$(cat count); echo $((n+1)) >count")...).check(t,
				0)
		})
		if i%3 == 0 {
			all.Go(func() {
				w.runProgram("run", "--shared", "a", "sh", "-c",
					"n=$(cat count); sleep 0.02; [ \"$n\" = \"$(cat count)\" ]").check(t, 0)
			})
		}
	}
	all.Wait()
	if got := strings.TrimSpace(w.readFile(w.filePath("count"))); got != "24" {
		t.Errorf("want 24 runs counted, got %s", got)
	}
}

// awaitWaiters waits until n claims are in a lock's queue.
func (w *workspace) awaitWaiters(name string, n int) {
	w.Helper()
	w.awaitTrue(fmt.Sprintf("%d waiting claims", n), func() bool {
		var lock struct{ Waiters []any }
		err := json.Unmarshal([]byte(w.runProgram("show", "--json", name).out), &lock)
		return err == nil && len(lock.Waiters) == n
	})
}

func TestFairRunsInOrder(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	_, release := w.startHolder("a", "--fair")
	var line []*startedProgram
	for i := range 5 {
		line = append(line, w.startProgram("run", "--fair", "a", "sh", "-c", fmt.Sprintf("echo %d >>order", i)))
		w.awaitWaiters("a", i+1)
	}
	release()
	for _, r := range line {
		r.wait().check(t, 0)
	}
	if got := w.readFile(w.filePath("order")); got != "0\n1\n2\n3\n4\n" {
		t.Errorf("order: %q", got)
	}
}

func TestSharedRunsExcludePlainRuns(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	_, releaseFirst := w.startHolder("a", "--shared")
	second, releaseSecond := w.startHolder("a", "-s")
	w.runProgram("run", "-n", "a", "true").check(t, 75, "a is held by", "holdfast[")
	plain := w.startProgram("run", "a", "sh", "-c", "echo held; "+waitForFile("plain"))
	w.awaitWaiters("a", 1)
	w.runProgram("run", "-n", "--shared", "a", "true").check(t, 75) // no claim passes a waiter
	releaseFirst()
	releaseSecond()
	second.wait().check(t, 0)
	plain.awaitOutput("held")
	w.runProgram("run", "-n", "-s", "a", "true").check(t, 75)
	w.writeFile("plain", "")
	plain.wait().check(t, 0)

	// The reverse: the lock is held by a plain run.
	holder, release := w.startHolder("a")
	w.runProgram("run", "-n", "-s", "a", "true").check(t, 75, fmt.Sprintf("holdfast[%d]", holder.cmd.Process.Pid))
	w.runProgram("run", "--wait", "100ms", "-s", "a", "true").
		check(t, 75, "within 100ms", fmt.Sprintf("holdfast[%d]", holder.cmd.Process.Pid))
	shared := w.startProgram("run", "-s", "a", "true")
	release()
	shared.wait().check(t, 0)
}

func TestLimitAndPermits(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	_, releaseTwo := w.startHolder("a", "--limit", "3", "--permits", "2")
	one, releaseOne := w.startHolder("a", "--limit", "3")
	w.runProgram("run", "-n", "--limit", "3", "a", "true").check(t, 75, "a is held by")
	w.runProgram("run", "--limit", "4", "a", "true").check(t, 64, "semaphore of 3", "--limit")
	w.runProgram("run", "a", "true").check(t, 64, "semaphore of 3", "--limit")
	w.runProgram("run", "-s", "a", "true").check(t, 64, "semaphore of 3", "--limit")
	releaseOne()
	one.wait().check(t, 0)
	w.runProgram("run", "-n", "--limit", "3", "a", "true").check(t, 0)
	w.runProgram("run", "-n", "--limit", "3", "--permits", "2", "a", "true").check(t, 75)
	releaseTwo()
	w.runProgram("run", "--limit", "3", "--permits", "3", "a", "true").check(t, 0)
}

func TestUnreachableStores(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	open := w.filePath("open")
	if err := os.Mkdir(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	w.writeFile("file", "")
	if err := os.Symlink(w.dir, w.filePath("link")); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/open", "/file", "/file/below", "/link"} {
		for _, args := range [][]string{{"run", "-E", "9", "a", "true"}, {"list"}, {"show", "a"}, {"break", "a"},
			{"stores"}} {
			w.runProgram(append([]string{"--store", "file://" + w.dir + dir}, args...)...).check(t, 69, w.dir)
		}
	}
}

// TestSecretsNotShown: no password of a store's URL is in the output, however the URL is wrong.
func TestSecretsNotShown(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	const secret = "hunter2"
	for _, where := range []string{
		"redis://user:" + secret + "@host/0",
		"redis://user:" + secret + "%zz@host",
		"user:" + secret + "@host",
		secret,
		"file://user:" + secret + "@host/dir",
		w.store + "?password=" + secret,
		w.store + "?force=" + secret + "&password=" + secret,
		"file:///dev/null?token=" + secret,
		"://" + secret,
		"redis://host:" + secret,
	} {
		for _, args := range [][]string{{"run", "a", "true"}, {"list"}, {"stores"}} {
			byFlag := w.runProgram(append([]string{"--store", where}, args...)...)
			r := w.newProgram(args...)
			r.cmd.Env = w.testEnvironment("HOLDFAST_STORE=" + where)
			for _, got := range []result{byFlag, r.launch().wait()} {
				if got.code == 0 || strings.Contains(got.out+got.err, secret) {
					t.Errorf("%q shows a secret, or was taken: %s", where, got.description)
				}
			}
		}
	}
	for _, args := range [][]string{ // typing errors
		{"run", "-store=redis://user:" + secret + "@host", "a", "true"},
		{"run", "--stroe=redis://user:" + secret + "@host", "a", "true"},
		{"redis://user:" + secret + "@host", "run", "a", "true"},
		{"stores", "redis://user:" + secret + "@host"},
		{"run", "--=redis://user:" + secret + "@host"},
	} {
		if got := w.runProgram(args...); got.code != 64 || strings.Contains(got.out+got.err, secret) {
			t.Errorf("shows a secret: %s", got.description)
		}
	}
}

func TestDefaultStore(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	home, err := os.MkdirTemp("", "holdfast-home-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(home)
	var who *syscall.Credential
	if os.Geteuid() == 0 { // root's would be the machine's
		const nobodyID = 65534
		who = &syscall.Credential{Uid: nobodyID, Gid: nobodyID}
		if err := os.Chown(home, nobodyID, nobodyID); err != nil {
			t.Fatal(err)
		}
	}
	state := filepath.Join(home, "state")
	for _, c := range []struct{ dir, state string }{
		{state + "/holdfast", state}, {home + "/.local/state/holdfast", ""}, {home + "/.local/state/holdfast",
			"relative"},
	} {
		r := w.newProgram("stores")
		r.cmd.Dir = "/"
		r.cmd.Env = []string{"HOME=" + home, "XDG_STATE_HOME=" + c.state, raceEnvironment}
		r.cmd.SysProcAttr.Credential = who
		if got := r.launch().wait(); got.code != 0 || !strings.Contains(got.out, c.dir+"\n") {
			t.Errorf("want the store in %s; %s", c.dir, got.description)
		}
	}
	r := w.newProgram("run", "a", "/bin/true")
	r.cmd.Env = []string{raceEnvironment}
	r.cmd.SysProcAttr.Credential = who
	r.cmd.Dir = "/"
	if got := r.launch().wait(); who != nil && got.code != 64 {
		t.Errorf("want exit 64 without a home; %s", got.description)
	}
}

// BenchmarkRun measures a command that does nothing under a lock, and BenchmarkNothing the command alone.
func BenchmarkRun(b *testing.B) {
	store := "file://" + filepath.Join(b.TempDir(), "store")
	for b.Loop() {
		if out, err := exec.Command(program, "--store", store, "run", "a", "true").CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
}

func BenchmarkNothing(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("env", "true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestTheCommandsOwnExitCode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		script string
		code   int
	}{
		{"exit 0", 0}, {"exit 7", 7}, {"exit 255", 255},
		{"kill -KILL $$", 128 + 9}, {"kill -TERM $$", 128 + 15}, {"kill -USR1 $$", 128 + 10},
	} {
		if r := w.run("run", "a", "sh", "-c", c.script); r.code != c.code || r.err != "" {
			t.Errorf("want exit %d and nothing said; %s", c.code, r.description)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		words string
		args  []string
	}{
		{"subcommand", nil},
		{`did you mean run`, []string{"rnu"}},
		{"NAME", []string{"run"}},
		{"COMMAND", []string{"run", "a"}},
		{"COMMAND", []string{"run", "a", "--"}},
		{"--bad", []string{"run", "--bad", "a", "true"}},
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
		{"three slashes", []string{"run", "--store", "file://host/dir", "a", "true"}},
		{"unknown option colour", []string{"run", "--store", w.store + "?colour=red", "a", "true"}},
		{"leave the flag out", []string{"run", "--store", "", "a", "true"}},
		{"leave the flag out", []string{"--store=", "list"}},
		{"leave the flag out", []string{"run", "--json", "", "a", "true"}},
		{"leave the flag out", []string{"break", "--holder", "", "a"}},
		{"NAME is missing", []string{"show"}},
		{"HANDLE is missing", []string{"renew"}},
		{"give one shell", []string{"completion"}},
		{"give one shell", []string{"completion", "bsh"}},
		{"2 arguments, and 1", []string{"list", "a", "b"}},
		{"1 arguments, and 0", []string{"stores", "a"}},
	} {
		w.run(c.args...).want(t, 64, c.words)
	}
	w.run("run", "--shared", "--limit", "2", "a", "true").want(t, 64, "see holdfast run --help")
	r := w.command("run", "a", "true")
	r.cmd.Env = append(w.env("HOLDFAST_STORE="), "XDG_STATE_HOME="+w.dir)
	r.begin().wait().want(t, 64, "HOLDFAST_STORE is set, and empty")
	for _, word := range []string{"--shared", "76", "exits 69 sooner if the store is silent for 10s", "only if the store is called by the same name"} {
		if r := w.run("run", "--help"); r.code != 0 || !strings.Contains(r.out, word) {
			t.Errorf("want %q in the help; %s", word, r.description)
		}
	}
}

func TestCommandsThatCannotRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("plain", "#!/bin/sh\n")
	w.write("broken", "\x7fnonsense")
	if err := os.Chmod(w.path("broken"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, release := w.hold("held")
	defer release()
	// Said before the lock is asked for: these would wait for ever.
	w.run("run", "held", "no-such-command").want(t, 127, "no-such-command")
	w.run("run", "held", "-n", "true").want(t, 127, "no command -n", "before NAME")
	w.run("run", "held", "./no-such-file").want(t, 127, "./no-such-file")
	w.run("run", "held", "./plain").want(t, 126, "permission denied")
	w.run("run", "held", w.dir).want(t, 126, "directory")
	// Known only when it is tried; the lock is given back.
	w.run("run", "b", "./broken").want(t, 126, "exec format error")
	w.run("run", "-n", "b", "true").want(t, 0)
}

func TestStdinIsExact(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	data := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	r := w.command("run", "a", "cat")
	r.cmd.Stdin = bytes.NewReader(data)
	got := r.begin().wait()
	got.want(t, 0)
	if got.out != string(data) {
		t.Errorf("%d bytes came through of %d, or others", len(got.out), len(data))
	}
}

// see runs this test's own binary under a lock and tells what it found.
func (w *world) see(args ...string) seen {
	w.Helper()
	r := w.command(args...)
	r.cmd.Env = w.env("HOLDFAST_TEST_HELPER=see", "HOLDFAST_LOCK=outer", "HOLDFAST_TOKEN=1", "HOLDFAST_ID=outer", "HOLDFAST_ID=twice")
	got := r.begin().wait()
	got.want(w.T, 0)
	var s seen
	if err := json.Unmarshal([]byte(got.out), &s); err != nil {
		w.Fatalf("%v; %s", err, got.description)
	}
	return s
}

func (s seen) args() (args []string) {
	for _, arg := range s.Args {
		args = append(args, string(arg))
	}
	return args
}

func TestArgumentsAreExact(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	args := []string{"", " ", "a b", "'", `"`, "$(x)", "`x`", "\n", "*", "--", "--ttl", "-n", "--help", "run", "\\", "ü", "\xff"}
	for _, before := range [][]string{
		{"run", "run"}, {"run", "a", "--"}, {"run", "--ttl", "5s", "a"}, {"run", "--", "a"}, {"run", "--", "a", "--"},
		{"--store", w.store, "run", "a"}, {"run", "--store=" + w.store, "--", "--store"},
	} {
		if s := w.see(append(append(before, self), args...)...); !slices.Equal(s.args(), args) {
			t.Errorf("after %q: want %q, got %q", before, args, s.Args)
		}
	}
	s := w.see("run", "a", self, "--", "x")
	if want := []string{"--", "x"}; !slices.Equal(s.args(), want) {
		t.Errorf("want %q, got %q", want, s.Args)
	}
}

func TestEnvironmentIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.see("run", "outer", program, "run", "inner lock", self).Env
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

func TestBusy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	holder, release := w.hold("a")
	who := fmt.Sprintf("holdfast[%d] (sh)", holder.cmd.Process.Pid)
	w.run("run", "-n", "a", "true").want(t, 75, "a is held by", who)
	w.run("run", "--wait", "0s", "a", "true").want(t, 75, "a is held by", who)
	w.run("run", "-n", "-E", "5", "a", "true").want(t, 5, who)
	w.run("run", "-n", "--skip-ok", "a", "true").want(t, 0, who)
	start := time.Now()
	w.run("run", "--wait", "300ms", "a", "true").want(t, 75, "within 300ms", who)
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("waited only %v", took)
	}
	w.run("run", "--wait", "300ms", "-E", "6", "a", "true").want(t, 6, who)
	w.run("run", "-n", "b", "sh", "-c", "exit 75").want(t, 75) // the command's own, and so nothing is said
	waiter := w.start("run", "a", "echo", "mine")
	release()
	holder.wait().want(t, 0)
	if r := waiter.wait(); r.code != 0 || r.out != "mine\n" {
		t.Error(r.description)
	}
}

func TestRunsExcludeEachOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("count", "0")
	var all sync.WaitGroup
	for i := range 24 {
		flags := [][]string{{"run", "a"}, {"run", "--fair", "a"}, {"run", "--ttl", "5s", "a"}}[i%3]
		all.Go(func() { w.run(append(flags, "sh", "-c", "n=$(cat count); echo $((n+1)) >count")...).want(t, 0) })
		if i%3 == 0 {
			all.Go(func() {
				w.run("run", "--shared", "a", "sh", "-c", "n=$(cat count); sleep 0.02; [ \"$n\" = \"$(cat count)\" ]").want(t, 0)
			})
		}
	}
	all.Wait()
	if got := strings.TrimSpace(w.read(w.path("count"))); got != "24" {
		t.Errorf("want 24 runs counted, got %s", got)
	}
}

// waiting waits until n claims stand in a lock's line.
func (w *world) waiting(name string, n int) {
	w.Helper()
	w.await(fmt.Sprintf("%d in line", n), func() bool {
		return strings.Contains(w.run("show", name).out, fmt.Sprintf("waited for by %d\n", n))
	})
}

func TestFairRunsGoInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, release := w.hold("a", "--fair")
	var line []*running
	for i := range 5 {
		line = append(line, w.start("run", "--fair", "a", "sh", "-c", fmt.Sprintf("echo %d >>order", i)))
		w.waiting("a", i+1)
	}
	release()
	for _, r := range line {
		r.wait().want(t, 0)
	}
	if got := w.read(w.path("order")); got != "0\n1\n2\n3\n4\n" {
		t.Errorf("order: %q", got)
	}
}

func TestSharedRunsGoTogetherAndExcludePlainOnes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, releaseFirst := w.hold("a", "--shared")
	second, releaseSecond := w.hold("a", "-s")
	w.run("run", "-n", "a", "true").want(t, 75, "a is held by", "holdfast[")
	plain := w.start("run", "a", "sh", "-c", "echo held; "+waitFor("plain"))
	w.waiting("a", 1)
	w.run("run", "-n", "--shared", "a", "true").want(t, 75) // nobody passes who waits
	releaseFirst()
	releaseSecond()
	second.wait().want(t, 0)
	plain.says("held")
	w.run("run", "-n", "-s", "a", "true").want(t, 75)
	w.write("plain", "")
	plain.wait().want(t, 0)

	// The other way round: the lock stands as a plain one.
	holder, release := w.hold("a")
	w.run("run", "-n", "-s", "a", "true").want(t, 75, fmt.Sprintf("holdfast[%d]", holder.cmd.Process.Pid))
	w.run("run", "--wait", "100ms", "-s", "a", "true").want(t, 75, "within 100ms", fmt.Sprintf("holdfast[%d]", holder.cmd.Process.Pid))
	shared := w.start("run", "-s", "a", "true")
	release()
	shared.wait().want(t, 0)
}

func TestLimitAndPermits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, releaseTwo := w.hold("a", "--limit", "3", "--permits", "2")
	one, releaseOne := w.hold("a", "--limit", "3")
	w.run("run", "-n", "--limit", "3", "a", "true").want(t, 75, "a is held by")
	w.run("run", "--limit", "4", "a", "true").want(t, 64, "semaphore of 3", "--limit")
	w.run("run", "a", "true").want(t, 64, "semaphore of 3", "--limit")
	w.run("run", "-s", "a", "true").want(t, 64, "semaphore of 3", "--limit")
	releaseOne()
	one.wait().want(t, 0)
	w.run("run", "-n", "--limit", "3", "a", "true").want(t, 0)
	w.run("run", "-n", "--limit", "3", "--permits", "2", "a", "true").want(t, 75)
	releaseTwo()
	w.run("run", "--limit", "3", "--permits", "3", "a", "true").want(t, 0)
}

func TestUnreachableStores(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	open := w.path("open")
	if err := os.Mkdir(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	w.write("file", "")
	if err := os.Symlink(w.dir, w.path("link")); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/open", "/file", "/file/below", "/link"} {
		for _, args := range [][]string{{"run", "-E", "9", "a", "true"}, {"list"}, {"show", "a"}, {"break", "a"}, {"stores"}} {
			w.run(append([]string{"--store", "file://" + w.dir + dir}, args...)...).want(t, 69, w.dir)
		}
	}
}

func TestNoSecretIsShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
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
			byFlag := w.run(append([]string{"--store", where}, args...)...)
			r := w.command(args...)
			r.cmd.Env = w.env("HOLDFAST_STORE=" + where)
			for _, got := range []result{byFlag, r.begin().wait()} {
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
		if got := w.run(args...); got.code != 64 || strings.Contains(got.out+got.err, secret) {
			t.Errorf("shows a secret: %s", got.description)
		}
	}
}

func TestTheStoreOfOnesOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	home, err := os.MkdirTemp("", "holdfast-home-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(home)
	var who *syscall.Credential
	if os.Geteuid() == 0 { // root's would be the machine's
		const nobody = 65534
		who = &syscall.Credential{Uid: nobody, Gid: nobody}
		if err := os.Chown(home, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	state := filepath.Join(home, "state")
	for _, c := range []struct{ dir, state string }{
		{state + "/holdfast", state}, {home + "/.local/state/holdfast", ""}, {home + "/.local/state/holdfast", "relative"},
	} {
		r := w.command("stores")
		r.cmd.Dir = "/"
		r.cmd.Env = []string{"HOME=" + home, "XDG_STATE_HOME=" + c.state, noRaceSleep}
		r.cmd.SysProcAttr.Credential = who
		if got := r.begin().wait(); got.code != 0 || !strings.Contains(got.out, c.dir+"\n") {
			t.Errorf("want the store in %s; %s", c.dir, got.description)
		}
	}
	r := w.command("run", "a", "/bin/true")
	r.cmd.Env = []string{noRaceSleep}
	r.cmd.SysProcAttr.Credential = who
	r.cmd.Dir = "/"
	if got := r.begin().wait(); who != nil && got.code != 64 {
		t.Errorf("want exit 64 without a home; %s", got.description)
	}
}

// BenchmarkRun is the cost of a lock around a command that does nothing; BenchmarkNothing is that of the command.
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

//go:build linux

package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// startAlso runs a command under three locks, until the file "gate" exists.
func (w *workspace) startAlso(flags ...string) *startedProgram {
	w.Helper()
	args := slices.Concat([]string{"run", "--also", "c", "--also", "b b"}, flags,
		[]string{"a", "sh", "-c", "echo $HOLDFAST_LOCK $HOLDFAST_TOKEN $HOLDFAST_TOKENS; " + waitForFile("gate")})
	return w.startProgram(args...).awaitOutput("a ")
}

// TestRunAlso: a command runs under all of its locks, or not at all.
func TestRunAlso(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.startAlso("--events", "record")
	for _, name := range []string{"a", "b b", "c"} {
		w.runProgram("run", "-n", name, "true").check(t, 75, quoteName(name)+" is held by "+ownerOf(r))
	}
	w.runProgram("run", "-n", "--also", "c", "0", "touch", "ran").check(t, 75, "c is held by "+ownerOf(r))
	w.runProgram("run", "--wait=2s", "--also", "0", "c", "touch", "ran").check(t, 75, "c was not free within 2s")
	w.runProgram("run", "-n", "0", "true").check(t, 0)

	// A run that waits holds what comes before, and is in no other's way for longer than that one is in its own.
	first := w.startProgram("run", "--also", "0", "--events", "first", "c", "true")
	second := w.startProgram("run", "--also", "c", "--events", "second", "0", "true")
	w.awaitEvent("first", "lock_acquire_attempt")
	w.awaitEvent("second", "lock_acquire_attempt")
	w.writeFile("gate", "")
	for _, p := range []*startedProgram{r, first, second} {
		if got := p.wait(); got.code != 0 {
			t.Error(got.description)
		}
	}
	if w.readFile(w.filePath("ran")) != "" {
		t.Error("a command ran without all locks")
	}
	last, _ := w.readRecord(w.filePath("record"))
	var tokens []any
	also, _ := last["also"].([]any)
	for _, l := range also {
		lock, _ := l.(map[string]any)
		tokens = append(tokens, lock["lock"], lock["token"])
	}
	if len(tokens) != 4 {
		t.Fatalf("record: %v", last)
	}
	want := fmt.Sprintf("a %.0f a=%.0f b%%20b=%.0f c=%.0f\n", last["token"], last["token"], tokens[1], tokens[3])
	if out := r.readStdout(); out != want || tokens[0] != "b b" || tokens[2] != "c" {
		t.Errorf("the command printed %q, want %q; record: %v", out, want, last)
	}
}

// TestTokensOfOddNames: in HOLDFAST_TOKENS the first = ends the name, whatever the name is.
func TestTokensOfOddNames(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.runProgram("run", "--also", "a=b c", "d", "sh", "-c", "echo $HOLDFAST_TOKENS")
	if r.check(t, 0); !strings.HasPrefix(r.out, "a%3Db%20c=") || !strings.Contains(r.out, " d=") {
		t.Errorf("the tokens are %q", r.out)
	}
	w.runProgram("explain", "--also", "b", "d").check(t, 64, "explain shows one lock")
}

// TestRunAlsoEnds: what happens to one of the locks happens to all, and the message says which one it was.
func TestRunAlsoEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code   int
		words  string
		flags  []string
		action []string
	}{
		{76, "c, which is held with it, is lost: an operator", nil, []string{"break", "c"}},
		{76, "--max-hold", []string{"--max-hold", "2s"}, nil},
		{79, "", []string{"--on-request", "release", "-q"}, []string{"request-release", "b b"}},
	} {
		t.Run(strings.Join(append(c.flags, c.action...), " "), func(t *testing.T) {
			t.Parallel()
			w := newWorkspace(t)
			r := w.startAlso(append(c.flags, "--ttl", "6s")...)
			if c.action != nil {
				w.runProgram(c.action...).check(t, 0)
			}
			if got := r.wait(); got.code != c.code || !strings.Contains(got.err, c.words) {
				t.Errorf("want exit %d and %q; %s", c.code, c.words, got.description)
			}
			for _, name := range []string{"a", "b b", "c"} {
				w.runProgram("run", "--wait=20s", name, "true").check(t, 0)
			}
		})
	}
}

// TestRunAlsoKilled: when the program is killed, its guard ends the command before any of the locks is free.
func TestRunAlsoKilled(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	c := faultCase{code: 137}
	r := c.startFamily(w, true, "run", "--ttl", "30s", "--grace", "10s", "--also", "b")
	next := w.newProgram(append([]string{"run", "--events", "next", "b", self}, familyFiles...)...)
	next.cmd.Env = w.testEnvironment("TEST_HELPER=check")
	next.launch()
	w.awaitEvent("next", "lock_acquire_attempt")
	r.signal(unix.SIGKILL)
	if got := next.wait(); got.code != 0 || got.out != "checked\n" {
		t.Errorf("when the next holder of b begins: %s", got.description)
	}
	w.awaitFamilyDead()
	r.wait()
	w.killLeftovers()
}

// TestRunAlsoWithOthers: shared runs keep out a run that wants their lock besides another one, and --min-hold is for
// all locks, but not if nothing has run.
func TestRunAlsoWithOthers(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	shared := w.startProgram("run", "--shared", "b", "sh", "-c", "echo running; "+waitForFile("gate")).awaitOutput("running")
	w.runProgram("run", "-n", "--also", "b", "a", "true").check(t, 75, "b is held by "+ownerOf(shared))
	waiter := w.startProgram("run", "--also", "b", "--events", "record", "a", "cat", "gate")
	w.awaitEvent("record", "lock_acquire_attempt")
	w.writeFile("gate", "open")
	shared.wait().check(t, 0)
	if got := waiter.wait(); got.code != 0 || got.out != "open" {
		t.Error(got.description)
	}
	w.runProgram("run", "--limit", "2", "s", program, "run", "-n", "--also", "s", "a", "true").check(t, 64, "s is")
	const nested = "b is already held by an enclosing holdfast run"
	w.runProgram("run", "--also", "b", "a", program, "run", "b", "true").check(t, 64, nested)
	w.runProgram("run", "b", program, "run", "--also", "b", "a", "true").check(t, 64, nested)
	w.runProgram("run", "--min-hold", "1h", "--also", "b", "a", "./missing").check(t, 127)
	w.runProgram("run", "--min-hold", "1h", "--also", "b", "a", "true").check(t, 0)
	w.runProgram("run", "-n", "b", "true").check(t, 75)
}

// TestRunAlsoUsage: what makes no sense with --also is refused.
func TestRunAlsoUsage(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for _, c := range []struct {
		words string
		args  []string
	}{
		{"a is named twice", []string{"--also", "a", "a", "true"}},
		{"b is named twice", []string{"--also", "b", "--also", "b", "a", "true"}},
		{"give the name of a lock", []string{"--also", "", "a", "true"}},
		{"--also and --shared exclude each other", []string{"--also", "b", "--shared", "a", "true"}},
		{"--also and --limit exclude each other", []string{"--also", "b", "--limit", "2", "a", "true"}},
		{"at most", []string{"--also", strings.Repeat("x", 600), "a", "true"}},
	} {
		w.runProgram(append([]string{"run"}, c.args...)...).check(t, 64, c.words)
	}
}

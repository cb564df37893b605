//go:build linux

package cli

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
)

// TestListForeign: a lock of another kind of client, here a plain SET, is listed as foreign if a prefix in the URL
// tells it from other data. Without one, no key is taken for a lock; show knows of it if it is asked.
func TestListForeign(t *testing.T) {
	t.Parallel()
	w, server := newWorkspace(t), startRedis(t)
	sendRedis(t, server, "SET", "locks:job", "secret", "NX", "EX", "300")
	sendRedis(t, server, "SET", "cache", "data", "EX", "300")
	w.store = "redis://" + server.Addr + "?prefix=locks:"
	if r := w.runProgram("list"); r.code != 0 || strings.Count(r.out, "\n") != 2 || strings.Contains(r.out, "secret") ||
		!regexp.MustCompile(`(?m)^job +mutex +foreign +1 `).MatchString(r.out) {
		t.Error(r.description)
	}
	if r := w.runProgram("list", "--json"); !strings.Contains(r.out, `"foreign":true`) {
		t.Error(r.description)
	}
	// Such a holder cannot be told of anything; a SET without an end stays until it is removed by force.
	sendRedis(t, server, "SET", "locks:stuck", "secret")
	for _, subcommand := range []string{"break", "request-release"} {
		w.runProgram(subcommand, "stuck").check(t, 64, "stuck is held by another kind of client", "holdfast break --force")
	}
	w.runProgram("break", "--force", "stuck").check(t, 0)
	w.runProgram("run", "-n", "stuck", "true").check(t, 0)
	w.store = "redis://" + server.Addr
	if r := w.runProgram("list"); r.code != 0 || r.out != "" {
		t.Error(r.description)
	}
	if r := w.runProgram("show", "locks:job"); !strings.Contains(r.out, "foreign") {
		t.Error(r.description)
	}
}

// TestListSorted: --sort orders by what it names, and unknown values come last.
func TestListSorted(t *testing.T) {
	t.Parallel()
	lock := func(name, owner string, since time.Time, remaining time.Duration, waiting int) holdfast.Lock {
		return holdfast.Lock{Name: name, Waiters: make([]holdfast.ClaimInfo, waiting),
			Holders: []holdfast.ClaimInfo{{Owner: owner, Since: since, Remaining: remaining}}}
	}
	now := time.Now()
	locks := []holdfast.Lock{
		lock("c", "z", now, time.Minute, 0), lock("a", "y", time.Time{}, 0, 1), lock("b", "x", now.Add(-time.Hour), 9, 2),
		{Name: "d", Waiters: make([]holdfast.ClaimInfo, 3)},
	}
	for order, want := range map[lockOrder]string{
		"name": "abcd", "holder": "dbac", "since": "bcad", "expires": "bcad", "waiting": "dbac",
	} {
		sorted, got := slices.Clone(locks), ""
		sortLocks(sorted, order)
		for _, l := range sorted {
			got += l.Name
		}
		if got != want {
			t.Errorf("--sort %s: %s, want %s", order, got, want)
		}
	}
	w := newWorkspace(t)
	w.runProgram("list", "--sort", "size").check(t, 64, "give name, holder, since, expires, waiting")
	w.runProgram("list", "--watch", "--json").check(t, 64, "exclude each other")
	_, _ = w.startHolder("a", "--note", "second")
	_, _ = w.startHolder("b", "--note", "first", "--owner", "Alice")
	if got := w.runProgram("list", "--sort", "holder"); strings.Index(got.out, "first") > strings.Index(got.out, "second") {
		t.Error(got.description)
	}
}

// TestWaitersUnknown: where a plain claim waits in its own process, no number is claimed to be the number of waiters.
func TestWaitersUnknown(t *testing.T) {
	t.Parallel()
	full := holdfast.Lock{Kind: holdfast.KindRW, Waiters: make([]holdfast.ClaimInfo, 3)}
	for _, c := range []struct {
		info holdfast.Info
		lock holdfast.Lock
		want string
	}{
		{holdfast.Info{MaxWaiters: 64}, holdfast.Lock{Kind: holdfast.KindMutex}, "-"},
		{holdfast.Info{MaxWaiters: 64}, holdfast.Lock{Kind: holdfast.KindMutex, Waiters: full.Waiters}, "3+"},
		{holdfast.Info{MaxWaiters: 64, NativeQueue: true}, holdfast.Lock{Kind: holdfast.KindMutex}, "0"},
		{holdfast.Info{NativeQueue: true}, holdfast.Lock{Kind: holdfast.KindMutex}, "-"},
		{holdfast.Info{MaxWaiters: 64}, holdfast.Lock{Kind: holdfast.KindSemaphore}, "0"},
		{holdfast.Info{MaxWaiters: 64}, full, "3"},
		{holdfast.Info{MaxWaiters: 3}, full, "3+"},
		{holdfast.Info{MaxWaiters: 64}, holdfast.Lock{}, "0"},
	} {
		if got := shown.CountWaiters(c.info, c.lock); got != c.want {
			t.Errorf("%+v, %+v: %s, want %s", c.info, c.lock, got, c.want)
		}
	}
	w := newWorkspace(t)
	_, _ = w.startHolder("a")
	if r := w.runProgram("show", "a"); !strings.Contains(r.out, "a: mutex, 1 holding, how many wait is not known\n") {
		t.Error(r.description)
	}
	if r := w.runProgram("show", "--json", "a"); !strings.Contains(r.out, `"waiters_complete":false`) {
		t.Error(r.description)
	}
	if r := w.runProgram("show", "--json", "b"); !strings.Contains(r.out, `"waiters_complete":true`) {
		t.Error(r.description)
	}
}

// TestListAtTerminal: a table fits the terminal, and has colors unless NO_COLOR forbids them. A file gets all of it.
func TestListAtTerminal(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	name := "deploy/" + strings.Repeat("long", 40)
	// It is not renewed soon, so it stays in the list after it was broken.
	_, _ = w.startHolder(name, "--ttl", "10m", "--note", strings.Repeat("much to say ", 12))
	w.runProgram("break", name).check(t, 0)
	if r := w.runProgram("list"); !strings.Contains(r.out, name) || strings.Contains(r.out, "…") ||
		strings.Contains(r.out, "\x1b") {
		t.Error(r.description)
	}
	const columns = 110
	show := func(args []string, environment ...string) string {
		r, terminal := w.prepareTerminal(args...)
		r.cmd.Env = append(r.cmd.Env, environment...)
		size := &unix.Winsize{Row: 24, Col: columns}
		if err := unix.IoctlSetWinsize(int(terminal.capturedPipe.write.Fd()), unix.TIOCSWINSZ, size); err != nil {
			t.Fatal(err)
		}
		terminal.begin(r)
		if slices.Contains(args, "--watch") {
			terminal.awaitTrue("two listings", func() bool { return strings.Count(terminal.textSoFar(), "NAME") >= 2 })
			r.signal(unix.SIGTERM)
		}
		r.wait()
		terminal.awaitText(map[string]string{"list": "in ", "doctor": "file-temporary"}[args[0]])
		return terminal.textSoFar()
	}
	colored := show([]string{"list"}, "TERM=xterm", "NO_COLOR=")
	if !strings.Contains(colored, "\x1b[31mbroken\x1b[0m") || !strings.Contains(colored, "deploy/long") {
		t.Errorf("no color in %q", colored)
	}
	for _, without := range []string{
		show([]string{"list"}, "TERM=xterm", "NO_COLOR=1"), show([]string{"list"}, "TERM=dumb", "NO_COLOR="),
	} {
		if strings.Contains(without, "\x1b") || !strings.Contains(without, "…") {
			t.Errorf("%q", without)
		}
		for line := range strings.Lines(without) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\r\n")); n > columns {
				t.Errorf("%d columns: %q", n, line)
			}
		}
	}
	diagnosis := show([]string{"doctor", "--quick"}, "TERM=xterm", "NO_COLOR=") // the store is in a temporary directory
	if !strings.Contains(diagnosis, "\x1b[31mcritical\x1b[0m: file-temporary") {
		t.Errorf("no color in %q", diagnosis)
	}
	if got := show([]string{"doctor", "--quick"}, "TERM=xterm", "NO_COLOR=1"); strings.Contains(got, "\x1b") {
		t.Errorf("color in %q", got)
	}
	if got := show([]string{"list", "--watch"}, "TERM=xterm"); strings.Count(got, clearScreen) < 2 {
		t.Errorf("%q", got)
	}
	r := w.startProgram("list", "--watch").awaitOutput("NAME")
	r.signal(unix.SIGTERM)
	if got := r.wait(); !regexp.MustCompile(`^\d{4}-\S+\nNAME `).MatchString(got.out) {
		t.Error(got.description)
	}
}

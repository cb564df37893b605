//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestNextLogNotice: the lines about a long wait come at growing intervals, and at last each hour.
func TestNextLogNotice(t *testing.T) {
	t.Parallel()
	var got []time.Duration
	for at := nextLogNotice(0); at <= 3*time.Hour; at = nextLogNotice(at) {
		got = append(got, at)
	}
	want := []time.Duration{time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute,
		32 * time.Minute, time.Hour, 2 * time.Hour, 3 * time.Hour}
	if !slices.Equal(got, want) {
		t.Errorf("lines after %v, want %v", got, want)
	}
	// A line that came late, since the machine slept, delays none of the following.
	if next := nextLogNotice(5 * time.Minute); next != 8*time.Minute {
		t.Errorf("after 5 minutes the next line comes after %v", next)
	}
}

// TestWaitNotices: what a log and a user are told of a wait of three hours, in which the holder changes once, and which
// the store cannot describe at the end.
func TestWaitNotices(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		toUser, toLog bool
		want          []string
	}{
		{"a log", false, true, []string{"1s waiting, held by x", "1m0s still waiting after 1m0s, held by x",
			"2m0s still waiting after 2m0s, held by y", "4m0s still waiting after 4m0s, held by y",
			"8m0s still waiting after 8m0s", "16m0s still waiting after 16m0s",
			"32m0s still waiting after 32m0s; the store does not say who holds it: no answer"}},
		{"a user", true, false, []string{"300ms waiting, held by x", "1m30.3s waiting, held by y"}},
		{"a user who reads a log", true, true, []string{"300ms waiting, held by x",
			"1m0s still waiting after 1m0s, held by x", "1m30s waiting, held by y",
			"2m0s still waiting after 2m0s, held by y", "4m0s still waiting after 4m0s, held by y",
			"8m0s still waiting after 8m0s", "16m0s still waiting after 16m0s",
			"32m0s still waiting after 32m0s; the store does not say who holds it: no answer"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour-time.Second)
			defer cancel()
			began := time.Now()
			var got []string
			w := &waitNotices{subject: "waiting", toUser: c.toUser, toLog: c.toLog}
			w.print = func(format string, args ...any) {
				got = append(got, time.Since(began).String()+" "+fmt.Sprintf(format, args...))
			}
			w.look = func(context.Context) (waitView, error) {
				switch waited := time.Since(began); {
				case waited < 90*time.Second:
					return waitView{held: ", held by x", state: "x"}, nil
				case waited < 5*time.Minute:
					return waitView{held: ", held by y", state: "y"}, nil
				case waited < 20*time.Minute:
					return waitView{}, nil
				}
				return waitView{}, errors.New("no answer")
			}
			w.run(ctx)
			if !slices.Equal(got, c.want) {
				t.Errorf("%s is told:\n%s\nwant:\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// TestQuiet: with --quiet a skip prints nothing, so that cron sends no mail; errors and losses are printed.
func TestQuiet(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	_, release := w.startHolder("a")
	once, end := w.startOnce("k")
	for _, c := range []struct {
		code int
		args []string
	}{
		{75, []string{"run", "-q", "-n", "a", "true"}},
		{0, []string{"run", "--quiet", "-n", "--skip-ok", "a", "true"}},
		{9, []string{"run", "-q", "-E", "9", "--wait", "10ms", "a", "true"}},
		{75, []string{"hold", "-q", "-n", "a"}},
		{75, []string{"acquire", "-q", "-n", "--ttl", "1m", "a"}},
		{75, []string{"once", "-q", "k", "true"}},
	} {
		if r := w.runProgram(c.args...); r.code != c.code || r.out+r.err != "" {
			t.Errorf("want exit %d and no word; %s", c.code, r.description)
		}
	}
	release()
	end("0")
	once.wait().check(t, 0)
	if r := w.runProgram("once", "-q", "k", "true"); r.code != 0 || r.err != "" {
		t.Errorf("a run that has succeeded before: %s", r.description)
	}
	w.runProgram("run", "-q", "a", "no-such-command").check(t, 127, "there is no command")
	w.runProgram("run", "-q", "a", "no-such-lock", "--", "true").check(t, 127, "no command no-such-lock", "--also")
	w.runProgram("run", "-q", "--store", "file:///dev/null", "a", "true").check(t, 69, "/dev/null")
	for _, args := range [][]string{{"run", "-q", "-v", "a", "true"}, {"once", "-qv", "k", "true"}, {"hold", "-qv", "a"},
		{"acquire", "-qv", "--ttl", "1m", "a"}} {
		w.runProgram(args...).check(t, 64, "--quiet and --verbose exclude each other")
	}
	r := w.startProgram("run", "-q", "b", "sh", "-c", "echo held; sleep 1000").awaitOutput("held")
	w.runProgram("break", "--force", "b").check(t, 0)
	if got := r.wait(); got.code != 76 || !strings.Contains(got.err, "b is lost") {
		t.Errorf("a loss: %s", got.description)
	}
}

// TestVerbose: --verbose says when the program waits, what it has acquired, and when it has released it.
func TestVerbose(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	_, release := w.startHolder("a")
	r := w.startProgram("run", "-v", "a", "true")
	w.awaitTrue("a line about the wait", func() bool {
		return strings.Contains(r.readStderr(), " holdfast: waiting for a, held by ")
	})
	release()
	r.wait().check(t, 0)
	want := regexp.MustCompile(`(?m)^\S+ holdfast: acquired a, with token \d+, after a wait of \S+s \(store \S+, from HOLDFAST_STORE\)$` +
		`\n^\S+ holdfast: released a after \S+s$`)
	if text := r.readStderr(); !want.MatchString(text) {
		t.Errorf("stderr: %s", text)
	}
	if got := w.runProgram("run", "-v", "--min-hold", "5m", "b", "true"); !strings.Contains(got.err, "--min-hold keeps it") {
		t.Error(got.description)
	}
	if got := w.runProgram("once", "-v", "k", "true"); !strings.Contains(got.err, "attempt 1 of k begins, with token ") ||
		!strings.Contains(got.err, "the run of k has succeeded") {
		t.Error(got.description)
	}
	if got := w.runProgram("acquire", "-v", "--ttl", "1m", "c"); !strings.Contains(got.err, "acquired c, with token ") {
		t.Error(got.description)
	}
}

// TestWaitIsTold: a program that waits and writes to a log says so once, with the time; with --quiet it does not.
func TestWaitIsTold(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	_, release := w.startHolder("a")
	once, end := w.startOnce("k")
	quiet := w.startProgram("run", "-q", "a", "true")
	quietOnce := w.startProgram("once", "-q", "--wait", "k", "true")
	for _, c := range []struct {
		text string
		args []string
	}{
		{" holdfast: waiting for a, held by ", []string{"run", "a", "true"}},
		{" holdfast: waiting for the end of a run: a run of k is in progress: attempt 1 by ",
			[]string{"once", "--wait", "k", "true"}},
	} {
		r := w.startProgram(c.args...)
		w.awaitTrue("a line about the wait", func() bool { return strings.Contains(r.readStderr(), c.text) })
		if text := r.readStderr(); !messageStart.MatchString(text) || strings.Count(text, "\n") != 1 {
			t.Errorf("want one line, with the time: %q", text)
		}
	}
	release()
	end("0")
	once.wait().check(t, 0)
	for _, r := range []*startedProgram{quiet, quietOnce} {
		r.wait().check(t, 0)
		if text := r.readStderr(); text != "" {
			t.Errorf("with --quiet: %q", text)
		}
	}
}

// TestMessagesAtTerminal: a message at a terminal has no time.
func TestMessagesAtTerminal(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	_, release := w.startHolder("a")
	defer release()
	r, terminal := w.prepareTerminal("run", "-n", "a", "true")
	terminal.begin(r)
	terminal.awaitText("holdfast: a is held by ")
	if text := terminal.textSoFar(); !strings.HasPrefix(text, "holdfast: ") {
		t.Errorf("%q", text)
	}
	r.wait()
}

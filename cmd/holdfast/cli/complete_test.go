package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCompletion: a shell completes names of locks, signals, orders, and the schemes and options of URLs.
func TestCompletion(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	_, _ = w.startHolder("deploy/a")
	_, _ = w.startHolder("deploy/b\nc")
	for _, c := range []struct {
		args    []string
		want    []string
		without string
	}{
		{[]string{"show", "dep"}, []string{"deploy/a\n", ":4"}, "deploy/b"},
		{[]string{"run", ""}, []string{"deploy/a\n", ":4"}, ""},
		{[]string{"run", "a", ""}, []string{":0"}, "deploy/a"},
		{[]string{"break", "x"}, []string{":4"}, "deploy"},
		{[]string{"break", "deploy/a", ""}, []string{":4"}, "deploy"},
		{[]string{"run", "--signal", ""}, []string{"TERM\n", "USR1\n"}, "STOP\n"},
		{[]string{"list", "--sort", ""}, []string{"expires\n"}, ""},
		{[]string{"list", "--store", ""}, []string{"redis://\n", "file:///\n", ":6"}, ""},
		{[]string{"list", "--store", "etcd://host?"}, []string{"etcd://host?prefix=\n"}, ""},
		{[]string{"list", "--store", "etcd://host?tls=true&"}, []string{"etcd://host?tls=true&tls-ca=\n"}, ""},
		{[]string{"show", "--store", "nosuch://x", ""}, []string{":4"}, "holdfast:"},
		{[]string{"show", "--store", "redis://127.0.0.1:1", ""}, []string{":4"}, "holdfast:"},
	} {
		r := w.runProgram(append([]string{"__complete"}, c.args...)...)
		for _, want := range c.want {
			if r.code != 0 || !strings.Contains(r.out, want) {
				t.Errorf("%q: want %q; %s", c.args, want, r.description)
			}
		}
		if c.without != "" && strings.Contains(r.out+r.err, c.without) {
			t.Errorf("%q: want no %q; %s", c.args, c.without, r.description)
		}
	}
}

// TestManPages: there is a page for each subcommand, with the text of its help, which roff does not take for requests.
func TestManPages(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.runProgram("man", w.filePath("man/1")).check(t, 0)
	pages, err := filepath.Glob(w.filePath("man/1/*.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"holdfast.1", "holdfast-run.1", "holdfast-ledger-show.1", "holdfast-break.1"} {
		if _, err := os.Stat(w.filePath("man/1/" + want)); err != nil {
			t.Error(err)
		}
	}
	requests := []string{".TH ", ".SH ", ".nf", ".fi", ".BR "}
	for _, page := range pages {
		text := w.readFile(page)
		for line := range strings.Lines(text) {
			known := false
			for _, r := range requests {
				known = known || strings.HasPrefix(line, r)
			}
			if (strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'")) && !known {
				t.Errorf("%s: roff would take this line for a request: %q", page, line)
			}
		}
		if !strings.Contains(text, ".SH NAME\nholdfast") || !strings.Contains(text, ".SH USAGE") {
			t.Errorf("%s:\n%s", page, text)
		}
		if mandoc, err := exec.LookPath("mandoc"); err == nil { // a machine without it checks no less of the rest
			if out, err := exec.Command(mandoc, "-T", "lint", "-W", "error", page).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		}
	}
	if text := w.readFile(w.filePath("man/1/holdfast-list.1")); !strings.Contains(text, `\-\-sort`) {
		t.Error(text)
	}
	file := w.filePath("file")
	w.writeFile("file", "")
	w.runProgram("man", file).check(t, 74, "cannot be")
	w.runProgram("man").check(t, 64, "DIR is missing")
}

package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/promtext"
	"github.com/holdfast-go/holdfast/metrics"
)

// readMetrics reads a metrics file as a whole.
func (w *workspace) readMetrics(file string) map[string]float64 {
	w.Helper()
	data, err := os.ReadFile(w.filePath(file))
	if err != nil {
		w.Fatal(err)
	}
	if _, err := parseMetricsFile(data); err != nil || len(data) == 0 {
		w.Fatalf("%v in %q", err, data)
	}
	all := map[string]float64{}
	for line := range strings.Lines(string(data)) {
		if space := strings.LastIndexByte(line, ' '); line[0] != '#' {
			all[line[:space]], _ = strconv.ParseFloat(strings.TrimSpace(line[space:]), 64)
		}
	}
	return all
}

func (w *workspace) checkMetrics(file string, want map[string]float64) map[string]float64 {
	w.Helper()
	got := w.readMetrics(file)
	for key, value := range want {
		if is, known := got[key]; is != value || !known {
			w.Errorf("%s is %v, want %v", key, is, value)
		}
	}
	return got
}

// checkNothingLeft: the folder has nothing besides these files.
func (w *workspace) checkNothingLeft(folder string, files ...string) {
	w.Helper()
	entries, err := os.ReadDir(w.filePath(folder))
	if err != nil {
		w.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(files, e.Name()) {
			w.Errorf("%s is left", e.Name())
		}
	}
}

// TestMetricsFile: counters go on from one program to the next, and gauges describe the last one. Everybody can read
// the file.
func TestMetricsFile(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	if err := os.Mkdir(w.filePath("metrics"), 0o700); err != nil {
		t.Fatal(err)
	}
	run := func(code int, args ...string) {
		t.Helper()
		r := w.newProgram(args...)
		r.cmd.Args = append([]string{"sh", "-c", `umask 077; exec "$0" "$@"`, program}, args...)
		r.cmd.Path = "/bin/sh"
		got := r.launch().wait()
		if got.check(t, code); strings.Contains(got.err, "metrics") {
			t.Error(got.description)
		}
	}
	const file = "metrics/jobs.prom"
	run(0, "run", "--metrics-file", file, "nightly", "true")
	first := w.readMetrics(file)
	run(3, "run", "--metrics-file", file, "nightly", "sh", "-c", "exit 3")
	run(0, "once", "--metrics-file", file, "key", "true")
	_, release := w.startHolder("nightly")
	run(0, "run", "--metrics-file", file, "-n", "--skip-ok", "nightly", "true")
	release()
	got := w.checkMetrics(file, map[string]float64{
		`holdfast_command_ends_total{command="run",name="nightly",outcome="succeeded"}`:                  1,
		`holdfast_command_ends_total{command="run",name="nightly",outcome="failed"}`:                     1,
		`holdfast_command_ends_total{command="run",name="nightly",outcome="not-acquired"}`:               1,
		`holdfast_command_ends_total{command="run",name="nightly",outcome="lost"}`:                       0,
		`holdfast_command_ends_total{command="once",name="key",outcome="succeeded"}`:                     1,
		`holdfast_command_ends_total{command="once",name="key",outcome="missed"}`:                        0,
		`holdfast_command_exit_code{command="run",name="nightly"}`:                                       0,
		`holdfast_acquire_attempts_total{lock="nightly",kind="mutex"}`:                                   3,
		`holdfast_acquire_failures_total{lock="nightly",kind="mutex",reason="held"}`:                     1,
		`holdfast_lost_total{lock="nightly",kind="mutex",cause="expired"}`:                               0,
		`holdfast_hold_seconds_count{lock="nightly",kind="mutex"}`:                                       2,
		`holdfast_hold_seconds_bucket{lock="nightly",kind="mutex",le="+Inf"}`:                            2,
		`holdfast_acquire_wait_seconds_bucket{lock="nightly",kind="mutex",outcome="acquired",le="+Inf"}`: 2,
		`holdfast_runs_total{ledger="once",outcome="succeeded"}`:                                         1,
		`holdfast_store_requests_total{operation="release",outcome="ok"}`:                                3,
	})
	at := func(what string) float64 {
		return got[`holdfast_command_`+what+`_timestamp_seconds{command="run",name="nightly"}`]
	}
	success := `holdfast_command_success_timestamp_seconds{command="run",name="nightly"}`
	if at("success") != first[success] || first[success] == 0 || at("success") > at("acquired") ||
		at("acquired") > at("released") || at("released") > at("start") || at("start") > at("end") {
		t.Errorf("success %v acquired %v released %v start %v end %v", at("success"), at("acquired"), at("released"),
			at("start"), at("end"))
	}
	for key := range got {
		if strings.HasPrefix(key, "holdfast_held") || strings.HasPrefix(key, "holdfast_waiting") {
			t.Errorf("%s would remain if the program is killed", key)
		}
	}
	info, err := os.Stat(w.filePath(file))
	if err != nil || info.Mode() != 0o644 {
		t.Error(info.Mode(), err)
	}
	w.checkNothingLeft("metrics", "jobs.prom")
}

// TestMetricsFileWhileHeld: the file shows that a lock is held while it is, and still does after the program was
// killed.
func TestMetricsFileWhileHeld(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	key := func(what string) string {
		return `holdfast_command_` + what + `_timestamp_seconds{command="hold",name="a"}`
	}
	r := w.startProgram("hold", "--metrics-file", "a.prom", "a")
	w.awaitTrue("the lock is acquired in the file", func() bool {
		return w.readFile(w.filePath("a.prom")) != "" && w.readMetrics("a.prom")[key("acquired")] > 0
	})
	w.checkMetrics("a.prom", map[string]float64{key("released"): 0, key("end"): 0, key("success"): 0})
	r.signal(unix.SIGTERM)
	r.wait().check(t, 0)
	got := w.checkMetrics("a.prom", map[string]float64{
		`holdfast_command_ends_total{command="hold",name="a",outcome="released"}`: 1})
	if got[key("released")] < got[key("acquired")] || got[key("end")] < got[key("released")] {
		t.Error(got)
	}
	acquired := got[key("acquired")]
	r = w.startProgram("hold", "--metrics-file", "a.prom", "a")
	w.awaitTrue("the lock is acquired again in the file", func() bool {
		return w.readMetrics("a.prom")[key("acquired")] > acquired
	})
	r.signal(unix.SIGKILL)
	r.wait()
	if got = w.readMetrics("a.prom"); got[key("acquired")] <= got[key("released")] || got[key("start")] <= got[key("end")] {
		t.Error(got)
	}
}

// TestMetricsFileShared: many programs share a file. It has the sum of all, and a reader finds it whole at any time. A
// program may give up, and say so, if others have kept it from writing for long, as on a very busy machine: then it all
// begins again, with another file.
func TestMetricsFileShared(t *testing.T) {
	t.Parallel()
	const rounds = 5
	for range rounds {
		if shareMetricsFile(t) {
			return
		}
	}
	t.Errorf("in each of %d rounds, a program has not written its metrics", rounds)
}

// shareMetricsFile is one round: it reports whether no program gave up.
func shareMetricsFile(t *testing.T) (all bool) {
	t.Helper()
	w := newWorkspace(t)
	const programs = 8
	var started []*startedProgram
	for i := range programs {
		started = append(started, w.startProgram("run", "--metrics-file", "all.prom", fmt.Sprint("job", i%2), "true"))
	}
	all = true
	for _, r := range started {
		for ended := false; !ended; {
			select {
			case <-r.ended:
				ended = true
			default:
			}
			if data := w.readFile(w.filePath("all.prom")); data != "" {
				if _, err := parseMetricsFile([]byte(data)); err != nil {
					t.Fatalf("%v in %q", err, data)
				}
			}
		}
		got := r.wait()
		_, said, _ := strings.Cut(got.err, " ") // after the time
		switch strings.TrimPrefix(said, "holdfast: the metrics were not written to all.prom: ") {
		case "other processes have locked its folder all the time\n",
			"the disk, or another process that writes it, does not answer\n":
			all = false
			got.err = ""
		}
		if got.code != 0 || got.err != "" {
			t.Error(got.description)
		}
	}
	if !all {
		return false
	}
	for _, name := range []string{"job0", "job1"} {
		w.checkMetrics("all.prom", map[string]float64{
			`holdfast_command_ends_total{command="run",name="` + name + `",outcome="succeeded"}`: programs / 2,
			`holdfast_hold_seconds_count{lock="` + name + `",kind="mutex"}`:                      programs / 2,
			`holdfast_store_requests_total{operation="release",outcome="ok"}`:                    programs,
		})
	}
	w.checkNothingLeft("", append([]string{"all.prom", "store"}, w.outputFiles()...)...)
	return true
}

// outputFiles are the files with the output of the programs.
func (w *workspace) outputFiles() (names []string) {
	for _, pattern := range []string{"out-*", "err-*"} {
		found, _ := filepath.Glob(w.filePath(pattern))
		for _, f := range found {
			names = append(names, filepath.Base(f))
		}
	}
	return names
}

// TestMetricsFileNotWritten: a file that cannot be written, or that belongs to somebody else, changes nothing but one
// line of stderr. What belongs to somebody else is left as it is.
func TestMetricsFileNotWritten(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	foreign := "# HELP other Something else.\n# TYPE other gauge\nother 1\n"
	w.writeFile("foreign.prom", foreign)
	w.writeFile("changed.prom", metricsFileHeader+"# TYPE a counter\na not-a-number\n")
	if err := errors.Join(os.Mkdir(w.filePath("folder.prom"), 0o700), unix.Mkfifo(w.filePath("fifo.prom"), 0o600),
		os.Symlink("foreign.prom", w.filePath("link.prom"))); err != nil {
		t.Fatal(err)
	}
	for file, words := range map[string]string{
		"foreign.prom": "has not written it", "changed.prom": "somebody has changed it", "folder.prom": "was left as it is",
		"fifo.prom": "was left as it is", "link.prom": "was left as it is", "none/a.prom": "no such file",
		"foreign.prom/a.prom": "not a directory",
	} {
		got := w.runProgram("run", "--metrics-file", file, file, "sh", "-c", "echo held; exit 7")
		got.check(t, 7, words)
		if strings.Count(got.err, "\n") != 1 || got.out != "held\n" {
			t.Error(got.description)
		}
	}
	if now := w.readFile(w.filePath("foreign.prom")); now != foreign {
		t.Errorf("the file of another program is now %q", now)
	}
	w.runProgram("run", "--metrics-file", "a.txt", "a", "true").check(t, exitUsage, "must end in .prom")
	w.runProgram("run", "--metrics-file", "", "a", "true").check(t, exitUsage, "give a value")
}

// TestMetricsFileAfterPowerCut: a file that has lost its content begins again.
func TestMetricsFileAfterPowerCut(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for name, content := range map[string]string{"empty.prom": "", "zeros.prom": strings.Repeat("\x00", 5000)} {
		w.writeFile(name, content)
		if got := w.runProgram("run", "--metrics-file", name, name, "true"); got.code != 0 || got.err != "" {
			t.Error(got.description)
		}
		w.checkMetrics(name, map[string]float64{
			`holdfast_command_ends_total{command="run",name="` + name + `",outcome="succeeded"}`: 1})
	}
}

// TestMetricsFileLocked: a program that stops while it writes the file delays others, but not for long, and nothing is
// written meanwhile.
func TestMetricsFileLocked(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	if err := os.Mkdir(w.filePath("metrics"), 0o700); err != nil {
		t.Fatal(err)
	}
	folder, err := os.Open(w.filePath("metrics"))
	if err == nil {
		err = unix.Flock(int(folder.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	got := w.runProgram("run", "--metrics-file", "metrics/a.prom", "a", "sh", "-c", "exit 7")
	if got.check(t, 7, "the metrics were not written"); strings.Count(got.err, "\n") != 1 {
		t.Error(got.description)
	}
	w.checkNothingLeft("metrics")
}

// TestMetricsTextNames: any name can be in a file, and is read as it was written. There are only so many names.
func TestMetricsTextNames(t *testing.T) {
	t.Parallel()
	text := promtext.New()
	for i := range 3 * maxMetricsFileNames {
		name := fmt.Sprintf("%d \"} 7\n\\\x00\xff", i)
		label := boundName(text, name)
		if bounded := label == "other"; bounded != (i >= maxMetricsFileNames) {
			t.Errorf("name %d has the label %q", i, label)
		}
		m := commandMetrics.started
		text.Set(m, promtext.SeriesKey(m.Name, "command", "run", "name", label), float64(i))
		read, ok := promtext.Parse(string(text.Bytes()))
		if !ok || string(read.Bytes()) != string(text.Bytes()) {
			t.Fatalf("%s cannot be read again", text.Bytes())
		}
		text = read
		if again := boundName(text, name); again != label {
			t.Errorf("%q becomes %q", label, again)
		}
	}
}

// TestCommandMetricDocs: docs/metrics.md has one line for each metric of this command, and no other ones.
func TestCommandMetricDocs(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	c := &commandMetrics
	all := []*metrics.Metric{c.started, c.acquired, c.released, c.ended, c.succeeded, c.exitCode, c.waited, c.outcomes}
	for _, m := range all {
		line := fmt.Sprintf("| `%s` | %s | `%s` | %s |\n", m.Name, m.Type, strings.Join(m.Labels, "`, `"), m.Help)
		if !strings.Contains(string(data), line) {
			t.Errorf("docs/metrics.md lacks the line\n%s", line)
		}
	}
	if n := strings.Count(string(data), "\n| `holdfast_command_"); n != len(all) {
		t.Errorf("docs/metrics.md has %d metrics of the command, there are %d", n, len(all))
	}
}

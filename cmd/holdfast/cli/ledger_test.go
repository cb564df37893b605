package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

// openLedger opens the ledger of the workspace's store in this process.
func (w *workspace) openLedger() *holdfast.Ledger {
	w.Helper()
	client, err := holdfast.Open(w.Context(), w.store, &holdfast.Options{Meta: "a test"})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = client.Close() })
	return client.Ledger(defaultLedger, nil)
}

// begin begins a run of a key.
func (w *workspace) begin(l *holdfast.Ledger, key string) *holdfast.Run {
	w.Helper()
	run, err := l.Begin(w.Context(), key, &holdfast.RunOptions{Fingerprint: "sum of " + key})
	if err != nil {
		w.Fatal(err)
	}
	return run
}

// succeed runs a key with a result.
func (w *workspace) succeed(l *holdfast.Ledger, key string, result []byte) {
	w.Helper()
	if err := w.begin(l, key).Succeed(w.Context(), result); err != nil {
		w.Fatal(err)
	}
}

// fail runs a key without success.
func (w *workspace) fail(l *holdfast.Ledger, key, reason string) {
	w.Helper()
	if err := w.begin(l, key).Fail(w.Context(), errors.New(reason)); err != nil {
		w.Fatal(err)
	}
}

// startWorker starts a process that runs a key until finish is called.
func (w *workspace) startWorker(key string) (worker *startedProgram, finish func()) {
	w.Helper()
	worker = w.newProgram()
	worker.cmd = exec.Command(self, key)
	worker.cmd.Dir, worker.cmd.Env = w.dir, w.testEnvironment("TEST_HELPER=worker")
	in, err := worker.cmd.StdinPipe()
	if err != nil {
		w.Fatal(err)
	}
	worker.launch().awaitOutput("begun <nil>")
	return worker, func() { _, _ = in.Write([]byte("\n")) }
}

// abandon leaves a run of a key whose worker was killed.
func (w *workspace) abandon(l *holdfast.Ledger, key string) {
	w.Helper()
	worker, _ := w.startWorker(key)
	worker.signal(unix.SIGKILL)
	worker.wait()
	w.awaitState(l, key, holdfast.RunAbandoned)
}

func (w *workspace) awaitState(l *holdfast.Ledger, key string, state holdfast.RunState) {
	w.Helper()
	w.awaitTrue(fmt.Sprintf("%s is %s", key, state), func() bool {
		runs, err := l.History(w.Context(), key)
		return err == nil && len(runs) > 0 && runs[len(runs)-1].State == state
	})
}

// runKeys are the keys in lines of JSON.
func runKeys(t *testing.T, lines string) (keys []string) {
	t.Helper()
	for line := range strings.Lines(lines) {
		var run struct{ Key string }
		if err := json.Unmarshal([]byte(line), &run); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		keys = append(keys, run.Key)
	}
	return keys
}

// TestLedger: ledger lists the keys of a ledger with the last run of each, and selects by prefix, state and age.
func TestLedger(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for _, args := range [][]string{{"ledger"}, {"ledger", "--json"}, {"ledger", "job/", "--failed", "--since", "1h"}} {
		if r := w.runProgram(args...); r.code != 0 || r.out+r.err != "" {
			t.Errorf("want nothing of an empty ledger; %s", r.description)
		}
	}
	l := w.openLedger()
	const odd = "odd \n\x1b[31mkey ü"
	w.fail(l, "job/failed", "no route")
	w.fail(l, "job/failed", "no route\nto "+strings.Repeat("a far away host ", 20))
	w.abandon(l, "job/abandoned")
	w.succeed(l, "job/done", bytes.Repeat([]byte("x"), 1000))
	running := w.begin(l, "job/running")
	defer func() { _ = running.Fail(t.Context(), nil) }()
	for _, key := range []string{odd, "-dash", "show"} {
		w.succeed(l, key, nil)
	}
	all := w.runProgram("ledger")
	all.check(t, 0)
	const at = `\d{4}-\d\d-\d\dT\S+ \((now|\S+ ago)\)`
	const took = `[\d.]+(ms|s|m\d+s)`
	lines := strings.Split(strings.TrimSuffix(all.out, "\n"), "\n")
	want := []string{
		`KEY +ATTEMPT +STATE +STARTED +TOOK +OWNER +OUTCOME`,
		`-dash +1 +succeeded +` + at + ` +` + took + ` +\S+.* +no result`,
		`job/abandoned +1 +abandoned +` + at + ` +` + took + ` .* its worker has ended without a report`,
		`job/done +1 +succeeded .* 1000 bytes`,
		`job/failed +2 +failed .* "no route\\nto a far away host .*\.\.\."`,
		`job/running +1 +started .* -`,
		`"odd \\n\\x1b\[31mkey ü" +1 +succeeded .*`,
		`show +1 .*`,
	}
	if len(lines) != len(want) {
		t.Fatalf("want %d lines; got\n%s", len(want), all.out)
	}
	for i, line := range lines {
		if !regexp.MustCompile("^" + want[i] + "$").MatchString(line) {
			t.Errorf("want %s, got %s", want[i], line)
		}
	}
	later := time.Now().Add(time.Hour).Format(time.RFC3339)
	earlier := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	for _, c := range []struct{ args, keys []string }{
		{nil, []string{"-dash", "job/abandoned", "job/done", "job/failed", "job/running", odd, "show"}},
		{[]string{"job/"}, []string{"job/abandoned", "job/done", "job/failed", "job/running"}},
		{[]string{"job/", "--failed"}, []string{"job/failed"}},
		{[]string{"job/", "--abandoned"}, []string{"job/abandoned"}},
		{[]string{"job/", "--running"}, []string{"job/running"}},
		{[]string{"job/", "--succeeded"}, []string{"job/done"}},
		{[]string{"--failed", "--abandoned", "--running"}, []string{"job/abandoned", "job/failed", "job/running"}},
		{[]string{"--failed", "--since", "1h"}, []string{"job/failed"}},
		{[]string{"--failed", "--since", earlier}, []string{"job/failed"}},
		{[]string{"--since", later}, nil},
		{[]string{"--", "show"}, []string{"show"}},
		{[]string{"--", "-d"}, []string{"-dash"}},
		{[]string{"nothing/"}, nil},
		{[]string{"--ledger", "another"}, nil},
	} {
		r := w.runProgram(append([]string{"ledger", "--json"}, c.args...)...)
		r.check(t, 0)
		if got := runKeys(t, r.out); !slices.Equal(got, c.keys) {
			t.Errorf("%q shows %q, want %q", c.args, got, c.keys)
		}
	}
	if r := w.runProgram("ledger", "--since", "0s", "job/running", "--json"); r.code != 0 || r.out != "" {
		t.Errorf("the run in progress started before; %s", r.description)
	}
}

// TestAllLedgers: --all shows the keys of all ledgers, with their ledgers.
func TestAllLedgers(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.runProgram("ledger", "--all").check(t, 0)
	w.runProgram("once", "b/1", "true").check(t, 0)
	w.runProgram("once", "--ledger", "payments", "a/1", "true").check(t, 0)
	w.runProgram("once", "--ledger", "payments", "b/2", "false").check(t, 1)
	for args, want := range map[string]string{
		"":           `LEDGER +KEY .*\nonce +b/1 +1 .*\npayments +a/1 +1 .*\npayments +b/2 +1 .*`,
		"b/":         `LEDGER +KEY .*\nonce +b/1 +1 .*\npayments +b/2 +1 .*`,
		"--failed":   `LEDGER +KEY .*\npayments +b/2 +1 .*`,
		"--json b/2": `\{.*"ledger":"payments".*\}`,
	} {
		r := w.runProgram(append([]string{"ledger", "--all"}, strings.Fields(args)...)...)
		if r.check(t, 0); !regexp.MustCompile("^" + want + "\n$").MatchString(r.out) {
			t.Errorf("%s: want %s, got %s", args, want, r.out)
		}
	}
	w.runProgram("ledger", "--all", "--ledger", "payments").check(t, 64, "exclude each other")
}

// TestRunsUsage: wrong command lines are refused before anything is asked of the store.
func TestRunsUsage(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for _, c := range []struct {
		args  []string
		words []string
	}{
		{[]string{"ledger", "a", "b"}, []string{"too many arguments: 2 instead of 1"}},
		{[]string{"ledger", "shwo", "a"}, []string{`unknown subcommand "shwo"`, "did you mean show?"}},
		{[]string{"ledger", "file:///tmp/x"}, []string{"a URL is not a PREFIX"}},
		{[]string{"ledger", "--since", "yesterday"}, []string{"--since", "24h"}},
		{[]string{"ledger", "--since", "-1h"}, []string{"--since", "24h"}},
		{[]string{"ledger", "--ledger", ""}, []string{"--ledger", "give a value"}},
		{[]string{"ledger", "--ledger", "a/b"}, []string{"no slash"}},
		{[]string{"ledger", "show"}, []string{"the KEY is missing"}},
		{[]string{"ledger", "retry"}, []string{"the KEY is missing"}},
		{[]string{"ledger", "forget", "a", "b"}, []string{"too many arguments"}},
		{[]string{"ledger", "show", ""}, []string{"a key must not be empty"}},
		{[]string{"ledger", "retry", ""}, []string{"a key must not be empty"}},
		{[]string{"ledger", "forget", strings.Repeat("k", 5000)}, []string{"use a hash of it"}},
		{[]string{"ledger", "forget", "a\x1f0", "--force"}, []string{"must not contain the control character U+001F"}},
		{[]string{"ledger", "show", "a\xff"}, []string{"must be UTF-8"}},
		{[]string{"ledger", "show", "a", "--json", "--result"}, []string{"exclude each other"}},
		{[]string{"ledger", "show", "a", "--last", "0"}, []string{"--last", "at least 1"}},
		{[]string{"ledger", "show", "a", "--last", "many"}, []string{"--last", "not a number"}},
	} {
		w.runProgram(c.args...).check(t, 64, c.words...)
	}
	for _, c := range [][]string{{"ledger", "--help"}, {"ledger", "show", "--help"}, {"ledger", "retry", "--help"},
		{"ledger", "forget", "--help"}} {
		r := w.runProgram(c...)
		for line := range strings.Lines(r.out) {
			if len(line) > 121 {
				t.Errorf("%q prints a long line: %q", c, line)
			}
		}
		if r.code != 0 || !strings.Contains(r.out, "--ledger NAME") {
			t.Error(r.description)
		}
	}
	if r := w.runProgram("__complete", "ledger", ""); r.code != 0 || !strings.Contains(r.out, "forget") {
		t.Error(r.description)
	}
}

// TestLedgerShow: ledger show prints the history of one key.
func TestLedgerShow(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	if r := w.runProgram("ledger", "show", "a"); r.code != 0 || r.out != "a was never run, or its history was removed\n" {
		t.Error(r.description)
	}
	if r := w.runProgram("ledger", "show", "a", "--json"); r.code != 0 || !strings.Contains(r.out, `"runs":[]`) {
		t.Error(r.description)
	}
	w.runProgram("ledger", "show", "a", "--result").check(t, 1, "a was never run")
	l := w.openLedger()
	w.fail(l, "a", "no route")
	w.runProgram("ledger", "show", "a", "--result").check(t, 1,
		"no run of a has succeeded; the state of attempt 1 is failed")
	w.succeed(l, "a", []byte("42 rows"))
	r := w.runProgram("ledger", "show", "a")
	r.check(t, 0)
	for _, line := range []string{
		`^a: succeeded in attempt 2, fingerprint sum of a\n\n`,
		`(?m)^ATTEMPT +STATE +TOKEN +OWNER +NOTE +STARTED +ENDED +TOOK +OUTCOME$`,
		`(?m)^1 +failed +\d+ +\S+.* a test +\d{4}-\S+ \(.*\) +\d{4}-\S+ \(.*\) +[\d.]+m?s +no route$`,
		`(?m)^2 +succeeded .*"42 rows"$`,
	} {
		if !regexp.MustCompile(line).MatchString(r.out) {
			t.Errorf("no line like %s in\n%s", line, r.out)
		}
	}
	for _, c := range []struct{ key, result, shown string }{
		{"empty", "", "no result"},
		{"long", strings.Repeat("ü", 61), "122 bytes"},
		{"lines", "a\nb\n", "4 bytes"},
		{"binary", "\xff\x00", "2 bytes"},
		{"one", "\x01", "1 byte"},
		{"-dash", "7 bytes", `"7 bytes"`},
		{"key \x1b[31m", "ü", `"ü"`},
	} {
		w.succeed(l, c.key, []byte(c.result))
		if r := w.runProgram("ledger", "show", "--", c.key); !strings.HasSuffix(r.out, " "+c.shown+"\n") {
			t.Errorf("want %q; %s", c.shown, r.description)
		}
		if r := w.runProgram("ledger", "show", "--result", "--", c.key); r.code != 0 || r.out != c.result || r.err != "" {
			t.Errorf("want the result %q; %s", c.result, r.description)
		}
	}
}

// TestRunsJSON: programs read these keys, so they stay.
func TestRunsJSON(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	l := w.openLedger()
	w.fail(l, "a", "no route")
	w.succeed(l, "a", []byte("42 \n"))
	w.succeed(l, "b", []byte{0xff, 0})
	running := w.begin(l, "c")
	defer func() { _ = running.Fail(t.Context(), nil) }()
	// What differs from test to test is replaced.
	shape := func(text string) string {
		for _, c := range []struct{ find, replace string }{
			{`"(ended|started|time)":"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)"`, `"$1":TIME`},
			{`"(token|took_ms)":\d+`, `"$1":N`},
			{`"(host|id|owner|store|user|version)":"[^"]+"`, `"$1":TEXT`},
		} {
			text = regexp.MustCompile(c.find).ReplaceAllString(text, c.replace)
		}
		return text
	}
	const failed = `{"attempt":1,"state":"failed","id":TEXT,"token":N,"owner":TEXT,"note":"a test","started":TIME,` +
		`"ended":TIME,"took_ms":N,"error":"no route","fingerprint":"sum of a"}`
	const succeeded = `"state":"succeeded","id":TEXT,"token":N,"owner":TEXT,"note":"a test","started":TIME,"ended":TIME,` +
		`"took_ms":N,"fingerprint":"sum of `
	const history = `"store":TEXT,"store_source":"environment","time":TIME,"type":"history","user":TEXT,"version":TEXT}`
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"ledger", "--json"},
			`{"attempt":2,"ended":TIME,"fingerprint":"sum of a","host":TEXT,"id":TEXT,"key":"a","ledger":"once",` +
				`"note":"a test","owner":TEXT,"result_bytes":4,"started":TIME,"state":"succeeded","store":TEXT,` +
				`"store_source":"environment","time":TIME,"token":N,"took_ms":N,"type":"run","user":TEXT,"version":TEXT}` + "\n" +
				`{"attempt":1,"ended":TIME,"fingerprint":"sum of b","host":TEXT,"id":TEXT,"key":"b","ledger":"once",` +
				`"note":"a test","owner":TEXT,"result_bytes":2,"started":TIME,"state":"succeeded","store":TEXT,` +
				`"store_source":"environment","time":TIME,"token":N,"took_ms":N,"type":"run","user":TEXT,"version":TEXT}` + "\n" +
				`{"attempt":1,"fingerprint":"sum of c","host":TEXT,"id":TEXT,"key":"c","ledger":"once","note":"a test",` +
				`"owner":TEXT,"started":TIME,"state":"started","store":TEXT,"store_source":"environment","time":TIME,"token":N,` +
				`"type":"run","user":TEXT,"version":TEXT}` + "\n"},
		{[]string{"ledger", "show", "a", "--json"}, `{"earlier":false,"host":TEXT,"key":"a","ledger":"once","runs":[` + failed +
			`,{"attempt":2,` + succeeded + `a","result_bytes":4,"result":"42 \n"}],` + history + "\n"},
		{[]string{"ledger", "show", "b", "--json"}, `{"earlier":false,"host":TEXT,"key":"b","ledger":"once","runs":[{"attempt":1,` +
			succeeded + `b","result_bytes":2,"result_base64":"/wA="}],` + history + "\n"},
	} {
		if r := w.runProgram(c.args...); r.code != 0 || shape(r.out) != c.want {
			t.Errorf("%q prints\n%s, want\n%s", c.args, shape(r.out), c.want)
		}
	}
}

// TestRunsShowLongHistory: the last runs are shown, and as many as are wanted, also those that the store keeps apart.
func TestRunsShowLongHistory(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	l := w.openLedger()
	const attempts = 120
	for n := range attempts {
		w.fail(l, "a", fmt.Sprintf("failure %d", n+1))
	}
	for _, c := range []struct {
		args  []string
		shown int
		title string
	}{
		{nil, 100, "; runs before attempt 21 are shown with --last 120"},
		{[]string{"--last", "120"}, 120, "fingerprint sum of a"},
		{[]string{"--last", "99999999999"}, 120, "fingerprint sum of a"},
		{[]string{"--last", "1"}, 1, "; runs before attempt 120 are shown with --last 120"},
	} {
		r := w.runProgram(append([]string{"ledger", "show", "a"}, c.args...)...)
		r.check(t, 0)
		if title, _, _ := strings.Cut(r.out, "\n"); !strings.HasSuffix(title, c.title) {
			t.Errorf("want %q; got %q", c.title, title)
		}
		rows := regexp.MustCompile(`(?m)^(\d+) +failed .* failure (\d+)$`).FindAllStringSubmatch(r.out, -1)
		if len(rows) != c.shown {
			t.Fatalf("want %d runs; %s", c.shown, r.description)
		}
		for i, row := range rows {
			if n := fmt.Sprint(attempts - c.shown + i + 1); row[1] != n || row[2] != n {
				t.Errorf("row %d is %q", i+1, row[0])
			}
		}
	}
	for args, earlier := range map[string]bool{"119": true, "120": false} {
		r := w.runProgram("ledger", "show", "a", "--json", "--last", args)
		if r.code != 0 || strings.Contains(r.out, `"earlier":true`) != earlier {
			t.Errorf("--last %s: %s", args, r.description)
		}
	}
	if r := w.runProgram("ledger"); strings.Count(r.out, "\n") != 2 || !strings.Contains(r.out, "failure 120") {
		t.Error(r.description)
	}
}

// TestRunsLateReport: a worker that was stopped for too long reports success, which is shown and does not count.
func TestRunsLateReport(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	l := w.openLedger()
	worker, finish := w.startWorker("a")
	worker.signal(unix.SIGSTOP)
	w.awaitState(l, "a", holdfast.RunAbandoned)
	w.runProgram("ledger", "retry", "a").check(t, 0) // writes that the run is abandoned
	finish()
	worker.signal(unix.SIGCONT)
	worker.awaitOutput("reported holdfast: succeed").wait()
	for _, args := range [][]string{{"ledger"}, {"ledger", "show", "a"}} {
		r := w.runProgram(args...)
		if r.code != 0 || !strings.Contains(r.out, "later its worker reported: succeeded, which does not count\n") {
			t.Error(r.description)
		}
	}
	if r := w.runProgram("ledger", "--json"); !strings.Contains(r.out, `"late_report":"succeeded"`) {
		t.Error(r.description)
	}
}

// TestLedgerRetry: runs retry allows one more run, but refuses while one is in progress, and after a success unless
// it is forced.
func TestLedgerRetry(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.runProgram("ledger", "retry", "a").check(t, 1, "a was never run")
	l := w.openLedger()
	run := w.begin(l, "a")
	w.runProgram("ledger", "retry", "a").check(t, 75, "a run of a is in progress: attempt 1 by ", "stop its worker")
	if err := run.Fail(t.Context(), errors.New("no route")); err != nil {
		t.Fatal(err)
	}
	client, err := holdfast.Open(t.Context(), w.store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	strict := client.Ledger(defaultLedger, &holdfast.LedgerOptions{MaxAttempts: 1, Pause: time.Hour})
	if _, err := strict.Begin(t.Context(), "a", nil); !errors.Is(err, holdfast.ErrAttemptsUsed) {
		t.Fatalf("got %v", err)
	}
	r := w.runProgram("ledger", "retry", "a")
	if r.code != 0 || r.out != "one more run of a can begin at once; attempt 1 ended as failed: no route\n" {
		t.Error(r.description)
	}
	w.succeed(strict, "a", nil)
	w.runProgram("ledger", "retry", "a").check(t, 1, "a has succeeded in attempt 2", "ledger forget --force")
	w.abandon(l, "b")
	if r := w.runProgram("ledger", "retry", "b"); r.code != 0 || !strings.Contains(r.out, "attempt 1 ended as abandoned") {
		t.Error(r.description)
	}
}

// TestLedgerForget: ledger forget removes the history of a key, but refuses a run in progress, and a success unless
// it is forced.
func TestLedgerForget(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.runProgram("ledger", "forget", "a").check(t, 1, "a was never run")
	l := w.openLedger()
	run := w.begin(l, "a")
	for _, args := range [][]string{{"ledger", "forget", "a"}, {"ledger", "forget", "a", "--force"}} {
		w.runProgram(args...).check(t, 75, "a run of a is in progress: attempt 1 by ", "stop its worker")
	}
	if err := run.Fail(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	const removed = "the history of a is removed; its next run is attempt 1\n"
	if r := w.runProgram("ledger", "forget", "a"); r.code != 0 || r.out != removed {
		t.Error(r.description)
	}
	w.runProgram("ledger", "forget", "a").check(t, 1, "a was never run, or its history was removed")
	w.succeed(l, "a", nil)
	w.runProgram("ledger", "forget", "a").check(t, 64, "a has succeeded in attempt 1", "give --force")
	if _, err := l.Begin(t.Context(), "a", nil); !errors.Is(err, holdfast.ErrSucceeded) {
		t.Errorf("without --force the history is gone: %v", err)
	}
	if r := w.runProgram("ledger", "forget", "--force", "a"); r.code != 0 || r.out != removed {
		t.Error(r.description)
	}
	if again := w.begin(l, "a"); again.Attempt() != 1 {
		t.Errorf("the next run is attempt %d", again.Attempt())
	}
}

// corruptRuns overwrites the records of the keys whose names have a word in them.
func (w *workspace) corruptRuns(word string) {
	w.Helper()
	count := 0
	err := filepath.WalkDir(w.filePath("store/runs/locks"), func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(file, word) {
			return err
		}
		count++
		return os.WriteFile(file, []byte("holdfast/99 nonsense of another version"), 0o600)
	})
	if err != nil || count == 0 {
		w.Fatalf("%d files found: %v", count, err)
	}
}

// TestRunsWithUnreadableKey: a key whose history cannot be read is reported, and hides no other.
func TestRunsWithUnreadableKey(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	l := w.openLedger()
	for _, key := range []string{"a", "broken1", "broken2", "c"} {
		w.fail(l, key, "no route")
	}
	w.corruptRuns("broken")
	r := w.runProgram("ledger", "--json")
	if keys := runKeys(t, r.out); r.code != 69 || !slices.Equal(keys, []string{"a", "c"}) {
		t.Errorf("want a and c listed; %s", r.description)
	}
	for _, key := range []string{"broken1", "broken2"} {
		if strings.Count(r.err, "\n") != 2 || !strings.Contains(r.err, `"once/`+key+`"`) {
			t.Errorf("want a line for %s; %s", key, r.description)
		}
	}
	for _, args := range [][]string{{"show", "broken1"}, {"retry", "broken1"}, {"forget", "broken1"},
		{"forget", "broken1", "--force"}} {
		w.runProgram(append([]string{"ledger"}, args...)...).check(t, 69, "cannot be read")
	}
}

// lockStore is a store without a ledger.
type lockStore struct{ driver.Store }

func (lockStore) OpenLedger(context.Context) (driver.Ledger, error) {
	return nil, driver.ErrUnsupported
}

// TestRunsOnStoreWithoutLedger: on a store without a ledger, runs says so.
func TestRunsOnStoreWithoutLedger(t *testing.T) {
	t.Parallel()
	client, err := holdfast.New(lockStore{memory.New(nil).Open()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	l := client.Ledger(defaultLedger, nil)
	if rows := ledgerRows(l.Info(t.Context())); len(rows) != 1 || rows[0][1] != "no" {
		t.Errorf("stores says of the ledger: %q", rows)
	}
	if f := ledgerAsJSON(l.Info(t.Context())); f["supported"] != false {
		t.Errorf("stores --json says of the ledger: %v", f)
	}
	_, retryErr := changeRuns(t.Context(), l, operator.Retry, "a", false)
	_, forgetErr := changeRuns(t.Context(), l, operator.Forget, "a", true)
	for what, err := range map[string]error{
		"list":   listRuns(io.Discard, l.List(t.Context(), ""), ledgerName{}, "", runFilter{}, false),
		"retry":  retryErr,
		"forget": forgetErr,
	} {
		var exit *exitError
		if !errors.As(err, &exit) || exit.code != 64 || !strings.Contains(exit.Error(), "keeps no runs") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

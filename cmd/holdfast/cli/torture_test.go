package cli

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

var (
	tortureFor    = flag.Duration("torture.for", 5*time.Second, "how long TestTortureStores puts each store under faults")
	tortureStores = flag.String("torture.stores", "redis", "which stores TestTortureStores uses, separated by commas")
)

// TestTortureStores: torture of a sound store finds no broken promise, whatever faults its links, workers and servers
// have, and leaves no lock behind. Of a store that may forget grants, the report says what it lost.
func TestTortureStores(t *testing.T) {
	t.Parallel()
	for kind := range strings.SplitSeq(*tortureStores, ",") {
		t.Run(kind, func(t *testing.T) {
			w := newWorkspace(t)
			s := w.startTortureStore(kind)
			w.store = s.url
			// With a longer TTL no worker loses its place in a queue because the machine is busy.
			args := []string{"torture", "--ttl", "5s", "--for", tortureFor.String(), "--fault-every", "200ms", "--html",
				w.filePath("page.html")}
			if len(s.faults) > 0 {
				flags, counts := w.serveFaults(s)
				args = append(args, flags...)
				defer func() { t.Logf("faults of the servers: %s", counts()) }()
			}
			r := w.newProgram(args...)
			r.cmd.Env = append(r.cmd.Env, append(s.environment, "TMPDIR="+w.dir)...)
			got := r.launch().waitFor(*tortureFor + 4*time.Minute)
			t.Logf("\n%s", got.out)
			broken := strings.Contains(got.out, "BROKEN") || got.code != 0 && got.code != exitUnproven
			if broken && !s.loses || strings.Contains(got.out, "ended early") {
				t.Error(got.description)
			}
			if strings.Contains(got.out, "grants       0,") || strings.Contains(got.out, "faults       none") {
				t.Error("there were no grants, or no faults")
			}
			if page, err := os.ReadFile(w.filePath("page.html")); err != nil || !strings.Contains(string(page), "</html>") {
				t.Errorf("the page: %v", err)
			}
			list := w.newProgram("list")
			list.cmd.Env = append(list.cmd.Env, s.environment...)
			if left := list.launch().wait(); strings.Contains(left.out, "holdfast-torture-") {
				t.Errorf("left: %s", left.out)
			}
			w.checkNoTemporaryFiles()
		})
	}
}

// checkNoTemporaryFiles checks that no run of torture has left its folder.
func (w *workspace) checkNoTemporaryFiles() {
	w.Helper()
	if left, err := filepath.Glob(w.filePath("holdfast-torture-*")); err != nil || len(left) > 0 {
		w.Errorf("left: %v, %v", left, err)
	}
}

// TestTortureInterrupted: Ctrl-C ends a torture run with a report of what it did until then. No lock and no worker is
// left.
func TestTortureInterrupted(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.newProgram("torture", "--for", "1h", "--workers", "3", "--ttl", "5s")
	r.cmd.Env = append(r.cmd.Env, "TMPDIR="+w.dir)
	r.launch()
	w.awaitTrue("a lock of torture", func() bool { return strings.Contains(w.runProgram("list").out, "holdfast-torture-") })
	r.signal(syscall.SIGINT)
	got := r.wait()
	got.check(t, exitUnproven)
	if !strings.Contains(got.out, "ended early: ") || !strings.Contains(got.out, "nothing proven") {
		t.Error(got.description)
	}
	if left := w.runProgram("list").out; left != "" {
		t.Errorf("left: %s", left)
	}
	w.checkNoTemporaryFiles()
}

// TestTortureRefuses: torture refuses what cannot work, before it changes anything.
func TestTortureRefuses(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for want, args := range map[string][]string{
		"--workers must be 2 to 64":  {"--workers", "1"},
		"--for must be 1s or more":   {"--for", "10ms"},
		"known are cut, delay":       {"--faults", "flood"},
		"this store has no cut":      {"--faults", "pause,cut"},
		"known are mutex, fair":      {"--locks", "rwlock"},
		"--ttl must be":              {"--ttl", "10ms"},
		"--rate must be":             {"--rate", "NaN"},
		"--server-heal needs":        {"--server-heal", "true"},
		"--html: no such file":       {"--html", "missing/page.html"},
		"too many arguments":         {"extra"},
		"--hook-timeout must be 1s":  {"--server-fault", "true", "--hook-timeout", "1ms"},
		"--fault-every must be 10ms": {"--fault-every", "1ms"},
	} {
		w.runProgram(append([]string{"torture"}, args...)...).check(t, exitUsage, want)
	}
	_, release := w.startHolder("a")
	w.runProgram("torture", "--for", "1s").check(t, exitUsage, "there are other locks in the store", "--beside-others")
	got := w.runProgram("torture", "--for", "1s", "--beside-others", "--workers", "2", "--locks", "mutex", "--faults", "none")
	if got.check(t, exitUnproven); !strings.Contains(got.out, "not enough: 0 faults") {
		t.Error(got.description)
	}
	release()
	w.store = "redis://127.0.0.1:1"
	w.runProgram("torture").check(t, exitUnavailable, "127.0.0.1:1")
}

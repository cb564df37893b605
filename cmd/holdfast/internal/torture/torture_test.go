package torture

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// TestMain is also the main function of a worker process.
func TestMain(m *testing.M) {
	if os.Getenv("TORTURE_WORKER") != "" {
		if err := Work(os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// testConfig is a short run on a store of files.
func testConfig(t *testing.T, store string) Config {
	return Config{Store: store, Files: true, For: 4 * time.Second, Workers: 4, Seed: 1, TTL: time.Second,
		Faults: []Fault{Pause}, FaultEvery: 300 * time.Millisecond, Kinds: Kinds, Rate: 200, LongHolds: 12,
		CalmTimeout: time.Minute, LeftoverTimeout: time.Minute,
		Worker: func() *exec.Cmd {
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), "TORTURE_WORKER=1")
			return c
		},
		Progress: func(line string) { t.Log(line) }, ProgressEvery: time.Minute, HookTimeout: 10 * time.Second,
		ServerEvery: time.Second, ServerFor: 100 * time.Millisecond,
	}
}

func openClient(t *testing.T, url string) (driver.Store, *holdfast.Client) {
	t.Helper()
	store, err := driver.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	client, err := holdfast.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return store, client
}

func runTorture(t *testing.T, ctx context.Context, cfg Config) *Report {
	t.Helper()
	store, client := openClient(t, cfg.Store)
	r, err := Run(ctx, NewSubject(store, client), cfg)
	if err != nil {
		t.Error(err)
		return &Report{Outcome: Unproven}
	}
	for lock, err := range client.List(t.Context(), "") {
		if err == nil && r.promise("leftovers").Violations == 0 {
			t.Errorf("left in the store: %s", lock.Name)
		}
	}
	return r
}

func (r *Report) promise(code string) PromiseReport {
	if len(r.Promises) == 0 { // there was no run
		return PromiseReport{}
	}
	return r.Promises[slices.IndexFunc(r.Promises, func(p PromiseReport) bool { return p.Code == code })]
}

// TestPlantedDefects: each store that breaks a promise on purpose is found out by one run. The runs wait more than they
// compute, so three of them run at the same time.
func TestPlantedDefects(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	places := make(chan struct{}, 3)
	for _, c := range []struct {
		kind   string
		locks  []Kind
		breaks []string
	}{
		{"double", []Kind{Mutex}, []string{"overlap", "linearizable"}},
		{"overlong", []Kind{Mutex}, []string{"overlap"}},
		{"silent", []Kind{Mutex}, []string{"unreported"}},
		{"limit", []Kind{Semaphore}, []string{"limit"}},
		{"tokens", []Kind{Fair}, []string{"tokens", "fence"}},
		{"order", []Kind{Fair}, []string{"order"}},
		{"wakeup", []Kind{Mutex, RW}, []string{"starved"}},
		{"leftover", []Kind{Mutex}, []string{"leftovers"}},
		{"twice", []Kind{Ledger}, []string{"twice"}},
	} {
		cfg := testConfig(t, "defect://"+t.TempDir()+"/store?kind="+c.kind)
		cfg.Kinds = c.locks
		switch c.kind {
		case "overlong", "silent": // it shows where a hold lasts longer than its TTL
			cfg.For, cfg.LongHolds = 8*time.Second, 2
		case "wakeup", "leftover":
			cfg.For, cfg.CalmTimeout, cfg.LeftoverTimeout = time.Second, 3*time.Second, 500*time.Millisecond
		default:
			cfg.Faults = nil
		}
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			r := runTorture(t, t.Context(), cfg)
			for _, code := range c.breaks {
				if p := r.promise(code); p.Violations == 0 || len(p.Examples) == 0 || r.Outcome != Broken {
					t.Errorf("that the store %q breaks %q was not found out:\n%s", c.kind, code, r.Text())
				}
			}
		})
	}
	all.Wait()
}

// TestSoundStore: a sound store breaks no promise under all faults that it has, and nothing is left of the run.
func TestSoundStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := testConfig(t, "file://"+dir+"/store")
	cfg.Faults, cfg.TTL = []Fault{Pause, Kill, Skew}, 5*time.Second // so long that no worker loses its place in a queue by itself
	mark := filepath.Join(dir, "mark")
	cfg.ServerFault, cfg.ServerHeal = "echo fault >>"+mark, "echo heal >>"+mark
	r := runTorture(t, t.Context(), cfg)
	if r.Outcome == Broken || r.OverlapMillis != 0 || r.Ended != "" {
		t.Error(r.Text())
	}
	if r.Grants == 0 || r.HandOvers == 0 || len(r.TimelineHolds) == 0 {
		t.Errorf("nothing happened:\n%s", r.Text())
	}
	said, _ := os.ReadFile(mark)
	if lines := strings.Fields(string(said)); len(lines) == 0 || len(lines)%2 != 0 || lines[len(lines)-1] != "heal" {
		t.Errorf("the hooks were called as %q", lines)
	}
}

// TestEndedEarly: a run that is ended early gives a report of what it did, and leaves nothing.
func TestEndedEarly(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := testConfig(t, "file://"+t.TempDir()+"/store")
	cfg.For, cfg.ProgressEvery = time.Hour, 100*time.Millisecond
	cfg.Progress = func(line string) {
		if strings.Contains(line, "grants") {
			cancel()
		}
	}
	r := runTorture(t, ctx, cfg)
	if r.Ended == "" || r.Outcome != Unproven {
		t.Error(r.Text())
	}
}

// TestStoreGoesAway: a store that does not come back after a fault has broken no promise; the run proves nothing.
func TestStoreGoesAway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := testConfig(t, "defect://"+dir+"/store?kind=away")
	cfg.Kinds, cfg.CalmTimeout, cfg.LeftoverTimeout = []Kind{Mutex, RW}, 2*time.Second, 500*time.Millisecond
	cfg.ServerFault, cfg.ServerHeal = "touch "+dir+"/store.away", "true"
	r := runTorture(t, t.Context(), cfg)
	if r.Outcome != Unproven || !strings.Contains(r.Ended, "does not answer") {
		t.Errorf("ended by %q:\n%s", r.Ended, r.Text())
	}
}

// TestEndedAtStart: so does a run that is ended while its workers start.
func TestEndedAtStart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := testConfig(t, "file://"+t.TempDir()+"/store")
	cfg.For = time.Hour
	worker := cfg.Worker
	cfg.Worker = func() *exec.Cmd {
		cancel()
		return worker()
	}
	if r := runTorture(t, ctx, cfg); r.Ended == "" || r.Outcome != Unproven {
		t.Error(r.Text())
	}
}

// TestHookFails: a command for the server that fails or hangs ends the run with its output, and is not counted as a
// fault.
func TestHookFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ fault, heal, want string }{
		"fails":      {"echo no such server; false", "true", "no such server"},
		"hangs":      {"sleep 600", "true", "it has not ended within"},
		"heal fails": {"true", "echo still down; exit 3", "still down"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t, "file://"+t.TempDir()+"/store")
			cfg.For, cfg.HookTimeout, cfg.ServerEvery = time.Hour, time.Minute, 200*time.Millisecond
			if name == "hangs" {
				cfg.HookTimeout = time.Second
			}
			cfg.ServerFault, cfg.ServerHeal = c.fault, c.heal
			r := runTorture(t, t.Context(), cfg)
			if !strings.Contains(r.Ended, c.want) || r.Faults[ServerFault] != 0 || r.Outcome != Unproven {
				t.Errorf("ended by %q:\n%s", r.Ended, r.Text())
			}
		})
	}
}

// TestHookLeavesProcess: a command for the server that starts one in the background has not failed.
func TestHookLeavesProcess(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, "file://"+t.TempDir()+"/store")
	cfg.ServerFault, cfg.ServerHeal = "true", "sleep 10 &"
	r := runTorture(t, t.Context(), cfg)
	if r.Ended != "" || r.Faults[ServerFault] == 0 {
		t.Errorf("ended by %q:\n%s", r.Ended, r.Text())
	}
}

// TestWorkerFails: a worker that cannot use the store says why, and the run ends with an error.
func TestWorkerFails(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, "file://"+t.TempDir()+"/store")
	cfg.Worker = func() *exec.Cmd { return exec.Command("sh", "-c", "echo broken program >&2; exit 1") }
	store, client := openClient(t, cfg.Store)
	if _, err := Run(t.Context(), NewSubject(store, client), cfg); err == nil || !strings.Contains(err.Error(), "broken program") {
		t.Errorf("got %v", err)
	}
}

// TestQuantiles: the quantiles of a histogram are right within a bucket.
func TestQuantiles(t *testing.T) {
	var h histogram
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Millisecond)
	}
	for p, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond, 1: time.Second} {
		if got := h.quantile(p); got < want || float64(got) > bucketStep*float64(want) {
			t.Errorf("quantile %v: %v", p, got)
		}
	}
}

// TestPage: the page has the data of the report, and nothing of a lock's name can end its script.
func TestPage(t *testing.T) {
	r := &Report{Outcome: Sound, TimelineHolds: []HoldView{{Lock: "</script><b>"}}}
	var b strings.Builder
	if err := r.WritePage(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	if strings.Count(page, "</script>") != 1 || !strings.Contains(page, `\u003c/script\u003e`) || strings.Contains(page, "@DATA@") {
		t.Error(page)
	}
}

package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	holdfastprom "github.com/holdfast-go/holdfast/prometheus"
	_ "github.com/holdfast-go/holdfast/store/memory"
	_ "github.com/holdfast-go/holdfast/store/redis"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// timeScale is by how much the times in the rules are shortened for the real run.
const timeScale = 60

// shortenTimes divides each time in a file of rules by timeScale: those in brackets, and the limit of a wait.
func shortenTimes(t *testing.T, rules string) string {
	t.Helper()
	window := regexp.MustCompile(`\[(\d+)([mh])\]`)
	rules = window.ReplaceAllStringFunc(rules, func(text string) string {
		part := window.FindStringSubmatch(text)
		n, err := strconv.Atoi(part[1])
		if err != nil {
			t.Fatal(err)
		}
		if part[2] == "h" {
			n *= 60
		}
		return fmt.Sprintf("[%ds]", n*60/timeScale)
	})
	const limit = "holdfast_oldest_wait_seconds) > 300"
	if !strings.Contains(rules, limit) {
		t.Fatalf("the rules do not contain %q", limit)
	}
	return strings.Replace(rules, limit, fmt.Sprintf("holdfast_oldest_wait_seconds) > %d", 300/timeScale), 1)
}

// monitor is a real Prometheus that scrapes this process and evaluates the rules.
type monitor struct{ url string }

// startMonitor starts Prometheus. It ends with the test.
func startMonitor(t *testing.T, scraped string) monitor {
	t.Helper()
	port, err := servertest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	rules, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\n"+
		"rule_files: [rules.yml]\nscrape_configs: [{job_name: shop, static_configs: [{targets: ['%[1]s']}]}, "+
		"{job_name: node, metrics_path: /jobs, static_configs: [{targets: ['%[1]s']}]}]\n", scraped)
	for name, text := range map[string]string{"rules.yml": shortenTimes(t, string(rules)), "prometheus.yml": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	// Without the context of the test, which ends before the cleanup.
	cmd := exec.Command("prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:"+port)
	cmd.Stdout, cmd.Stderr = log, log
	if err := servertest.StartProcess(cmd); err != nil {
		t.Fatalf("starting prometheus (Debian: apt-get install prometheus): %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("prometheus: %s", text)
		}
	})
	return monitor{"http://127.0.0.1:" + port}
}

// firingAlerts returns the names of the alerts that fire; none while Prometheus is starting.
func (m monitor) firingAlerts(ctx context.Context) map[string]bool {
	firing := map[string]bool{}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url+"/api/v1/alerts", nil)
	if err != nil {
		return firing
	}
	r, err := http.DefaultClient.Do(request)
	if err != nil {
		return firing
	}
	defer r.Body.Close()
	var answer struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	if json.NewDecoder(r.Body).Decode(&answer) == nil {
		for _, a := range answer.Data.Alerts {
			if a.State == "firing" {
				firing[a.Labels["alertname"]] = true
			}
		}
	}
	return firing
}

// await waits until an alert fires. do provokes it, again and again.
func (m monitor) await(t *testing.T, alert string, do func()) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		do()
		for range 10 {
			if m.firingAlerts(t.Context())[alert] {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	t.Errorf("%s does not fire", alert)
}

// shop is what a program has that reports its locks.
type shop struct {
	collector *holdfastprom.Collector
	addr      string // where it is scraped
	jobs      string // the file of metrics that jobs write
	command   func() (program string, err error)
}

func newShop(t *testing.T) *shop {
	t.Helper()
	beforeNumber := func(lock string) string { lock, _, _ = strings.Cut(lock, "-"); return lock }
	s := &shop{collector: holdfastprom.New(&holdfastprom.Options{LockLabel: beforeNumber}),
		jobs: filepath.Join(t.TempDir(), "jobs.prom")}
	program := filepath.Join(t.TempDir(), "holdfast")
	s.command = sync.OnceValues(func() (string, error) {
		build := exec.Command("go", "build", "-o", program, ".")
		build.Dir = "../../cmd/holdfast"
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
		return program, nil
	})
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.collector)
	listener, err := servertest.Listen()
	if err != nil {
		t.Fatal(err)
	}
	pages := http.NewServeMux()
	pages.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	pages.HandleFunc("/jobs", func(w http.ResponseWriter, r *http.Request) { // as node_exporter does
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		http.ServeFile(w, r, s.jobs)
	})
	server := &http.Server{Handler: pages}
	var done sync.WaitGroup
	done.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		_ = server.Close()
		done.Wait()
	})
	s.addr = listener.Addr().String()
	return s
}

// open opens a client that reports to the shop's metrics.
func (s *shop) open(t *testing.T, url string, ttl time.Duration) *holdfast.Client {
	t.Helper()
	return openClient(t, url, &holdfast.Options{TTL: ttl, OnEvent: s.collector.OnEvent})
}

func openClient(t *testing.T, url string, opts *holdfast.Options) *holdfast.Client {
	t.Helper()
	client, err := holdfast.Open(t.Context(), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func startRedis(t *testing.T) *redistest.Server {
	t.Helper()
	server, err := redistest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return server
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestAlertsFire: in a real Prometheus each alert fires when its cause happens to real clients, and none before.
func TestAlertsFire(t *testing.T) {
	s := newShop(t)
	m := startMonitor(t, s.addr)
	sound, dying := startRedis(t), startRedis(t)
	url := "redis://" + sound.Addr
	client := s.open(t, url, 10*time.Second)

	// A sound client, until Prometheus has seen it.
	for scraped := false; !scraped; scraped = m.hasScraped(t) {
		check(t, client.Mutex("sound", nil).Do(t.Context(), func(context.Context, *holdfast.Lease) error { return nil }))
		time.Sleep(100 * time.Millisecond)
	}
	if firing := m.firingAlerts(t.Context()); len(firing) > 0 {
		t.Errorf("these alerts fire on a sound client: %v", firing)
	}
	for alert, provoke := range map[string]func(*testing.T) (do func()){
		"HoldfastAcquiresFail":     func(t *testing.T) func() { return contend(t, client) },
		"HoldfastHoldTooLong":      func(t *testing.T) func() { return holdForLong(t, client) },
		"HoldfastLeasesLost":       func(t *testing.T) func() { return loseLeases(t, client) },
		"HoldfastWaitTooLong":      func(t *testing.T) func() { return waitForDeadHolder(t, client, url) },
		"HoldfastRunsFail":         func(t *testing.T) func() { return failRuns(t, client) },
		"HoldfastAttemptsUsed":     func(t *testing.T) func() { return useAttempts(t, client) },
		"HoldfastEventsDropped":    func(t *testing.T) func() { return dropEvents(t, s) },
		"HoldfastStoreUnavailable": func(t *testing.T) func() { return stopStore(t, s, dying) },
		"HoldfastRenewalsFail":     func(t *testing.T) func() { return stopStore(t, s, startRedis(t)) },
		"HoldfastJobFailed":        func(t *testing.T) func() { return useCommand(t, s, 1, "run", "report", "false") },
		"HoldfastSlotMissed":       func(t *testing.T) func() { return missSlot(t, s) },
	} {
		t.Run(alert, func(t *testing.T) { m.await(t, alert, provoke(t)) })
	}
}

// hasScraped reports whether Prometheus has scraped the shop's metrics.
func (m monitor) hasScraped(t *testing.T) bool {
	t.Helper()
	r, err := http.Get(m.url + "/api/v1/query?query=holdfast_acquire_attempts_total")
	if err != nil {
		return false
	}
	defer r.Body.Close()
	var answer struct{ Data struct{ Result []any } }
	return json.NewDecoder(r.Body).Decode(&answer) == nil && len(answer.Data.Result) > 0
}

// contend lets callers wait for a lock that is held, with too short a deadline.
func contend(t *testing.T, client *holdfast.Client) func() {
	lease, err := client.Mutex("contended", nil).Lock(t.Context())
	check(t, err)
	t.Cleanup(func() { _ = lease.Release() })
	return func() {
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			if _, err := client.Mutex("contended", nil).Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			cancel()
		}
	}
}

// holdForLong holds locks for longer than their program expects.
func holdForLong(t *testing.T, client *holdfast.Client) func() {
	return func() {
		lease, err := client.Mutex("slow", &holdfast.LockOptions{Expected: time.Millisecond}).Lock(t.Context())
		check(t, err)
		time.Sleep(10 * time.Millisecond)
		check(t, lease.Release())
	}
}

// loseLeases breaks locks by force.
func loseLeases(t *testing.T, client *holdfast.Client) func() {
	return func() {
		var leases []*holdfast.Lease
		for i := range 12 {
			lease, err := client.Mutex(fmt.Sprint("broken-", i), nil).Lock(t.Context())
			check(t, err)
			check(t, client.Break(t.Context(), lease.Name(), lease.Ref(), holdfast.BreakForce, ""))
			leases = append(leases, lease)
		}
		for _, lease := range leases { // their holder learns of it with the next renewal
			<-lease.Context().Done()
			_ = lease.Release()
		}
	}
}

// waitForDeadHolder waits for a lock whose holder has been killed, and whose TTL is long.
func waitForDeadHolder(t *testing.T, client *holdfast.Client, url string) func() {
	holder := exec.Command(os.Args[0])
	holder.Env = append(os.Environ(), "HOLDER_STORE="+url)
	output, err := holder.StdoutPipe()
	check(t, err)
	check(t, servertest.StartProcess(holder))
	if _, err := output.Read(make([]byte, 1)); err != nil { // it has the lock
		t.Fatal(err)
	}
	check(t, holder.Process.Signal(syscall.SIGKILL))
	_ = holder.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	var waiter sync.WaitGroup
	waiter.Go(func() { _, _ = client.Mutex("dead", nil).Lock(ctx) })
	t.Cleanup(func() {
		cancel()
		waiter.Wait()
	})
	return func() {}
}

// TestMain is also the process that is killed while it holds a lock.
func TestMain(m *testing.M) {
	if url := os.Getenv("HOLDER_STORE"); url != "" {
		if err := holdForEver(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func holdForEver(url string) error {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, url, &holdfast.Options{TTL: time.Hour})
	if err != nil {
		return err
	}
	if _, err := client.Mutex("dead", nil).Lock(ctx); err != nil {
		return err
	}
	fmt.Println("held")
	select {}
}

// failRuns lets runs of a ledger fail.
func failRuns(t *testing.T, client *holdfast.Client) func() {
	n := 0
	return func() {
		n++
		run, err := client.Ledger("mails", nil).Begin(t.Context(), fmt.Sprint("mail-", n), nil)
		check(t, err)
		check(t, run.Fail(t.Context(), errors.New("no such address")))
	}
}

// useAttempts asks again and again for keys that may be tried once.
func useAttempts(t *testing.T, client *holdfast.Client) func() {
	ledger := client.Ledger("bills", &holdfast.LedgerOptions{MaxAttempts: 1})
	run, err := ledger.Begin(t.Context(), "bill", nil)
	check(t, err)
	check(t, run.Fail(t.Context(), errors.New("no paper")))
	return func() {
		if _, err := ledger.Begin(t.Context(), "bill", nil); !errors.Is(err, holdfast.ErrAttemptsUsed) {
			t.Error(err)
		}
	}
}

// dropEvents keeps the receiver of events busy until some are dropped.
func dropEvents(t *testing.T, s *shop) func() {
	return func() {
		goOn := make(chan struct{})
		client := openClient(t, "memory://dropped", &holdfast.Options{OnEvent: func(e holdfast.Event) {
			<-goOn
			s.collector.OnEvent(e)
		}})
		for range 15_000 { // three events each; 16384 events may wait, besides those that are being delivered
			check(t, client.Mutex("busy", nil).Do(t.Context(), func(context.Context, *holdfast.Lease) error { return nil }))
		}
		close(goOn)
		check(t, client.Mutex("busy", nil).Do(t.Context(), func(context.Context, *holdfast.Lease) error { return nil }))
	}
}

// stopStore stops a server while leases are held on it, and does so again when all of them are lost: their requests
// fail only until then, and Prometheus may not see it each time.
func stopStore(t *testing.T, s *shop, server *redistest.Server) func() {
	client := s.open(t, "redis://"+server.Addr, 3*time.Second)
	t.Cleanup(func() { server.Signal(syscall.SIGCONT) })
	var leases []*holdfast.Lease
	return func() {
		for _, lease := range leases {
			if lease.Context().Err() == nil {
				return
			}
		}
		server.Signal(syscall.SIGCONT)
		leases = nil
		for len(leases) < 5 {
			lease, err := client.Mutex(fmt.Sprint("held-", len(leases)), nil).Lock(t.Context())
			if errors.Is(err, holdfast.ErrUncertain) || errors.Is(err, holdfast.ErrLost) {
				continue // the answer took longer than the TTL
			}
			check(t, err)
			leases = append(leases, lease)
		}
		server.Signal(syscall.SIGSTOP)
	}
}

// useCommand uses the command for a job that writes metrics. The job exits with code.
func useCommand(t *testing.T, s *shop, code int, subcommand string, args ...string) func() {
	program, err := s.command()
	check(t, err)
	dir := t.TempDir()
	args = append([]string{subcommand, "--metrics-file", s.jobs}, args...)
	return func() {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = append(os.Environ(), "HOLDFAST_STORE=file://"+filepath.Join(dir, "locks"))
		out, err := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != code {
			t.Errorf("exit code %d, %v: %s", got, err, out)
		}
	}
}

// missSlot starts a job of cron half an hour late.
func missSlot(t *testing.T, s *shop) func() {
	due := time.Now().UTC().Add(-30 * time.Minute)
	return useCommand(t, s, 0, "once", "--schedule", fmt.Sprintf("%d %d * * *", due.Minute(), due.Hour()), "--tz", "UTC",
		"nightly", "true")
}

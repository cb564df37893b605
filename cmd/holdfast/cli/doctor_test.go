package cli

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/consul/consultest"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
	"github.com/holdfast-go/holdfast/store/memory"
	"github.com/holdfast-go/holdfast/store/mysql/mysqltest"
	"github.com/holdfast-go/holdfast/store/nats/natstest"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
	"github.com/holdfast-go/holdfast/store/s3/s3test"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// startRedis starts a Redis, with the settings of a sound one unless others are given.
func startRedis(t *testing.T, more ...string) *redistest.Server {
	t.Helper()
	s, err := redistest.Start(append([]string{"--appendonly", "yes", "--appendfsync", "always"}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func sendRedis(t *testing.T, s *redistest.Server, words ...string) string {
	t.Helper()
	reply, err := s.Do(words...)
	if err != nil {
		t.Fatalf("%v: %v", words, err)
	}
	return reply
}

// readDiagnosis runs doctor with --json, checks its exit code, and returns what it printed and the codes that it found.
func (w *workspace) readDiagnosis(code int, flags ...string) (d diagnosisJSON, codes []string) {
	w.Helper()
	r := w.runProgram(append([]string{"doctor", "--json"}, flags...)...)
	r.check(w.T, code)
	if err := json.Unmarshal([]byte(r.out), &d); err != nil {
		w.Fatalf("%v; %s", err, r.description)
	}
	for _, f := range d.Findings {
		codes = append(codes, f.Code)
	}
	return d, codes
}

// diagnosisJSON is what the tests read of a diagnosis.
type diagnosisJSON struct {
	Store    string
	Severity driver.Severity
	Findings []struct{ Code, Message, Fix string }
	Probe    []string
	Measured *struct {
		TTL          int64  `json:"ttl_ms"`
		ClockAhead   int64  `json:"clock_ahead_ms"`
		ClockMessage string `json:"clock_message"`
		Message      string
		Renew        struct {
			Median int64 `json:"median_ms"`
			Worst  int64 `json:"worst_ms"`
		}
	}
}

// TestDoctor: on a sound server nothing is found, all steps are tried and measured, and nothing is left. Weaker
// settings are found, and the exit code is by their severity.
func TestDoctor(t *testing.T) {
	t.Parallel()
	w, server := newWorkspace(t), startRedis(t)
	w.store = "redis://" + server.Addr
	r := w.runProgram("doctor")
	r.check(t, 0)
	for _, text := range []string{"acquire, contend, inspect, renew, release, wait, token rises, watch, release after waiting: right",
		"renewal slack", "with a TTL of 30s a renewal may be late by 18.7s", "the store's clock", "nothing was found"} {
		if !strings.Contains(r.out, text) {
			t.Errorf("no %q in %s", text, r.description)
		}
	}
	d, codes := w.readDiagnosis(0, "--ttl", "1m")
	if len(codes) > 0 || d.Severity != "none" || d.Store == "" || len(d.Probe) != 9 || d.Measured == nil ||
		d.Measured.Message+d.Measured.ClockMessage != "" || d.Measured.Renew.Worst < d.Measured.Renew.Median ||
		d.Measured.Renew.Median <= 0 || d.Measured.TTL != 60_000 {
		t.Errorf("diagnosis: %+v", d)
	}
	if d, _ := w.readDiagnosis(0, "--quick"); d.Measured != nil || len(d.Probe) != 9 {
		t.Errorf("with --quick: %+v", d)
	}
	if keys := sendRedis(t, server, "DBSIZE"); keys != ":0" {
		t.Errorf("keys are left: %s", keys)
	}
	sendRedis(t, server, "CONFIG", "SET", "appendfsync", "everysec")
	if r := w.runProgram("stores"); !strings.Contains(r.out, "what the servers' settings keep on disk") {
		t.Error(r.description)
	}
	if d, codes := w.readDiagnosis(exitWarning, "--quick"); !slices.Equal(codes, []string{"redis-appendfsync"}) ||
		d.Severity != driver.SeverityWarning {
		t.Errorf("a warning: %+v", d)
	}
	sendRedis(t, server, "CONFIG", "SET", "maxmemory", "1gb", "maxmemory-policy", "allkeys-lru")
	r = w.runProgram("doctor", "--quick")
	r.check(t, exitCritical)
	critical, warning := strings.Index(r.out, "critical: redis-eviction, "+server.Addr),
		strings.Index(r.out, "warning: redis-appendfsync, "+server.Addr)
	if critical < 0 || warning < critical || !strings.Contains(r.out, "  change:  give the locks a Redis of their own") ||
		!strings.Contains(r.out, "maxmemory-policy noeviction in redis.conf") {
		t.Errorf("the worst first: %s", r.description)
	}
}

// TestDoctorWithoutPermissions: what doctor may not see it says, and which permission is missing. If a lock does not
// work, it says which step, and leaves nothing.
func TestDoctorWithoutPermissions(t *testing.T) {
	t.Parallel()
	w, server := newWorkspace(t), startRedis(t)
	w.store = "redis://locks:secret@" + server.Addr
	allow := func(rules string) {
		sendRedis(t, server, append([]string{"ACL", "SETUSER", "locks", "reset", "on", ">secret", "~*"},
			strings.Fields(rules)...)...)
	}
	const enough = "&* +@read +@write +@scripting +@pubsub +@connection +time +info +role "
	allow(enough)
	r := w.runProgram("doctor", "--quick")
	r.check(t, exitUnknown)
	if !strings.Contains(r.out, "unknown: redis-unseen") || !strings.Contains(r.out, "+config|get") ||
		strings.Contains(r.out+r.err, "secret") {
		t.Error(r.description)
	}
	allow(enough + "+config|get -subscribe -ssubscribe")
	if d, codes := w.readDiagnosis(exitWarning, "--quick"); !slices.Equal(codes, []string{"redis-listen-denied"}) ||
		!strings.Contains(d.Findings[0].Fix, "+subscribe") {
		t.Errorf("without SUBSCRIBE: %+v", d)
	}
	allow(enough + "+config|get -pexpire")
	if _, codes := w.readDiagnosis(exitCritical, "--quick"); !slices.Contains(codes, "redis-command-denied") {
		t.Errorf("without PEXPIRE: %q", codes)
	}
	if keys := sendRedis(t, server, "DBSIZE"); keys != ":0" {
		t.Errorf("keys are left: %s", keys)
	}
}

// TestDoctorInUse: while doctor runs, holders keep their locks, and waiters their places. The locks of others are not
// touched.
func TestDoctorInUse(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	_, release := w.startHolder("held")
	waiter := w.startProgram("run", "--fair", "held", "true")
	w.awaitTrue("the waiter", func() bool {
		return strings.Contains(w.runProgram("show", "held").out, "1 waiting")
	})
	before := w.runProgram("list", "--json").out
	_, codes := w.readDiagnosis(exitCritical, "--quick") // the tests' directories are temporary
	if !slices.Contains(codes, "file-temporary") || slices.Contains(codes, "probe-failed") {
		t.Errorf("found %q", codes)
	}
	if after := w.runProgram("list", "--json").out; withoutTimes(t, after) != withoutTimes(t, before) {
		t.Errorf("the locks have changed from %s to %s", before, after)
	}
	left, err := os.ReadDir(filepath.Join(w.dir, "store", "locks"))
	if err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
	release()
	waiter.wait().check(t, 0)
}

// withoutTimes is a lock as JSON without what changes with the time.
func withoutTimes(t *testing.T, line string) string {
	var lock struct {
		Lock             string
		Token            int64
		Holders, Waiters []struct{ Owner, Ref, Since string }
	}
	if err := json.Unmarshal([]byte(line), &lock); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	text, _ := json.Marshal(lock)
	return string(text)
}

// TestDoctorMakesNothing: doctor makes no store, not in a directory and not by create=true.
func TestDoctorMakesNothing(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	d, codes := w.readDiagnosis(exitCritical)
	if !slices.Contains(codes, "file-no-store") || len(d.Probe) > 0 {
		t.Errorf("no store: %+v", d)
	}
	if _, err := os.Stat(filepath.Join(w.dir, "store")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("doctor has made the directory: %v", err)
	}
	server, err := pgtest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	w.store = server.URL("test") + "?sslmode=disable&create=true"
	w.runProgram("doctor").check(t, exitUsage, "there is nothing to examine yet", "leaves out create=true", "holdfast list makes")
	if n, err := server.QueryValue("select count(*) from pg_tables where schemaname = 'public'"); n != "0" || err != nil {
		t.Errorf("doctor has made %s tables, %v", n, err)
	}
	w.runProgram("list").check(t, 0) // it makes the table of locks, and none of runs
	if r := w.runProgram("doctor", "--ttl", "5m"); !strings.Contains(r.out, "not compared: this store has no run ledger yet") {
		t.Error(r.description)
	}
	w.runProgram("ledger").check(t, 0)
	if r := w.runProgram("doctor", "--ttl", "5m"); !strings.Contains(r.out, "this machine's, within") {
		t.Error(r.description)
	}
	w.store = "redis://127.0.0.1:1"
	w.runProgram("doctor").check(t, exitUnavailable, "127.0.0.1:1")
	w.runProgram("doctor", "--ttl", "100ms").check(t, exitUsage, "--ttl")
	w.runProgram("doctor", "extra").check(t, exitUsage, "too many")
}

// TestDoctorOnEachStore: on servers of each kind all steps are right, nothing else is found than what these servers
// lack, and nothing is left.
func TestDoctorOnEachStore(t *testing.T) {
	etcd, err := etcdtest.Start(t.Context(), etcdtest.Options{Direct: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	zookeeper, err := zktest.Start(t.Context(), zktest.Options{Direct: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(zookeeper.Close)
	postgres, err := pgtest.Start("fsync=on")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(postgres.Stop)
	mysql, err := mysqltest.Start("innodb-flush-log-at-trx-commit=1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(mysql.Close)
	nats, err := natstest.Start(t.Context(), natstest.Options{Members: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nats.Close)
	consul, err := consultest.Start(t.Context(), consultest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(consul.Close)
	kubernetes, err := kubernetestest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kubernetes.Close)
	config := filepath.Join(t.TempDir(), "kubeconfig")
	if err := kubernetes.WriteKubeconfig(config, kubernetestest.AllowAll); err != nil {
		t.Fatal(err)
	}
	dynamodb, err := dynamodbtest.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dynamodb.Stop() })
	table := "?region=eu-central-1&endpoint=" + url.QueryEscape(dynamodb.Endpoint) + "&create=true"
	t.Setenv("AWS_ACCESS_KEY_ID", s3test.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3test.SecretKey)
	bucket := s3test.Start("locks")
	t.Cleanup(bucket.Stop)
	for _, c := range []struct {
		store string
		codes []string
	}{
		{"s3://locks/app/?endpoint=" + url.QueryEscape(bucket.URL), nil},
		{"etcd://" + strings.Join(etcd.Endpoints(), ","), nil},
		{"zookeeper://" + strings.Join(zookeeper.Endpoints(), ",") + "?namespace=app", nil},
		{postgres.URL("test") + "?sslmode=disable&create=true", nil},
		{mysql.URL() + "?create=true", nil},
		{nats.URL("locks") + "?create=true&replicas=3&sync=always", nil},
		{consul.URL(), nil},
		{"kubernetes://?kubeconfig=" + config, nil},
		{"dynamodb://locks" + table, []string{"dynamodb-ttl"}},
	} {
		w := newWorkspace(t)
		w.store = c.store
		w.runProgram("run", "first", "true").check(t, 0) // it makes the table
		code := 0
		if len(c.codes) > 0 {
			code = exitWarning
		}
		d, codes := w.readDiagnosis(code, "--ttl", "5m") // so that a slow disk is no finding
		if !slices.Equal(codes, c.codes) || len(d.Probe) != 9 || d.Measured == nil || d.Measured.Message != "" {
			t.Errorf("%s: %+v", c.store, d)
		}
	}
	if n, err := postgres.QueryValue("select count(*) from holdfast where name like 'holdfast-doctor%'"); n != "0" || err != nil {
		t.Errorf("doctor has left %s rows, %v", n, err)
	}
}

// TestDoctorClock: a store's clock that differs from this machine's is found.
func TestDoctorClock(t *testing.T) {
	t.Parallel()
	clock, err := redistest.NewClock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(clock.Close)
	server, err := clock.Start("--appendonly", "yes", "--appendfsync", "always")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	w := newWorkspace(t)
	w.store = "redis://" + server.Addr
	for _, ahead := range []time.Duration{-time.Hour, time.Hour} {
		if err := clock.Step(ahead); err != nil {
			t.Fatal(err)
		}
		d, codes := w.readDiagnosis(exitWarning, "--ttl", "5m")
		if !slices.Equal(codes, []string{"clock-difference"}) ||
			(time.Duration(d.Measured.ClockAhead)*time.Millisecond-ahead).Abs() > time.Minute {
			t.Errorf("a clock that is %v ahead: %+v", ahead, d)
		}
	}
}

// TestSlowStore: a store whose renewals take a large part of the time by which they may be late is found, and with the
// TTL that the finding names it is not.
func TestSlowStore(t *testing.T) {
	t.Parallel()
	for worst, found := range map[time.Duration]int{time.Millisecond: 0, 4 * time.Second: 0, 5 * time.Second: 1,
		time.Minute: 1} {
		m := &measurements{ttl: 30 * time.Second, renewalSlack: 18700 * time.Millisecond,
			renew: spread{worst: worst}, clockUnknown: "not asked"}
		all := m.findings()
		if len(all) != found || found > 0 && all[0].Code != "store-slow" {
			t.Errorf("%v: %v", worst, all)
		}
		if found == 0 {
			continue
		}
		_, text, _ := strings.Cut(all[0].Fix, "TTL of ")
		text, _, _ = strings.Cut(text, " ")
		ttl, err := time.ParseDuration(text)
		m.renewalSlack = ttl - driver.Margin(ttl) - ttl/3
		if again := m.findings(); err != nil || len(again) > 0 {
			t.Errorf("%v with a TTL of %v: %v, %v", worst, ttl, again, err)
		}
	}
}

// brokenStore does one step of a lock wrongly.
type brokenStore struct {
	driver.Store
	acquire func(ctx context.Context, c driver.Claim) (driver.Grant, error)
}

func (s *brokenStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	return s.acquire(ctx, c)
}

// TestProbeFindsBrokenStores: a store that grants a lock twice, or whose tokens do not rise, fails the probe.
func TestProbeFindsBrokenStores(t *testing.T) {
	t.Parallel()
	for want, acquire := range map[string]func(a, b driver.Store) func(context.Context, driver.Claim) (driver.Grant, error){
		"contend: a second client acquired": func(a, b driver.Store) func(context.Context, driver.Claim) (driver.Grant, error) {
			other := memory.New(nil).Open()
			return other.Acquire
		},
		"token-rises: the token after": func(a, b driver.Store) func(context.Context, driver.Claim) (driver.Grant, error) {
			return func(ctx context.Context, c driver.Claim) (driver.Grant, error) {
				g, err := b.Acquire(ctx, c)
				g.Token = 1
				return g, err
			}
		},
		"acquire: ": nil,
	} {
		m := memory.New(nil)
		a, b := m.Open(), m.Open()
		broken := [2]driver.Store{a, b}
		if acquire == nil {
			broken[0] = &brokenStore{a, func(context.Context, driver.Claim) (driver.Grant, error) {
				return driver.Grant{}, driver.ErrDenied
			}}
		} else {
			broken[1] = &brokenStore{b, acquire(a, b)}
		}
		p := newProbe(broken, 10*time.Second)
		p.run(t.Context())
		if len(p.found) != 1 || p.found[0].Code != "probe-failed" || !strings.Contains(p.found[0].What, want) {
			t.Errorf("%q: %v", want, p.found)
		}
		for lock, err := range b.List(t.Context(), "") {
			t.Errorf("%q: left: %+v, %v", want, lock, err)
		}
	}
}

// unwillingStore tells nothing, and forgets nothing.
type unwillingStore struct{ driver.Store }

func (unwillingStore) Examine(context.Context) ([]driver.Finding, error) {
	return nil, driver.ErrDenied
}
func (unwillingStore) Forget(context.Context, string) error { return driver.ErrDenied }

// TestProbeLeftovers: if what the probe has left cannot be removed, or the settings cannot be seen, doctor says so.
func TestProbeLeftovers(t *testing.T) {
	t.Parallel()
	m := memory.New(nil)
	stores := [2]driver.Store{unwillingStore{m.Open()}, m.Open()}
	p, result := newProbe(stores, 10*time.Second), &diagnosis{}
	p.run(t.Context())
	result.found = p.found
	new(doctor).examine(t.Context(), stores[0], result)
	result.sortFindings()
	if len(result.found) != 2 || result.found[0].Code != "probe-left" || result.found[1].Code != "settings-unseen" ||
		result.exitCode() != exitUnknown {
		t.Errorf("found %v", result.found)
	}
}

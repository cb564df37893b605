package metrics

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

// mapSink keeps the sum, or the number of times, of each metric and its labels.
type mapSink map[string]float64

func (s mapSink) Add(m *Metric, value float64, labels ...string) {
	if len(labels) != len(m.Labels) || m.Type == Histogram || m.Type == Counter && value < 0 {
		panic(fmt.Sprint(m.Name, labels, value))
	}
	s[m.Name+" "+strings.Join(labels, " ")] += value
}

func (s mapSink) Record(m *Metric, seconds float64, labels ...string) {
	if len(labels) != len(m.Labels) || m.Type != Histogram || seconds < 0 {
		panic(fmt.Sprint(m.Name, labels, seconds))
	}
	s[m.Name+" "+strings.Join(labels, " ")]++
}

// TestMetricsOfLocks: a day of locks and runs is measured by all metrics, each with what happened.
func TestMetricsOfLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		sinceStart := func() time.Duration { return time.Since(start) }
		store := memory.New(&memory.Options{Clock: driver.Clock{Monotonic: sinceStart, Boottime: sinceStart}})
		sink := mapSink{}
		r := NewRecorder(sink, &Options{LockLabel: func(lock string) string { return lock[:1] }})
		c, err := holdfast.New(store.Open(), &holdfast.Options{TTL: 3 * time.Second,
			OnEvent: func(e holdfast.Event) { r.Record(&e) }})
		if err != nil {
			t.Fatal(err)
		}
		l, err := c.Mutex("a1", &holdfast.LockOptions{Expected: time.Second}).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Mutex("a1", nil).TryLock(t.Context()); !errors.Is(err, holdfast.ErrHeld) {
			t.Error(err)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := sink["holdfast_holds_over_expected_total a mutex"]; n != 1 {
			t.Errorf("%v slow holds while the lock is held", n)
		}
		if err := c.RequestRelease(t.Context(), "a1", ""); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		if err := l.Release(); err != nil {
			t.Error(err)
		}
		second, err := c.Mutex("a2", &holdfast.LockOptions{MaxHold: 4 * time.Second}).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		<-second.Context().Done()
		ledger := c.Ledger("jobs", nil)
		run, err := ledger.Begin(t.Context(), "k", nil)
		if err == nil {
			err = run.Succeed(t.Context(), nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ledger.Begin(t.Context(), "k", nil); !errors.Is(err, holdfast.ErrSucceeded) {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		for name, want := range map[string]float64{
			"holdfast_acquire_attempts_total a mutex":             3,
			"holdfast_acquire_failures_total a mutex held":        1,
			"holdfast_acquire_wait_seconds a mutex acquired":      2,
			"holdfast_acquire_wait_seconds a mutex failed":        1,
			"holdfast_waiting a mutex":                            0,
			"holdfast_held a mutex":                               0,
			"holdfast_hold_seconds a mutex":                       2,
			"holdfast_holds_over_expected_total a mutex":          1,
			"holdfast_lost_total a mutex max-hold":                1,
			"holdfast_release_requests_total a mutex":             1,
			"holdfast_store_requests_total acquire ok":            5,
			"holdfast_store_requests_total release ok":            2,
			"holdfast_runs_total jobs started":                    1,
			"holdfast_runs_total jobs succeeded":                  1,
			"holdfast_run_refusals_total jobs succeeded":          1,
			"holdfast_run_seconds jobs succeeded":                 1,
			"holdfast_runs_in_progress jobs":                      0,
			"holdfast_store_requests_total release error":         0,
			"holdfast_acquire_failures_total a mutex store-error": 0,
		} {
			if sink[name] != want {
				t.Errorf("%s is %v, want %v", name, sink[name], want)
			}
		}
		if n := sink["holdfast_renewal_seconds renewed"]; n < 6 || n != sink["holdfast_store_requests_total renew ok"] {
			t.Errorf("%v renewals", n)
		}
		if len(r.slow) != 0 {
			t.Errorf("%d slow holds are remembered", len(r.slow))
		}
	})
}

// TestFailingStore: errors of the store are told from locks that are held and from callers that gave up.
func TestFailingStore(t *testing.T) {
	sink := mapSink{}
	r := NewRecorder(sink, nil)
	for _, e := range []holdfast.Event{
		{Kind: holdfast.EventFailed, Reason: string(holdfast.FailureStore)},
		{Kind: holdfast.EventFailed, Reason: string(holdfast.FailureUncertain)},
		{Kind: holdfast.EventFailed, Reason: string(holdfast.FailureHeld)},
		{Kind: holdfast.EventFailed, Reason: string(holdfast.FailureCanceled)},
		{Kind: holdfast.EventRunRefused, Lock: "jobs/k", Reason: string(holdfast.FailureDenied)},
		{Kind: holdfast.EventRenewalFailing, Dropped: 7},
		{Kind: holdfast.EventReleased, Err: holdfast.ErrUncertain},
		{Kind: holdfast.EventRunFailed, Run: 1, Lock: "jobs/k", Late: true},
	} {
		r.Record(&e)
	}
	for name, want := range map[string]float64{
		"holdfast_store_requests_total acquire error": 3,
		"holdfast_store_requests_total acquire ok":    1,
		"holdfast_store_requests_total renew error":   1,
		"holdfast_store_requests_total release error": 1,
		"holdfast_store_requests_total release ok":    1,
		"holdfast_renewal_seconds failed":             1,
		"holdfast_events_dropped_total ":              7,
		"holdfast_runs_in_progress jobs":              0,
	} {
		if sink[name] != want {
			t.Errorf("%s is %v, want %v", name, sink[name], want)
		}
	}
}

// TestManyNames: 100,000 names of locks and of ledgers make no more label values than the options allow. Without a rule
// no name of a lock is a label.
func TestManyNames(t *testing.T) {
	for _, own := range []bool{false, true} {
		sink, o := mapSink{}, &Options{MaxLabels: 10}
		if own {
			o.LockLabel = func(lock string) string { return lock }
		}
		r := NewRecorder(sink, o)
		for i := range 100_000 {
			name := fmt.Sprintf("%d/lock", i)
			r.Record(&holdfast.Event{Kind: holdfast.EventAttempt, Lock: name, LockKind: holdfast.KindMutex})
			r.Record(&holdfast.Event{Kind: holdfast.EventRunStarted, Lock: name, Run: 1})
		}
		locks, ledgers := 0, 0
		for _, name := range slices.Sorted(maps.Keys(sink)) {
			switch {
			case strings.HasPrefix(name, attempts.Name):
				locks++
			case strings.HasPrefix(name, runs.Name):
				ledgers++
			}
		}
		if want := map[bool]int{false: 1, true: 11}[own]; locks != want || ledgers != 11 {
			t.Errorf("%d labels of locks, %d of ledgers", locks, ledgers)
		}
	}
}

// TestMetricDocs: docs/metrics.md has one line for each metric, with its type and its labels, and no other metrics.
func TestMetricDocs(t *testing.T) {
	data, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range All() {
		labels := "none"
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		line := fmt.Sprintf("| `%s` | %s | %s | %s |\n", m.Name, m.Type, labels, m.Help)
		if !strings.Contains(string(data), line) {
			t.Errorf("docs/metrics.md lacks the line\n%s", line)
		}
	}
	if n := strings.Count(string(data), "\n| `holdfast_"); n != len(All()) {
		t.Errorf("docs/metrics.md has %d metrics, there are %d", n, len(All()))
	}
}

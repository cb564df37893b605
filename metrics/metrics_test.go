package metrics

import (
	"context"
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

// collect returns the value, or the number of times, of each metric and its labels.
func collect(t *testing.T, r *Recorder) map[string]float64 {
	t.Helper()
	found := map[string]float64{}
	for _, s := range r.Collect() {
		value := s.Value
		if s.Metric.Type == Histogram {
			value = float64(s.Count)
		}
		name := s.Metric.Name + " " + strings.Join(s.Labels, " ")
		if _, twice := found[name]; twice || len(s.Labels) != len(s.Metric.Labels) || value < 0 {
			t.Error(name, value)
		}
		found[name] = value
	}
	return found
}

// TestMetricsOfLocks: a day of locks and runs is measured by all metrics, each with what happened.
func TestMetricsOfLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		sinceStart := func() time.Duration { return time.Since(start) }
		store := memory.New(&memory.Options{Clock: driver.Clock{Monotonic: sinceStart, Boottime: sinceStart}})
		r := NewRecorder(&Options{LockLabel: func(lock string) string { return lock[:1] }}, nil)
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
		if got := collect(t, r); got["holdfast_holds_over_expected_total a mutex"] != 1 || got["holdfast_held a mutex"] != 1 {
			t.Errorf("while the lock is held: %v", got)
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
		got := collect(t, r)
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
			if got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
		if n := got["holdfast_renewal_seconds renewed"]; n < 6 || n != got["holdfast_store_requests_total renew ok"] {
			t.Errorf("%v renewals", n)
		}
		r.claims.each(func(c *openClaim) { t.Errorf("the claim %s is remembered", c.id) })
	})
}

// TestFailingStore: errors of the store are told from locks that are held and from callers that gave up.
func TestFailingStore(t *testing.T) {
	r := NewRecorder(nil, nil)
	for _, e := range []holdfast.Event{
		{Kind: holdfast.EventFailed, Reason: string(holdfast.FailureStore)},
		{Kind: holdfast.EventFailed, Reason: string(holdfast.FailureUncertain)},
		{Kind: holdfast.EventFailed, Reason: string(holdfast.FailureHeld)},
		{Kind: holdfast.EventFailed, Reason: string(holdfast.FailureCanceled)},
		{Kind: holdfast.EventRunRefused, Lock: "jobs/k", Reason: string(holdfast.FailureDenied)},
		{Kind: holdfast.EventRenewalFailing, Err: holdfast.ErrUncertain, Dropped: 7},
		{Kind: holdfast.EventReleased, Err: holdfast.ErrUncertain},
		{Kind: holdfast.EventRunFailed, Attempt: 1, Lock: "jobs/k", Late: true},
	} {
		r.Record(&e)
	}
	got := collect(t, r)
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
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}

// TestCountersBeginAtZero: what an alert counts is there, as 0, before it happens for the first time.
func TestCountersBeginAtZero(t *testing.T) {
	r := NewRecorder(nil, nil)
	r.Record(&holdfast.Event{Kind: holdfast.EventAttempt, Lock: "a", LockKind: holdfast.KindMutex})
	r.Record(&holdfast.Event{Kind: holdfast.EventRunAttempt, Lock: "jobs/k"})
	got := collect(t, r)
	for _, name := range []string{
		"holdfast_lost_total  mutex expired", "holdfast_holds_over_expected_total  mutex",
		"holdfast_release_requests_total  mutex", "holdfast_store_requests_total renew error",
		"holdfast_renewal_seconds failed", "holdfast_events_dropped_total ", "holdfast_runs_total jobs failed",
		"holdfast_runs_total jobs lost", "holdfast_runs_total jobs abandoned",
		"holdfast_run_refusals_total jobs attempts-used",
	} {
		if n, ok := got[name]; !ok || n != 0 {
			t.Errorf("%s is %v, %v", name, n, ok)
		}
	}
}

// TestManyNames: 100,000 names of locks and of ledgers make no more label values than the options allow. Without a rule
// no name of a lock is a label.
func TestManyNames(t *testing.T) {
	for _, own := range []bool{false, true} {
		o := &Options{MaxLabels: 10}
		if own {
			o.LockLabel = func(lock string) string { return lock }
		}
		r := NewRecorder(o, nil)
		for i := range 100_000 {
			name := fmt.Sprintf("%d/lock", i)
			r.Record(&holdfast.Event{Kind: holdfast.EventAttempt, Lock: name, LockKind: holdfast.KindMutex})
			r.Record(&holdfast.Event{Kind: holdfast.EventRunStarted, Lock: name, Attempt: 1})
		}
		locks, ledgers := 0, 0
		for _, name := range slices.Sorted(maps.Keys(collect(t, r))) {
			switch {
			case strings.HasPrefix(name, attempts.Name):
				locks++
			case strings.HasPrefix(name, runs.Name) && strings.HasSuffix(name, " started"):
				ledgers++
			}
		}
		if want := map[bool]int{false: 1, true: 11}[own]; locks != want || ledgers != 11 {
			t.Errorf("%d labels of locks, %d of ledgers", locks, ledgers)
		}
	}
}

// TestOldestWait: the longest wait at present grows until that caller has the lock or gives up. Then the next one
// counts.
func TestOldestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		sinceStart := func() time.Duration { return time.Since(start) }
		store := memory.New(&memory.Options{Clock: driver.Clock{Monotonic: sinceStart, Boottime: sinceStart}})
		r := NewRecorder(nil, nil)
		c, err := holdfast.New(store.Open(), &holdfast.Options{OnEvent: func(e holdfast.Event) { r.Record(&e) }})
		if err != nil {
			t.Fatal(err)
		}
		m := c.Mutex("a", nil)
		held, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		check := func(waiting, oldest float64) {
			t.Helper()
			time.Sleep(time.Second) // so that all events have been delivered
			synctest.Wait()
			got := collect(t, r)
			if n := got["holdfast_waiting  mutex"]; n != waiting {
				t.Errorf("%v wait, want %v", n, waiting)
			}
			if wait := got["holdfast_oldest_wait_seconds  mutex"]; wait != oldest {
				t.Errorf("the oldest wait is %v s, want %v", wait, oldest)
			}
		}
		ctx, giveUp := context.WithCancel(t.Context())
		first, second := make(chan error), make(chan error)
		go func() {
			_, err := m.Lock(ctx)
			first <- err
		}()
		check(1, 1)
		go func() {
			next, err := m.Lock(t.Context())
			if err == nil {
				err = next.Release()
			}
			second <- err
		}()
		check(2, 2)
		time.Sleep(10 * time.Second)
		check(2, 13)
		giveUp()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		check(1, 13)
		if err := errors.Join(held.Release(), <-second); err != nil {
			t.Error(err)
		}
		check(0, 0)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestManyOpenClaims: the claims of many waiters and holders are counted, in whichever order they end.
func TestManyOpenClaims(t *testing.T) {
	r := NewRecorder(nil, nil)
	const n = 100
	record := func(kind holdfast.EventKind, i int) {
		r.Record(&holdfast.Event{Kind: kind, ID: fmt.Sprint(i), LockKind: holdfast.KindRW,
			Time: time.Now().Add(time.Duration(i-n) * time.Hour)})
	}
	check := func(waiting, held int) {
		t.Helper()
		got := collect(t, r)
		if got["holdfast_waiting  rw"] != float64(waiting) || got["holdfast_held  rw"] != float64(held) {
			t.Errorf("%v wait, %v held, want %d and %d", got["holdfast_waiting  rw"], got["holdfast_held  rw"],
				waiting, held)
		}
	}
	for i := range n {
		record(holdfast.EventAttempt, i)
	}
	check(n, 0)
	if hours := collect(t, r)["holdfast_oldest_wait_seconds  rw"] / 3600; hours < n || hours > n+1 {
		t.Errorf("the oldest wait is %v h", hours)
	}
	for i := 0; i < n; i += 2 {
		record(holdfast.EventAcquired, i)
	}
	check(n/2, n/2)
	for i := range n {
		record(map[bool]holdfast.EventKind{true: holdfast.EventReleased, false: holdfast.EventFailed}[i%2 == 0], n-1-i^1)
	}
	check(0, 0)
	r.claims.each(func(c *openClaim) { t.Errorf("the claim %s is remembered", c.id) })
}

// TestDroppedEvents: after events were dropped, nothing counts as waiting or held forever whose end may be among them.
// What is still held counts again with its next renewal.
func TestDroppedEvents(t *testing.T) {
	r := NewRecorder(nil, nil)
	record := func(kind holdfast.EventKind, id string, dropped int) {
		r.Record(&holdfast.Event{Kind: kind, ID: id, LockKind: holdfast.KindMutex, Time: time.Now().Add(-time.Hour),
			Dropped: dropped})
	}
	record(holdfast.EventAttempt, "its end is dropped", 0)
	record(holdfast.EventAttempt, "waits", 0)
	record(holdfast.EventAttempt, "held", 0)
	record(holdfast.EventAcquired, "held", 0)
	record(holdfast.EventAttempt, "new", 7)
	record(holdfast.EventFailed, "new", 0)
	record(holdfast.EventRenewed, "held", 0)
	record(holdfast.EventAcquired, "waits", 0)
	record(holdfast.EventReleased, "waits", 0)
	got := collect(t, r)
	if got["holdfast_waiting  mutex"] != 0 || got["holdfast_oldest_wait_seconds  mutex"] != 0 ||
		got["holdfast_held  mutex"] != 1 || got["holdfast_events_dropped_total "] != 7 {
		t.Error(got)
	}
}

// TestHistogramBounds: a time that equals the bound of a bucket is in that bucket; longer times are in the next one.
func TestHistogramBounds(t *testing.T) {
	r := NewRecorder(nil, nil)
	for _, d := range []time.Duration{0, time.Millisecond, time.Millisecond + 1, 2 * time.Hour} {
		r.Record(&holdfast.Event{Kind: holdfast.EventAcquired, Waited: d})
	}
	for _, s := range r.Collect() {
		if s.Metric != waits || s.Labels[2] != "acquired" {
			continue
		}
		if last := len(s.Counts) - 1; s.Count != 4 || s.Counts[0] != 2 || s.Counts[1] != 1 || s.Counts[last] != 1 ||
			s.Sum != 7200.002000001 {
			t.Error(s)
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
	n := strings.Count(string(data), "\n| `holdfast_") - strings.Count(string(data), "\n| `holdfast_command_")
	if n != len(All()) {
		t.Errorf("docs/metrics.md has %d metrics, there are %d", n, len(All()))
	}
}

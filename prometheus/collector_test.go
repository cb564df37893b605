package holdfastprom

import (
	"context"
	"math"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestCollector: a scrape shows what the locks did, and Prometheus's linter has nothing to complain about.
func TestCollector(t *testing.T) {
	collector := New(&Options{LockLabel: func(lock string) string { return lock }})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector)
	c, err := holdfast.New(memory.New(nil).Open(), &holdfast.Options{OnEvent: collector.OnEvent})
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.Mutex("a", nil).Lock(context.Background())
	if err == nil {
		err = l.Release()
	}
	if err == nil {
		err = c.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer server.Close()
	const want = `
# HELP holdfast_acquire_attempts_total Attempts to acquire a lock that have begun.
# TYPE holdfast_acquire_attempts_total counter
holdfast_acquire_attempts_total{kind="mutex",lock="a"} 1
# HELP holdfast_held Leases that this process holds at present.
# TYPE holdfast_held gauge
holdfast_held{kind="mutex",lock="a"} 0
# HELP holdfast_oldest_wait_seconds How long the caller that waits longest has been waiting, or 0 if none waits.
# TYPE holdfast_oldest_wait_seconds gauge
holdfast_oldest_wait_seconds{kind="mutex",lock="a"} 0
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "holdfast_acquire_attempts_total",
		"holdfast_held", "holdfast_oldest_wait_seconds"); err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	resp, err := server.Client().Get(server.URL)
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("%v %v", resp, err)
	}
	if err == nil {
		resp.Body.Close()
	}
}

// TestHistogram: the buckets of Prometheus count all times that are not longer than their bound.
func TestHistogram(t *testing.T) {
	collector := New(nil)
	for _, d := range []time.Duration{2 * time.Millisecond, 20 * time.Millisecond, 20 * time.Millisecond, time.Minute} {
		collector.OnEvent(holdfast.Event{Kind: holdfast.EventRenewed, RoundTrip: d})
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.Metric {
			if family.GetName() != "holdfast_renewal_seconds" || m.Label[0].GetValue() != "renewed" {
				continue
			}
			h := m.Histogram
			counts := map[float64]uint64{}
			for _, b := range h.Bucket {
				counts[b.GetUpperBound()] = b.GetCumulativeCount()
			}
			if h.GetSampleCount() != 4 || math.Abs(h.GetSampleSum()-60.042) > 1e-9 || counts[.001] != 0 ||
				counts[.0025] != 1 || counts[.01] != 1 || counts[.025] != 3 || counts[10] != 3 {
				t.Error(h)
			}
			return
		}
	}
	t.Error("there is no histogram of renewals")
}

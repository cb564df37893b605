package holdfastprom

import (
	"context"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/metrics"
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
	for name, want := range map[string]float64{"holdfast_acquire_attempts_total": 1, "holdfast_held": 0,
		"holdfast_waiting": 0} {
		m := metrics.All()[slices.IndexFunc(metrics.All(), func(m *metrics.Metric) bool { return m.Name == name })]
		var got float64
		if v := collector.counters[m]; v != nil {
			got = testutil.ToFloat64(v.WithLabelValues("a", "mutex"))
		} else {
			got = testutil.ToFloat64(collector.gauges[m].WithLabelValues("a", "mutex"))
		}
		if got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
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

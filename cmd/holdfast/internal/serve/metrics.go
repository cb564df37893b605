package serve

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/promtext"
	"github.com/holdfast-go/holdfast/metrics"
)

// counters count what the server does.
type counters struct {
	requests, refused                atomic.Int64
	closed, released, detached, lost atomic.Int64 // ends of holds
	unreachable, shutdown, revoked   atomic.Int64
	auditFailed                      atomic.Int64

	mu       sync.Mutex
	problems map[code]int64
}

func (c *counters) addProblem(of code) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.problems == nil {
		c.problems = map[code]int64{}
	}
	c.problems[of]++
}

// The metrics of the server itself.
var (
	streamsMetric = &metrics.Metric{Name: "holdfast_serve_streams", Type: metrics.Gauge,
		Help: "Streams and waiting requests that are open."}
	requestsMetric = serveCounter("requests", "Requests.")
	endsMetric     = serveCounter("holds_ended", "Holds that have ended, by how.")
	problemsMetric = serveCounter("problems", "Requests that were answered with a problem, by its code.")
	auditMetric    = serveCounter("audit_failures", "Lines that could not be written to the audit log.")
)

func serveCounter(name, help string) *metrics.Metric {
	return &metrics.Metric{Name: "holdfast_serve_" + name + "_total", Type: metrics.Counter, Help: help}
}

// showMetrics writes the metrics in the text format of Prometheus.
func (s *Server) showMetrics(w http.ResponseWriter, _ *http.Request) error {
	t := promtext.New()
	s.addOwnMetrics(t)
	if s.config.Metrics != nil {
		samples := s.config.Metrics()
		for _, m := range metrics.All() {
			for _, sample := range samples {
				if sample.Metric == m {
					promtext.EachSeries(&sample, promtext.LabelsOf(&sample),
						func(key string, value float64) { t.Set(m, key, value) })
				}
			}
		}
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(responseTimeout))
	return writeBody(w, http.StatusOK, "text/plain; version=0.0.4; charset=utf-8", t.Bytes())
}

// addOwnMetrics adds what the server counts itself, apart from its locks.
func (s *Server) addOwnMetrics(t *promtext.Text) {
	set := func(m *metrics.Metric, value int64, labels ...string) {
		t.Set(m, promtext.SeriesKey(m.Name, labels...), float64(value))
	}
	c := &s.counts
	set(streamsMetric, s.streams.open.Load())
	set(requestsMetric, c.requests.Load())
	for how, n := range map[string]*atomic.Int64{
		"closed": &c.closed, "released": &c.released, "detached": &c.detached, "lost": &c.lost,
		"unreachable": &c.unreachable, "shutdown": &c.shutdown, "revoked": &c.revoked,
	} {
		set(endsMetric, n.Load(), "how", how)
	}
	c.mu.Lock()
	for of, n := range c.problems {
		set(problemsMetric, n, "code", string(of))
	}
	c.mu.Unlock()
	set(auditMetric, c.auditFailed.Load())
}

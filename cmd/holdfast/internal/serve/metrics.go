package serve

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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

// showMetrics writes the metrics in the text format of Prometheus.
func (s *Server) showMetrics(w http.ResponseWriter, _ *http.Request) error {
	t := &metricsText{}
	s.writeOwnMetrics(t)
	if s.config.Metrics != nil {
		t.addSamples(s.config.Metrics())
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(responseTimeout))
	return writeBody(w, http.StatusOK, "text/plain; version=0.0.4; charset=utf-8", t.Bytes())
}

func (s *Server) writeOwnMetrics(t *metricsText) {
	c := &s.counts
	t.family("holdfast_serve_streams", "gauge", "Streams and waiting requests that are open.")
	t.series("holdfast_serve_streams", float64(s.streams.open.Load()))
	t.family("holdfast_serve_requests_total", "counter", "Requests.")
	t.series("holdfast_serve_requests_total", float64(c.requests.Load()))
	t.family("holdfast_serve_holds_ended_total", "counter", "Holds that have ended, by how.")
	for how, n := range map[string]*atomic.Int64{
		"closed": &c.closed, "released": &c.released, "detached": &c.detached, "lost": &c.lost,
		"unreachable": &c.unreachable, "shutdown": &c.shutdown, "revoked": &c.revoked,
	} {
		t.series("holdfast_serve_holds_ended_total", float64(n.Load()), "how", how)
	}
	t.family("holdfast_serve_problems_total", "counter", "Requests that were answered with a problem, by its code.")
	c.mu.Lock()
	for of, n := range c.problems {
		t.series("holdfast_serve_problems_total", float64(n), "code", string(of))
	}
	c.mu.Unlock()
	t.family("holdfast_serve_audit_failures_total", "counter", "Lines that could not be written to the audit log.")
	t.series("holdfast_serve_audit_failures_total", float64(c.auditFailed.Load()))
}

// metricsText is text in the format of Prometheus.
type metricsText struct{ bytes.Buffer }

func (t *metricsText) family(name, kind, help string) {
	fmt.Fprintf(t, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

var escapeLabel = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// series writes one value. labels has the name and the value of each label.
func (t *metricsText) series(name string, value float64, labels ...string) {
	t.WriteString(name)
	for i := 0; i < len(labels); i += 2 {
		t.WriteString([]string{"{", ","}[min(i, 1)])
		t.WriteString(labels[i] + `="` + escapeLabel.Replace(strings.ToValidUTF8(labels[i+1], "?")) + `"`)
	}
	if len(labels) > 0 {
		t.WriteByte('}')
	}
	t.WriteString(" " + strconv.FormatFloat(value, 'g', -1, 64) + "\n")
}

// addSamples writes the metrics of the library.
func (t *metricsText) addSamples(samples []metrics.Sample) {
	for _, m := range metrics.All() {
		first := true
		for _, s := range samples {
			if s.Metric != m {
				continue
			}
			if first {
				t.family(m.Name, string(m.Type), m.Help)
				first = false
			}
			t.addSample(&s)
		}
	}
}

func (t *metricsText) addSample(s *metrics.Sample) {
	var labels []string
	for i, name := range s.Metric.Labels {
		labels = append(labels, name, s.Labels[i])
	}
	if s.Metric.Type == metrics.Counter || s.Metric.Type == metrics.Gauge {
		t.series(s.Metric.Name, s.Value, labels...)
		return
	}
	sum := uint64(0)
	for i, bound := range s.Metric.Bounds {
		sum += s.Counts[i]
		t.series(s.Metric.Name+"_bucket", float64(sum),
			append(slices.Clone(labels), "le", strconv.FormatFloat(bound, 'g', -1, 64))...)
	}
	t.series(s.Metric.Name+"_bucket", float64(s.Count), append(slices.Clone(labels), "le", "+Inf")...)
	t.series(s.Metric.Name+"_sum", s.Sum, labels...)
	t.series(s.Metric.Name+"_count", float64(s.Count), labels...)
}

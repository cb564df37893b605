// Package holdfastprom collects the metrics of a client for Prometheus:
//
//	collector := holdfastprom.New(nil)
//	prometheus.MustRegister(collector)
//	client, err := holdfast.Open(ctx, url, &holdfast.Options{OnEvent: collector.OnEvent})
//
// docs/metrics.md lists the metrics.
package holdfastprom

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/metrics"
)

// Options are the options of a Collector: by which rule lock names become labels. The zero value and nil are valid.
type Options = metrics.Options

// Collector is a prometheus.Collector of the events of one client or several. It is safe for concurrent use. To write a
// file for the textfile collector of node_exporter, register it and call prometheus.WriteToTextfile.
type Collector struct {
	mu       sync.Mutex // guards recorder
	recorder *metrics.Recorder
	counters map[*metrics.Metric]*prometheus.CounterVec
	gauges   map[*metrics.Metric]*prometheus.GaugeVec
	times    map[*metrics.Metric]*prometheus.HistogramVec
	all      []prometheus.Collector
}

// New makes a Collector. opts may be nil.
func New(opts *Options) *Collector {
	c := &Collector{
		counters: map[*metrics.Metric]*prometheus.CounterVec{},
		gauges:   map[*metrics.Metric]*prometheus.GaugeVec{},
		times:    map[*metrics.Metric]*prometheus.HistogramVec{},
	}
	for _, m := range metrics.All() {
		var vec prometheus.Collector
		switch m.Type {
		case metrics.Counter:
			c.counters[m] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, m.Labels)
			vec = c.counters[m]
		case metrics.Gauge:
			c.gauges[m] = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: m.Name, Help: m.Help}, m.Labels)
			vec = c.gauges[m]
		case metrics.Histogram:
			c.times[m] = prometheus.NewHistogramVec(
				prometheus.HistogramOpts{Name: m.Name, Help: m.Help, Buckets: m.Bounds}, m.Labels)
			vec = c.times[m]
		}
		c.all = append(c.all, vec)
	}
	c.recorder = metrics.NewRecorder(vecSink{c}, opts)
	return c
}

// OnEvent is for Options.OnEvent of a client. It does not block.
func (c *Collector) OnEvent(e holdfast.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recorder.Record(&e)
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range c.all {
		v.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, v := range c.all {
		v.Collect(ch)
	}
}

// vecSink keeps measurements in the vectors of a Collector.
type vecSink struct{ *Collector }

// Add implements metrics.Sink.
func (s vecSink) Add(m *metrics.Metric, value float64, labels ...string) {
	if v := s.counters[m]; v != nil {
		v.WithLabelValues(labels...).Add(value)
		return
	}
	s.gauges[m].WithLabelValues(labels...).Add(value)
}

// Record implements metrics.Sink.
func (s vecSink) Record(m *metrics.Metric, seconds float64, labels ...string) {
	s.times[m].WithLabelValues(labels...).Observe(seconds)
}

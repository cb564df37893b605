// Package holdfastprom collects the metrics of a client for Prometheus:
//
//	collector := holdfastprom.New(nil)
//	prometheus.MustRegister(collector)
//	client, err := holdfast.Open(ctx, url, &holdfast.Options{OnEvent: collector.OnEvent})
//
// docs/metrics.md lists the metrics.
package holdfastprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/metrics"
)

// Options are the options of a Collector: by which rule lock names become labels. The zero value and nil are valid.
type Options = metrics.Options

// Collector is a prometheus.Collector of the events of one client or several. It is safe for concurrent use. To write a
// file for the textfile collector of node_exporter, register it and call prometheus.WriteToTextfile.
type Collector struct {
	recorder *metrics.Recorder
	descs    map[*metrics.Metric]*prometheus.Desc
}

// New makes a Collector. opts may be nil.
func New(opts *Options) *Collector {
	c := &Collector{recorder: metrics.NewRecorder(opts, nil), descs: map[*metrics.Metric]*prometheus.Desc{}}
	for _, m := range metrics.All() {
		c.descs[m] = prometheus.NewDesc(m.Name, m.Help, m.Labels, nil)
	}
	return c
}

// OnEvent is for Options.OnEvent of a client. It does not block.
func (c *Collector) OnEvent(e holdfast.Event) { c.recorder.Record(&e) }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.recorder.Collect() {
		ch <- newMetric(c.descs[s.Metric], &s)
	}
}

func newMetric(desc *prometheus.Desc, s *metrics.Sample) prometheus.Metric {
	switch s.Metric.Type {
	case metrics.Counter:
		return prometheus.MustNewConstMetric(desc, prometheus.CounterValue, s.Value, s.Labels...)
	case metrics.Gauge:
		return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, s.Value, s.Labels...)
	}
	atMost, sum := make(map[float64]uint64, len(s.Metric.Bounds)), uint64(0)
	for i, bound := range s.Metric.Bounds {
		sum += s.Counts[i]
		atMost[bound] = sum
	}
	return prometheus.MustNewConstHistogram(desc, s.Count, s.Sum, atMost, s.Labels...)
}

package holdfastotel

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/holdfast-go/holdfast/metrics"
)

// instruments keeps measurements in instruments of a meter.
type instruments struct {
	counters map[*metrics.Metric]metric.Float64Counter
	gauges   map[*metrics.Metric]metric.Float64UpDownCounter
	times    map[*metrics.Metric]metric.Float64Histogram
	sets     map[setKey]metric.MeasurementOption // the attributes for label values, which are bounded
}

// setKey names a metric and its label values.
type setKey struct {
	metric *metrics.Metric
	labels [3]string
}

func newInstruments(meter metric.Meter) (*instruments, error) {
	i := &instruments{
		counters: map[*metrics.Metric]metric.Float64Counter{},
		gauges:   map[*metrics.Metric]metric.Float64UpDownCounter{},
		times:    map[*metrics.Metric]metric.Float64Histogram{},
		sets:     map[setKey]metric.MeasurementOption{},
	}
	for _, m := range metrics.All() {
		var err error
		name, help := instrumentName(m.Name), metric.WithDescription(m.Help)
		switch m.Type {
		case metrics.Counter:
			i.counters[m], err = meter.Float64Counter(name, help)
		case metrics.Gauge:
			i.gauges[m], err = meter.Float64UpDownCounter(name, help)
		case metrics.Histogram:
			i.times[m], err = meter.Float64Histogram(name, help, metric.WithUnit("s"),
				metric.WithExplicitBucketBoundaries(m.Bounds...))
		}
		if err != nil {
			return nil, err
		}
	}
	return i, nil
}

// instrumentName is the name in the form of OpenTelemetry.
func instrumentName(name string) string {
	name = strings.TrimSuffix(strings.TrimSuffix(name, "_total"), "_seconds")
	return strings.Replace(name, "_", ".", 1)
}

// attributesOf returns the attributes for label values. Making them each time would cost more than the measurement.
func (i *instruments) attributesOf(m *metrics.Metric, labels []string) metric.MeasurementOption {
	key := setKey{metric: m}
	copy(key.labels[:], labels)
	set, ok := i.sets[key]
	if !ok {
		var list []attribute.KeyValue
		for n, name := range m.Labels {
			list = append(list, attribute.String(name, labels[n]))
		}
		set = metric.WithAttributeSet(attribute.NewSet(list...))
		i.sets[key] = set
	}
	return set
}

// Add implements metrics.Sink.
func (i *instruments) Add(m *metrics.Metric, value float64, labels ...string) {
	set := i.attributesOf(m, labels)
	if c := i.counters[m]; c != nil {
		c.Add(context.Background(), value, set)
		return
	}
	i.gauges[m].Add(context.Background(), value, set)
}

// Record implements metrics.Sink.
func (i *instruments) Record(m *metrics.Metric, seconds float64, labels ...string) {
	i.times[m].Record(context.Background(), seconds, i.attributesOf(m, labels))
}

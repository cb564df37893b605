package holdfastotel

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/holdfast-go/holdfast/metrics"
)

// instruments exports the measurements of a Recorder, which it keeps itself: to add to an instrument for each event
// would cost more than all else that is done with an event. The SDK reads them when it collects. Only histograms
// cannot be read in this way.
type instruments struct {
	observables map[*metrics.Metric]metric.Float64Observable
	histograms  map[*metrics.Metric]metric.Float64Histogram
}

// newRecorder makes a Recorder whose measurements a meter exports.
func newRecorder(meter metric.Meter, opts *metrics.Options) (*metrics.Recorder, error) {
	i := &instruments{
		observables: map[*metrics.Metric]metric.Float64Observable{},
		histograms:  map[*metrics.Metric]metric.Float64Histogram{},
	}
	var all []metric.Observable
	for _, m := range metrics.All() {
		if err := i.addInstrument(meter, m); err != nil {
			return nil, err
		}
		if o := i.observables[m]; o != nil {
			all = append(all, o)
		}
	}
	recorder := metrics.NewRecorder(opts, i.newHistogram)
	_, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, s := range recorder.Collect() {
			o.ObserveFloat64(i.observables[s.Metric], s.Value, attributesOf(s.Metric, s.Labels))
		}
		return nil
	}, all...)
	return recorder, err
}

// addInstrument makes the instrument of a metric. A gauge that is a time is no sum, so it cannot be an
// UpDownCounter.
func (i *instruments) addInstrument(meter metric.Meter, m *metrics.Metric) (err error) {
	name, help, unit := instrumentName(m.Name), metric.WithDescription(m.Help), metric.WithUnit("")
	if m.IsTime() {
		unit = metric.WithUnit("s")
	}
	switch {
	case m.Type == metrics.Histogram:
		i.histograms[m], err = meter.Float64Histogram(name, help, unit, metric.WithExplicitBucketBoundaries(m.Bounds...))
	case m.Type == metrics.Counter:
		i.observables[m], err = meter.Float64ObservableCounter(name, help, unit)
	case m.IsTime(): // which is no sum
		i.observables[m], err = meter.Float64ObservableGauge(name, help, unit)
	default:
		i.observables[m], err = meter.Float64ObservableUpDownCounter(name, help, unit)
	}
	return err
}

// newHistogram is a metrics.NewHistogram. The attributes are made once.
func (i *instruments) newHistogram(m *metrics.Metric, labels []string) func(seconds float64) {
	h, options := i.histograms[m], []metric.RecordOption{attributesOf(m, labels)}
	return func(seconds float64) { h.Record(context.Background(), seconds, options...) }
}

// instrumentName is the name in the form of OpenTelemetry.
func instrumentName(name string) string {
	name = strings.TrimSuffix(strings.TrimSuffix(name, "_total"), "_seconds")
	return strings.Replace(name, "_", ".", 1)
}

func attributesOf(m *metrics.Metric, labels []string) metric.MeasurementOption {
	list := make([]attribute.KeyValue, len(labels))
	for n, label := range labels {
		list[n] = attribute.String(m.Labels[n], label)
	}
	return metric.WithAttributeSet(attribute.NewSet(list...))
}

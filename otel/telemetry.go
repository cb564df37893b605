// Package holdfastotel makes OpenTelemetry metrics and traces of what a client does:
//
//	telemetry, err := holdfastotel.New(nil)
//	client, err := holdfast.Open(ctx, url, &holdfast.Options{OnEvent: telemetry.OnEvent})
//
// It uses the API of OpenTelemetry only: the program chooses the SDK and the exporters, and without any, nothing is
// measured. docs/metrics.md lists the metrics and the spans.
//
// # Decisions
//
// The spans of two holders are not linked. The lock's name and the tokens, which rise, say which hold came next, in the
// traces of both. Rejected: the previous holder's span context in the record of the lock. Each grant would carry it,
// the layouts of foreign clients have no room for it, and a holder that died could not be told from one that was not
// traced.
package holdfastotel

import (
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/metrics"
)

const scope = "github.com/holdfast-go/holdfast/otel"

// Options are the options of a Telemetry. The zero value and nil are valid.
type Options struct {
	// Labels says by which rule lock names become labels of metrics. Spans always have the lock's name.
	Labels metrics.Options
	// MeterProvider makes the meter. Default: the global one.
	MeterProvider metric.MeterProvider
	// TracerProvider makes the tracer. Default: the global one.
	TracerProvider trace.TracerProvider
}

// Telemetry makes metrics and traces of the events of one client or several. It is safe for concurrent use.
type Telemetry struct {
	recorder *metrics.Recorder

	mu    sync.Mutex // guards spans
	spans *spans     // nil if there is no tracer
}

// New makes a Telemetry. It returns an error if the meter refuses an instrument. opts may be nil.
func New(opts *Options) (*Telemetry, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	recorder, err := newRecorder(o.MeterProvider.Meter(scope), &o.Labels)
	if err != nil {
		return nil, err
	}
	t := &Telemetry{recorder: recorder}
	if _, isNoop := o.TracerProvider.(noop.TracerProvider); !isNoop {
		t.spans = &spans{tracer: o.TracerProvider.Tracer(scope), open: map[string]trace.Span{}}
	}
	return t, nil
}

// OnEvent is for Options.OnEvent of a client. An exporter that blocks delays later events, and never a lock.
func (t *Telemetry) OnEvent(e holdfast.Event) {
	t.recorder.Record(&e)
	if t.spans == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spans.addEvent(&e)
}

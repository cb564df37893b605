package holdfastotel

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/store/memory"
)

func mustNew(t testing.TB, o *Options) *Telemetry {
	t.Helper()
	telemetry, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return telemetry
}

func openClient(t testing.TB, o *holdfast.Options) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(memory.New(nil).Open(), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestInstruments: a reader finds each metric that something has happened for, under its OpenTelemetry name.
func TestInstruments(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	telemetry := mustNew(t, &Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		TracerProvider: nooptrace.NewTracerProvider()})
	c := openClient(t, &holdfast.Options{OnEvent: telemetry.OnEvent})
	err := c.Do(t.Context(), "a", func(context.Context, *holdfast.Lease) error { return nil })
	if err == nil {
		_, err = c.Ledger("jobs", nil).Do(t.Context(), "k", nil,
			func(context.Context, *holdfast.Run) ([]byte, error) { return nil, nil })
	}
	if err == nil {
		err = c.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range data.ScopeMetrics[0].Metrics {
		names = append(names, m.Name)
	}
	for _, want := range []string{"holdfast.acquire_attempts", "holdfast.acquire_wait", "holdfast.held", "holdfast.hold",
		"holdfast.store_requests", "holdfast.runs", "holdfast.run", "holdfast.runs_in_progress", "holdfast.waiting",
		"holdfast.oldest_wait"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s among %v", want, names)
		}
	}
}

// TestSpansOfRuns: runs have spans of their own. A failed one has an error, and so has an acquire that timed out.
func TestSpansOfRuns(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	telemetry := mustNew(t, &Options{MeterProvider: noop.NewMeterProvider(), TracerProvider: provider})
	c := openClient(t, &holdfast.Options{OnEvent: telemetry.OnEvent})
	ctx, parent := provider.Tracer("test").Start(t.Context(), "parent")
	_, err := c.Ledger("jobs", nil).Do(ctx, "k", nil,
		func(context.Context, *holdfast.Run) ([]byte, error) { return nil, errors.New("no luck") })
	if err == nil {
		t.Error("the run has not failed")
	}
	lease, err := c.Mutex("a", nil).Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(ctx, 2*time.Second) // which has not passed before the attempt begins
	defer cancel()
	if _, err := c.Mutex("a", nil).Lock(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := errors.Join(lease.Release(), c.Close()); err != nil {
		t.Error(err)
	}
	var got []string
	for _, s := range recorder.Ended() {
		if s.Parent().SpanID() != parent.SpanContext().SpanID() {
			t.Errorf("%s has another parent", s.Name())
		}
		got = append(got, s.Name()+": "+s.Status().Code.String())
	}
	want := []string{"holdfast acquire: Unset", "holdfast run: Error", "holdfast acquire: Unset",
		"holdfast acquire: Error", "holdfast hold: Unset"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if n := len(telemetry.spans.open); n != 0 {
		t.Errorf("%d spans are open", n)
	}
}

// TestSpansWithoutParent: without a span of the caller, a hold is in the trace of its acquire, and both are sampled or
// neither.
func TestSpansWithoutParent(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder),
		sdktrace.WithSampler(sdktrace.TraceIDRatioBased(.5)))
	telemetry := mustNew(t, &Options{MeterProvider: noop.NewMeterProvider(), TracerProvider: provider})
	c := openClient(t, &holdfast.Options{OnEvent: telemetry.OnEvent})
	const locks = 100
	for range locks {
		if err := c.Do(t.Context(), "a", func(context.Context, *holdfast.Lease) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	acquires, holds := map[string]sdktrace.ReadOnlySpan{}, 0
	for _, s := range recorder.Ended() {
		trace := s.SpanContext().TraceID().String()
		if s.Name() == "holdfast acquire" {
			acquires[trace] = s
			continue
		}
		holds++
		if a := acquires[trace]; a == nil || s.Parent().SpanID() != a.SpanContext().SpanID() {
			t.Errorf("a hold is in a trace without its acquire")
		}
	}
	if holds != len(acquires) || holds == 0 || holds == locks {
		t.Errorf("%d acquires and %d holds of %d locks", len(acquires), holds, locks)
	}
}

// TestSpansAfterDroppedEvents: after events were dropped, no span stays open whose end may be among them.
func TestSpansAfterDroppedEvents(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	telemetry := mustNew(t, &Options{MeterProvider: noop.NewMeterProvider(),
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))})
	start := time.Now()
	telemetry.OnEvent(holdfast.Event{Kind: holdfast.EventAcquired, ID: "held", Time: start})
	telemetry.OnEvent(holdfast.Event{Kind: holdfast.EventRunStarted, ID: "runs", Time: start})
	now := start.Add(time.Minute)
	telemetry.OnEvent(holdfast.Event{Kind: holdfast.EventAttempt, ID: "new", Time: now, Dropped: 1})
	if n := len(telemetry.spans.open); n != 0 {
		t.Errorf("%d spans are open", n)
	}
	var got []string
	for _, s := range recorder.Ended() {
		if s.Name() == "holdfast acquire" {
			continue
		}
		got = append(got, s.Name())
		if end := attribute.String("holdfast.end", "unknown"); !slices.Contains(s.Attributes(), end) ||
			!s.EndTime().Equal(now) || s.Status().Code != codes.Unset {
			t.Errorf("%s ended at %v with %v, %v", s.Name(), s.EndTime(), s.Attributes(), s.Status())
		}
	}
	slices.Sort(got)
	if want := []string{"holdfast hold", "holdfast run"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	telemetry.OnEvent(holdfast.Event{Kind: holdfast.EventAcquired, ID: "new", Time: now, Dropped: 1})
	if n := len(telemetry.spans.open); n != 1 {
		t.Errorf("%d spans are open after a claim was granted", n)
	}
}

// hangingExporter never returns.
type hangingExporter struct{ called chan struct{} }

func (e hangingExporter) ExportSpans(ctx context.Context, _ []sdktrace.ReadOnlySpan) error {
	select {
	case e.called <- struct{}{}:
	default:
	}
	select {}
}

func (hangingExporter) Shutdown(context.Context) error { return nil }

// TestHangingExporter: locks are acquired and released while an exporter hangs that is called for each span.
func TestHangingExporter(t *testing.T) {
	exporter := hangingExporter{called: make(chan struct{}, 1)}
	telemetry := mustNew(t, &Options{MeterProvider: noop.NewMeterProvider(),
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))})
	c := openClient(t, &holdfast.Options{OnEvent: telemetry.OnEvent})
	for i := range 1000 {
		if i == 1 {
			<-exporter.called
		}
		if err := c.Do(t.Context(), "a", func(context.Context, *holdfast.Lease) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = c.CloseContext(ctx)
}

// TestInstrumentNames: no two metrics have one name in OpenTelemetry.
func TestInstrumentNames(t *testing.T) {
	names := map[string]bool{}
	for _, m := range metrics.All() {
		name := instrumentName(m.Name)
		if names[name] {
			t.Errorf("two metrics are %s", name)
		}
		names[name] = true
	}
}

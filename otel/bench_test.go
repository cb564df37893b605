package holdfastotel

import (
	"context"
	"slices"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/holdfast-go/holdfast"
)

// BenchmarkTelemetry: what metrics, and metrics and traces, cost a lock in memory, in percent of an acquire and a
// release. Clients with and without take turns, so that a busy machine slows down both.
func BenchmarkTelemetry(b *testing.B) {
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	b.Run("metrics", func(b *testing.B) {
		compareWithPlain(b, &Options{MeterProvider: meters, TracerProvider: nooptrace.NewTracerProvider()})
	})
	b.Run("metrics+traces", func(b *testing.B) {
		compareWithPlain(b, &Options{MeterProvider: meters,
			TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.TraceIDRatioBased(.01)))})
	})
}

func compareWithPlain(b *testing.B, o *Options) {
	telemetry := mustNew(b, o)
	plain, measured := openClient(b, nil), openClient(b, &holdfast.Options{OnEvent: telemetry.OnEvent})
	defer plain.Close()
	defer measured.Close()
	var times [2][]time.Duration
	for b.Loop() {
		for i, c := range []*holdfast.Client{plain, measured} {
			m, start := c.Mutex("a", nil), time.Now()
			for range 1000 {
				lease, err := m.Lock(context.Background())
				if err == nil {
					err = lease.Release()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			times[i] = append(times[i], time.Since(start))
		}
	}
	for _, t := range times {
		slices.Sort(t)
	}
	// a quarter of the measurements are shorter: those that nothing else has disturbed
	before, after := times[0][len(times[0])/4], times[1][len(times[1])/4]
	b.ReportMetric(100*(float64(after)/float64(before)-1), "overhead-%")
}

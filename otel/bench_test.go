package holdfastotel

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/holdfast-go/holdfast"
)

// BenchmarkTelemetry: what metrics, and metrics and traces, cost a lock in memory, in percent of an acquire and a
// release: the caller's time, and the time of all processors, since events are measured next to the caller. Clients
// with and without take turns, so that a busy machine slows down both.
func BenchmarkTelemetry(b *testing.B) {
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	b.Run("events", func(b *testing.B) { // that nobody measures
		compareWithPlain(b, func(holdfast.Event) {})
	})
	b.Run("metrics", func(b *testing.B) {
		o := &Options{MeterProvider: meters, TracerProvider: nooptrace.NewTracerProvider()}
		compareWithPlain(b, mustNew(b, o).OnEvent)
	})
	b.Run("metrics+traces", func(b *testing.B) {
		o := &Options{MeterProvider: meters,
			TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.TraceIDRatioBased(.01)))}
		compareWithPlain(b, mustNew(b, o).OnEvent)
	})
}

func compareWithPlain(b *testing.B, onEvent func(holdfast.Event)) {
	const cycles = 2000
	delivered, events := make(chan struct{}, 1), 0
	plain, measured := openClient(b, nil), openClient(b, &holdfast.Options{OnEvent: func(e holdfast.Event) {
		onEvent(e)
		if events++; events%(3*cycles) == 0 {
			delivered <- struct{}{}
		}
	}})
	defer plain.Close()
	defer measured.Close()
	var callers, processors [2][]time.Duration
	for b.Loop() {
		for i, c := range []*holdfast.Client{plain, measured} {
			m, start, used := c.Mutex("a", nil), time.Now(), processorTime(b)
			for range cycles {
				lease, err := m.Lock(context.Background())
				if err == nil {
					err = lease.Release()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			callers[i] = append(callers[i], time.Since(start))
			if c == measured {
				<-delivered
			}
			processors[i] = append(processors[i], processorTime(b)-used)
		}
	}
	b.ReportMetric(overhead(callers), "overhead-%")
	b.ReportMetric(overhead(processors), "processor-%")
	b.ReportMetric(float64(callers[0][len(callers[0])/4])/cycles, "ns/plain-cycle")
}

// processorTime is what this process has used of all processors, that of other goroutines included.
func processorTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// overhead compares the times with and without, in percent. A quarter of them are shorter than those that it compares:
// the ones that nothing else has disturbed.
func overhead(times [2][]time.Duration) float64 {
	for _, t := range times {
		slices.Sort(t)
	}
	before, after := times[0][len(times[0])/4], times[1][len(times[1])/4]
	return 100 * (float64(after)/float64(before) - 1)
}

package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/metrics"
	holdfastotel "github.com/holdfast-go/holdfast/otel"
)

// otlpTimeout is how long the export may delay the end of this program. The lock is released before.
const otlpTimeout = 1500 * time.Millisecond

// otlpExport exports metrics and traces by OTLP, as the variables of OpenTelemetry say. A nil otlpExport ignores
// everything.
type otlpExport struct {
	events  *holdfastotel.Telemetry
	span    trace.Span // of this program; nil without traces
	context context.Context
	closers []func(context.Context) error
}

// startOTLP returns nil, and does nothing else, unless the environment asks for an export: programs that do not use
// OpenTelemetry must not pay for it.
func startOTLP(command, name string) *otlpExport {
	traces, problem := exportsSignal("TRACES")
	meters, other := exportsSignal("METRICS")
	for _, p := range slices.Compact([]string{problem, other}) {
		if p != "" {
			printMessage("%s", p)
		}
	}
	if !traces && !meters {
		return nil
	}
	var warn sync.Once
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		warn.Do(func() { printMessage("the export by OpenTelemetry is not complete: %s", err) })
	}))
	ctx := context.Background()
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "holdfast"),
		attribute.String("service.instance.id", rand.Text())), resource.WithHost(), resource.WithTelemetrySDK(),
		resource.WithFromEnv())
	if err != nil {
		otel.Handle(err) // it has what could be found out
	}
	o := &otlpExport{context: ctx}
	options := &holdfastotel.Options{MeterProvider: noopmetric.NewMeterProvider(),
		TracerProvider: nooptrace.NewTracerProvider(),
		Labels:         metrics.Options{LockLabel: func(lock string) string { return lock }}}
	if meters {
		if m := o.startMeters(about); m != nil {
			options.MeterProvider = m
		}
	}
	if traces {
		if t := o.startTraces(about, command, name); t != nil {
			options.TracerProvider = t
		}
	}
	if o.events, err = holdfastotel.New(options); err != nil {
		otel.Handle(err)
		return nil
	}
	return o
}

// exportsSignal reports whether the environment asks for an export of TRACES or METRICS, and why that is not possible.
func exportsSignal(signal string) (exports bool, problem string) {
	endpoint := os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") + os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT")
	exporters := os.Getenv("OTEL_" + signal + "_EXPORTER")
	if endpoint == "" && exporters == "" || strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false, ""
	}
	if exporters != "" {
		names := strings.Split(exporters, ",")
		for i := range names {
			names[i] = strings.TrimSpace(names[i])
		}
		switch {
		case slices.Contains(names, "otlp"):
		case slices.Contains(names, "none"):
			return false, ""
		default:
			return false, fmt.Sprintf("OTEL_%s_EXPORTER is ignored: %s is not known; known are otlp and none", signal,
				quoteName(exporters))
		}
	}
	for _, variable := range []string{"OTEL_EXPORTER_OTLP_" + signal + "_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if protocol := os.Getenv(variable); protocol != "" {
			if protocol != "http/protobuf" {
				return false, fmt.Sprintf("nothing is exported by OpenTelemetry: %s is %s, and only http/protobuf is known; "+
					"its port is usually 4318", variable, quoteName(protocol))
			}
			break
		}
	}
	return true, ""
}

// startMeters starts the export of metrics. An exporter that cannot be made is reported, and the command runs
// without it.
func (o *otlpExport) startMeters(about *resource.Resource) metric.MeterProvider {
	// without retries: the next export has the same sums, and the last one must not take long
	exporter, err := otlpmetrichttp.New(o.context, otlpmetrichttp.WithRetry(otlpmetrichttp.RetryConfig{}))
	if err != nil {
		otel.Handle(err)
		return nil
	}
	p := sdkmetric.NewMeterProvider(sdkmetric.WithResource(about),
		sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)))
	o.closers = append(o.closers, p.Shutdown)
	return p
}

// startTraces starts the span of this program, below that of TRACEPARENT.
func (o *otlpExport) startTraces(about *resource.Resource, command, name string) trace.TracerProvider {
	exporter, err := otlptracehttp.New(o.context, otlptracehttp.WithRetry(otlptracehttp.RetryConfig{}))
	if err != nil {
		otel.Handle(err)
		return nil
	}
	p := sdktrace.NewTracerProvider(sdktrace.WithResource(about), sdktrace.WithBatcher(exporter))
	o.closers = append(o.closers, p.Shutdown)
	parent := propagation.TraceContext{}.Extract(o.context, propagation.MapCarrier{
		"traceparent": os.Getenv("TRACEPARENT"), "tracestate": os.Getenv("TRACESTATE")})
	o.context, o.span = p.Tracer("github.com/holdfast-go/holdfast/cmd/holdfast").Start(parent, "holdfast command",
		trace.WithAttributes(attribute.String("holdfast.command", command), attribute.String("holdfast.name", name)))
	return p
}

func (o *otlpExport) addEvent(e holdfast.Event) {
	if o != nil {
		o.events.OnEvent(e)
	}
}

func (o *otlpExport) withSpan(ctx context.Context) context.Context {
	if o == nil || o.span == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, o.span)
}

func (o *otlpExport) environment(env []string) []string {
	if o == nil || o.span == nil {
		return env
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(o.context, carrier)
	return replaceVariables(env, [][2]string{{"TRACEPARENT", carrier["traceparent"]},
		{"TRACESTATE", carrier["tracestate"]}})
}

// startClosing ends the span, and exports what is left. The channel is closed when that is done, or has taken too long.
func (o *otlpExport) startClosing(end error) <-chan struct{} {
	closed := make(chan struct{})
	if o == nil {
		close(closed)
		return closed
	}
	if o.span != nil {
		outcome, code := metricsOutcome(end)
		o.span.SetAttributes(attribute.String("holdfast.outcome", outcome), attribute.Int("holdfast.exit_code", code))
		if code != 0 {
			o.span.SetStatus(codes.Error, outcome)
		}
		o.span.End()
	}
	go func() {
		defer close(closed)
		ctx, cancel := context.WithTimeout(context.Background(), otlpTimeout)
		defer cancel()
		var group sync.WaitGroup
		for _, shutDown := range o.closers {
			group.Go(func() {
				if err := shutDown(ctx); err != nil {
					otel.Handle(err)
				}
			})
		}
		done := make(chan struct{})
		go func() { group.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(otlpTimeout + 100*time.Millisecond): // whatever the exporters do with their context
		}
	}()
	return closed
}

package holdfastotel_test

import (
	"context"
	"fmt"
	"log"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-go/holdfast"
	holdfastotel "github.com/holdfast-go/holdfast/otel"
	_ "github.com/holdfast-go/holdfast/store/memory"
)

// A program that has set the global providers of OpenTelemetry calls New(nil). This one keeps its spans in memory.
func ExampleNew() {
	ctx := context.Background()
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	telemetry, err := holdfastotel.New(&holdfastotel.Options{TracerProvider: provider})
	if err != nil {
		log.Fatal(err)
	}
	client, err := holdfast.Open(ctx, "memory://traces", &holdfast.Options{OnEvent: telemetry.OnEvent})
	if err != nil {
		log.Fatal(err)
	}
	err = client.Do(ctx, "nightly", func(context.Context, *holdfast.Lease) error { return nil })
	if err != nil {
		log.Fatal(err)
	}
	if err := client.Close(); err != nil { // waits until all events have been handled
		log.Fatal(err)
	}
	for _, span := range exporter.GetSpans() {
		fmt.Println(span.Name)
	}
	// Output:
	// holdfast acquire
	// holdfast hold
}

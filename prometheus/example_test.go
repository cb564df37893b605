package holdfastprom_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-go/holdfast"
	holdfastprom "github.com/holdfast-go/holdfast/prometheus"
	_ "github.com/holdfast-go/holdfast/store/memory"
)

// The collector keeps the metrics of a client, and Prometheus's library collects them. A rule says which names of locks
// become labels: without it, none does.
func ExampleNew() {
	collector := holdfastprom.New(&holdfastprom.Options{
		LockLabel: func(lock string) string { // "order:4711" is counted as "order"
			kind, _, _ := strings.Cut(lock, ":")
			return kind
		},
	})
	registry := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	registry.MustRegister(collector)

	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://metrics", &holdfast.Options{OnEvent: collector.OnEvent})
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"order:4711", "order:4712"} {
		if err := client.Do(ctx, name, func(context.Context, *holdfast.Lease) error { return nil }); err != nil {
			log.Fatal(err)
		}
	}
	if err := client.Close(); err != nil { // waits until all events have been counted
		log.Fatal(err)
	}

	families, err := registry.Gather() // usually done by promhttp.Handler
	if err != nil {
		log.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "holdfast_acquire_attempts_total" {
			for _, metric := range family.GetMetric() {
				fmt.Println(family.GetName(), metric.GetLabel()[1].GetValue(), metric.GetCounter().GetValue())
			}
		}
	}
	// Output:
	// holdfast_acquire_attempts_total order 2
}

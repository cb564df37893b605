package main

import (
	"context"
	"net/http"

	"github.com/holdfast-go/holdfast/internal/benchtest/requests"
)

// counter makes a counter of one that needs no workers.
func counter(count func(context.Context) (int64, error)) func(context.Context, workers) (int64, error) {
	return func(ctx context.Context, _ workers) (int64, error) { return count(ctx) }
}

// metricCounter reads a metric of a server, summed over its labels.
func metricCounter(client *http.Client, url, name string) func(context.Context, workers) (int64, error) {
	return counter(func(ctx context.Context) (int64, error) { return requests.SumMetric(ctx, client, url, name) })
}

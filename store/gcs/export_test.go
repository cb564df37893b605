package gcs

import (
	"context"
	"net/http"
	"time"

	"github.com/holdfast-go/holdfast/engine/record"
)

// SetMaxLateness shortens foreign.MaxLateness for all stores that are opened after it.
func SetMaxLateness(d time.Duration) { maxLateness = d }

// NewForeignTable opens the records of a foreign layout.
func NewForeignTable(ctx context.Context, client *http.Client, bucket string, opts *Options) (record.Table, error) {
	t, err := newTable(ctx, client, bucket, opts)
	if err != nil {
		return nil, err
	}
	t.closeClient = func() error { return nil }
	return newForeignTable(t, opts), nil
}

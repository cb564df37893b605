package gcs_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/gcs"
)

// TestTableContract: the bare records keep their contract, even when replies are lost.
func TestTableContract(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	storetest.ConformTable(t, tabletest.Harness{
		Open: func(ctx context.Context) (record.Table, error) {
			client, _ := newLink(t)
			return gcs.NewTable(ctx, client, bucket, at(s, quickOptions()))
		},
		Lossy: func(ctx context.Context, fate func() drivertest.Fate) (record.Table, error) {
			hc := &http.Client{Transport: &drivertest.Transport{Fate: fate}}
			return gcs.NewTable(ctx, hc, bucket, at(s, quickOptions()))
		},
	})
}

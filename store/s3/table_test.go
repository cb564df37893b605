package s3_test

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/s3"
	"github.com/holdfast-go/holdfast/store/s3/s3test"
)

// TestTableContract: the bare records keep their contract, even when replies are lost, on services that compare before
// they delete, on those that do not, and on MinIO, which is one of these.
func TestTableContract(t *testing.T) {
	t.Parallel()
	honest, blind := startServer(t), startServer(t)
	blind.SetFlaws(s3test.Flaws{DeleteBlindly: true})
	for what, endpoint := range map[string]string{"compares": honest.URL, "deletes blindly": blind.URL,
		"MinIO": sharedMinIO(t)} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			opts := &s3.Options{Prefix: "bare/records-"}
			storetest.ConformTable(t, tabletest.Harness{
				Rows: 1100,
				Open: func(ctx context.Context) (record.Table, error) {
					return s3.NewTable(ctx, newClient(t, endpoint), bucket, opts)
				},
				Lossy: func(ctx context.Context, fate func() drivertest.Fate) (record.Table, error) {
					over, _ := newLink(t)
					over.Transport = &drivertest.Transport{Base: over.Transport, Fate: fate}
					return s3.NewTable(ctx, s3test.NewClient(endpoint, over), bucket, opts)
				},
			})
		})
	}
}

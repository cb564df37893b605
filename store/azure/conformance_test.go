package azure_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/azure"
)

// TestConformance: the store keeps every promise of the contract. It runs before the other tests, because it keeps the
// machine busy.
func TestConformance(t *testing.T) {
	storetest.Conform(t, newHarness(t, startService(t), azure.Options{Prefix: "locks/"}), drivertest.Options{Parallel: 16})
}

// TestLossyConformance: two of a hundred requests take effect and lose their replies, and two are refused.
func TestLossyConformance(t *testing.T) {
	storetest.Conform(t, newHarness(t, startService(t), azure.Options{}),
		drivertest.Options{Parallel: 16, LostReplies: 2, Refusals: 2, Effort: 0.3})
}

// TestTableContract: the bare records keep their contract, even when replies are lost.
func TestTableContract(t *testing.T) {
	t.Parallel()
	s := startService(t)
	storetest.ConformTable(t, tabletest.Harness{
		Open: func(ctx context.Context) (record.Table, error) {
			return azure.NewTable(ctx, newWeb(t), s.address(), with(azure.Options{Prefix: "table/"}))
		},
		Lossy: func(ctx context.Context, fate func() drivertest.Fate) (record.Table, error) {
			return azure.NewTable(ctx, &http.Client{Transport: &drivertest.Transport{Fate: fate}}, s.address(),
				with(azure.Options{Prefix: "table/"}))
		},
	})
}

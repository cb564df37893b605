package kubernetes_test

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/kubernetes"
	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
)

// TestTableContract: the bare records keep their contract, also when replies are lost.
func TestTableContract(t *testing.T) {
	c := startModel(t)
	opts := &kubernetes.Options{Prefix: "bare-"}
	open := func(fate func() drivertest.Fate) (record.Table, error) {
		wrap := lossy(fate)
		if fate == nil {
			wrap = nil
		}
		web, _ := newLink(t, c, wrap)
		return kubernetes.NewTable(web, c.Address(), kubernetestest.Namespace, opts)
	}
	storetest.ConformTable(t, tabletest.Harness{
		Open:  func(context.Context) (record.Table, error) { return open(nil) },
		Lossy: func(_ context.Context, fate func() drivertest.Fate) (record.Table, error) { return open(fate) },
	})
}

package kubernetes_test

import (
	"context"
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/kubernetes"
	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
)

// TestTableContract: the bare records keep their contract, even when replies are lost.
func TestTableContract(t *testing.T) {
	for name, c := range map[string]server{"model": startModel(t), "cluster": sharedCluster(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkTable(t, c)
		})
	}
}

func checkTable(t *testing.T, c server) {
	opts := &kubernetes.Options{Prefix: "bare-"}
	open := func(fate func() drivertest.Fate) (record.Table, error) {
		wrap := lossy(fate)
		if fate == nil {
			wrap = nil
		}
		web, _ := newLink(t, c, wrap)
		return kubernetes.NewTable(t.Context(), web, c.Address(), kubernetestest.Namespace, opts)
	}
	storetest.ConformTable(t, tabletest.Harness{
		Rows:  600, // pages have 250
		Open:  func(context.Context) (record.Table, error) { return open(nil) },
		Lossy: func(_ context.Context, fate func() drivertest.Fate) (record.Table, error) { return open(fate) },
	})
}

// TestSameData: a record that is written as it was has a new version, and a write that expects the old one is refused.
func TestSameData(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	web, stop := c.Client(kubernetestest.AllowAll, nil, nil)
	t.Cleanup(stop)
	table, err := kubernetes.NewTable(t.Context(), web, c.Address(), kubernetestest.Namespace,
		&kubernetes.Options{Prefix: "same-"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	row := record.Row{Name: "a", Data: []byte("{}")}
	first, err := table.Swap(t.Context(), row)
	if err != nil {
		t.Fatal(err)
	}
	row.Version = first.Version
	second, err := table.Swap(t.Context(), row)
	if err != nil || second.Version == first.Version {
		t.Errorf("the version %q after %q, %v", second.Version, first.Version, err)
	}
	if _, err := table.Swap(t.Context(), row); !errors.Is(err, record.ErrConflict) {
		t.Errorf("a write that expects the first version: %v", err)
	}
}

package kubernetes_test

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/kubernetes"
	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
)

// TestConformance: the store keeps every promise of the contract. It runs before the other tests, because it keeps the
// machine busy.
func TestConformance(t *testing.T) {
	t.Run("record", func(t *testing.T) {
		t.Parallel()
		storetest.Conform(t, newHarness(t, sharedCluster(t), "records", nil),
			drivertest.Options{Parallel: 16})
	})
	t.Run("leaderelection", func(t *testing.T) {
		t.Parallel()
		storetest.Conform(t, newHarnessOver(t, sharedCluster(t), "elections", kubernetes.NewForAllNames),
			drivertest.Options{Effort: 0.5, Parallel: 16})
	})
}

// TestConformanceLossy: all promises hold while two of a hundred requests lose their replies, and two are refused.
func TestConformanceLossy(t *testing.T) {
	t.Parallel()
	h := newHarness(t, startModel(t), kubernetestest.Namespace, &kubernetes.Options{Prefix: "lossy-"})
	h.Kill, h.Cut, h.Heal = nil, nil, nil // these are for the clients that lose nothing
	storetest.Conform(t, h, drivertest.Options{LostReplies: 2, Refusals: 2, Effort: 0.3, Parallel: 16})
}

// TestConformanceRestart: the promises hold when the API server and its etcd are killed and come back. The other cases,
// which TestConformance has on such a cluster, run here with -prove only.
func TestConformanceRestart(t *testing.T) {
	t.Parallel()
	c, err := kubernetestest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	h := newHarness(t, c, kubernetestest.Namespace, nil)
	h.Restart = func(context.Context) error {
		c.API.Kill()
		c.Etcd.Kill()
		if err := c.Etcd.Start(); err != nil {
			return err
		}
		return c.StartAPI()
	}
	storetest.Conform(t, h, drivertest.Options{Parallel: 16,
		Match: func(c drivertest.Case) bool { return c.Name == "restart" || *prove }})
}

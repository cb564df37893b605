package gcs_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/gcs"
)

// TestConformance: the store keeps every promise of the contract, and in a foreign layout refuses what that does
// not support. It runs before the other tests, and one layout after the other, because each keeps the machine
// busy.
func TestConformance(t *testing.T) {
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			if layout != gcs.LayoutRecord {
				t.Parallel()
			}
			storetest.Conform(t, newHarness(t, startServer(t), quickLayoutOptions(layout)),
				drivertest.Options{Parallel: 16})
		})
	}
}

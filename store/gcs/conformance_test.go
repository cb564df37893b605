package gcs_test

import "testing"

// TestConformance: the store keeps every promise of the contract.
func TestConformance(t *testing.T) {
	t.Parallel()
	conform(t, harness(t, start(t), quick()))
}

package gcs_test

import "testing"

// TestConformance: the store keeps every promise of the contract; in a foreign layout it refuses what that does not carry.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) { // one after the other: each of them is a crowd
			conform(t, harness(t, start(t), quickIn(layout)))
		})
	}
}

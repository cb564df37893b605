package dynamodb

import (
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// TestForeignEnd: to a client that checks "expired_at < now" in whole seconds, an item is free from the second
// after its expired_at.
func TestForeignEnd(t *testing.T) {
	t.Parallel()
	for expires, want := range map[string]int64{"100": 101e6 - 1, "100.5": 101e6 - 1, "0": 1e6 - 1,
		"": record.NoEnd, "1E+100": record.NoEnd} {
		if got := foreignEnd(expires); got != want {
			t.Errorf("%s: %d, want %d", expires, got, want)
		}
	}
	tb := &table{tableClient: &tableClient{clock: &record.ServerClock{Clock: driver.SystemClock}},
		ttlAttribute: "expired_at"}
	for ends, want := range map[int64]string{1: "1", 1e6: "1", 1e6 + 1: "2"} {
		if got := tb.expiryOf(ends); got != want {
			t.Errorf("a hold until %d µs: %s, want %s", ends, got, want)
		}
	}
}

package zookeeper

import (
	"testing"
	"unsafe"
)

// TestHeldSizes: what a held claim has in the cache of nodes, and its watch, have no more bytes than their comments
// say. Go would allocate the next larger size for them.
func TestHeldSizes(t *testing.T) {
	t.Parallel()
	if size := unsafe.Sizeof(cachedNode{}); size > 64 {
		t.Errorf("a cached node has %d bytes", size)
	}
	if size := unsafe.Sizeof(subscription{}); size > 112 {
		t.Errorf("a subscription has %d bytes", size)
	}
}

package etcd

import (
	"testing"
	"unsafe"
)

// TestWatchSize: a watch has no more bytes than its comment says. Go would allocate the next larger size for it.
func TestWatchSize(t *testing.T) {
	t.Parallel()
	if size := unsafe.Sizeof(watch{}); size > 64 {
		t.Errorf("a watch has %d bytes", size)
	}
}

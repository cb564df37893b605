package sequence

import (
	"testing"
	"unsafe"
)

// TestClaimSize: what the engine keeps of a held claim fits in 160 bytes, which is one of the sizes in which Go
// allocates.
func TestClaimSize(t *testing.T) {
	t.Parallel()
	if size := unsafe.Sizeof(claim{}); size > 160 {
		t.Errorf("a claim has %d bytes", size)
	}
}

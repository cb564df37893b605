package file

import (
	"bytes"
	"hash/crc32"
	"testing"
)

// TestChecksum: both ways to compute a checksum give the CRC-32C.
func TestChecksum(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 9, 417, blockSize, blockSize + 1} {
		data := bytes.Repeat([]byte("holdfast"), size/8+1)[:size]
		want := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
		if got := crc32.Checksum(data, plainTable()); got != want {
			t.Errorf("%d bytes in the plain way: %08x instead of %08x", size, got, want)
		}
		if got := checksum(data); got != want {
			t.Errorf("%d bytes: %08x instead of %08x", size, got, want)
		}
	}
}

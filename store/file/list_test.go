//go:build linux || darwin

package file

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLongList: a directory with some thousand files is listed by one system call, so that the list shows it at one
// moment.
func TestLongList(t *testing.T) {
	const files = 3000
	dir := t.TempDir()
	var want []string
	for i := range files {
		name := version{"incarnation", firstSeq}.stagedName(fmt.Sprintf("%020d", i))
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		want = append(want, name)
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	names, whole, err := disk{}.listNames(fd)
	slices.Sort(names)
	if err != nil || !whole || !slices.Equal(names, want) {
		t.Errorf("%d names of %d, by one call: %v; %v", len(names), files, whole, err)
	}
}

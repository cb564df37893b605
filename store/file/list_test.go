//go:build linux || darwin || windows

package file

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestLongList: a directory with some thousand files is listed by one system call, so that the list shows it at one
// moment.
func TestLongList(t *testing.T) {
	const files = 3000
	tab := openTest(t, t.TempDir()+"/store")
	dir := filepath.Join(tab.path, "tmp")
	var want []string
	for i := range files {
		name := version{"incarnation", firstSeq}.stagedName(fmt.Sprintf("%020d", i))
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		want = append(want, name)
	}
	names, whole, err := tab.listNames(tab.tmp)
	slices.Sort(names)
	if err != nil || !whole || !slices.Equal(names, want) {
		t.Errorf("%d names of %d, by one call: %v; %v", len(names), files, whole, err)
	}
}

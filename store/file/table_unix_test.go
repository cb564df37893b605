//go:build linux || darwin

package file

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// TestFIFOInPlace: a FIFO in the place of a record is a damaged record, and nobody waits for it.
func TestFIFOInPlace(t *testing.T) {
	t.Parallel()
	tab := openTest(t, t.TempDir()+"/store")
	row := mustSwap(t, tab, record.Row{Name: "fifo"})
	file := filepath.Join(tab.path, "locks", "fifo", row.Version)
	if err := errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := tab.Load(t.Context(), "fifo"); !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("fifo: %v", err)
	}
}

// TestForcedStoreHasNoSecondNames: a client that is alone at a lock gives its files second names, but not with Force.
func TestForcedStoreHasNoSecondNames(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		dir := t.TempDir() + "/store"
		tab, err := openTable(t.Context(), dir, &Options{Force: force})
		if err != nil {
			t.Fatal(err)
		}
		defer tab.Close()
		row := record.Row{Name: "a"}
		for range 5 * removeEvery {
			row = mustSwap(t, tab, row)
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, "locks", "a", row.Version), &st); err != nil || st.Nlink > 1 == force {
			t.Errorf("with Force %t, a file has %d names: %v", force, st.Nlink, err)
		}
	}
}

//go:build linux || darwin || windows

package file

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

var (
	examine        = storetest.Examine
	expectFindings = storetest.ExpectFindings
)

// openSound opens a store in a directory of which nothing is found, wherever the tests run: its file system counts as a
// disk with room, and the directory not as a temporary one.
func openSound(t *testing.T, dir string) *store {
	t.Helper()
	s := openStore(t, dir)
	s.table.temporaryDirs = nil
	s.table.statFileSystem = func(string) (fileSystemState, error) {
		return fileSystemState{name: "xfs", local: true, freeBytes: 1 << 30}, nil
	}
	return s
}

// TestExamine: each weakness of a directory and of its file system is found, and nothing else.
func TestExamine(t *testing.T) {
	t.Parallel()
	above := t.TempDir()
	dir := filepath.Join(above, "store")
	s := openSound(t, dir)
	expectFindings(t, "no store", s, "file-no-store")
	c := claimOf("a")
	if _, err := s.Acquire(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	expectFindings(t, "a sound store in use", s)
	if err := os.MkdirAll(filepath.Join(dir, brokenDir, "copy"), 0o700); err != nil {
		t.Fatal(err)
	}
	expectFindings(t, "a torn record", s, "file-torn")
	if err := os.RemoveAll(filepath.Join(dir, brokenDir)); err != nil {
		t.Fatal(err)
	}
	s.table.temporaryDirs = []string{"/elsewhere", above}
	expectFindings(t, "a temporary directory", s, "file-temporary")
	s.table.temporaryDirs = []string{above + "x", filepath.Join(above, "st")}
	expectFindings(t, "a name like a temporary directory's", s)
	add := s.table.events.addPath
	s.table.events.addPath = func(string) error { return syscall.ENOSPC }
	expectFindings(t, "no more watches", s, "file-events")
	s.table.events.addPath = add
	disk, err := statFileSystem(dir)
	if err != nil || disk.name == "" || !disk.local || disk.readOnly {
		t.Errorf("the tests' own file system: %+v, %v", disk, err)
	}
	for _, planted := range []struct {
		fs    fileSystemState
		codes []string
	}{
		{fileSystemState{name: "tmpfs", local: true, freeBytes: 1 << 30}, []string{"file-memory"}},
		{fileSystemState{name: "ramfs", local: true}, []string{"file-memory"}},
		{fileSystemState{name: "overlayfs", local: true, freeBytes: 1 << 30}, []string{"file-container"}},
		{fileSystemState{name: "nfs", freeBytes: 1 << 30}, []string{"file-not-local"}},
		{fileSystemState{name: "xfs", local: true, freeBytes: 1 << 20}, []string{"file-space"}},
		{fileSystemState{name: "xfs", local: true, freeBytes: 1 << 30, fileLimit: 1 << 20, freeFiles: 10},
			[]string{"file-space"}},
		{fileSystemState{name: "xfs", local: true, readOnly: true}, []string{"file-read-only"}},
		{fileSystemState{name: "btrfs", local: true, freeBytes: 1 << 30}, nil}, // it has no limit of files
	} {
		s.table.statFileSystem = func(string) (fileSystemState, error) { return planted.fs, nil }
		expectFindings(t, planted.fs.name, s, planted.codes...)
	}
}

// TestForget: nothing is left of a lock that was forgotten. One that is held is not forgotten.
func TestForget(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/store"
	s := openStore(t, dir)
	c := claimOf("a")
	if _, err := s.Acquire(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := s.Forget(t.Context(), "a"); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("a held lock: %v", err)
	}
	if err := s.Release(t.Context(), c, ""); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Forget(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(dir, "locks")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

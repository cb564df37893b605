//go:build linux || darwin || windows

package file

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// makeOldFiles makes files and the directories that they are in, all of them with an old modification time.
func makeOldFiles(t *testing.T, dir string, files ...string) {
	t.Helper()
	old := time.Now().Add(-2 * tmpMaxAge)
	for _, file := range files {
		path := filepath.Join(dir, file)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if !strings.HasSuffix(file, "/") {
			err = errors.Join(err, os.WriteFile(path, []byte("precious"), 0o600))
		} else {
			err = errors.Join(err, os.MkdirAll(path, 0o700))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range files {
		for at := filepath.Clean(file); at != "."; at = filepath.Dir(at) {
			if err := os.Chtimes(filepath.Join(dir, at), old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func listTree(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
		all = append(all, strings.TrimPrefix(path, dir))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestForeignDirectoryRefused: a directory that contains anything other than a store is refused, and is not changed.
func TestForeignDirectoryRefused(t *testing.T) {
	t.Parallel()
	for _, files := range [][]string{
		{"tmp/notes.txt", "tmp/project/main.c", "tmp/project/sub/y"},
		{"tmp/"},
		{".hidden"},
		{"locks/", "clients/", "tmp/"},
		{"locks/", "clients/", "tmp/", "clock/", "another"},
	} {
		dir := t.TempDir()
		makeOldFiles(t, dir, files...)
		before := listTree(t, dir)
		_, err := openTable(t.Context(), dir, nil)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), filepath.Join(dir, "holdfast")) {
			t.Errorf("%q: %v", files, err)
		}
		if after := listTree(t, dir); strings.Join(after, " ") != strings.Join(before, " ") {
			t.Errorf("%q became %q", before, after)
		}
	}
}

// TestMarker: a store is recognized by its marker, whatever else is in the directory. A store without one, as they
// were made before, gets one. A newer layout is refused.
func TestMarker(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	row := mustSwap(t, openTest(t, dir), record.Row{Name: "a", Data: []byte("1")})
	if err := os.Remove(filepath.Join(dir, markerName)); err != nil {
		t.Fatal(err)
	}
	makeOldFiles(t, dir, "broken/a~1")
	if again := mustLoad(t, openTest(t, dir), "a"); again.Version != row.Version {
		t.Errorf("%v became %v", row, again)
	}
	makeOldFiles(t, dir, "lost+found/")
	openTest(t, dir)
	makeOldFiles(t, dir, markerPrefix+"2")
	if _, err := openTable(t.Context(), dir, nil); !errors.Is(err, driver.ErrCorrupt) || !errors.Is(err, errFuture) {
		t.Errorf("a later layout: %v", err)
	}
}

// TestConcurrentCreation: many clients create the same store at the same time, and all can open it.
func TestConcurrentCreation(t *testing.T) {
	t.Parallel()
	for range 20 {
		dir := t.TempDir() + "/deep/store"
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				tab, err := openTable(t.Context(), dir, nil)
				if err != nil {
					t.Error(err)
					return
				}
				_ = tab.Close()
			})
		}
		wg.Wait()
	}
}

// TestRemoveOldTmp: of the old entries of tmp, only those are removed that the store itself makes there.
func TestRemoveOldTmp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tab := openTest(t, dir)
	nonce, session := tab.newNonce(), tab.Session()
	ours, theirs := tab.newNonce(), tab.newNonce()
	tmp := filepath.Join(dir, "tmp")
	keep := []string{"notes.txt", "project/main.c", "project/sub/y", "short/", nonce, theirs + "/" + version{nonce,
		0}.String(),
		theirs + "/main.c", session + "x"}
	makeOldFiles(t, tmp, keep...)
	makeOldFiles(t, tmp, ours+"/"+version{nonce, 0}.String(), tab.newNonce()+"/")
	kept := len(listTree(t, tmp)) - 3
	old := time.Now().Add(-2 * tmpMaxAge)
	file := filepath.Join(tmp, session)
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chtimes(file, old, old)); err != nil {
		t.Fatal(err)
	}
	openTest(t, dir)
	for _, file := range keep {
		if _, err := os.Stat(filepath.Join(tmp, file)); err != nil {
			t.Errorf("swept: %v", err)
		}
	}
	if left := listTree(t, tmp); len(left) != kept {
		t.Errorf("left: %q", left)
	}
}

//go:build linux || darwin

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

// put makes files, with the directories that they are in, and makes all of it look old.
func put(t *testing.T, dir string, files ...string) {
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

func tree(t *testing.T, dir string) (all []string) {
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

// TestNoStore: a directory that holds anything but a store is refused, and left as it is.
func TestNoStore(t *testing.T) {
	t.Parallel()
	for _, files := range [][]string{
		{"tmp/notes.txt", "tmp/project/main.c", "tmp/project/sub/y"},
		{"tmp/"},
		{".hidden"},
		{"locks/", "clients/", "tmp/"},
		{"locks/", "clients/", "tmp/", "clock/", "another"},
	} {
		dir := t.TempDir()
		put(t, dir, files...)
		before := tree(t, dir)
		_, err := openTable(t.Context(), dir, nil)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), dir+"/holdfast") {
			t.Errorf("%q: %v", files, err)
		}
		if after := tree(t, dir); strings.Join(after, " ") != strings.Join(before, " ") {
			t.Errorf("%q became %q", before, after)
		}
	}
}

// TestMark: a store is known by its mark, whatever else somebody puts there; one without, as they were made before, gets
// it; and a later layout is left alone.
func TestMark(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	row := mustSwap(t, openTest(t, dir), record.Row{Name: "a", Data: []byte("1")})
	if err := os.Remove(filepath.Join(dir, markerName)); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "broken/a~1")
	if again := load(t, openTest(t, dir), "a"); again.Version != row.Version {
		t.Errorf("%v became %v", row, again)
	}
	put(t, dir, "lost+found/")
	openTest(t, dir)
	put(t, dir, markerPrefix+"2")
	if _, err := openTable(t.Context(), dir, nil); !errors.Is(err, driver.ErrCorrupt) || !errors.Is(err, errFuture) {
		t.Errorf("a later layout: %v", err)
	}
}

// TestMadeAtOnce: many make the same store at the same time, and all have it.
func TestMadeAtOnce(t *testing.T) {
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

// TestSweep: of what is old in tmp only that goes which the store itself makes there.
func TestSweep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tab := openTest(t, dir)
	nonce, session := tab.newNonce(), tab.Session()
	ours, theirs := tab.newNonce(), tab.newNonce()
	tmp := filepath.Join(dir, "tmp")
	keep := []string{"notes.txt", "project/main.c", "project/sub/y", "short/", nonce, theirs + "/" + version{nonce, 0}.String(),
		theirs + "/main.c", session + "x"}
	put(t, tmp, keep...)
	put(t, tmp, ours+"/"+version{nonce, 0}.String(), tab.newNonce()+"/")
	kept := len(tree(t, tmp)) - 3
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
	if left := tree(t, tmp); len(left) != kept {
		t.Errorf("left: %q", left)
	}
}

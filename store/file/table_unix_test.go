//go:build linux || darwin

package file

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// TestSymlinks: a symbolic link in the place of a directory or of a record of the store is not followed.
func TestSymlinks(t *testing.T) {
	t.Parallel()
	dir, victim := t.TempDir()+"/store", t.TempDir()
	tab := openTest(t, dir)
	row := mustSwap(t, tab, record.Row{Name: "a"})
	a := filepath.Join(dir, "locks", "a")
	if err := errors.Join(os.Rename(a, filepath.Join(victim, "a")), os.Symlink(filepath.Join(victim, "a"),
		a)); err != nil {
		t.Fatal(err)
	}
	if _, err := tab.Load(t.Context(), "a"); !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("load through a link: %v", err)
	}
	for _, version := range []string{row.Version, ""} {
		row.Version = version
		if _, err := tab.Swap(t.Context(), row); !errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("swap through a link: %v", err)
		}
	}
	if left := listDir(t, filepath.Join(victim, "a")); len(left) != firstSeq+1 {
		t.Errorf("the link was followed: %v", left)
	}
	b := mustSwap(t, tab, record.Row{Name: "b"})
	file := filepath.Join(dir, "locks", "b", b.Version)
	if err := errors.Join(os.Rename(file, filepath.Join(victim, "b")), os.Symlink(filepath.Join(victim, "b"),
		file)); err != nil {
		t.Fatal(err)
	}
	if row, err := tab.Load(t.Context(), "b"); !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("a record was read through a link: %v, %v", row, err)
	}
	if err := errors.Join(os.Rename(filepath.Join(dir, "tmp"), filepath.Join(victim, "tmp")),
		os.Symlink(filepath.Join(victim, "tmp"), filepath.Join(dir, "tmp"))); err != nil {
		t.Fatal(err)
	}
	if _, err := openTable(t.Context(), dir, nil); err == nil {
		t.Error("a store was opened with a link in it")
	}
}

// TestUntrustedDirectory: symbolic links, files, and directories that others can write in are refused with ErrDenied.
func TestUntrustedDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777), os.WriteFile(filepath.Join(dir, "file"), nil,
		0o600),
		os.Mkdir(filepath.Join(dir, "real"), 0o700), os.Symlink("real", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"open", "file", "link"} {
		if _, err := openTable(t.Context(), filepath.Join(dir, bad), nil); !errors.Is(err, driver.ErrDenied) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := New(t.Context(), "", nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("no directory: %v", err)
	}
	if left := listDir(t, filepath.Join(dir, "real")); len(left) != 0 {
		t.Errorf("the link was followed: %v", left)
	}
}

// TestUntrustedAncestors: a directory that any user can move away is refused, by its name or through a link to it. If
// only a group or another owner can, there is a warning.
func TestUntrustedAncestors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.MkdirAll(at("open/mine/store"), 0o700), os.Mkdir(at("link"), 0o700),
		os.Symlink(at("open/mine"), at("link/mine"))); err != nil {
		t.Fatal(err)
	}
	mode := func(m os.FileMode) {
		if err := os.Chmod(at("open"), m); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"open/mine/store", "open/mine/new", "link/mine/store"} {
		mode(0o777)
		if _, err := openTable(t.Context(), at(name), nil); !errors.Is(err, driver.ErrDenied) ||
			!strings.Contains(err.Error(), at("open")) {
			t.Errorf("%s below a directory in which anybody can write: %v", name, err)
		}
		mode(os.ModeSticky | 0o777)
		if tab, err := openTable(t.Context(), at(name), nil); err != nil {
			t.Errorf("%s below a sticky one: %v", name, err)
		} else {
			_ = tab.Close()
		}
	}
	mode(0o770)
	s, err := New(t.Context(), at("open/mine/store"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.(*store).table.temporaryDirs = nil
	if found := examine(t, s); !slices.Contains(found, "file-ancestor-group") {
		t.Errorf("below a directory in which a group can write: %q", found)
	}
}

// TestFilePermissions: other users can neither read nor write anything in a store.
func TestFilePermissions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/deep/store"
	tab := openTest(t, dir)
	mustSwap(t, tab, record.Row{Name: "a"})
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestDirectoryReplaced: the holder of a lock in a directory that was moved away loses it at the next renewal once
// another directory exists in its place, and can make no claims there any more.
func TestDirectoryReplaced(t *testing.T) {
	t.Parallel()
	at := t.TempDir()
	dir, away := at+"/store", at+"/away"
	s := openStore(t, dir)
	var grants []driver.Grant
	for _, name := range []string{"a", "b"} {
		g, err := s.Acquire(t.Context(), claimOf(name))
		if err != nil {
			t.Fatal(err)
		}
		grants = append(grants, g)
	}
	renew := func(loss driver.LossCause) {
		t.Helper()
		s.Renew(t.Context(), grants, func(i int, r driver.Renewal) {
			var lost *driver.LossError
			if errors.As(r.Err, &lost) != (loss != "") || lost != nil && lost.Cause != loss || lost == nil &&
				r.Err != nil {
				t.Errorf("%s: %v", grants[i].Name, r.Err)
			}
		})
	}
	if err := os.Rename(dir, away); err != nil {
		t.Fatal(err)
	}
	renew("") // nobody else can have it
	other := openStore(t, dir)
	if _, err := other.Acquire(t.Context(), claimOf("a")); err != nil {
		t.Fatal(err)
	}
	renew(driver.LossGone)
	if _, err := s.Acquire(t.Context(), claimOf("c")); !errors.Is(err, driver.ErrCorrupt) ||
		!errors.Is(err, errReplaced) {
		t.Errorf("a claim in the old directory: %v", err)
	}
	if err := errors.Join(other.Close(), os.RemoveAll(dir), os.Rename(away, dir)); err != nil {
		t.Fatal(err)
	}
	renew("")
}

// TestDirectoryReplacedWithoutRenewal: a client that never renews can make no claims there either, once the floor has
// to be raised, which happens every few seconds.
func TestDirectoryReplacedWithoutRenewal(t *testing.T) {
	t.Parallel()
	at := t.TempDir()
	tab := openTest(t, at+"/store")
	if err := errors.Join(os.Rename(at+"/store", at+"/away"), os.Mkdir(at+"/store", 0o700)); err != nil {
		t.Fatal(err)
	}
	row := record.Row{Name: "a", Token: tab.clock.floor.Load() + 1}
	if _, err := tab.Swap(t.Context(), row); !errors.Is(err, driver.ErrCorrupt) {
		t.Error(err)
	}
}

// TestExamineAncestors: each weakness of the directories above that of the store is found, and nothing else.
func TestExamineAncestors(t *testing.T) {
	t.Parallel()
	above := t.TempDir()
	s := openSound(t, filepath.Join(above, "store"))
	if _, err := s.Acquire(t.Context(), claimOf("a")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(above, 0o770); err != nil {
		t.Fatal(err)
	}
	expectFindings(t, "a group that can write above", s, "file-ancestor-group")
	if err := os.Chmod(above, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(above, 12345, -1); err != nil {
			t.Fatal(err)
		}
		expectFindings(t, "another user's directory above", s, "file-ancestor-owner")
		if err := os.Chown(above, 0, -1); err != nil {
			t.Fatal(err)
		}
	}
	expectFindings(t, "as they were", s)
}

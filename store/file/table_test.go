//go:build linux || darwin || windows

package file

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

func mustSwap(t *testing.T, tab *table, row record.Row) record.Row {
	t.Helper()
	row, err := tab.Swap(t.Context(), row)
	if err != nil {
		t.Fatal(err)
	}
	return row
}

// TestTableOperations goes through the contract of record.Table.
func TestTableOperations(t *testing.T) {
	t.Parallel()
	tab := openTest(t, t.TempDir()+"/store")
	first := mustSwap(t, tab, record.Row{Name: "a", Data: []byte("1")})
	if now, err := tab.Swap(t.Context(), record.Row{Name: "a"}); !errors.Is(err, record.ErrConflict) ||
		string(now.Data) != "1" {
		t.Errorf("created twice: %v, %q", err, now.Data)
	}
	second := mustSwap(t, tab, record.Row{Name: "a", Version: first.Version, Data: []byte("2")})
	if _, err := tab.Swap(t.Context(), first); !errors.Is(err, record.ErrConflict) {
		t.Errorf("an old version was swapped: %v", err)
	}
	if err := tab.Delete(t.Context(), first); !errors.Is(err, record.ErrConflict) {
		t.Errorf("an old version was deleted: %v", err)
	}
	if err := tab.Delete(t.Context(), second); err != nil {
		t.Error(err)
	}
	if err := tab.Delete(t.Context(), second); err != nil {
		t.Errorf("deleted twice: %v", err)
	}
	if row := mustLoad(t, tab, "a"); row.Version != "" || row.Data != nil {
		t.Errorf("deleted, but %v", row)
	}
	if left := listDir(t, filepath.Join(tab.path, "locks")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if again := mustSwap(t, tab, record.Row{Name: "a"}); again.Version == first.Version {
		t.Error("a version was used twice")
	}
	if _, err := tab.Swap(t.Context(), record.Row{Name: "a", Version: "../../x"}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a version that is a path: %v", err)
	}
	if _, err := tab.Swap(t.Context(), record.Row{Name: "big", Data: make([]byte, record.MaxData+1)}); !errors.Is(err,
		driver.ErrInvalid) {
		t.Errorf("too much data: %v", err)
	}
	mustSwap(t, tab, record.Row{Name: "big", Data: make([]byte, record.MaxData)})
	if row := mustLoad(t, tab, "big"); len(row.Data) != record.MaxData {
		t.Errorf("%d bytes came back", len(row.Data))
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := tab.Swap(ended, record.Row{Name: "c"}); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	_ = tab.Close()
	if _, err := tab.Load(t.Context(), "a"); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestAwkwardLockNames: names that are difficult for file systems work like others, also in lists by prefix.
func TestAwkwardLockNames(t *testing.T) {
	t.Parallel()
	tab := openTest(t, t.TempDir()+"/store")
	names := []string{"a", "A", "a/b", "../x", ".", "..", "a%2fb", "𝄞", "é", "e\u0301", "con", "a\nb", " ",
		strings.Repeat("ä", 256), strings.Repeat("ä", 255) + "ö", strings.Repeat("A", 512)}
	for _, name := range names {
		mustSwap(t, tab, record.Row{Name: name, Data: []byte(name)})
	}
	_ = os.WriteFile(filepath.Join(tab.path, "locks", ".DS_Store"), nil, 0o600)
	for _, prefix := range []string{"", "a", "A", "ää", strings.Repeat("ä", 200), "."} {
		var have, want []string
		for row, err := range tab.List(t.Context(), prefix, "") {
			if err != nil || string(row.Data) != row.Name {
				t.Errorf("%q: %q, %v", row.Name, row.Data, err)
			}
			have = append(have, row.Name)
		}
		for _, name := range names {
			if strings.HasPrefix(name, prefix) {
				want = append(want, name)
			}
		}
		slices.Sort(have)
		slices.Sort(want)
		if !slices.Equal(have, want) {
			t.Errorf("prefix %q: %q, want %q", prefix, have, want)
		}
	}
}

// TestDamagedRecords: for a record that cannot be parsed, the error says what it is and where, and the file is not
// changed.
func TestDamagedRecords(t *testing.T) {
	t.Parallel()
	tab := openTest(t, t.TempDir()+"/store")
	for name, text := range map[string]string{
		"empty": "", "truncated": "-1", "zeroes": strings.Repeat("\x00", 100), "foreign": "#!/bin/sh\nexit\n",
		"flipped": "flip", "future": "holdfast/2 something new\nlock", "copied": "copy", "version": "old",
	} {
		name = "lock" + name
		row := mustSwap(t, tab, record.Row{Name: name, Data: []byte("data")})
		file := filepath.Join(tab.path, "locks", name, row.Version)
		v, _, _ := parseFile(row.Version)
		whole := string(recordContent{name: name, data: []byte("data")}.encodeFile(v))
		switch text {
		case "-1":
			text = whole[:len(whole)-1]
		case "flip":
			text = strings.Replace(whole, "data", "dbta", 1)
		case "copy":
			text = string(recordContent{name: "another", data: []byte("data")}.encodeFile(v))
		case "old":
			text = string(recordContent{name: name, data: []byte("data")}.encodeFile(v.nextVersion()))
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := tab.Load(t.Context(), name)
		if !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(err.Error(), row.Version) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := tab.Swap(t.Context(), record.Row{Name: name}); !errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("%s: creating over it: %v", name, err)
		}
		if b, _ := os.ReadFile(file); string(b) != text {
			t.Errorf("%s: was changed to %q", name, b)
		}
	}
	if err := os.WriteFile(filepath.Join(tab.path, "locks", "plain"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := tab.Swap(t.Context(), record.Row{Name: "plain"}); !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("a file in the place of a lock: %v", err)
	}
	bad := 0
	for _, err := range tab.List(t.Context(), "", "") {
		if errors.Is(err, driver.ErrCorrupt) {
			bad++
		}
	}
	if bad != 9 {
		t.Errorf("%d bad records were listed as such", bad)
	}
}

// TestLostClock: locks without the clock that their tokens came from are not used.
func TestLostClock(t *testing.T) {
	t.Parallel()
	tab := openTest(t, t.TempDir()+"/store")
	mustSwap(t, tab, record.Row{Name: "a"})
	if err := os.RemoveAll(filepath.Join(tab.path, "clock")); err != nil {
		t.Fatal(err)
	}
	if _, err := openTable(t.Context(), tab.path, nil); !errors.Is(err, driver.ErrCorrupt) {
		t.Error(err)
	}
	if _, err := tab.Swap(t.Context(), record.Row{Name: "b", Token: tab.clock.floor.Load() + 1}); !errors.Is(err,
		driver.ErrCorrupt) {
		t.Error(err)
	}
}

// TestWaitNoticesChanges: every kind of change wakes the waiters, whichever client made it. A late event of the change
// before may wake them, too.
func TestWaitNoticesChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/store"
	tab, other := openTest(t, dir), openTest(t, dir)
	row := record.Row{Name: "Lock"}
	waitForChange := func(row record.Row) error {
		for {
			if err := tab.wait(t.Context(), row.Name, row.Version); err != nil {
				return err
			}
			if now, err := tab.Load(t.Context(), row.Name); err != nil || now.Version != row.Version {
				return err
			}
		}
	}
	change := func(what string, do func() record.Row) {
		t.Helper()
		results := make(chan error, 2)
		for range cap(results) {
			go func() { results <- waitForChange(row) }()
		}
		waitUntil(t, func() bool {
			tab.events.mu.Lock()
			defer tab.events.mu.Unlock()
			s := tab.events.waiting[filepath.Join(dir, "locks", encodeName("Lock"))]
			return s != nil && s.waiters == cap(results)
		})
		next := do()
		for range cap(results) {
			if err := <-results; err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := tab.wait(t.Context(), row.Name, row.Version); err != nil {
			t.Errorf("%s, after the fact: %v", what, err)
		}
		row = next
	}
	for range 2 {
		change("creation", func() record.Row { return mustSwap(t, other, row) })
		for range removeEvery + 1 {
			change("swap", func() record.Row { return mustSwap(t, other, row) })
		}
		change("deletion", func() record.Row {
			if err := other.Delete(t.Context(), row); err != nil {
				t.Error(err)
			}
			return record.Row{Name: row.Name}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	var err error
	for err == nil {
		err = tab.wait(ctx, "Lock", "")
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with an ended context: %v", err)
	}
	results := make(chan error)
	go func() { results <- waitForChange(record.Row{Name: "Lock"}) }()
	_ = tab.Close()
	if err := <-results; !errors.Is(err, driver.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if n := len(tab.events.watched) + len(tab.events.waiting); n != 0 {
		t.Errorf("%d watches are left", n)
	}
}

func listDir(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestClockReadWhileFloorRaised: the clock can be read while its floor is raised, which happens every few seconds.
func TestClockReadWhileFloorRaised(t *testing.T) {
	t.Parallel()
	tab := openTest(t, t.TempDir()+"/store")
	var reads sync.WaitGroup
	ctx, over := context.WithCancel(t.Context())
	reads.Go(func() {
		for last := int64(0); ctx.Err() == nil; {
			now := tab.TokenFloor()
			if now < last {
				t.Errorf("the clock fell from %d to %d", last, now)
			}
			last = now
		}
	})
	defer over()
	for range 20 {
		before := tab.clock.floor.Load()
		if err := tab.clock.ensureFloor(t.Context(), before+1); err != nil {
			t.Fatal(err)
		}
		if tab.clock.floor.Load() <= before {
			t.Fatal("the floor is not raised")
		}
	}
	over()
	reads.Wait()
}

// TestConcurrentLists: lists that run at the same time through one client each contain all locks.
func TestConcurrentLists(t *testing.T) {
	t.Parallel()
	tab := openTest(t, t.TempDir()+"/store")
	const locks = 300
	for i := range locks {
		mustSwap(t, tab, record.Row{Name: "a rather long name of a lock, number " + strconv.Itoa(i)})
	}
	var lists sync.WaitGroup
	for range 8 {
		lists.Go(func() {
			for range 10 {
				n := 0
				for _, err := range tab.List(t.Context(), "", "") {
					if err != nil {
						t.Error(err)
					}
					n++
				}
				if n != locks {
					t.Errorf("%d of %d locks listed", n, locks)
				}
			}
		})
	}
	lists.Wait()
}

// TestLoadDuringDelete: a client that loads a record while it is removed gets the record or none, and no error.
func TestLoadDuringDelete(t *testing.T) {
	t.Parallel()
	tab := openTest(t, t.TempDir()+"/store")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for ctx.Err() == nil {
				if _, err := tab.Load(t.Context(), "a"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for ctx.Err() == nil {
		if err := tab.Delete(t.Context(), mustSwap(t, tab, record.Row{Name: "a"})); err != nil {
			t.Error(err)
		}
	}
	others.Wait()
}

// TestFilesShrink: after a record was large once, the files of its later versions become small again, so that reading
// them costs no more than before.
func TestFilesShrink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/store"
	tab := openTest(t, dir)
	row := record.Row{Name: "a"}
	for n := range 10 * removeEvery {
		row.Data = []byte("some")
		if n == 5*removeEvery {
			row.Data = make([]byte, 16*blockSize)
		}
		row = mustSwap(t, tab, row)
	}
	files, err := os.ReadDir(dir + "/locks/a")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if info, err := file.Info(); err != nil || info.Size() > 2*maxStaleTail {
			t.Errorf("%s has %d bytes: %v", file.Name(), info.Size(), err)
		}
	}
}

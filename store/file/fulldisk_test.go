//go:build linux || darwin

package file

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

func isAlwaysFull() bool { return true }

// fullDiskClients returns clients of one record, the first of which has made it and swapped it so often, on a disk that
// is full since then.
func fullDiskClients(t *testing.T, swaps, n int) (clients []*testClient, h *history) {
	m, h := newMachine(), newHistory()
	for i := range n {
		clients = append(clients, m.client(t, h, fmt.Sprint("c", i)))
	}
	clients[0].swap(record.Row{})
	for range swaps {
		clients[0].swap(clients[0].load())
	}
	for _, c := range clients {
		c.proc.full = isAlwaysFull
	}
	return clients, h
}

// TestFullDiskAfterGivenUpSwaps: on a full disk, swaps that are given up anywhere leave enough room for all later ones,
// whether the client is alone or not.
func TestFullDiskAfterGivenUpSwaps(t *testing.T) {
	t.Parallel()
	for _, clients := range []int{1, 2} {
		for before := range 6 * removeEvery {
			for k := 1; giveUpSwaps(t, clients, before, k); k++ {
			}
		}
	}
}

// giveUpSwaps reports whether a swap asks so often whether its context has ended.
func giveUpSwaps(t *testing.T, clients, before, k int) (givenUp bool) {
	c, h := fullDiskClients(t, before, clients)
	for range 3 * removeEvery {
		asked := 0
		c[0].cancels = func() bool { asked++; return asked >= k }
		c[0].swap(c[0].load())
		givenUp = givenUp || asked >= k
		c[0].cancels = nil
		for _, client := range c {
			if !client.swap(client.load()) {
				t.Fatalf("%d clients, after %d swaps, and some given up at question %d: %s finds no room", clients, before,
					k, client.name)
			}
		}
	}
	h.checkFinal(t, c[0].load())
	return givenUp
}

// TestFullDiskAfterBadLink: a file that is the current version in spite of an I/O error is not written over on a full
// disk, even if another client is stopped while it has the file that is not needed.
func TestFullDiskAfterBadLink(t *testing.T) {
	t.Parallel()
	for swaps := range 2 * removeEvery {
		for k := 1; k <= 12; k++ {
			c, h := fullDiskClients(t, swaps, 3)
			row := c[0].load()
			bad := record.Row{Name: "lock", Version: row.Version, Data: []byte("bad")}
			c[0].proc.badLinks = true
			_, err := c[0].tab.Swap(t.Context(), bad)
			c[0].proc.badLinks = false
			if bad.Version = c[1].load().Version; bad.Version != row.Version {
				h.recordSwap(t, row, bad)
			} else {
				t.Errorf("after %d swaps: nothing was made: %v", swaps, err)
			}
			goOn, _ := c[2].stopAt(k, func() { c[2].swap(c[1].load()) })
			for range 2 * removeEvery {
				c[1].swap(c[1].load())
			}
			goOn()
			for range 2 * removeEvery {
				c[1].swap(c[1].load())
			}
			h.checkFinal(t, c[0].load())
		}
	}
}

// TestFullDiskBothStopped: on a full disk, a client that is stopped anywhere in its swap, while another one takes the
// file that it would have used, uses another file.
func TestFullDiskBothStopped(t *testing.T) {
	t.Parallel()
	for ka := 1; ka <= 12; ka++ {
		for kb := 1; ; kb++ {
			c, h := fullDiskClients(t, removeEvery-1, 3)
			row := c[2].load()
			to := record.Row{Name: "lock", Version: row.Version, Data: []byte("second")}
			goSecond, reached := c[2].stopAt(kb, func() {
				made, err := c[2].tab.Swap(t.Context(), to)
				switch {
				case err == nil:
					h.recordSwap(t, row, made)
				case !errors.Is(err, record.ErrConflict):
					t.Errorf("stopped at operation %d, and the other at %d: %v", kb, ka, err)
				}
			})
			goFirst, _ := c[1].stopAt(ka, func() { c[1].swap(row) })
			goSecond()
			goFirst()
			h.checkFinal(t, c[0].load())
			if !reached || t.Failed() {
				break
			}
		}
	}
}

// TestFullDiskAmongStopped: on a full disk, a client that is stopped anywhere in its swap can have the last file that
// is not needed. Then the swaps of others have an error that is not final, and all swap again once it goes on. So it
// is if the client was alone before.
func TestFullDiskAmongStopped(t *testing.T) {
	t.Parallel()
	for _, alone := range []int{0, 2*removeEvery + 1} {
		refused := 0
		for k := 1; stopOnFullDisk(t, alone, k, &refused); k++ {
		}
		if refused == 0 {
			t.Error("no swap has found all files in use: the test is not worth anything")
		}
	}
}

// stopOnFullDisk counts the swaps that found no file, and reports whether the stopped swap has so many operations.
func stopOnFullDisk(t *testing.T, alone, k int, refused *int) (reached bool) {
	c, h := fullDiskClients(t, 0, 2)
	for range 4 {
		for range alone {
			c[0].swap(c[0].load())
		}
		row := c[0].load()
		goOn, stopped := c[0].stopAt(k, func() { c[0].swap(row) })
		reached = reached || stopped
		row = c[1].load()
		row.Name, row.Data = "lock", []byte("other")
		to, err := c[1].tab.Swap(t.Context(), row)
		switch {
		case err == nil:
			h.recordSwap(t, row, to)
		case errors.Is(err, record.ErrUnsent) && errors.Is(err, syscall.ENOSPC) && !driverutil.IsFinal(err) &&
			strings.Contains(err.Error(), "full"):
			*refused++
		default:
			t.Errorf("stopped at operation %d: %v", k, err)
		}
		goOn()
		for _, client := range c {
			if !client.swap(client.load()) {
				t.Fatalf("stopped at operation %d: %s finds no room", k, client.name)
			}
		}
	}
	h.checkFinal(t, c[0].load())
	return reached
}

// TestSpareFileOfLaterVersion: a late swap does not write over a spare file that may have been the version that it
// would make: a reader may have opened it then.
func TestSpareFileOfLaterVersion(t *testing.T) {
	t.Parallel()
	spare := func(number string) string { return version{"inc", spareSeq}.stagedName(number + ".nonce") }
	for name, want := range map[string]bool{
		spare("8"): true, spare("9"): true, spare("a"): false, spare("x"): false, spare(""): false,
		version{"other", spareSeq}.stagedName("8.nonce"): false, version{"inc", 7}.stagedName("8.nonce"): false,
	} {
		if isSpareFor(name, version{"inc", 8}) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
	if v, staged, ok := parseFile(spare("9")); !ok || !staged || v.seq != spareSeq {
		t.Error("a spare file is no staged file: a record that was deleted could not be cleared of it")
	}
}

// TestFilesHaveRoom: each file of a record has the room of a whole block, also where blocks are smaller, and whatever
// was in it before. Spare files do not pile up.
func TestFilesHaveRoom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tabs := []*table{openTest(t, dir), openTest(t, dir)}
	row := mustSwap(t, tabs[0], record.Row{Name: "a"})
	for i := range 12 * removeEvery {
		row.Data = []byte("small")
		if i/removeEvery%3 == 1 {
			row.Data = make([]byte, 5*blockSize)
		}
		tab := tabs[i/removeEvery/2%2]
		asked := 0
		givenUp := endingContext{t.Context(), func() bool { asked++; return asked > 1 }}
		if _, err := tab.Swap(givenUp, row); err == nil {
			t.Fatal("it was not given up")
		}
		row = mustSwap(t, tab, row)
		spare := 0
		for _, name := range listDir(t, filepath.Join(dir, "locks", "a")) {
			size, err := tab.fileSize(tab.locksDir, filepath.Join("a", name))
			if err != nil || size < blockSize {
				t.Fatalf("after %d swaps: %s has %d bytes, %v", i+1, name, size, err)
			}
			if isSpareFor(name, version{strings.Split(name, "-")[0], spareSeq - 1}) {
				spare++
			}
		}
		if spare > maxSpareFiles+removeEvery {
			t.Fatalf("after %d swaps there are %d spare files", i+1, spare)
		}
	}
	if err := tabs[1].Delete(t.Context(), mustLoad(t, tabs[1], "a")); err != nil {
		t.Fatal(err)
	}
	if left := listDir(t, filepath.Join(dir, "locks")); len(left) > 0 {
		t.Errorf("left of a deleted record: %v", left)
	}
}

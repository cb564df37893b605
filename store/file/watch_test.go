//go:build linux || darwin || windows

package file

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

// TestWatchDuringErrors: the watcher may deliver errors while a watch is added, and then holds a mutex of its own. So
// adding a watch must not prevent the errors from being received.
func TestWatchDuringErrors(t *testing.T) {
	t.Parallel()
	locks := t.TempDir()
	h := newEventHub(locks)
	_, cancel, err := h.subscribe("a")
	if err != nil {
		t.Fatal(err)
	}
	add := h.addPath
	h.addPath = func(path string) error {
		for range 2 { // the second is taken when the first has been dealt with
			h.watcher.Errors <- errors.New("something about another directory")
		}
		return add(path)
	}
	changed, cancelToo, err := h.subscribe("b")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(locks+"/b", 0o700); err != nil {
		t.Fatal(err)
	}
	<-changed
	cancel()
	cancelToo()
	if err := h.close(); err != nil {
		t.Error(err)
	}
}

// TestWatchClosesOnlyItsOwn: watches that are removed while something happens close no file of others.
func TestWatchClosesOnlyItsOwn(t *testing.T) {
	t.Parallel()
	locks := t.TempDir()
	h := newEventHub(locks)
	var wg sync.WaitGroup
	for lock := range 4 {
		dir := filepath.Join(locks, strconv.Itoa(lock))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for i := range 200 {
				_, cancel, err := h.subscribe(filepath.Base(dir))
				if err != nil {
					t.Error(err)
					return
				}
				f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
				if err != nil {
					t.Error(err)
				}
				cancel()
				if _, err := f.Write([]byte("x")); err != nil {
					t.Error(err)
				}
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := h.close(); err != nil {
		t.Error(err)
	}
}

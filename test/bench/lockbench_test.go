package bench

import (
	"context"
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/internal/benchtest"
	_ "github.com/holdfast-go/holdfast/store/file"
	_ "github.com/holdfast-go/holdfast/store/memory"
)

// filePeers are other clients of files.
var filePeers []benchtest.Locker

// BenchmarkLocks, on the stores that need no server. The floor of the memory is a Go mutex and a counter; that of files
// is a file's flock, and a token that is read from the file and written to it.
func BenchmarkLocks(b *testing.B) {
	b.Run("memory", func(b *testing.B) {
		s := benchtest.Store{
			Start:   func(testing.TB) string { return "memory://bench" },
			Without: []benchtest.Setup{benchtest.Processes},
			Lockers: append(append([]benchtest.Locker{benchtest.Floor(openCounters)}, benchtest.Holdfast("")...),
				benchtest.Queues("")...),
		}
		s.Run(b)
	})
	b.Run("file", func(b *testing.B) {
		s := benchtest.Store{
			Start: func(b testing.TB) string { return "file://" + b.TempDir() + "/store" },
			Lockers: slices.Concat([]benchtest.Locker{{Name: "floor", Open: openFlock}}, filePeers,
				benchtest.Holdfast(""), benchtest.Queues("")),
		}
		s.Run(b)
	})
}

func openCounters(testing.TB, string) benchtest.Cycle {
	type counter struct {
		mu sync.Mutex
		n  int64
	}
	var counters sync.Map
	return func(_ context.Context, lock string) error {
		found, _ := counters.LoadOrStore(lock, &counter{})
		c := found.(*counter)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.n++
		return nil
	}
}

// openFlock keeps its files next to the store.
func openFlock(b testing.TB, address string) benchtest.Lock {
	dir := strings.TrimPrefix(address, "file://") + "-floor"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		b.Fatal(err)
	}
	return func(_ context.Context, name string, _ int) (benchtest.Lease, error) {
		f, err := os.OpenFile(dir+"/"+name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return benchtest.Lease{}, err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			return benchtest.Lease{}, err
		}
		var token [8]byte
		_, _ = f.ReadAt(token[:], 0) // a new file is empty
		binary.NativeEndian.PutUint64(token[:], binary.NativeEndian.Uint64(token[:])+1)
		_, err = f.WriteAt(token[:], 0)
		return benchtest.Lease{Release: f.Close}, err
	}
}

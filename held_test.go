package holdfast

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/file"
)

// BenchmarkHeld: the bytes of heap for each of 10,000 held locks: in the client alone, with a store that keeps nothing,
// and with the stores of this module. The memory store also keeps the locks themselves.
func BenchmarkHeld(b *testing.B) {
	stores := map[string]func() driver.Store{
		"client": func() driver.Store { return &forgetfulStore{fakeStore: &fakeStore{start: time.Now()}} },
		"memory": func() driver.Store { return bubbleMemory().Open() },
		"file": func() driver.Store {
			s, err := file.New(b.Context(), b.TempDir()+"/store", nil)
			if err != nil {
				b.Fatal(err)
			}
			return s
		},
	}
	for name, open := range stores {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				benchHeld(b, open())
			}
		})
	}
}

func benchHeld(b *testing.B, s driver.Store) {
	const count = 10_000
	c, err := New(s, &Options{TTL: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	before := heapSize()
	for i := range count {
		if _, err := c.Mutex(fmt.Sprint("held/", i), nil).Lock(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(heapSize()-before)/count, "heap-B/lock")
}

func heapSize() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkFileCycle: what Lock and Release of one caller cost on files.
func BenchmarkFileCycle(b *testing.B) {
	s, err := file.New(b.Context(), b.TempDir()+"/store", nil)
	if err != nil {
		b.Fatal(err)
	}
	c, err := New(s, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	m := c.Mutex("a", nil)
	b.ReportAllocs()
	for b.Loop() {
		l, err := m.Lock(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Release(); err != nil {
			b.Fatal(err)
		}
	}
}

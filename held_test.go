package holdfast

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"

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
	c, err := New(s, &Options{TTL: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.ReportMetric(measureHeld(b, c), "heap-B/lock")
}

// measureHeld takes 10,000 locks, and returns how many bytes of heap each of them takes.
func measureHeld(t testing.TB, c *Client) (each float64) {
	const count = 10_000
	before := heapSize()
	for i := range count {
		if _, err := c.Mutex(fmt.Sprint("held/", i), nil).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return float64(heapSize()-before) / count
}

// TestHeldHeap: what the client keeps of a lock that it holds is small, also with a store that reports the end of
// grants. A lock takes 320 bytes of heap.
func TestHeldHeap(t *testing.T) {
	forgetful := &forgetfulStore{fakeStore: &fakeStore{start: time.Now()}}
	for name, s := range map[string]driver.Store{"plain": forgetful, "with endings": forgetfulEndings{forgetful}} {
		t.Run(name, func(t *testing.T) {
			if each := measureHeld(t, newClient(t, s, &Options{TTL: time.Hour})); each > 400 {
				t.Errorf("a lock takes %.0f bytes", each)
			}
		})
	}
}

// forgetfulEndings is a forgetfulStore that reports endings, of which there are none.
type forgetfulEndings struct{ *forgetfulStore }

func (s forgetfulEndings) Info() driver.Info {
	i := s.forgetfulStore.Info()
	i.Abilities.Endings = true
	return i
}

func (s forgetfulEndings) NextEnding(ctx context.Context) (driver.Ending, error) {
	<-ctx.Done()
	return driver.Ending{}, ctx.Err()
}

func heapSize() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestHoldSize: a hold has no more bytes than its comment says. Go would allocate the next larger size for it.
func TestHoldSize(t *testing.T) {
	if size := unsafe.Sizeof(hold{}); size > 208 {
		t.Errorf("a hold has %d bytes", size)
	}
}

// TestSharedTerms: holds on locks with equal options share their terms, and the others have terms of their own.
func TestSharedTerms(t *testing.T) {
	c := newClient(t, newFakeStore(), nil)
	plain := mustLock(t, c, "a", nil).hold
	for i := range 10 {
		o := &LockOptions{Meta: fmt.Sprint(i), MaxHold: time.Duration(i) * time.Hour}
		first, second := mustLock(t, c, fmt.Sprint("b", i), o).hold, mustLock(t, c, fmt.Sprint("c", i), o).hold
		if first.terms != second.terms || first.terms == plain.terms {
			t.Errorf("%d: terms of holds with equal options: %p, %p; with others: %p", i, first.terms, second.terms, plain.terms)
		}
		for _, h := range []*hold{first, second} {
			if g := h.currentGrant(); g.Meta != o.Meta || h.maxHold != o.MaxHold || g.Name != h.name || g.ID != h.id {
				t.Errorf("%d: the grant %+v, held for at most %v", i, g, h.maxHold)
			}
		}
	}
	if again := mustLock(t, c, "d", nil).hold; *again.terms != *plain.terms {
		t.Errorf("terms %+v, want %+v", *again.terms, *plain.terms)
	}
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

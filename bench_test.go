package holdfast

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkLockUnlock: the cost of Lock and Release in the client, with a store that costs nothing, alone and with many
// other leases held.
func BenchmarkLockUnlock(b *testing.B) {
	for _, held := range []int{0, 1, 100_000} {
		b.Run(fmt.Sprint("held=", held), func(b *testing.B) {
			c, err := New(&forgetfulStore{fakeStore: &fakeStore{start: time.Now()}}, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			for i := range held {
				if _, err := c.Mutex(fmt.Sprint(i), nil).Lock(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
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
		})
	}
}

// BenchmarkValid: the cost of Lease.Valid.
func BenchmarkValid(b *testing.B) {
	c, err := New(&forgetfulStore{fakeStore: &fakeStore{start: time.Now()}}, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	l, err := c.Mutex("a", nil).Lock(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if !l.Valid() {
			b.Fatal("lost")
		}
	}
}

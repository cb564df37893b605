package redis

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

func benchStore(b *testing.B) *store {
	server, err := redistest.Start()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(server.Stop)
	s, err := driver.Open(b.Context(), "redis://"+server.Addr)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s.(*store)
}

func acquireAndRelease(b testing.TB, s driver.Store, c driver.Claim) {
	ctx := context.Background()
	if _, err := s.Acquire(ctx, c); err != nil {
		b.Fatal(err)
	}
	if err := s.Release(ctx, c, ""); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkUncontended: what one goroutine that acquires and releases one lock costs without the client above the
// store.
func BenchmarkUncontended(b *testing.B) {
	s := benchStore(b)
	for _, kind := range []string{"plain", "fair", "semaphore"} {
		b.Run(kind, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c := mutex("m", 30*time.Second)
				switch kind {
				case "fair":
					c.Name, c.Fair = "fair", true
				case "semaphore":
					c.Name, c.Kind, c.Limit = "s", driver.KindSemaphore, 5
				}
				acquireAndRelease(b, s, c)
			}
		})
	}
}

// BenchmarkRenew: 10,000 held leases are renewed by one call.
func BenchmarkRenew(b *testing.B) {
	s := benchStore(b)
	var gs []driver.Grant
	for i := range 10000 {
		g, err := s.Acquire(b.Context(), mutex(fmt.Sprint("held", i), 30*time.Second))
		if err != nil {
			b.Fatal(err)
		}
		gs = append(gs, g)
	}
	for b.Loop() {
		s.Renew(b.Context(), gs, func(_ int, r driver.Renewal) {
			if r.Err != nil {
				b.Error(r.Err)
			}
		})
	}
}

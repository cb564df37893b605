package redis

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"crypto/rand"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// The floor is the minimum that any lock of this layout with a token has to do. It uses the same client, and scripts
// that do nothing else.
var (
	floorTake = rueidis.NewLuaScript(`if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end return 0`)
	floorFree = rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
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

func runFloorScripts(b testing.TB, s *store, key string) {
	ctx, id := context.Background(), rand.Text()
	keys := []string{key, key + ":t"}
	if n, err := floorTake.Exec(ctx, s.client, keys, []string{id, "30000"}).AsInt64(); err != nil || n == 0 {
		b.Fatal(n, err)
	}
	if err := floorFree.Exec(ctx, s.client, keys[:1], []string{id}).Error(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkUncontended: one goroutine acquires and releases one lock.
func BenchmarkUncontended(b *testing.B) {
	s := benchStore(b)
	for _, kind := range []string{"floor", "plain", "fair", "semaphore"} {
		b.Run(kind, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c := mutex("m", 30*time.Second)
				switch kind {
				case "floor":
					runFloorScripts(b, s, "f")
					continue
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

// BenchmarkOwnKeys: 64 goroutines acquire and release a lock each.
func BenchmarkOwnKeys(b *testing.B) {
	s := benchStore(b)
	run := func(b *testing.B, f func(name string)) {
		b.ReportAllocs()
		b.SetParallelism(32)
		var next atomic.Int64
		b.RunParallel(func(pb *testing.PB) {
			name := fmt.Sprint("own", next.Add(1))
			for pb.Next() {
				f(name)
			}
		})
	}
	b.Run("floor", func(b *testing.B) { run(b, func(name string) { runFloorScripts(b, s, name+"f") }) })
	b.Run("plain", func(b *testing.B) {
		run(b,
			func(name string) { acquireAndRelease(b, s, mutex(name, 30*time.Second)) })
	})
}

// BenchmarkContended: eight clients want one lock all the time. An operation is one hand-over.
func BenchmarkContended(b *testing.B) {
	for _, fair := range []bool{false, true} {
		b.Run(fmt.Sprintf("fair=%v", fair), func(b *testing.B) {
			first := benchStore(b)
			addr := strings.TrimPrefix(first.info.Store, "redis://")
			var todo atomic.Int64
			todo.Store(int64(b.N))
			counts := make([]int, 8)
			var wg sync.WaitGroup
			for i := range 8 {
				s, err := driver.Open(b.Context(), "redis://"+addr)
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				wg.Go(func() {
					for todo.Add(-1) >= 0 {
						c := mutex("contended", 30*time.Second)
						c.Fair, c.Wait = fair, true
						acquireAndRelease(b, s, c)
						counts[i]++
					}
				})
			}
			wg.Wait()
			if b.N > 1000 {
				b.Logf("grants by client: %v", counts)
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

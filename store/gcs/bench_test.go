package gcs_test

import (
	"flag"
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/storage"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/gcs"
	"github.com/holdfast-go/holdfast/store/gcs/gcstest"
)

// The floor is the minimum that any lock on this service has to do: one conditional insert and one deletion, by
// the same client.
func floor(b *testing.B, client *storage.Client, object string) {
	o := client.Bucket(bucket).Object(object).Retryer(storage.WithPolicy(storage.RetryNever))
	w := o.If(storage.Conditions{DoesNotExist: true}).NewWriter(b.Context())
	w.ChunkSize, w.ContentType = 0, "text/plain"
	w.CRC32C, w.SendCRC32C = crc32.Checksum([]byte("1"), crc32.MakeTable(crc32.Castagnoli)), true
	if _, err := w.Write([]byte("1")); err != nil {
		b.Error(err)
	}
	if err := w.Close(); err != nil {
		b.Error(err)
		return
	}
	if err := o.If(storage.Conditions{GenerationMatch: w.Attrs().Generation}).Delete(b.Context()); err != nil {
		b.Error(err)
	}
}

func cycle(b *testing.B, s driver.Store, name string) {
	g, err := s.Acquire(b.Context(), mutexClaim(name, 30*time.Second))
	if err != nil {
		b.Error(err)
		return
	}
	if err := s.Release(b.Context(), g.Claim, ""); err != nil {
		b.Error(err)
	}
}

// latency is added to each request. A real service is never as near as an emulator in the same process, where
// nearly all the measured time is the client's own.
var latency = flag.Duration("latency", 10*time.Millisecond, "of the service, in benchmarks")

// benchmark measures a cycle of the floor and of each layout.
func benchmark(b *testing.B, run func(b *testing.B, cycle func(name string))) {
	s := startServer(b)
	s.Decide = func(gcstest.Request) gcstest.Fate { return gcstest.Fate{Delay: *latency} }
	client := newClient(b, s)
	link, _ := newLink(b)
	b.Run("floor", func(b *testing.B) { run(b, func(name string) { floor(b, client, name) }) })
	for _, layout := range layouts {
		store, err := gcs.New(b.Context(), link, bucket,
			at(s, &gcs.Options{Prefix: string(layout) + "/", Layout: layout, WriteInterval: -1}))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { store.Close() })
		b.Run(string(layout), func(b *testing.B) { run(b, func(name string) { cycle(b, store, name) }) })
	}
}

// BenchmarkUncontended: one goroutine takes and releases one lock.
func BenchmarkUncontended(b *testing.B) {
	benchmark(b, func(b *testing.B, cycle func(name string)) {
		for b.Loop() {
			cycle("m")
		}
	})
}

// BenchmarkOwnLocks: 64 goroutines each take and release a lock of their own.
func BenchmarkOwnLocks(b *testing.B) {
	benchmark(b, func(b *testing.B, cycle func(name string)) {
		var next atomic.Int64
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			name := fmt.Sprint("own", next.Add(1))
			for pb.Next() {
				cycle(name)
			}
		})
	})
}

package s3_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/holdfast-go/holdfast/store/s3"
	"github.com/holdfast-go/holdfast/store/s3/s3test"
)

// latency is added to each request. A real service is never as near as one in the same process.
var latency = flag.Duration("latency", 10*time.Millisecond, "of the service, in benchmarks")

// floor is the minimum that any lock on this service has to do: one conditional write and one removal, by the same
// client.
func floor(ctx context.Context, client *sdk.Client, key string) error {
	made, err := client.PutObject(ctx, &sdk.PutObjectInput{Bucket: aws.String(bucket), Key: &key,
		Body: bytes.NewReader([]byte("1")), IfNoneMatch: aws.String("*")})
	if err != nil {
		return err
	}
	_, err = client.DeleteObject(ctx, &sdk.DeleteObjectInput{Bucket: aws.String(bucket), Key: &key, IfMatch: made.ETag})
	return err
}

// benchmark measures a cycle of the floor and of the store.
func benchmark(b *testing.B, run func(b *testing.B, cycle func(name string) error)) {
	s := startServer(b)
	s.Decide = func(s3test.Request) s3test.Fate { return s3test.Fate{Delay: *latency} }
	client := newClient(b, s.URL)
	b.Run("floor", func(b *testing.B) {
		run(b, func(name string) error { return floor(b.Context(), client, name) })
	})
	store := mustOpen(b, s, &s3.Options{Prefix: "locks/"})
	b.Run("record", func(b *testing.B) {
		run(b, func(name string) error {
			g, err := store.Acquire(b.Context(), mutexClaim(name, 30*time.Second))
			if err != nil {
				return err
			}
			return store.Release(b.Context(), g.Claim, "")
		})
	})
}

// BenchmarkUncontended: one goroutine takes and releases one lock.
func BenchmarkUncontended(b *testing.B) {
	benchmark(b, func(b *testing.B, cycle func(name string) error) {
		for b.Loop() {
			if err := cycle("m"); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkOwnLocks: 64 goroutines each take and release a lock of their own.
func BenchmarkOwnLocks(b *testing.B) {
	benchmark(b, func(b *testing.B, cycle func(name string) error) {
		var next atomic.Int64
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			name := fmt.Sprint("own", next.Add(1))
			for pb.Next() {
				if err := cycle(name); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

package gcs_test

import (
	"context"
	"hash/crc32"
	"testing"
	"time"

	"cloud.google.com/go/storage"
	"google.golang.org/api/option"

	"github.com/holdfast-go/holdfast/internal/benchtest"
	"github.com/holdfast-go/holdfast/internal/benchtest/requests"
	"github.com/holdfast-go/holdfast/store/gcs/gcstest"
)

// BenchmarkLocks, on a service in this process which answers after 10 ms: a real one is never as near as that. The
// floor is the minimum that any lock on it has to do: one conditional insert and one deletion.
func BenchmarkLocks(b *testing.B) {
	var service *gcstest.Server
	const options = "write-interval=0"
	lockers := benchtest.Holdfast(options)
	lockers[1].In = []benchtest.Setup{benchtest.Processes} // a fair lock takes 8 waiters here, and not 64
	s := benchtest.Store{
		Start: func(b testing.TB) string {
			service = gcstest.Start(bucket)
			b.Cleanup(service.Stop)
			service.Decide = func(gcstest.Request) gcstest.Fate { return gcstest.Fate{Delay: 10 * time.Millisecond} }
			return "gcs://" + bucket + "?anonymous=true&endpoint=" + service.URL
		},
		Requests: requests.Added(func() string { return service.Counts() }),
		Lockers: append([]benchtest.Locker{
			benchtest.Floor(func(b testing.TB, _ string) benchtest.Cycle { return openBenchFloor(b, service) }),
			benchtest.Layout("gcslock", options), benchtest.Layout("vault", options),
		}, lockers...),
	}
	s.Run(b)
}

func openBenchFloor(b testing.TB, service *gcstest.Server) benchtest.Cycle {
	client, err := storage.NewClient(b.Context(), option.WithEndpoint(service.URL+"/storage/v1/"),
		option.WithoutAuthentication())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { client.Close() })
	sum := crc32.Checksum([]byte("1"), crc32.MakeTable(crc32.Castagnoli))
	return func(ctx context.Context, lock string) error {
		o := client.Bucket(bucket).Object(lock).Retryer(storage.WithPolicy(storage.RetryNever))
		w := o.If(storage.Conditions{DoesNotExist: true}).NewWriter(ctx)
		w.ChunkSize, w.ContentType, w.CRC32C, w.SendCRC32C = 0, "text/plain", sum, true
		if _, err := w.Write([]byte("1")); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		return o.If(storage.Conditions{GenerationMatch: w.Attrs().Generation}).Delete(ctx)
	}
}

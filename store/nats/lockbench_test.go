package nats_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/internal/benchtest"
	"github.com/holdfast-go/holdfast/internal/benchtest/requests"
	_ "github.com/holdfast-go/holdfast/store/nats"
	"github.com/holdfast-go/holdfast/store/nats/natstest"
)

// BenchmarkLocks, on a server that syncs each write and on one that does not. The floor is the minimum that any lock in
// a key has to do: one write on the condition of the revision takes it, and one releases it. The revision is its token;
// it has no waiters and no record.
func BenchmarkLocks(b *testing.B) {
	for _, server := range []struct {
		name    string
		options natstest.Options
	}{{"sync", natstest.Options{SyncAlways: true}}, {"lazy", natstest.Options{}}} {
		b.Run(server.name, func(b *testing.B) {
			var port string // for questions to the server
			s := benchtest.Store{
				Start: func(b testing.TB) string {
					var err error
					if port, err = servertest.FreePort(); err != nil {
						b.Fatal(err)
					}
					server.options.Config = "http: 127.0.0.1:" + port
					c, err := natstest.Start(b.Context(), server.options)
					if err != nil {
						b.Fatal(err)
					}
					b.Cleanup(c.Close)
					return c.URL("locks")
				},
				Requests: func(ctx context.Context) (int64, error) { return requests.NATS(ctx, port) }, // messages
				Lockers:  append(benchtest.Holdfast("create=true"), benchtest.Floor(openBenchFloor)),
			}
			s.Run(b)
		})
	}
}

func openBenchFloor(b testing.TB, address string) benchtest.Cycle {
	c, err := natsgo.Connect(strings.TrimSuffix(address, "/locks"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	js, err := jetstream.New(c)
	if err != nil {
		b.Fatal(err)
	}
	kv, err := js.CreateOrUpdateKeyValue(b.Context(), jetstream.KeyValueConfig{Bucket: "floor"})
	if err != nil {
		b.Fatal(err)
	}
	var revisions sync.Map
	return func(ctx context.Context, lock string) error {
		known, ok := revisions.Load(lock)
		if !ok {
			revision, err := kv.Create(ctx, lock, nil)
			if errors.Is(err, jetstream.ErrKeyExists) {
				var entry jetstream.KeyValueEntry
				if entry, err = kv.Get(ctx, lock); err == nil {
					revision = entry.Revision()
				}
			}
			if err != nil {
				return err
			}
			known = revision
		}
		revision := known.(uint64)
		for _, owner := range []string{"me", ""} {
			var err error
			if revision, err = kv.Update(ctx, lock, []byte(owner), revision); err != nil {
				return err
			}
		}
		revisions.Store(lock, revision)
		return nil
	}
}

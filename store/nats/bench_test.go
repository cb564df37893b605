package nats

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/nats/natstest"
)

// BenchmarkCycle compares an acquire and a release by one caller with the floor, on a server that syncs each write and on
// one that does not. The floor is the minimum that any lock in a key has to do: one write on the condition of the
// revision takes it, and one releases it. It has no token, no waiters and no record.
func BenchmarkCycle(b *testing.B) {
	for name, o := range map[string]natstest.Options{"sync": {SyncAlways: true}, "lazy": {}} {
		b.Run(name, func(b *testing.B) {
			s := startServers(b, o)
			b.Run("floor", func(b *testing.B) {
				kv, err := connect(b, s).CreateKeyValue(b.Context(), jetstream.KeyValueConfig{Bucket: "floor"})
				if err != nil {
					b.Fatal(err)
				}
				revision, err := kv.Create(b.Context(), "m", nil)
				if err != nil {
					b.Fatal(err)
				}
				for b.Loop() {
					for _, owner := range []string{"me", ""} {
						if revision, err = kv.Update(b.Context(), "m", []byte(owner), revision); err != nil {
							b.Fatal(err)
						}
					}
				}
			})
			b.Run("holdfast", func(b *testing.B) {
				store := mustOpen(b, s.URL("locks")+"?create=true")
				for b.Loop() {
					c := storetest.Mutex("m", 30*time.Second)
					c.ID = rand.Text()
					release(b, store, acquire(b, store, c).Claim)
				}
			})
		})
	}
}

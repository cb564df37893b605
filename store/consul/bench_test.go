package consul

import (
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/consul/consultest"
)

// BenchmarkCycle compares an acquire and a release by one caller with the floor, which is the two writes that any lock
// under a session has to do, and with the Lock of Consul's own client.
func BenchmarkCycle(b *testing.B) {
	c := start(b, consultest.Options{})
	client := newAdmin(b, c)
	b.Run("floor", func(b *testing.B) {
		id, _, err := client.Session().CreateNoChecks(&api.SessionEntry{TTL: "60s"}, nil)
		if err != nil {
			b.Fatal(err)
		}
		p := &api.KVPair{Key: "floor", Session: id}
		for b.Loop() {
			if ok, _, err := client.KV().Acquire(p, nil); !ok || err != nil {
				b.Fatal(ok, err)
			}
			if ok, _, err := client.KV().Release(p, nil); !ok || err != nil {
				b.Fatal(ok, err)
			}
		}
	})
	b.Run("client", func(b *testing.B) {
		id, _, err := client.Session().CreateNoChecks(&api.SessionEntry{TTL: "60s"}, nil)
		if err != nil {
			b.Fatal(err)
		}
		l, err := client.LockOpts(&api.LockOptions{Key: "client", Session: id})
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := l.Lock(nil); err != nil {
				b.Fatal(err)
			}
			if err := l.Unlock(); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, layout := range []Layout{LayoutClaims, LayoutKey} {
		b.Run("holdfast/"+string(layout), func(b *testing.B) {
			s := mustOpen(b, c.URL()+"?layout="+string(layout))
			for b.Loop() {
				release(b, s, acquire(b, s, storetest.Waiting(storetest.Mutex("m", 30*time.Second))).Claim)
			}
		})
	}
}

package kubernetes_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/kubernetes"
	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
)

// benchmark measures a cycle of the floor and of the store, on a server with an etcd that does not wait for its disk. The
// floor is the minimum that any lock has to do: it makes an object and removes it.
func benchmark(b *testing.B, run func(b *testing.B, cycle func(name string) error)) {
	c := sharedCluster(b)
	b.Run("floor", func(b *testing.B) {
		run(b, func(name string) error {
			mustSend(b, c, http.MethodPost, "", object{"metadata": object{"name": "floor-" + name}})
			mustSend(b, c, http.MethodDelete, "floor-"+name, nil)
			return nil
		})
	})
	for _, layout := range []kubernetes.Layout{kubernetes.LayoutRecord, kubernetes.LayoutLeaderElection} {
		store := mustOpen(b, c, kubernetestest.AllowAll, &kubernetes.Options{Layout: layout})
		b.Run(string(layout), func(b *testing.B) {
			run(b, func(name string) error {
				g, err := store.Acquire(b.Context(), storetest.Mutex(name, 30*time.Second))
				if err != nil {
					return err
				}
				return store.Release(b.Context(), g.Claim, "")
			})
		})
	}
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

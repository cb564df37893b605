package etcd_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
)

// BenchmarkLimits does what "benchmark put" of etcd's sources does, which its releases do not include: how many puts of
// 8 bytes a cluster of three takes per second, from one client and from 64 with 8 connections.
func BenchmarkLimits(b *testing.B) {
	cluster, err := etcdtest.Start(b.Context(), etcdtest.Options{Direct: true})
	if err != nil {
		b.Fatal(err)
	}
	defer cluster.Close()
	var connections []*clientv3.Client
	for range 8 {
		connections = append(connections, benchClient(b, "etcd://"+strings.Join(cluster.Endpoints(), ",")))
	}
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("put/%d", clients), func(b *testing.B) {
			for b.Loop() {
				const length = 5 * time.Second
				var puts atomic.Int64
				var all sync.WaitGroup
				began := time.Now()
				for i := range clients {
					client, key := connections[i%len(connections)], fmt.Sprintf("%08d", i)
					all.Go(func() {
						for time.Since(began) < length {
							if _, err := client.Put(b.Context(), key, "12345678"); err != nil {
								b.Error(err)
								return
							}
							puts.Add(1)
						}
					})
				}
				all.Wait()
				b.ReportMetric(float64(puts.Load())/time.Since(began).Seconds(), "puts/s")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

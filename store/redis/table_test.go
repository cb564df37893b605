package redis

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/linktest"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// TestTableCluster: in a Cluster, too, who waits for a row is told of its change.
func TestTableCluster(t *testing.T) {
	t.Parallel()
	g := must(t)(redistest.Cluster(t.Context()))
	via := &linktest.Net{}
	t.Cleanup(via.Close)
	s, err := viaURL("redis+cluster://"+g.Servers[0].Addr)(t.Context(), dialVia(via), &Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tab, err := s.(*Store).Table(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	r, err := tab.Swap(t.Context(), record.Row{Name: "a row"})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		told := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		go func() { told <- tab.(record.Notifier).Wait(ctx, r.Name, r.Version) }()
		time.Sleep(100 * time.Millisecond)
		now, err := tab.Swap(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		if err := <-told; err != nil {
			t.Fatal("not told of a change: ", err)
		}
		r = now
	}
}

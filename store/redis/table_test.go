package redis

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"

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

// TestListenAgain: a client of the user's that makes a link anew by itself has those who wait look again, since what was told
// meanwhile was not heard.
func TestListenAgain(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	via, err := linktest.NewLink(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(via.Close)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{via.Addr}, ConnWriteTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	mine, err := New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	tab, err := mine.Table(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other, err := open(t, "redis://"+server.Addr).(*Store).Table(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := tab.Swap(t.Context(), record.Row{Name: "a row"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	told := make(chan error, 1)
	go func() {
		for now, err := r, error(nil); err == nil && now.Version == r.Version; {
			if err = tab.(record.Notifier).Wait(ctx, r.Name, r.Version); err == nil {
				now, err = tab.Load(ctx, r.Name)
			}
			if err != nil {
				told <- err
			}
		}
		close(told)
	}()
	time.Sleep(200 * time.Millisecond)
	via.Cut() // new links are made, and carry nothing
	via.Reset()
	if _, err := other.Swap(ctx, r); err != nil {
		t.Fatal(err)
	}
	via.Heal()
	if err := <-told; err != nil {
		t.Fatal("not told of a change: ", err)
	}
}

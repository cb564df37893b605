package redis

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// TestTableCluster: in a Cluster, too, who waits for a row is told of its change.
func TestTableCluster(t *testing.T) {
	t.Parallel()
	g := mustStart(t)(redistest.Cluster(t.Context()))
	via := &servertest.Net{}
	t.Cleanup(via.Close)
	s, err := openViaURL("redis+cluster://"+g.Servers[0].Addr)(t.Context(), dialVia(via), &Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tab, err := s.(*store).openTable(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	r, err := tab.Swap(t.Context(), record.Row{Name: "a row"})
	if err != nil {
		t.Fatal(err)
	}
	key := tab.rowKey(r.Name)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		seat, _ := s.(*store).subscribeToKey(key, "", false, key)
		waitUntilListening(t, seat)
		told := make(chan error, 1)
		go func() { told <- tab.Wait(ctx, r.Name, r.Version) }()
		time.Sleep(100 * time.Millisecond)
		seat.unsubscribe()
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

// waitUntilListening waits until a seat's hub listens.
func waitUntilListening(t *testing.T, seat *subscription) {
	t.Helper()
	select {
	case <-seat.hub.listeningSignal():
	case <-time.After(time.Minute):
		t.Fatal("it does not listen")
	}
}

// countingClient counts how often its client was asked to listen.
type countingClient struct {
	rueidis.Client
	times atomic.Int64
}

func (a *countingClient) Receive(ctx context.Context, subscribe rueidis.Completed,
	fn func(rueidis.PubSubMessage)) error {
	a.times.Add(1)
	return a.Client.Receive(ctx, subscribe, fn)
}

// TestListenBackoff: a server that is away is asked for news of a lock now and then, and not all the time, since many
// may be waited for; and soon when it is back.
func TestListenBackoff(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	o := DefaultClientOption()
	o.InitAddress, o.Dialer.Timeout = []string{server.Addr}, linkTimeout
	client, err := rueidis.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	counted := &countingClient{Client: client}
	s, err := newStore(counted, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	seat, _ := s.subscribeToLock("m", "", false)
	defer seat.unsubscribe()
	waitUntilListening(t, seat)
	server.Kill()
	start := time.Now()
	if err := redistest.Until(t.Context(), func() bool { return counted.times.Load() >= 11 }); err != nil {
		t.Fatal("a server that is away is not asked any more")
	}
	if took := time.Since(start); took < 2500*time.Millisecond {
		// ten pauses, each at least half of what it doubles to
		t.Errorf("a server that is away was asked ten times in %v", took)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	waitUntilListening(t, seat)
}

// TestResubscribeWakesWaiters: a client of the user's that makes a link again by itself has those who wait look again,
// since what was told meanwhile was not heard.
func TestResubscribeWakesWaiters(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	via, err := servertest.NewLink(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(via.Close)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{via.Addr},
		ConnWriteTimeout: linkTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	mine, err := newStore(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	tab, err := mine.openTable(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other, err := openForTest(t, "redis://"+server.Addr).(*store).openTable(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := tab.Swap(t.Context(), record.Row{Name: "a row"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	key := tab.rowKey(r.Name)
	seat, _ := mine.subscribeToKey(key, "", false, key)
	waitUntilListening(t, seat)
	told := make(chan error, 1)
	go func() {
		defer close(told)
		for {
			err := tab.Wait(ctx, r.Name, r.Version)
			var now record.Row
			if err == nil {
				now, err = tab.Load(ctx, r.Name)
			}
			switch {
			case ctx.Err() != nil:
				told <- ctx.Err()
				return
			case err == nil && now.Version != r.Version:
				return
			}
			time.Sleep(time.Millisecond) // the link was made again just then
		}
	}()
	time.Sleep(200 * time.Millisecond)
	seat.unsubscribe()
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

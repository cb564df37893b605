package redis

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// TestTableCluster: a client that waits for a row is notified of its change in a Cluster too.
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
	tab, err := s.(*store).openTable(t.Context(), rowPrefix)
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
		sub, _ := s.(*store).subscribeToKey(key, "", key)
		waitUntilListening(t, sub)
		outcome := make(chan error, 1)
		go func() { outcome <- tab.wait(ctx, r.Name, r.Version) }()
		time.Sleep(100 * time.Millisecond)
		sub.unsubscribe()
		now, err := tab.Swap(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		if err := <-outcome; err != nil {
			t.Fatal("not notified of a change: ", err)
		}
		r = now
	}
}

// waitUntilListening waits until the hub of a subscription listens.
func waitUntilListening(t *testing.T, sub *subscription) {
	t.Helper()
	select {
	case <-sub.hub.listeningSignal():
	case <-time.After(time.Minute):
		t.Fatal("it does not listen")
	}
}

// countingClient counts how often its client was asked to subscribe.
type countingClient struct {
	rueidis.Client
	times atomic.Int64
}

func (a *countingClient) Receive(ctx context.Context, subscribe rueidis.Completed,
	fn func(rueidis.PubSubMessage)) error {
	a.times.Add(1)
	return a.Client.Receive(ctx, subscribe, fn)
}

// TestListenBackoff: while a server is away, a hub tries to subscribe at growing intervals, since there may be many
// hubs. It subscribes soon after the server is back.
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
	sub, _ := s.subscribeToLock("m", "")
	defer sub.unsubscribe()
	waitUntilListening(t, sub)
	server.Kill()
	start := time.Now()
	if err := redistest.Until(t.Context(), func() bool { return counted.times.Load() >= 11 }); err != nil {
		t.Fatal("the hub has stopped trying to subscribe")
	}
	if took := time.Since(start); took < 2500*time.Millisecond {
		// Ten delays, each at least half of its doubled value.
		t.Errorf("the hub tried ten times in %v", took)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	waitUntilListening(t, sub)
}

// TestResubscribeWakesWaiters: a user's client may reconnect and subscribe again by itself. All waiting calls then ask
// the server, since notices may have been lost.
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
	tab, err := mine.openTable(t.Context(), rowPrefix)
	if err != nil {
		t.Fatal(err)
	}
	other, err := openForTest(t, "redis://"+server.Addr).(*store).openTable(t.Context(), rowPrefix)
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
	sub, _ := mine.subscribeToKey(key, "", key)
	waitUntilListening(t, sub)
	outcome := make(chan error, 1)
	go func() {
		defer close(outcome)
		for {
			err := tab.wait(ctx, r.Name, r.Version)
			var now record.Row
			if err == nil {
				now, err = tab.Load(ctx, r.Name)
			}
			switch {
			case ctx.Err() != nil:
				outcome <- ctx.Err()
				return
			case err == nil && now.Version != r.Version:
				return
			}
			time.Sleep(time.Millisecond) // the error of a link that was reset just then
		}
	}()
	time.Sleep(200 * time.Millisecond)
	sub.unsubscribe()
	via.Cut() // new links are made, and transfer nothing
	via.Reset()
	if _, err := other.Swap(ctx, r); err != nil {
		t.Fatal(err)
	}
	via.Heal()
	if err := <-outcome; err != nil {
		t.Fatal("not notified of a change: ", err)
	}
}

// TestRowsExpire: the server removes a row that is needed only up to some time, and then no write for its old version
// is accepted. A write that needs the row for longer takes that back in the same step, so a run that begins while its
// key's old history expires stays.
func TestRowsExpire(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	tab, err := openForTest(t, "redis://"+server.Addr).(*store).openTable(t.Context(), runPrefix)
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	mustSwap := func(r record.Row, keepUntil time.Time) record.Row {
		t.Helper()
		r.KeepUntil = 0
		if !keepUntil.IsZero() {
			r.KeepUntil = keepUntil.UnixMicro()
		}
		r, err := tab.Swap(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	end := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	row := mustSwap(record.Row{Name: "k", Data: []byte("old")}, end)
	expireTime := func() string { return sendCommand(t, server, "PEXPIRETIME", tab.rowKey("k")) }
	if got, want := expireTime(), fmt.Sprint(":", end.UnixMilli()); got != want {
		t.Errorf("the row expires at %s, want %s", got, want)
	}
	row = mustSwap(row, time.Time{})
	if got := expireTime(); got != ":-1" {
		t.Errorf("the row of a run in progress expires at %s", got)
	}
	row = mustSwap(row, time.Now().Add(-time.Second))
	if now, err := tab.Load(t.Context(), "k"); err != nil || now.Version != "" {
		t.Errorf("after its time there is still the row %+v, %v", now, err)
	}
	if _, err := tab.Swap(t.Context(), row); !errors.Is(err, record.ErrConflict) {
		t.Errorf("a write over a row that has expired: %v", err)
	}
	mustSwap(record.Row{Name: "k", Data: []byte("new")}, time.Time{})
}

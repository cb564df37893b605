package sessiontest

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

var (
	leaders     = flag.Int("leaders", 2, "how many leaders are killed or stopped")
	leaderEvery = flag.Duration("leader-every", 6*time.Second, "how long each time until the next; half of that the server is away")
)

// LeaderKilled kills and stops leaders while one client holds a lock and, with many requests at a time, takes others again and
// again. Nobody gets one that is taken, and nothing is left of them.
func (r *Rig[C, P]) LeaderKilled(t *testing.T) {
	c := r.Own(t)
	client := NewClient(t, r.Peer(t, c), 10*time.Second)
	kept := Lock(t, client, t.Name()+"/kept")
	var cycles atomic.Int64
	var inside [4]atomic.Int64
	other := func(i int) string { return fmt.Sprint(t.Name(), "/other-", i) }
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for w := range 16 {
		all.Go(func() {
			for i := w % len(inside); ctx.Err() == nil; {
				l, err := client.Mutex(other(i), nil).Lock(ctx)
				if err != nil {
					continue
				}
				if inside[i].Add(1) > 1 && l.Valid() {
					t.Error("two hold at a time")
				}
				inside[i].Add(-1)
				_ = l.Unlock()
				cycles.Add(1)
			}
		})
	}
	for i := range *leaders {
		before := cycles.Load()
		leader, err := c.Leader(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			leader.Kill()
			time.Sleep(*leaderEvery / 2)
			Fails(t, leader.Start())
		} else {
			leader.Stop()
			time.Sleep(*leaderEvery / 2)
			leader.Continue()
		}
		time.Sleep(*leaderEvery / 2)
		for end := time.Now().Add(30 * time.Second); cycles.Load() == before; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("nobody else got a lock for 30 s, when leader %d had gone and come back", i+1)
			}
		}
	}
	cancel()
	all.Wait()
	if !kept.Valid() || kept.Context().Err() != nil {
		t.Errorf("the lock was lost: %v", context.Cause(kept.Context()))
	}
	Fails(t, kept.Unlock())
	for i := range inside {
		Fails(t, Lock(t, client, other(i)).Unlock()) // as soon as all before it have gone
		if l, err := client.Inspect(t.Context(), other(i)); err != nil || len(l.Holders)+len(l.Waiters) > 0 {
			t.Errorf("left: %+v, %v", l, err)
		}
	}
	t.Logf("%d other cycles while %d leaders were killed or stopped, one every %v", cycles.Load(), *leaders, *leaderEvery)
}

// AllKilled kills all servers, and starts them again within the TTL.
func (r *Rig[C, P]) AllKilled(t *testing.T) {
	c := r.Own(t)
	client := NewClient(t, r.Peer(t, c), 20*time.Second)
	l := Lock(t, client, t.Name())
	for _, m := range c.Servers() {
		m.Kill()
	}
	for _, m := range c.Servers() {
		Fails(t, m.Start())
	}
	Fails(t, c.Ready(t.Context()))
	time.Sleep(7 * time.Second) // a renewal has come and gone
	if !l.Valid() {
		t.Errorf("lost: %v", context.Cause(l.Context()))
	}
	token := l.Token()
	Fails(t, l.Unlock())
	next := Lock(t, client, t.Name())
	if next.Token() <= token {
		t.Errorf("token %d came after %d", next.Token(), token)
	}
	Fails(t, next.Unlock())
}

// HalfDead gives a client addresses of which the first answer nothing.
func (r *Rig[C, P]) HalfDead(t *testing.T) {
	url := r.url("127.0.0.1:1", "127.0.0.1:2", r.Shared(t).Endpoints()[0])
	client, err := holdfast.Open(t.Context(), url, &holdfast.Options{TTL: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	began := time.Now()
	Fails(t, Lock(t, client, t.Name()).Unlock())
	t.Logf("locked and unlocked in %v", time.Since(began).Round(time.Millisecond))
}

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
	"github.com/holdfast-go/holdfast/internal/pace"
)

var (
	leaderFaults   = flag.Int("leaders", 2, "how many leaders are killed or stopped")
	leaderInterval = flag.Duration("leader-every", 6*time.Second, "how long each time until the next; half of that the server is away")
)

// LeaderKilled kills and stops leaders while one client holds a lock and, with many requests at a time, takes others again and
// again. Nobody gets one that is taken, and nothing is left of them. The next leader falls when the last one has come back, or
// there would be no majority; and it all takes longer than the TTL, so that the lock is not kept without renewals.
func (r *Harness[C, P]) LeaderKilled(t *testing.T) {
	c := r.Own(t)
	const ttl = 30 * time.Second
	client := NewClient(t, r.Peer(t, c), ttl)
	began := time.Now()
	var leaderless, machine pace.Pace
	defer machine.Watch()()
	t.Cleanup(leaderless.WatchTask(100*time.Millisecond, func(<-chan struct{}) {
		time.Sleep(100 * time.Millisecond)
		_, _ = c.Leader(t.Context())
	}))
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
				_ = l.Release()
				cycles.Add(1)
			}
		})
	}
	for i := range *leaderFaults {
		before := cycles.Load()
		leader, err := c.Leader(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			leader.Kill()
			time.Sleep(*leaderInterval / 2)
			CheckError(t, leader.Start())
		} else {
			leader.Stop()
			time.Sleep(*leaderInterval / 2)
			leader.Continue()
		}
		time.Sleep(*leaderInterval / 2)
		CheckError(t, c.Ready(t.Context()))
		for end := time.Now().Add(time.Minute); cycles.Load() == before; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("nobody else got a lock for a minute, when leader %d had gone and come back", i+1)
			}
		}
	}
	time.Sleep(time.Until(began.Add(ttl)))
	cancel()
	all.Wait()
	without := leaderless.Worst(began)
	t.Logf("without a leader for up to %v", without.Round(10*time.Millisecond))
	// Who holds a lock cannot keep it without a majority. On a machine on which that does not come back in time, this shows nothing.
	if err := kept.Release(); err != nil && max(without, 10*machine.Worst(began)) < ttl/3 {
		t.Errorf("the lock was lost: %v", err)
	}
	for i := range inside {
		CheckError(t, Lock(t, client, other(i)).Release())             // as soon as all before it have gone
		for given := time.Now(); ; time.Sleep(20 * time.Millisecond) { // an add that was given up may be on its way
			l, err := client.Inspect(t.Context(), other(i))
			if err == nil && len(l.Holders)+len(l.Waiters) == 0 {
				break
			}
			if err != nil || time.Since(given) > min(ttl/2+10*machine.Worst(began), ttl-2*time.Second) { // what is left by mistake stays for longer
				t.Errorf("left: %+v, %v", l, err)
				break
			}
		}
	}
	t.Logf("%d other cycles while %d leaders were killed or stopped, one every %v", cycles.Load(), *leaderFaults, *leaderInterval)
}

// AllKilled kills all servers, and starts them again within the TTL.
func (r *Harness[C, P]) AllKilled(t *testing.T) {
	c := r.Own(t)
	client := NewClient(t, r.Peer(t, c), 45*time.Second)
	l := Lock(t, client, t.Name())
	for _, m := range c.Servers() {
		m.Kill()
	}
	for _, m := range c.Servers() {
		CheckError(t, m.Start())
	}
	CheckError(t, c.Ready(t.Context()))
	AwaitRenewal(t, l)
	token := l.Token()
	CheckError(t, l.Release())
	next := Lock(t, client, t.Name())
	if next.Token() <= token {
		t.Errorf("token %d came after %d", next.Token(), token)
	}
	CheckError(t, next.Release())
}

// HalfDead gives a client addresses of which the first answer nothing.
func (r *Harness[C, P]) HalfDead(t *testing.T) {
	url := r.clusterURL("127.0.0.1:1", "127.0.0.1:2", r.Shared(t).Endpoints()[0])
	client, err := holdfast.Open(t.Context(), url, &holdfast.Options{TTL: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	began := time.Now()
	CheckError(t, Lock(t, client, t.Name()).Release())
	t.Logf("locked and unlocked in %v", time.Since(began).Round(time.Millisecond))
}

package zookeeper

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/holdfast-go/holdfast/driver"
)

var herd = flag.Int("herd", 100, "the most waiters at whom wake-ups are counted")

// TestHerd: with any number of clients waiting a release wakes one of them. Beside it stands what the plain recipe does, one
// ephemeral node whose end everybody watches: it wakes all.
func TestHerd(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	for n := 10; n <= *herd; n *= 10 {
		sequential, plain := sequentialHerd(t, n), plainHerd(t, c.Endpoints(), n)
		t.Logf("%4d waiters: a release wakes %.1f of ours; with one node for all it wakes %.1f", n, sequential, plain)
		if sequential > 2 || plain < float64(n)/2 {
			t.Errorf("%d waiters: %v and %v wake-ups", n, sequential, plain)
		}
	}
}

const releases = 3

// sequentialHerd counts the events that a release brings, with n clients of ours waiting.
func sequentialHerd(t *testing.T, n int) float64 {
	c := &counter{sent: map[int32]int{}}
	lock := fmt.Sprint(t.Name(), "/", n)
	var stores []*Store
	for range n + 1 {
		s, err := New(Options{Servers: rig.Shared(t).Endpoints(), Dial: c.dial})
		if err != nil {
			t.Fatal(err)
		}
		stores = append(stores, s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	type got struct {
		s *Store
		c driver.Claim
	}
	in := make(chan got, n+1)
	for _, s := range stores {
		all.Go(func() {
			defer s.Close()
			claim := mutexClaim(lock)
			claim.Wait = true
			if _, err := s.Acquire(ctx, claim); err == nil {
				in <- got{s, claim}
			}
			<-ctx.Done()
		})
	}
	holder := <-in
	for {
		l, err := holder.s.Inspect(ctx, lock)
		if err != nil {
			t.Error(err)
			return 0
		}
		if len(l.Waiters) == n {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	time.Sleep(500 * time.Millisecond) // all watch
	before := c.events.Load()
	for range releases {
		if err := holder.s.Release(ctx, holder.c, ""); err != nil {
			t.Error(err)
		}
		holder = <-in
	}
	time.Sleep(200 * time.Millisecond)
	// What the released clients hear of the end of their own nodes is no wake-up.
	return float64(c.events.Load()-before-releases) / releases
}

// plainHerd counts the events that a release brings, with n clients waiting for one node.
func plainHerd(t *testing.T, servers []string, n int) float64 {
	path := fmt.Sprint("/", t.Name(), "-plain-", n)
	var mu sync.Mutex
	woken, waiting := 0, 0
	stop := make(chan struct{})
	in := make(chan *zk.Conn, n+1)
	var all sync.WaitGroup
	defer all.Wait()
	defer close(stop)
	for range n + 1 {
		all.Go(func() {
			cli, _, err := zk.Connect(servers, 30*time.Second, zk.WithLogger(quiet{}))
			if err != nil {
				t.Error(err)
				return
			}
			defer cli.Close()
			for {
				if _, err := cli.Create(path, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err == nil {
					in <- cli
					<-stop
					return
				}
				there, _, gone, err := cli.ExistsW(path)
				if err != nil || !there {
					continue
				}
				mu.Lock()
				waiting++
				mu.Unlock()
				select {
				case <-gone:
					mu.Lock()
					woken++
					waiting--
					mu.Unlock()
				case <-stop:
					return
				}
			}
		})
	}
	holder := <-in
	settle := func(want int) {
		for {
			mu.Lock()
			now := waiting
			mu.Unlock()
			if now >= want {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	for i := range releases {
		settle(n - i)
		if err := holder.Delete(path, -1); err != nil {
			t.Error(err)
			return 0
		}
		holder = <-in
	}
	mu.Lock()
	defer mu.Unlock()
	return float64(woken) / releases
}

package zookeeper

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

var herd = flag.Int("herd", 100, "the most waiters at whom wake-ups are counted")

// TestHerd: with any number of clients waiting a release wakes one of them. Compare the plain layout, in
// which it wakes all.
func TestHerd(t *testing.T) {
	t.Parallel()
	servers := rig.Shared(t).Endpoints()
	sequential := func(o Options) (driver.Store, *nodeStore, error) {
		checked, err := newSettings(servers, &o)
		tr := newNodeStore(checked)
		tr.info.MaxWaiters = *herd // more than elsewhere
		return &store{Engine: sequence.New(tr), nodeStore: tr}, tr, err
	}
	plain := func(o Options) (driver.Store, *nodeStore, error) {
		o.Layout = LayoutPlain
		s, err := openAs[*plainStore](servers, o)
		return s, s.nodeStore.nodeStore, err
	}
	for n := 10; n <= *herd; n *= 10 {
		woken, sent := measureWakeUps(t, fmt.Sprint(t.Name(), "/", n), n, sequential)
		all, more := measureWakeUps(t, fmt.Sprint(t.Name(), "/plain-", n), n, plain)
		t.Logf("%4d waiters: a release wakes %.1f of them, and costs %.1f requests; in the plain layout it wakes %.1f, and costs %.1f",
			n, woken, sent, all, more)
		if woken > 2 || all < float64(n)/2 {
			t.Errorf("%d waiters: %v and %v wake-ups", n, woken, all)
		}
	}
}

// measureWakeUps counts the events that a release brings to n waiting clients, and the requests that it costs
// until all wait again, without keep-alives.
func measureWakeUps(t *testing.T, lock string, n int,
	open func(Options) (driver.Store, *nodeStore, error)) (events, requests float64) {
	c := &requestCounter{sent: map[int32]int{}}
	var stores []driver.Store
	var trees []*nodeStore
	for range n + 1 {
		s, tr, err := open(Options{Dial: c.dial})
		if err != nil {
			t.Fatal(err)
		}
		stores, trees = append(stores, s), append(trees, tr)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	type got struct {
		store int
		driver.Claim
	}
	in := make(chan got, n+1)
	for i, s := range stores {
		all.Go(func() {
			defer s.Close()
			claim := mutexClaim(lock)
			claim.Wait, claim.TTL = true, 10*time.Minute // nobody renews it
			_, err := s.Acquire(ctx, claim)
			for err != nil && !driverutil.IsFinal(err) && ctx.Err() == nil { // the servers have many to serve at once
				_, err = s.Acquire(ctx, claim)
			}
			switch {
			case err == nil:
				in <- got{i, claim}
			case ctx.Err() == nil:
				t.Error(err)
				cancel()
			}
			<-ctx.Done()
		})
	}
	settle := func(released int) {
		for watching := 0; watching < n+1-released && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
			watching = 0
			for _, tr := range trees {
				if tr.isWatching() {
					watching++
				}
			}
		}
	}
	const releases = 3
	holder := <-in
	settle(0)
	time.Sleep(500 * time.Millisecond) // what is watched after a while is watched
	c.takeCounts()
	before := c.events.Load()
	for i := range releases {
		if err := stores[holder.store].Release(ctx, holder.Claim, ""); err != nil {
			t.Error(err)
		}
		select {
		case holder = <-in:
		case <-ctx.Done():
			return 0, 0
		}
		settle(i + 1)
	}
	time.Sleep(200 * time.Millisecond)
	sum := 0
	for op, k := range c.takeCounts() {
		if op != zk.OpMulti && op != zk.OpDelete { // neither keep-alives and renewals nor the releases
			sum += k
		}
	}
	// An event about a released client's own node is no wake-up.
	return float64(c.events.Load()-before-releases) / releases, float64(sum) / releases
}

// isWatching reports whether anything is watched.
func (t *nodeStore) isWatching() bool {
	c := t.openConn()
	return c != nil && c.IsWatching()
}

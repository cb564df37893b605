package zookeeper

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
)

// BenchmarkCycle compares an acquire and a release with the floor, which is a create, a listing and a delete, one after the
// other, by another client; and with that client's own lock. Alone, on locks of their own, and on one lock.
func BenchmarkCycle(b *testing.B) {
	s, _ := counting(b)
	cli := admin(b, rig.Shared(b))
	ctx := b.Context()
	acl := zk.WorldACL(zk.PermAll)
	for _, dir := range []string{"/floor", "/bench", "/bench/own", "/peer"} {
		_, err := cli.Create(dir, nil, 0, acl)
		if err != zk.ErrNodeExists {
			fails(b, err)
		}
	}
	for w := range 64 {
		if _, err := cli.Create(fmt.Sprint("/floor/", w), nil, 0, acl); err != zk.ErrNodeExists {
			fails(b, err)
		}
	}
	floor := func(w int) {
		dir := fmt.Sprint("/floor/", w)
		path, err := cli.Create(dir+"/lock-", nil, zk.FlagEphemeral|zk.FlagSequence, acl)
		fails(b, err)
		_, _, err = cli.Children(dir)
		fails(b, err)
		fails(b, cli.Delete(path, -1))
	}
	holdfast := func(lock string) {
		c := mutexClaim(lock)
		c.Wait = true
		_, err := s.Acquire(ctx, c)
		fails(b, err)
		fails(b, s.Release(ctx, c, ""))
	}
	for _, workers := range []int{1, 64} {
		b.Run(fmt.Sprintf("own/%d/floor", workers), func(b *testing.B) { sessiontest.Cycles(b, workers, floor) })
		b.Run(fmt.Sprintf("own/%d/holdfast", workers), func(b *testing.B) {
			sessiontest.Cycles(b, workers, func(w int) { holdfast(fmt.Sprint("bench/own/", w)) })
		})
		b.Run(fmt.Sprintf("own/%d/go-zookeeper", workers), func(b *testing.B) {
			sessiontest.Cycles(b, workers, func(w int) {
				l := zk.NewLock(cli, fmt.Sprint("/peer/", w), acl)
				fails(b, l.Lock())
				fails(b, l.Unlock())
			})
		})
	}
	b.Run("one/64/in-process-queue-floor", func(b *testing.B) {
		var mu sync.Mutex
		sessiontest.Cycles(b, 64, func(int) { mu.Lock(); defer mu.Unlock(); floor(0) })
	})
	b.Run("one/64/holdfast", func(b *testing.B) { sessiontest.Cycles(b, 64, func(int) { holdfast("bench/one") }) })
	b.Run("one/64/go-zookeeper", func(b *testing.B) {
		sessiontest.Cycles(b, 64, func(int) {
			l := zk.NewLock(cli, "/peer/one", acl)
			fails(b, l.Lock())
			fails(b, l.Unlock())
		})
	})
}

// TestPackets: a cycle on a free lock is three packets in two round trips; one that waits for another client's adds the read
// that watches that one, and the look after it has gone; a renewal of many locks is a sync or two and a read of each.
func TestPackets(t *testing.T) {
	s, c := counting(t)
	ctx := t.Context()
	warm := mutexClaim("packets/free")
	_, err := s.Acquire(ctx, warm)
	fails(t, err)
	fails(t, s.Release(ctx, warm, ""))
	c.take()
	const n = 50
	for range n {
		cl := mutexClaim("packets/free")
		cl.Wait = true
		if _, err := s.Acquire(ctx, cl); err != nil {
			t.Fatal(err)
		}
		fails(t, s.Release(ctx, cl, ""))
	}
	got := c.take()
	t.Logf("%d cycles on a free lock: %v", n, got)
	// Beats are deletes, too; and a cycle that a slow machine draws out beyond watchAfter is watched.
	if got[opCreate2] != n || got[opGetChildren] != n || got[opDelete] < n || got[opDelete] > n+20 || got[opGetData] > n {
		t.Errorf("%d cycles sent %v", n, got)
	}

	other, _ := counting(t)
	best := 99
	for range 20 {
		hold, wait := mutexClaim("packets/held"), mutexClaim("packets/held")
		wait.Wait = true
		_, err = other.Acquire(ctx, hold)
		fails(t, err)
		c.take()
		done := make(chan error, 1)
		go func() { _, err := s.Acquire(ctx, wait); done <- err }()
		for {
			l, err := other.Inspect(ctx, "packets/held")
			fails(t, err)
			if len(l.Waiters) == 1 {
				break
			}
		}
		time.Sleep(5 * time.Millisecond)
		fails(t, other.Release(ctx, hold, ""))
		fails(t, <-done)
		fails(t, s.Release(ctx, wait, ""))
		got := c.take()
		delete(got, opSync)
		got[opDelete] = 1 // the rest are beats
		sum := 0
		for _, k := range got {
			sum += k
		}
		best = min(best, sum)
	}
	t.Logf("a cycle that waited: %d packets", best)
	if best != 5 {
		t.Errorf("a cycle that waited sent %d packets at best, want 5", best)
	}

	var gs []driver.Grant
	for i := range 250 {
		g, err := s.Acquire(ctx, mutexClaim(fmt.Sprint("packets/many/", i)))
		fails(t, err)
		gs = append(gs, g)
	}
	time.Sleep(300 * time.Millisecond) // they are watched now
	c.take()
	s.Renew(ctx, gs, func(_ int, r driver.Renewal) { fails(t, r.Err) })
	got = c.take()
	t.Logf("a renewal of 250 locks: %v", got)
	if got[opGetData] != 250 || got[opSync] > 6 {
		t.Errorf("a renewal of 250 locks sent %v", got)
	}
	for _, g := range gs {
		fails(t, s.Release(ctx, g.Claim, ""))
	}
}

package holdfast_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
)

// smallQueue is a tree on which waiting costs nothing, and on which few claims may wait for a lock.
type smallQueue struct{ *memtree.Link }

const queueSize = 4

func (q smallQueue) Info() driver.Info {
	i := q.Link.Info()
	i.MaxWaiters = queueSize
	return i
}

// openSmallQueue opens a client of a server.
func openSmallQueue(t *testing.T, server *memtree.Server) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(sequence.New(smallQueue{&memtree.Link{Server: server}}), nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestPlainClaimsAtFullQueue: forty callers of two clients want one mutex for which four claims may wait, all of them
// of the first client. The others wait as well, and of each client one at a time asks the store, less than twice per
// second. When the lock is free, the callers of the first client have it at once, since it knows when its claims
// leave the queue. Those of the second have it when that has asked again. Each client serves its callers in order.
func TestPlainClaimsAtFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		holder := openSmallQueue(t, server)
		defer holder.Close()
		held, err := holder.Mutex("m", nil).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		var orders [2][]int        // guarded by the mutex itself, as are
		var lastTurns [2]time.Time // when the clients had it last
		const callers = 20
		for k := range orders {
			c := openSmallQueue(t, server)
			defer c.Close()
			for n := range callers {
				all.Go(func() {
					lease, err := c.Mutex("m", nil).Lock(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					orders[k], lastTurns[k] = append(orders[k], n), time.Now()
					if err := lease.Release(); err != nil {
						t.Error(err)
					}
				})
				synctest.Wait()
			}
		}
		time.Sleep(10 * time.Second)
		server.TakeRequestCounts()
		time.Sleep(time.Minute)
		// A client asks every 0.8 to 1.6 s, besides what those in the queue read.
		counts := server.TakeRequestCounts()
		if lists := counts["list"]; counts["add"] > 0 || lists < 2*30 || lists > 2*120 {
			t.Errorf("in a minute %d claims were added to the full queue, which was read %d times", counts["add"], lists)
		}
		start := time.Now()
		if err := held.Release(); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		for k, limit := range []time.Duration{0, 1600 * time.Millisecond} {
			if took := lastTurns[k].Sub(start); took > limit {
				t.Errorf("client %d: it took %v until all callers had the lock", k, took)
			}
		}
		for k, order := range orders {
			if len(order) != callers || !slices.IsSorted(order) {
				t.Errorf("client %d: the callers had the lock in the order %v", k, order)
			}
		}
	})
}

// TestTryAtFullQueue: an attempt that does not wait is refused while callers of its own client wait, since it never
// overtakes a waiter. A fair claim waits in the store or not at all.
func TestTryAtFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openSmallQueue(t, memtree.New())
		defer c.Close()
		mu := c.Mutex("m", nil)
		held, err := mu.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range queueSize + 2 {
			all.Go(func() {
				lease, err := mu.Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if err := lease.Release(); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if _, err := mu.TryLock(t.Context()); !errors.Is(err, holdfast.ErrHeld) {
			t.Errorf("an attempt that does not wait: %v", err)
		}
		fair := c.Mutex("m", &holdfast.LockOptions{Fair: true})
		if _, err := fair.Lock(t.Context()); !errors.Is(err, holdfast.ErrQueueFull) {
			t.Errorf("a fair claim: %v", err)
		}
		if err := held.Release(); err != nil {
			t.Fatal(err)
		}
		all.Wait()
	})
}

// TestLaterCallerAtFullQueue: a caller that comes when the queue has room again does not overtake those of its client
// that have found it full.
func TestLaterCallerAtFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		holder, c := openSmallQueue(t, server), openSmallQueue(t, server)
		defer holder.Close()
		defer c.Close()
		held, err := holder.Mutex("m", nil).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		var order []int // guarded by the mutex itself
		leave, giveUp := context.WithCancel(t.Context())
		lock := func(n int, ctx context.Context) {
			all.Go(func() {
				lease, err := c.Mutex("m", nil).Lock(ctx)
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, n)
				if err := lease.Release(); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for n := range queueSize {
			ctx := t.Context()
			if n < 2 {
				ctx = leave
			}
			lock(n, ctx)
		}
		for n := range 2 { // they find the queue full
			lock(queueSize+n, t.Context())
		}
		giveUp()
		time.Sleep(2 * time.Second) // now the first of them is in the queue, which has room for one more
		lock(queueSize+2, t.Context())
		if err := held.Release(); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		if want := []int{2, 3, 4, 5, 6}; !slices.Equal(order, want) {
			t.Errorf("the callers had the lock in the order %v, want %v", order, want)
		}
	})
}

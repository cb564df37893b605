package sequence_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestDeniedAfterLostReply: an Acquire that is denied after an add without a reply reports an unknown outcome. So
// its client releases it, and nothing is left.
func TestDeniedAfterLostReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		adds := 0
		e := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				if what != "add" {
					return do(), nil
				}
				if adds++; adds > 1 {
					return nil, fmt.Errorf("%w: rights were taken", driver.ErrDenied)
				}
				do()
				return nil, errors.New("no answer")
			}})
		defer e.Close()
		c := mutex("m", 10*time.Second)
		if _, err := e.Acquire(t.Context(), c); !errors.Is(err, driver.ErrDenied) ||
			!errors.Is(err, driver.ErrUncertain) {
			t.Errorf("Acquire returned %v", err)
		}
		if err := e.Release(t.Context(), c, ""); err != nil {
			t.Errorf("Release returned %v", err)
		}
		if left := server.LockNames(); len(left) > 0 {
			t.Errorf("claims are left on %v", left)
		}
	})
}

// TestDetachAfterSessionEnded: the session to which a claim is to be moved has expired before the move. The claim is
// moved to another one.
func TestDetachAfterSessionEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		moves := 0
		e := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				if what != "move" {
					return do(), nil
				}
				if moves++; moves == 1 {
					time.Sleep(2 * time.Second)
				}
				return do(), nil
			}})
		defer e.Close()
		g, err := e.Acquire(t.Context(), mutex("m", 10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := e.Detach(t.Context(), g, time.Second); err != nil || time.Since(start) > 4*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		if nodes := server.Nodes("m"); len(nodes) != 1 || !nodes[0].Detached {
			t.Errorf("the nodes are %+v", nodes)
		}
	})
}

// TestDeniedAfterSessionEnded: a move that was refused because the session to which the claim was to be moved has
// expired has changed nothing. A refusal that comes next is the answer.
func TestDeniedAfterSessionEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		moved := false
		e := sequence.New(&memtree.Link{Server: memtree.New(),
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				switch {
				case what == "move":
					moved = true
					time.Sleep(2 * time.Second)
				case moved && what == "read":
					return nil, driver.ErrDenied
				}
				return do(), nil
			}})
		defer e.Close()
		g := storetest.Acquire(t, e, mutex("m", 10*time.Second))
		err := e.Detach(t.Context(), g, time.Second)
		if !errors.Is(err, driver.ErrDenied) || errors.Is(err, driver.ErrUncertain) {
			t.Errorf("Detach returned %v", err)
		}
	})
}

// TestRepeatedAcquireWakesNext: a semaphore's claim that has been queued since an earlier call is granted at its first
// read. It still notifies the next waiter, which watches it.
func TestRepeatedAcquireWakesNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		holder, first, second := sequence.New(&memtree.Link{Server: server}), sequence.New(&memtree.Link{Server: server}), sequence.New(&memtree.Link{Server: server})
		defer holder.Close()
		defer first.Close()
		defer second.Close()
		all := semaphoreClaim("s", 2, 2)
		if _, err := holder.Acquire(t.Context(), all); err != nil {
			t.Fatal(err)
		}
		one := semaphoreClaim("s", 2, 1)
		ctx, giveUp := context.WithCancel(t.Context())
		returned := make(chan error, 1)
		go func() { _, err := first.Acquire(ctx, one); returned <- err }()
		synctest.Wait()
		in := make(chan error, 1)
		go func() { _, err := second.Acquire(t.Context(), semaphoreClaim("s", 2, 1)); in <- err }()
		synctest.Wait()
		giveUp()
		<-returned
		if err := holder.Release(t.Context(), all, ""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		start := time.Now()
		if _, err := first.Acquire(t.Context(), one); err != nil {
			t.Fatal(err)
		}
		if err := <-in; err != nil || time.Since(start) > 0 {
			t.Errorf("the next claim is granted after %v: %v", time.Since(start), err)
		}
	})
}

// contendedStore is a link to locks that other claims join all the time.
type contendedStore struct {
	memtree.Link
	tries int
}

func (b *contendedStore) Change(
	ctx context.Context, name string, n sequence.Node, payload sequence.Payload, among sequence.Among,
) (sequence.Node, bool, error) {
	if len(among.Nodes) == 0 {
		return b.Link.Change(ctx, name, n, payload, among)
	}
	b.tries++
	return n, false, nil
}

// TestUpgradeUnderContention: an upgrade that fails again and again because other claims have joined ends soon, as one
// that is refused because of them.
func TestUpgradeUnderContention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := &contendedStore{Link: memtree.Link{Server: memtree.New()}}
		e := sequence.New(link)
		defer e.Close()
		g, err := e.Acquire(t.Context(), rwClaim("rw", 1))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := e.SetWeight(t.Context(), g, driver.RWLimit); !errors.Is(err, driver.ErrHeld) || link.tries > 10 ||
			time.Since(start) > time.Second {
			t.Errorf("after %d tries and %v: %v", link.tries, time.Since(start), err)
		}
		if err := e.SetWeight(t.Context(), g, 1); err != nil {
			t.Errorf("changing to its own weight: %v", err)
		}
	})
}

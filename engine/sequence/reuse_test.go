package sequence_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
)

// TestNumbersUsedAgain: the claims of one client that follow one another have one key, even when others of its claims
// were refused, or gave up waiting.
func TestNumbersUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		e := sequence.New(&memtree.Link{Server: server})
		defer e.Close()
		release := func(c driver.Claim) {
			if err := e.Release(t.Context(), c, ""); err != nil {
				t.Fatal(err)
			}
		}
		keys := map[string]bool{}
		for range 50 {
			holder, other := mutex("m", 10*time.Second), mutex("m", 10*time.Second)
			if _, err := e.Acquire(t.Context(), holder); err != nil {
				t.Fatal(err)
			}
			if _, err := e.Acquire(t.Context(), other); !errors.Is(err, driver.ErrHeld) {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { _, err := e.Acquire(ctx, waiting(other)); done <- err }()
			synctest.Wait()
			for _, n := range server.Nodes("m") {
				keys[n.Key] = true
			}
			cancel()
			<-done
			release(other)
			release(holder)
		}
		if len(keys) != 2 {
			t.Errorf("two claims at a time have had %d keys", len(keys))
		}
	})
}

// TestNumberOfMovedNode: a claim was detached, by its own client or by another process. Then its own client finds it
// gone, but its node lives on under the key that this client gave it. So no other claim gets that key: the withdrawal
// of one would remove the detached claim.
func TestNumberOfMovedNode(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			server := memtree.New()
			e, other := sequence.New(&memtree.Link{Server: server}), sequence.New(&memtree.Link{Server: server})
			defer e.Close()
			defer other.Close()
			by, detached := e, waiting(mutex("m", 10*time.Second))
			if elsewhere {
				by = other
			}
			g, err := e.Acquire(t.Context(), detached)
			if err != nil {
				t.Fatal(err)
			}
			if err := by.Detach(t.Context(), g, time.Hour); err != nil {
				t.Fatal(err)
			}
			if elsewhere {
				if _, err := e.Acquire(t.Context(), detached); !errors.Is(err, driver.ErrLost) {
					t.Errorf("Acquire of the detached claim returned %v", err)
				}
			}
			ctx, giveUp := context.WithTimeout(t.Context(), time.Second)
			defer giveUp()
			next := waiting(mutex("m", 10*time.Second))
			if _, err := e.Acquire(ctx, next); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Acquire of the next claim returned %v", err)
			}
			if err := e.Release(t.Context(), next, ""); err != nil {
				t.Errorf("Release of the next claim returned %v", err)
			}
			if nodes := server.Nodes("m"); len(nodes) != 1 || nodes[0].Token != g.Token {
				t.Errorf("elsewhere %v: the nodes are %+v", elsewhere, nodes)
			}
		})
	}
}

// TestUnknownNodeUnderKey: a node has the key that a claim is to get, such as one that was restored from a backup. The
// claim waits behind it under another key, even if its first add got no reply.
func TestUnknownNodeUnderKey(t *testing.T) {
	for _, lost := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			server := memtree.New()
			link := &memtree.Link{Server: server}
			var loses atomic.Bool
			e := sequence.New(&memtree.Link{Server: server,
				Transport: func(_ context.Context, what string, do func() any) (any, error) {
					if what == "add" && loses.Swap(false) {
						return nil, errors.New("no answer")
					}
					return do(), nil
				}})
			defer e.Close()
			was := mutex("m", 10*time.Second)
			if _, err := e.Acquire(t.Context(), was); err != nil {
				t.Fatal(err)
			}
			n := server.Nodes("m")[0]
			if err := e.Release(t.Context(), was, ""); err != nil {
				t.Fatal(err)
			}
			session := sequence.Session{ID: n.Session}
			if _, err := link.Add(t.Context(), "m", session, 0, n.Payload, sequence.AddAlways); err != nil {
				t.Fatal(err)
			}
			loses.Store(lost)
			returned := make(chan error, 1)
			c := waiting(mutex("m", 10*time.Second))
			go func() { _, err := e.Acquire(t.Context(), c); returned <- err }()
			time.Sleep(time.Second)
			for _, left := range server.Nodes("m") {
				if left.ID == was.ID {
					if _, _, err := link.Remove(t.Context(), "m", left, sequence.Then{}); err != nil {
						t.Error(err)
					}
				}
			}
			if err := <-returned; err != nil {
				t.Errorf("lost %v: Acquire returned %v", lost, err)
			}
			if nodes := server.Nodes("m"); len(nodes) != 1 || nodes[0].ID != c.ID {
				t.Errorf("lost %v: the nodes are %+v", lost, nodes)
			}
		})
	}
}

// TestBlockerComesAgain: a waiter's snapshot shows a claim ahead of it that has been released, and is asked for again
// under the same ID. It has the same key, but is behind the waiter, which does not wait for it.
func TestBlockerComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		var delayed atomic.Bool
		late := make(chan struct{})
		e := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				r := do()
				if what == "add" && delayed.Swap(false) {
					<-late
				}
				return r, nil
			}})
		defer e.Close()
		first := waiting(mutex("m", 10*time.Second))
		if _, err := e.Acquire(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		delayed.Store(true)
		granted := make(chan error, 1)
		c := waiting(mutex("m", 10*time.Second))
		go func() { _, err := e.Acquire(t.Context(), c); granted <- err }()
		synctest.Wait()
		if err := e.Release(t.Context(), first, ""); err != nil {
			t.Fatal(err)
		}
		again := make(chan error, 1)
		go func() { _, err := e.Acquire(t.Context(), first); again <- err }()
		synctest.Wait()
		start := time.Now()
		close(late)
		if err := <-granted; err != nil || time.Since(start) > 0 {
			t.Errorf("the waiter is granted after %v: %v", time.Since(start), err)
		}
		if err := e.Release(t.Context(), c, ""); err != nil {
			t.Fatal(err)
		}
		if err := <-again; err != nil {
			t.Fatal(err)
		}
	})
}

// partialLists is a tree without traits, whose listings leave out the tokens, as ZooKeeper's do.
type partialLists struct{ sequence.NodeStore }

func (partialLists) Traits() sequence.Traits { return sequence.Traits{} }

func (t partialLists) List(ctx context.Context, name string, full bool) (sequence.Snapshot, error) {
	l, err := t.NodeStore.List(ctx, name, full)
	l.Full = full
	for i := range l.Nodes {
		if !full {
			l.Nodes[i].Token, l.Nodes[i].Version = 0, 0
		}
	}
	return l, err
}

// TestSnapshotOfEarlierNode: a claim is released, and is asked for again under the same ID. A snapshot from before,
// read by a waiter of the same client, shows its earlier node. By that the claim is neither broken nor granted.
func TestSnapshotOfEarlierNode(t *testing.T) {
	for _, full := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var delayed atomic.Bool
			late := make(chan struct{})
			var store sequence.NodeStore = &memtree.Link{Server: memtree.New(),
				Transport: func(_ context.Context, what string, do func() any) (any, error) {
					r := do()
					if what == "list" && delayed.Swap(false) {
						<-late
					}
					return r, nil
				}}
			if !full {
				store = partialLists{store}
			}
			e := sequence.New(store)
			defer e.Close()
			start := func(c driver.Claim) chan error {
				returned := make(chan error, 1)
				go func() { _, err := e.Acquire(t.Context(), c); returned <- err }()
				synctest.Wait()
				return returned
			}
			first, second := waiting(mutex("m", 10*time.Second)), waiting(mutex("m", 10*time.Second))
			if err := <-start(first); err != nil {
				t.Fatal(err)
			}
			granted := start(second)
			delayed.Store(true)
			for delayed.Load() { // until it polls
				time.Sleep(time.Second)
			}
			if err := e.Release(t.Context(), first, ""); err != nil {
				t.Fatal(err)
			}
			again := start(first)
			close(late)
			if err := <-granted; err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if len(again) > 0 {
				t.Errorf("full %v: while the other claim has the lock, Acquire returns %v", full, <-again)
				return
			}
			if err := e.Release(t.Context(), second, ""); err != nil {
				t.Fatal(err)
			}
			if err := <-again; err != nil {
				t.Errorf("full %v: Acquire returned %v", full, err)
			}
		})
	}
}

// TestNumberOfReleasedClaims: a claim that is released twice at the same time gives its number to one other claim, not
// to two.
func TestNumberOfReleasedClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		var removes atomic.Int64
		both := make(chan struct{})
		e := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				if what == "remove" && removes.Add(1) <= 2 {
					<-both
				}
				return do(), nil
			}})
		defer e.Close()
		c := mutex("m", 10*time.Second)
		if _, err := e.Acquire(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		returned := make(chan error, 2)
		for range 2 {
			go func() { returned <- e.Release(t.Context(), c, "") }()
		}
		synctest.Wait()
		close(both)
		if one, two := <-returned, <-returned; one != nil && two != nil {
			t.Errorf("the releases returned %v and %v", one, two)
		}
		for _, name := range []string{"m", "n"} {
			if _, err := e.Acquire(t.Context(), mutex(name, 10*time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		if m, n := server.Nodes("m")[0], server.Nodes("n")[0]; m.Key == n.Key {
			t.Errorf("two claims have the key %s", m.Key)
		}
	})
}

// TestAbandonedClaimLeavesKey: a claim that looked abandoned is released while its node is being read. The node that is
// found is another claim's, under the same key, and stays.
func TestAbandonedClaimLeavesKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		var reads atomic.Int64
		reading, late := make(chan struct{}), make(chan struct{})
		e := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				if what == "read" && reads.Add(1) == 1 {
					close(reading)
					<-late
				}
				return do(), nil
			}})
		defer e.Close()
		old, next := mutex("m", 10*time.Second), mutex("m", 10*time.Second)
		if _, err := e.Acquire(t.Context(), old); err != nil {
			t.Fatal(err)
		}
		<-reading // the janitor's, since nobody renews
		was := server.Nodes("m")[0]
		if err := e.Release(t.Context(), old, ""); err != nil {
			t.Fatal(err)
		}
		g, err := e.Acquire(t.Context(), next)
		if err != nil {
			t.Fatal(err)
		}
		close(late)
		synctest.Wait()
		if nodes := server.Nodes("m"); len(nodes) != 1 || nodes[0].Token != g.Token || nodes[0].Key != was.Key {
			t.Errorf("the nodes are %+v", nodes)
		}
	})
}

// TestAbandonedClaimLivesOn: another process detaches a claim that its own client still knows, and nobody renews there.
// The claim stays, even if it is detached when its client has just found it abandoned, and if that would withdraw it
// because its add got no reply at first.
func TestAbandonedClaimLivesOn(t *testing.T) {
	for _, late := range []bool{false, true} {
		for _, lost := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				server := memtree.New()
				other := sequence.New(&memtree.Link{Server: server})
				defer other.Close()
				var held atomic.Pointer[driver.Grant]
				detach := sync.OnceFunc(func() {
					if err := other.Detach(t.Context(), *held.Load(), time.Hour); err != nil {
						t.Error(err)
					}
				})
				var adds atomic.Int64
				e := sequence.New(&memtree.Link{Server: server,
					Transport: func(_ context.Context, what string, do func() any) (any, error) {
						r := do()
						switch {
						case what == "add" && adds.Add(1) == 1 && lost:
							return nil, errors.New("no answer")
						case what == "read" && late: // the janitor's, since nobody renews
							detach()
						}
						return r, nil
					}})
				defer e.Close()
				g, err := e.Acquire(t.Context(), mutex("m", 10*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				held.Store(&g)
				if !late {
					detach()
				}
				time.Sleep(15 * time.Second) // so long that it is abandoned, but its session still has a claim's TTL to live
				if nodes := server.Nodes("m"); len(nodes) != 1 || nodes[0].Token != g.Token || !nodes[0].Detached {
					t.Fatalf("late %v, lost %v: the nodes are %+v", late, lost, nodes)
				}
				// Its key is not given to another claim.
				if _, err := e.Acquire(t.Context(), mutex("n", 10*time.Second)); err != nil {
					t.Fatal(err)
				}
				if nodes := server.Nodes("n"); nodes[0].Key == server.Nodes("m")[0].Key {
					t.Errorf("late %v, lost %v: another claim has the key %s", late, lost, nodes[0].Key)
				}
			})
		}
	}
}

// TestSuccessorLeavesKey: a release reads the node of the next claim with the removal of its own. The next claim was
// given up before, and its key is that of a claim behind one of another client. That claim is not granted.
func TestSuccessorLeavesKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		other := sequence.New(&memtree.Link{Server: server})
		defer other.Close()
		var removes atomic.Int64
		late := make(chan struct{})
		e := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				if what == "remove" && removes.Add(1) == 1 {
					<-late
				}
				return do(), nil
			}})
		defer e.Close()
		start := func(ctx context.Context, e *sequence.Engine, c driver.Claim) chan error {
			returned := make(chan error, 1)
			go func() { _, err := e.Acquire(ctx, c); returned <- err }()
			synctest.Wait()
			return returned
		}
		var c [4]driver.Claim
		for i := range c {
			c[i] = waiting(mutex("m", 10*time.Second))
		}
		holder, givenUp, others, last := c[0], c[1], c[2], c[3]
		if err := <-start(t.Context(), e, holder); err != nil {
			t.Fatal(err)
		}
		ctx, giveUp := context.WithCancel(t.Context())
		defer giveUp()
		next := start(ctx, e, givenUp)
		turn := start(t.Context(), other, others)
		key := server.Nodes("m")[1].Key
		released := make(chan error, 1)
		go func() { released <- e.Release(t.Context(), holder, "") }()
		synctest.Wait()
		giveUp()
		<-next
		if err := e.Release(t.Context(), givenUp, ""); err != nil {
			t.Fatal(err)
		}
		granted := start(t.Context(), e, last)
		if line := server.Nodes("m"); len(line) != 3 || line[2].Key != key {
			t.Fatalf("the nodes are %+v", line)
		}
		close(late)
		if err := <-released; err != nil {
			t.Fatal(err)
		}
		if err := <-turn; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(granted) > 0 {
			t.Error("the last claim is granted while the other client has the lock")
		}
		if err := other.Release(t.Context(), others, ""); err != nil {
			t.Fatal(err)
		}
		if err := <-granted; err != nil {
			t.Error(err)
		}
	})
}

// TestNumberAfterLostReply: no other claim gets the number of an add without a reply, which may still take effect.
func TestNumberAfterLostReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		var adds atomic.Int64
		e := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				if what == "add" && adds.Add(1) == 1 {
					return nil, errors.New("no answer")
				}
				return do(), nil
			}})
		defer e.Close()
		var keys []string
		for range 2 {
			c := mutex("m", 10*time.Second)
			if _, err := e.Acquire(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			keys = append(keys, server.Nodes("m")[0].Key)
			if err := e.Release(t.Context(), c, ""); err != nil {
				t.Fatal(err)
			}
		}
		if keys[0] == keys[1] {
			t.Errorf("both claims had the key %s", keys[0])
		}
	})
}

// TestNumberAfterLostMove: a claim is released after its Detach has got no reply. The move may have barred adds under
// its number, so the next claim gets another one.
func TestNumberAfterLostMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		e := sequence.New(&memtree.Link{Server: server,
			Transport: func(ctx context.Context, what string, do func() any) (any, error) {
				r := do()
				if what == "move" {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return r, nil
			}})
		defer e.Close()
		g, err := e.Acquire(t.Context(), mutex("m", 10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		ctx, giveUp := context.WithTimeout(t.Context(), time.Second)
		defer giveUp()
		if err := e.Detach(ctx, g, time.Hour); !errors.Is(err, driver.ErrUncertain) {
			t.Errorf("Detach returned %v", err)
		}
		if err := e.Release(t.Context(), g.Claim, g.Ref); err != nil {
			t.Fatal(err)
		}
		next := mutex("m", 10*time.Second)
		ctx, giveUp = context.WithTimeout(t.Context(), time.Second)
		defer giveUp()
		if _, err := e.Acquire(ctx, next); err != nil {
			t.Errorf("Acquire returned %v", err)
		}
	})
}

package sequence_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
)

// TestNumberOfMovedNode: another process has detached a claim, and its own client, asked for it again, finds it gone. The
// node lives on under the key that this client gave it, so no other claim gets that key: the withdrawal of one would
// remove the detached claim.
func TestNumberOfMovedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		e, other := sequence.New(&memtree.Link{Server: server}), sequence.New(&memtree.Link{Server: server})
		defer e.Close()
		defer other.Close()
		detached := waiting(mutex("m", 10*time.Second))
		g, err := e.Acquire(t.Context(), detached)
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Detach(t.Context(), g, time.Hour); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Acquire(t.Context(), detached); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Acquire of the detached claim returned %v", err)
		}
		ctx, giveUp := context.WithTimeout(t.Context(), time.Second)
		defer giveUp()
		next := waiting(mutex("m", 10*time.Second))
		_, err = e.Acquire(ctx, next)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Acquire of the next claim returned %v", err)
		}
		if err := e.Release(t.Context(), next, ""); err != nil {
			t.Errorf("Release of the next claim returned %v", err)
		}
		if nodes := server.Nodes("m"); len(nodes) != 1 || nodes[0].Token != g.Token {
			t.Errorf("the nodes are %+v", nodes)
		}
	})
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
			if _, err := link.Add(t.Context(), "m", sequence.Session{ID: n.Session}, 0, n.Payload, sequence.AddAlways); err != nil {
				t.Fatal(err)
			}
			loses.Store(lost)
			returned := make(chan error, 1)
			c := waiting(mutex("m", 10*time.Second))
			go func() { _, err := e.Acquire(t.Context(), c); returned <- err }()
			time.Sleep(time.Second)
			for _, left := range server.Nodes("m") {
				if left.ID == was.ID {
					if _, _, err := link.Remove(t.Context(), "m", left, false); err != nil {
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

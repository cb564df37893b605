package sequence_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
)

// gatedLink makes a link whose requests of one kind can be held back: while a gate is stored, the next such request
// takes the gate, and goes on when that is closed.
func gatedLink(server *memtree.Server, what string) (*memtree.Link, *atomic.Pointer[chan struct{}]) {
	gate := &atomic.Pointer[chan struct{}]{}
	return &memtree.Link{Server: server, Transport: func(_ context.Context, is string, do func() any) (any, error) {
		if is == what {
			if closed := gate.Swap(nil); closed != nil {
				<-*closed
			}
		}
		return do(), nil
	}}, gate
}

// numbered is a mutex claim on the lock m.
func numbered(id string) driver.Claim {
	c := mutex("m", 10*time.Second)
	c.ID = id
	return c
}

// mustAcquire acquires m, and returns the key of the node.
func mustAcquire(t *testing.T, e *sequence.Engine, server *memtree.Server, id string) (g driver.Grant, key string) {
	t.Helper()
	g, err := e.Acquire(t.Context(), numbered(id))
	if err != nil {
		t.Fatal(err)
	}
	return g, server.Nodes("m")[0].Key
}

func mustRelease(t *testing.T, e *sequence.Engine, id string) {
	t.Helper()
	if err := e.Release(t.Context(), numbered(id), ""); err != nil {
		t.Fatal(err)
	}
}

// acquireLater begins to wait for m, and returns when the claim is in line.
func acquireLater(ctx context.Context, e *sequence.Engine, id string) (done chan error) {
	done = make(chan error, 1)
	go func() {
		_, err := e.Acquire(ctx, waiting(numbered(id)))
		done <- err
	}()
	synctest.Wait()
	return done
}

// TestNumbersUsedAgain: the claims of one client that follow one another have one key, also when others of its claims
// were refused, or gave up waiting.
func TestNumbersUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		e := sequence.New(&memtree.Link{Server: server})
		defer e.Close()
		keys := map[string]bool{}
		for i := range 50 {
			holder, other := fmt.Sprint("holder", i), fmt.Sprint("other", i)
			_, key := mustAcquire(t, e, server, holder)
			keys[key] = true
			if _, err := e.Acquire(t.Context(), numbered(other)); !errors.Is(err, driver.ErrHeld) {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := acquireLater(ctx, e, other)
			keys[server.Nodes("m")[1].Key] = true
			cancel()
			<-done
			mustRelease(t, e, other)
			mustRelease(t, e, holder)
		}
		if len(keys) > 2 {
			t.Errorf("two claims at a time have had %d keys", len(keys))
		}
	})
}

// TestNumberAfterLostReply: the number of a claim with an add that got no reply is not used again: the store refuses all
// adds under it.
func TestNumberAfterLostReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		var lose atomic.Bool
		e := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				r := do()
				if what == "add" && lose.Swap(false) {
					return nil, errors.New("lost")
				}
				return r, nil
			}})
		defer e.Close()
		lose.Store(true)
		mustAcquire(t, e, server, "a")
		mustRelease(t, e, "a")
		mustAcquire(t, e, server, "b")
		mustRelease(t, e, "b")
	})
}

// TestNumberOfDetachedClaim: the number of a claim that lives on under a session of its own is not used again.
func TestNumberOfDetachedClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		e := sequence.New(&memtree.Link{Server: server})
		defer e.Close()
		g, _ := mustAcquire(t, e, server, "a")
		if err := e.Detach(t.Context(), g, time.Minute); err != nil {
			t.Fatal(err)
		}
		server.TakeRequestCounts()
		done := acquireLater(t.Context(), e, "b")
		if n := server.TakeRequestCounts()["add"]; n != 1 {
			t.Errorf("the next claim was added after %d tries", n)
		}
		mustRelease(t, e, "a")
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestNumberOfUnknownNode: a claim joins the line although a node that the client does not know of has its key, such as
// one that was restored from a backup.
func TestNumberOfUnknownNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		link := &memtree.Link{Server: server}
		e := sequence.New(link)
		defer e.Close()
		mustAcquire(t, e, server, "a")
		restored := server.Nodes("m")[0]
		mustRelease(t, e, "a")
		restored.ID = "restored"
		_, err := link.Add(t.Context(), "m", sequence.Session{ID: restored.Session}, 0, restored.Payload,
			sequence.AddAlways)
		if err != nil {
			t.Fatal(err)
		}
		done := acquireLater(t.Context(), e, "b")
		nodes := server.Nodes("m")
		if len(nodes) != 2 || nodes[0].Key != restored.Key || nodes[1].ID != "b" {
			t.Fatalf("in line are %+v", nodes)
		}
		if _, _, err := link.Remove(t.Context(), "m", nodes[0], false); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestNumberOfNextWaiter: while a holder releases its claim and reads the next one, that one leaves, and a claim at the
// end of the line gets its key. It is not granted before the claims ahead of it.
func TestNumberOfNextWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		link, gate := gatedLink(server, "remove")
		e, other := sequence.New(link), sequence.New(&memtree.Link{Server: server})
		defer e.Close()
		defer other.Close()
		mustAcquire(t, e, server, "holder")
		ctx, cancel := context.WithCancel(t.Context())
		first := acquireLater(ctx, e, "first")
		second := acquireLater(t.Context(), other, "second")
		held := make(chan struct{})
		gate.Store(&held)
		released := make(chan error, 1)
		go func() { released <- e.Release(t.Context(), numbered("holder"), "") }()
		synctest.Wait()
		cancel()
		<-first
		mustRelease(t, e, "first")
		third := acquireLater(t.Context(), e, "third")
		close(held)
		if err := <-released; err != nil {
			t.Fatal(err)
		}
		if err := <-second; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		select {
		case err := <-third:
			t.Errorf("the third claim was granted while the second holds the lock (%v)", err)
		default:
		}
		mustRelease(t, other, "second")
		if err := <-third; err != nil {
			t.Error(err)
		}
	})
}

// TestNumberOfAbandonedClaim: a claim that nobody has renewed is released just when the client is about to remove it,
// and another claim gets its key. That one stays.
func TestNumberOfAbandonedClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		link, gate := gatedLink(server, "read")
		e := sequence.New(link)
		defer e.Close()
		_, before := mustAcquire(t, e, server, "abandoned")
		held := make(chan struct{})
		gate.Store(&held)
		for gate.Load() != nil { // until the janitor reads the node
			time.Sleep(100 * time.Millisecond)
		}
		mustRelease(t, e, "abandoned")
		if _, now := mustAcquire(t, e, server, "next"); now != before {
			t.Fatalf("the key is %q, and was %q", now, before)
		}
		close(held)
		synctest.Wait()
		if nodes := server.Nodes("m"); len(nodes) != 1 || nodes[0].ID != "next" {
			t.Errorf("on the lock are %+v", nodes)
		}
	})
}

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
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// endingStore is a tree that reports the end of its sessions before the next request.
type endingStore struct {
	*memtree.Link
	ended chan struct{}
}

func (t endingStore) OpenSession(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	s, err := t.Link.OpenSession(ctx, ttl)
	s.Ended = t.ended
	return s, err
}

// TestStoreReportsSessionEnd: when a store knows that a session has ended, holders are notified at once, even if the
// next keep-alive is far away and the nodes still exist.
func TestStoreReportsSessionEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := endingStore{&memtree.Link{Server: memtree.New()}, make(chan struct{})}
		e := sequence.New(tree)
		defer e.Close()
		held := mutex("m", 24*time.Hour)
		if _, err := e.Acquire(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		close(tree.ended)
		at := time.Now()
		end, err := e.NextEnding(t.Context())
		var loss *driver.LossError
		if err != nil || end.ID != held.ID || !errors.As(end.Err, &loss) || loss.Cause != driver.LossSessionExpired ||
			time.Since(at) > 0 {
			t.Errorf("NextEnding returned %+v after %v, %v", end, time.Since(at), err)
		}
	})
}

// TestSessionEndIsNotBreak: a waiter's turn comes, but its session has expired. When its node is found gone while the
// next waiter is being notified, this does not count as a break: the claim joins the queue again.
func TestSessionEndIsNotBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		holder, last := sequence.New(&memtree.Link{Server: server}), sequence.New(&memtree.Link{Server: server})
		defer holder.Close()
		defer last.Close()
		all, mine := semaphoreClaim("s", 2, 2), semaphoreClaim("s", 2, 1)
		var ended atomic.Bool
		waiter := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				switch {
				case what == "change" && !ended.Load():
					for _, n := range server.Nodes("s") {
						if n.ID == mine.ID {
							server.ExpireSession(n.Session)
						}
					}
					ended.Store(true)
				case what == "beat":
					time.Sleep(time.Millisecond) // later than all reads
				}
				return do(), nil
			}})
		defer waiter.Close()
		if _, err := holder.Acquire(t.Context(), all); err != nil {
			t.Fatal(err)
		}
		in := make(chan error, 1)
		go func() { _, err := waiter.Acquire(t.Context(), mine); in <- err }()
		synctest.Wait()
		go func() { _, _ = last.Acquire(t.Context(), semaphoreClaim("s", 2, 1)) }()
		time.Sleep(2 * time.Second) // so that the grant needs a new keep-alive
		if err := holder.Release(t.Context(), all, ""); err != nil {
			t.Fatal(err)
		}
		if err := <-in; err != nil || !ended.Load() {
			t.Errorf("Acquire returned %v (ended: %v)", err, ended.Load())
		}
	})
}

// TestRenewalWhileSessionEnds: a renewal, which reads the node because its watch cannot be confirmed, gets no reply
// until the session has expired. It reports the end of the session, not a break.
func TestRenewalWhileSessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		began := time.Now()
		holder := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				if what == "confirm" {
					return nil, errNoAnswer
				}
				if time.Since(began) >= time.Second {
					time.Sleep(time.Until(began.Add(11 * time.Second)))
				}
				if what == "beat" {
					time.Sleep(time.Millisecond) // later than all reads
				}
				return do(), nil
			}})
		defer holder.Close()
		g, err := holder.Acquire(t.Context(), mutex("m", 9*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(began.Add(time.Second)))
		holder.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) {
			if storetest.LossOf(r.Err) != driver.LossSessionExpired {
				t.Errorf("the renewal returned %v", r.Err)
			}
		})
	})
}

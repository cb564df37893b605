package sequence_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
)

// TestTryUnderContention: a try on a distant store is granted if it fits, even if other claims join all the time.
func TestTryUnderContention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		near, tries := sequence.New(&memtree.Link{Server: server}), 0
		defer near.Close()
		far := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				if what == "add" {
					tries++
				}
				time.Sleep(50 * time.Millisecond)
				defer time.Sleep(50 * time.Millisecond)
				return do(), nil
			}})
		defer far.Close()
		reader := func(id string) driver.Claim {
			c := mutex("m", 10*time.Second)
			c.ID, c.Kind, c.Limit = id, driver.KindRW, driver.RWLimit
			return c
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var comers sync.WaitGroup
		comers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				c := waiting(reader(fmt.Sprint("near", n)))
				comers.Go(func() {
					if _, err := near.Acquire(t.Context(), c); err != nil {
						t.Error(err)
					}
					time.Sleep(200 * time.Millisecond)
					if err := near.Release(t.Context(), c, ""); err != nil {
						t.Error(err)
					}
				})
				time.Sleep(10 * time.Millisecond)
			}
		})
		time.Sleep(time.Second)
		start := time.Now()
		if _, err := far.Acquire(ctx, reader("far")); err != nil {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		// At most ten tries of 100 ms each, besides the opening of the session and a keep-alive.
		if took := time.Since(start); took > 1200*time.Millisecond || tries > 10 {
			t.Errorf("granted after %v, in %d tries", took, tries)
		}
		cancel()
		comers.Wait()
	})
}

// startHolder acquires the lock m for a client that keeps it.
func startHolder(t *testing.T, server *memtree.Server) *sequence.Engine {
	e := sequence.New(&memtree.Link{Server: server})
	t.Cleanup(func() { e.Close() })
	if _, err := e.Acquire(t.Context(), mutex("m", 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	return e
}

// unconditionalStore is a tree that cannot check a condition and add a node in one step.
type unconditionalStore struct{ *memtree.Link }

func (l unconditionalStore) Add(
	ctx context.Context, name string, s sequence.Session, number int64, note sequence.Payload, _ sequence.AddCondition,
) (sequence.Snapshot, error) {
	return l.Link.Add(ctx, name, s, number, note, sequence.AddAlways)
}

// TestTryNotRemoved: a claim that does not wait was added behind a holder, and cannot be removed in time. It is not
// reported as refused, and exists until it is released.
func TestTryNotRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		holder := startHolder(t, server)
		deaf := true
		e := sequence.New(unconditionalStore{&memtree.Link{Server: server,
			Transport: func(ctx context.Context, what string, do func() any) (any, error) {
				if what == "remove" && deaf {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return do(), nil
			}}})
		defer e.Close()
		c := mutex("m", 10*time.Second)
		c.ID = "try"
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := e.Acquire(ctx, c); !errors.Is(err, context.DeadlineExceeded) ||
			!errors.Is(err, driver.ErrUncertain) {
			t.Errorf("a try that could not be removed: %v", err)
		}
		deaf = false
		if err := e.Release(t.Context(), c, ""); err != nil {
			t.Errorf("releasing it: %v", err)
		}
		if l, err := holder.Inspect(t.Context(), "m"); err != nil || len(l.Holders) != 1 || len(l.Waiters) != 0 {
			t.Errorf("claims are left: %+v, %v", l, err)
		}
	})
}

// TestTryEndsWithSession: the first request of a claim that does not wait got no reply, and its session has expired by
// the time it is to be removed. It is refused like any other, since its node went with the session.
func TestTryEndsWithSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		startHolder(t, server)
		adds := 0
		e := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				switch what {
				case "add":
					if adds++; adds == 1 {
						return nil, errors.New("the answer was lost")
					}
				case "withdraw":
					return nil, sequence.ErrSessionExpired
				}
				return do(), nil
			}})
		defer e.Close()
		c := mutex("m", 10*time.Second)
		c.ID = "try"
		start := time.Now()
		_, err := e.Acquire(t.Context(), c)
		if !errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrUncertain) || time.Since(start) > time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

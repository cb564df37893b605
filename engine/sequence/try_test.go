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

// TestTryGrantedBeforeRefusal: where a try cannot be added under a condition, it is granted if the lock becomes free
// before it has read who holds it. Otherwise a try behind it would be refused too, and nobody would hold the lock. A
// refused try is not named among those that hold the lock or wait for it.
func TestTryGrantedBeforeRefusal(t *testing.T) {
	for _, becomesFree := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			server := memtree.New()
			holder, holding := sequence.New(&memtree.Link{Server: server}), mutex("m", 10*time.Second)
			defer holder.Close()
			if _, err := holder.Acquire(t.Context(), holding); err != nil {
				t.Fatal(err)
			}
			lists := 0
			e := sequence.New(partialAdds{unconditionalStore{&memtree.Link{Server: server,
				Transport: func(_ context.Context, what string, do func() any) (any, error) {
					if what == "list" {
						if lists++; lists == 1 && becomesFree {
							if err := holder.Release(t.Context(), holding, ""); err != nil {
								t.Error(err)
							}
						}
					}
					return do(), nil
				}}}})
			defer e.Close()
			c := mutex("m", 10*time.Second)
			c.ID = "try"
			g, err := e.Acquire(t.Context(), c)
			var held *driver.HeldError
			switch {
			case becomesFree && (err != nil || g.Token == 0):
				t.Errorf("a lock that became free: %v", err)
			case !becomesFree && (!errors.As(err, &held) || len(held.Holders) != 1 || held.Waiting != 0):
				t.Errorf("a held lock: %+v", err)
			}
			if l, err := e.Inspect(t.Context(), "m"); err != nil || len(l.Holders) != 1 || len(l.Waiters) != 0 {
				t.Errorf("the lock is %+v, %v", l, err)
			}
		})
	}
}

// partialAdds is a tree whose adds do not return the tokens of other nodes, as ZooKeeper's do not.
type partialAdds struct{ unconditionalStore }

func (l partialAdds) Add(
	ctx context.Context, name string, s sequence.Session, number int64, p sequence.Payload, c sequence.AddCondition,
) (sequence.Snapshot, error) {
	seen, err := l.unconditionalStore.Add(ctx, name, s, number, p, c)
	seen.Full = false
	return seen, err
}

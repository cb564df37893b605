package holdfast

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

// bubbleMemory returns a memory store that uses the bubble's clock.
func bubbleMemory() *memory.Memory {
	start := time.Now()
	sinceStart := func() time.Duration { return time.Since(start) }
	return memory.New(&memory.Options{Clock: driver.Clock{Monotonic: sinceStart, Boottime: sinceStart}})
}

// TestClientsExcludeEachOther: clients of one store exclude each other, with every primitive, and however many of their
// callers are canceled. Each exclusive grant has a larger token than the previous one.
func TestClientsExcludeEachOther(t *testing.T) {
	type primitive struct {
		name  string
		limit int64
		take  func(ctx context.Context, c *Client) (*Lease, int64, error)
	}
	mutex := func(o *LockOptions) func(context.Context, *Client) (*Lease, int64, error) {
		return func(ctx context.Context, c *Client) (*Lease, int64, error) {
			l, err := c.Mutex("m", o).Lock(ctx)
			return l, 1, err
		}
	}
	for _, p := range []primitive{
		{"mutex", 1, mutex(nil)},
		{"fair mutex", 1, mutex(&LockOptions{Fair: true})},
		{"semaphore", 5, func(ctx context.Context, c *Client) (*Lease, int64, error) {
			w := 1 + rand.Int64N(5)
			l, err := c.Semaphore("s", 5, nil).Acquire(ctx, w)
			return l, w, err
		}},
		{"read-write lock", 1000, func(ctx context.Context, c *Client) (*Lease, int64, error) {
			if rand.IntN(3) == 0 {
				l, err := c.RWMutex("rw", nil).Lock(ctx)
				return l, 1000, err
			}
			l, err := c.RWMutex("rw", nil).RLock(ctx)
			return l, 1, err
		}},
	} {
		t.Run(p.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := bubbleMemory()
				var held, token, grants, given atomic.Int64
				var wg sync.WaitGroup
				for range 4 {
					c := newClient(t, m.Open(), nil)
					for range 8 {
						wg.Go(func() {
							for range 5 {
								ctx, cancel := context.WithTimeout(t.Context(), rand.N(2*time.Second))
								l, weight, err := p.take(ctx, c)
								cancel()
								if err != nil {
									wantIs(t, err, context.DeadlineExceeded)
									given.Add(1)
									continue
								}
								grants.Add(1)
								if held.Add(weight) > p.limit {
									t.Error("the held weight exceeds the limit")
								}
								if l.Exclusive() && l.Token() <= token.Swap(l.Token()) {
									t.Error("the token did not rise")
								}
								time.Sleep(rand.N(100 * time.Millisecond))
								held.Add(-weight)
								if err := l.Release(); err != nil {
									t.Error(err)
								}
							}
						})
					}
				}
				wg.Wait()
				time.Sleep(time.Minute)
				c := newClient(t, m.Open(), nil)
				for lock, err := range c.List(t.Context(), "") {
					t.Errorf("claims are left: %+v, %v", lock, err)
				}
				t.Logf("%d granted, %d canceled", grants.Load(), given.Load())
				if grants.Load() < 20 || given.Load() < 10 {
					t.Error("there were too few grants or cancellations")
				}
			})
		})
	}
}

// TestBreakAndRequestRelease: an operator names a holder by its ref. A gracefully broken holder loses its lease at its
// next renewal, and only then can another claim be granted. A request to release only causes an event.
func TestBreakAndRequestRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		var r recorder
		holder, operator := newClient(t, m.Open(), &Options{Owner: "me", OnEvent: r.addEvent}), newClient(t, m.Open(),
			nil)
		l := mustLock(t, holder, "a", nil)
		lock, err := operator.Inspect(t.Context(), "a")
		if err != nil || len(lock.Holders) != 1 || lock.Holders[0].Owner != "me" || lock.Holders[0].Ref != l.Ref() {
			t.Fatalf("%+v, %v", lock, err)
		}
		if err := operator.RequestRelease(t.Context(), "a", l.Ref()); err != nil {
			t.Error(err)
		}
		time.Sleep(testTTL / 2)
		if n := len(r.eventsOf(EventReleaseRequested)); n != 1 || !l.Valid() {
			t.Errorf("%d requests to release, valid %v", n, l.Valid())
		}
		if err := operator.Break(t.Context(), "a", l.Ref(), BreakGraceful, ""); err != nil {
			t.Error(err)
		}
		_, err = operator.Mutex("a", nil).TryLock(t.Context())
		wantIs(t, err, ErrHeld)
		<-l.Context().Done()
		wantLoss(t, context.Cause(l.Context()), LossBroken)
		wantLoss(t, l.Release(), LossBroken)
		synctest.Wait()
		next, err := operator.Mutex("a", nil).TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wantIs(t, operator.Break(t.Context(), "a", l.Ref(), BreakForce, ""), ErrLost)
		if !next.Valid() {
			t.Error("a stale ref broke another claim")
		}
	})
}

// TestMismatch: all users of a name must agree on its kind and limit.
func TestMismatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, bubbleMemory().Open(), nil)
		mustLock(t, c, "a", nil)
		_, err := c.Semaphore("a", 2, nil).Acquire(t.Context(), 1)
		wantIs(t, err, ErrMismatch)
		_, err = c.RWMutex("a", nil).TryRLock(t.Context())
		wantIs(t, err, ErrMismatch)
	})
}

// TestCrashedHolder: a crashed client (here: its store is closed) blocks others for at most its TTL, and its own lease
// ends before that.
func TestCrashedHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		store := m.Open()
		crashed := mustLock(t, newClient(t, store, nil), "a", nil)
		start := time.Now()
		store.Close()
		c := newClient(t, m.Open(), nil)
		l := mustLock(t, c, "a", nil)
		if waited := time.Since(start); waited < testTrust || waited > testTTL+5*time.Second {
			t.Errorf("waited %v", waited)
		}
		if crashed.Valid() || l.Token() <= crashed.Token() {
			t.Error("the crashed holder's lease is still valid, or the token went back")
		}
		if errors.Is(crashed.Err(), ErrClosed) {
			t.Error("a client whose store was closed reports that it is closed itself")
		}
	})
}

// opened is the store that fake:// opens.
var opened *fakeStore

func init() {
	driver.Register("fake", func(context.Context, *url.URL) (driver.Store, error) { return opened, nil }, nil)
}

// TestOpen: a URL opens a store and a client. If the options are invalid, the store is closed again.
func TestOpen(t *testing.T) {
	c, err := Open(t.Context(), "memory://open-test", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Do(t.Context(), "a", func(ctx context.Context, l *Lease) error { return nil }); err != nil {
		t.Error(err)
	}
	opened = newFakeStore()
	_, err = Open(t.Context(), "fake://x", &Options{TTL: -1})
	wantIs(t, err, ErrInvalid)
	if !opened.closed {
		t.Error("the store of a client that could not be made was not closed")
	}
	_, err = Open(t.Context(), "nowhere://x", nil)
	wantIs(t, err, ErrInvalid)
}

// narrowStore is a store with its own bounds of TTLs.
type narrowStore struct {
	*fakeStore
	minTTL, maxTTL time.Duration
}

func (s narrowStore) Info() driver.Info {
	i := s.fakeStore.Info()
	i.MinTTL, i.MaxTTL = s.minTTL, s.maxTTL
	return i
}

// TestDefaults: a lock has the TTL and the meta of its own options, otherwise those of the client, otherwise the
// default, or the nearest value that the store allows.
func TestDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, s := range []narrowStore{{newFakeStore(), time.Minute, time.Hour},
			{newFakeStore(), time.Second, 10 * time.Second}} {
			want := min(max(DefaultTTL, s.minTTL), s.maxTTL)
			if l := mustLock(t, newClient(t, s, nil), "a", nil); l.Remaining() != want-driver.Margin(want) {
				t.Errorf("TTLs of %v to %v: %v remain", s.minTTL, s.maxTTL, l.Remaining())
			}
		}
		c := newClient(t, bubbleMemory().Open(), &Options{TTL: time.Minute, Meta: "the client's"})
		mustLock(t, c, "a", nil)
		mustLock(t, c, "b", &LockOptions{TTL: time.Hour, Meta: "the lock's"})
		for name, want := range map[string]ClaimInfo{"a": {TTL: time.Minute, Meta: "the client's"},
			"b": {TTL: time.Hour, Meta: "the lock's"}} {
			lock, err := c.Inspect(t.Context(), name)
			if err != nil || len(lock.Holders) != 1 || lock.Holders[0].TTL != want.TTL ||
				lock.Holders[0].Meta != want.Meta {
				t.Errorf("%+v, %v, want %+v", lock, err, want)
			}
		}
	})
}

// TestLargestLimit: a semaphore whose weights could overflow is refused.
func TestLargestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, bubbleMemory().Open(), nil)
		for _, limit := range []int64{driver.MaxLimit + 1, math.MaxInt64} {
			s := c.Semaphore("s", limit, nil)
			for range 2 {
				_, err := s.TryAcquire(t.Context(), limit)
				wantIs(t, err, ErrInvalid)
			}
		}
		s := c.Semaphore("s", driver.MaxLimit, nil)
		if _, err := s.TryAcquire(t.Context(), driver.MaxLimit); err != nil {
			t.Error(err)
		}
		_, err := s.TryAcquire(t.Context(), 1)
		wantIs(t, err, ErrHeld)
	})
}

package holdfast

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestTryLockAll: it acquires all locks or none, and names the one that is held.
func TestTryLockAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		for _, name := range []string{"a", "b"} {
			held := mustLock(t, other, name, nil)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			_, err := TryLockAll(ctx, c.Mutex("b", nil), c.Mutex("a", nil))
			cancel()
			var failed *Error
			if !errors.Is(err, ErrHeld) || !errors.As(err, &failed) || failed.Lock != name || len(failed.Holders) != 1 {
				t.Errorf("%s is held: %v", name, err)
			}
			if err := held.Release(); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		set, err := TryLockAll(t.Context(), c.Mutex("b", nil), c.Mutex("a", nil))
		if err != nil || len(set.Leases()) != 2 {
			t.Fatal(err)
		}
		if err := set.Release(); err != nil {
			t.Error(err)
		}
	})
}

// TestLockAll: one call holds locks of all kinds and of several stores. A lock that is named
// twice is acquired once, in its strongest form.
func TestLockAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, same, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil), newClient(t, bubbleMemory().Open(),
			nil)
		rw, sem := c.RWMutex("rw", nil), c.Semaphore("s", 5, nil)
		set, err := LockAll(t.Context(), sem.Permits(2), rw.Reader(), c.Mutex("b", nil), c.Mutex("a", nil), rw,
			sem.Permits(4), c.Mutex("b", nil), other.Mutex("b", nil))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, l := range set.Leases() {
			names = append(names, l.Name())
		}
		if len(names) != 5 || names[0] != "a" || names[1] != "b" || names[2] != "b" || names[3] != "rw" ||
			names[4] != "s" {
			t.Errorf("acquired: %q", names)
		}
		if !set.Leases()[3].Exclusive() {
			t.Error("of a reader and a writer, the reader was acquired")
		}
		if !set.Valid() || set.Err() != nil || set.Context().Err() != nil || set.Remaining() != testTrust {
			t.Error("the group is not valid, or not for long enough")
		}
		if _, err := same.Semaphore("s", 5, nil).TryAcquire(t.Context(), 2); !errors.Is(err, ErrHeld) {
			t.Errorf("of two and four permits four should be held: %v", err)
		}
		for _, c := range []*Client{c, other} {
			_, err := c.Mutex("b", nil).TryLock(t.Context())
			wantIs(t, err, ErrHeld)
		}
		time.Sleep(time.Hour)
		if err := set.Release(); err != nil {
			t.Error(err)
		}
		if set.Valid() || set.Context().Err() == nil {
			t.Error("the group is valid after Release")
		}
		wantIs(t, context.Cause(set.Context()), ErrReleased)
		wantIs(t, set.Err(), ErrReleased)
		wantIs(t, set.Release(), ErrReleased)
		for _, c := range []*Client{c, other} {
			for lock := range c.List(t.Context(), "") {
				t.Errorf("claims are left: %+v", lock)
			}
		}
	})
}

// TestLockAllMismatch: if two clients name one lock as different kinds, LockAll is refused.
func TestLockAllMismatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		one, two := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		for _, other := range []Lockable{two.Mutex("x", nil), two.Semaphore("x", 3, nil).Permits(1),
			two.RWMutex("x", nil)} {
			_, err := LockAll(t.Context(), one.Semaphore("x", 10, nil).Permits(2), other)
			wantIs(t, err, ErrMismatch)
		}
		synctest.Wait() // what was acquired is released in the background
		for lock := range one.List(t.Context(), "") {
			t.Errorf("claims are left: %+v", lock)
		}
	})
}

// TestLockAllReleasesAfterFailure: a LockAll that fails leaves nothing behind, and its error names the holder of the
// lock that it could not acquire.
func TestLockAllReleasesAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), &Options{Owner: "other"})
		held := mustLock(t, other, "c", nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		_, err := LockAll(ctx, c.Mutex("d", nil), c.Mutex("c", nil), c.Mutex("a", nil))
		wantIs(t, err, context.DeadlineExceeded)
		var e *Error
		if !errors.As(err, &e) || e.Lock != "c" || len(e.Holders) != 1 || e.Holders[0].Owner != "other" {
			t.Errorf("%v", err)
		}
		if took := time.Since(start); took != time.Minute {
			t.Errorf("took %v", took)
		}
		synctest.Wait() // it is released in the background
		for lock := range other.List(t.Context(), "") {
			if lock.Name != "c" {
				t.Errorf("claims are left: %+v", lock)
			}
		}
		if err := held.Release(); err != nil {
			t.Error(err)
		}
		_, err = LockAll(t.Context())
		wantIs(t, err, ErrInvalid)
		_, err = LockAll(t.Context(), c.Mutex("a", nil), c.RWMutex("a", nil))
		wantIs(t, err, ErrMismatch)
		_, err = LockAll(t.Context(), c.Mutex("a", nil), c.Mutex("", nil))
		wantIs(t, err, ErrInvalid)
	})
}

// TestLockAllLosesAllWithOne: when one lock is lost, all are lost, both while they are held and while the last one is
// still waited for.
func TestLockAllLosesAllWithOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, operator := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		set, err := LockAll(t.Context(), c.Mutex("a", nil), c.Mutex("b", nil))
		if err != nil {
			t.Fatal(err)
		}
		b := set.Leases()[1]
		if err := operator.Break(t.Context(), "b", b.Ref(), BreakForce, ""); err != nil {
			t.Fatal(err)
		}
		<-set.Context().Done()
		wantIs(t, context.Cause(set.Context()), ErrLost)
		wantIs(t, set.Err(), ErrLost)
		if set.Valid() || !set.Leases()[0].Valid() {
			t.Error("the group is valid, or a part of it was released before Release")
		}
		wantIs(t, set.Release(), ErrLost)

		held := mustLock(t, operator, "z", nil)
		time.AfterFunc(time.Minute, func() {
			lock, err := operator.Inspect(t.Context(), "a")
			if err != nil || len(lock.Holders) != 1 {
				t.Errorf("%+v, %v", lock, err)
				return
			}
			operator.Break(t.Context(), "a", lock.Holders[0].Ref, BreakForce, "")
		})
		_, err = LockAll(t.Context(), c.Mutex("a", nil), c.Mutex("z", nil))
		wantIs(t, err, ErrLost)
		if errors.Is(err, context.Canceled) {
			t.Errorf("the caller's context has not ended, but the error is: %v", err)
		}
		if err := held.Release(); err != nil {
			t.Error(err)
		}
	})
}

// TestLockAllReentrant: LockAll re-enters re-entrant locks, and its context allows re-entry.
func TestLockAllReentrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, bubbleMemory().Open(), nil)
		o := &LockOptions{Reentrant: true}
		a, b := c.Mutex("a", o), c.Mutex("b", o)
		outer, err := a.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		set, err := LockAll(outer.Context(), a, b)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []*Mutex{a, b} {
			l, err := m.TryLock(set.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Release(); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(set.Release(), outer.Release()); err != nil {
			t.Error(err)
		}
	})
}

// TestLockAllLossAtTheEnd: if a lock is lost just as the last one is granted, all others are released or lost with it.
func TestLockAllLossAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, bubbleMemory().Open(), nil)
		for range 100 {
			last := mustLock(t, c, "b", nil)
			time.AfterFunc(time.Second, func() { last.Release() })
			set, err := LockAll(t.Context(), c.Mutex("a", &LockOptions{Reentrant: true, MaxHold: time.Second}),
				c.Mutex("b", &LockOptions{Reentrant: true}))
			if err == nil {
				<-set.Context().Done()
				err = set.Release()
			}
			wantIs(t, err, ErrLost)
			time.Sleep(time.Minute)
			for lock := range c.List(t.Context(), "") {
				t.Errorf("claims are left: %+v", lock)
			}
		}
	})
}

// TestLockAllEndsInTime: a LockAll returns when its deadline has passed, even if the store does not answer any more,
// and releases what it held.
func TestLockAllEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, nil)
		held := mustLock(t, c, "b", nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		time.AfterFunc(59*time.Second, func() { f.update(func() { f.down = true }) })
		start := time.Now()
		_, err := LockAll(ctx, c.Mutex("a", nil), c.Mutex("b", nil))
		wantIs(t, err, context.DeadlineExceeded)
		if took := time.Since(start); took != time.Minute {
			t.Errorf("took %v", took)
		}
		f.update(func() { f.down = false })
		time.Sleep(testTrust)
		if f.isHeld("a") {
			t.Error("a claim is left")
		}
		wantIs(t, held.Release(), nil)
	})
}

// TestLockAllOfOneLockTwice: LockAll refuses two items of different clients that are the same lock and keep each other
// out, at once or when it meets itself, and leaves nothing held. It finds that out if the refusal does not show who
// holds the lock, or the store cannot be asked.
func TestLockAllOfOneLockTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		one, two, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		f := newFakeStore()
		f.update(func() { f.refuseInspect = errors.New("connection refused") })
		hiding := newFakeStore()
		hiding.hidesHolders = true
		lockTwice := func(a, b Lockable) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			start := time.Now()
			_, err := LockAll(ctx, a, b)
			if took := time.Since(start); !errors.Is(err, ErrInvalid) || took > 2*time.Minute {
				t.Errorf("%v after %v", err, took)
			}
		}
		lockTwice(one.Mutex("a", nil), two.Mutex("a", nil))
		lockTwice(one.Mutex("a", &LockOptions{Fair: true}), two.Mutex("a", nil))
		lockTwice(one.RWMutex("rw", nil), two.RWMutex("rw", nil).Reader())
		lockTwice(one.RWMutex("rw", nil).Reader(), two.RWMutex("rw", nil))
		lockTwice(one.Semaphore("s", 5, nil).Permits(4), two.Semaphore("s", 5, nil).Permits(4))
		for _, s := range []*fakeStore{f, hiding} {
			lockTwice(newClient(t, s, nil).Mutex("a", nil), newClient(t, s, nil).Mutex("a", nil))
			if s.isHeld("a") {
				t.Error("a claim is left")
			}
		}
		held := mustLock(t, other, "a", nil)
		time.AfterFunc(time.Minute, func() { held.Release() })
		lockTwice(one.Mutex("a", nil), two.Mutex("a", nil))
		for lock := range other.List(t.Context(), "") {
			t.Errorf("claims are left: %+v", lock)
		}
	})
}

// TestLockAllOverStores: calls that want the same locks of several stores, in whatever order, and through clients that
// show other addresses for the same store, do not wait for each other forever, and none of them is overtaken forever.
// Others who use the locks of one of the stores do not change that.
func TestLockAllOverStores(t *testing.T) {
	const users, turns = 4, 50
	synctest.Test(t, func(t *testing.T) {
		m := [2]*memory.Memory{bubbleMemory(), bubbleMemory()}
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		var held [2]atomic.Int64
		var all sync.WaitGroup
		for user := range users {
			all.Go(func() {
				var c [2]*Client
				for i := range c { // half of the users see the addresses the other way round
					c[i] = newClient(t, withAddress(m[i].Open(), string(rune('a'+(i+user)%2))), nil)
				}
				for turn := range turns {
					// The names are the same in both stores. The one that is first in the list is not always first in
					// the order.
					items := []Lockable{c[turn%2].RWMutex("x", nil), c[1-turn%2].RWMutex("x", nil),
						c[0].Semaphore("s", 3, nil).Permits(2), c[1].Mutex("fair", &LockOptions{Fair: true})}
					lg, err := LockAll(ctx, items...)
					if err != nil {
						t.Errorf("turn %d: %v", turn, err)
						return
					}
					for i := range held {
						if held[i].Add(1) != 1 {
							t.Error("two hold a lock at the same time")
						}
					}
					time.Sleep(time.Duration(turn%3) * time.Millisecond)
					for i := range held {
						held[i].Add(-1)
					}
					if err := lg.Release(); err != nil {
						t.Error(err)
					}
					if user == 0 { // which sometimes takes the locks of one store, in their order
						lg, err := LockAll(ctx, c[0].Semaphore("s", 3, nil).Permits(3), c[0].RWMutex("x", nil))
						if err != nil {
							t.Errorf("turn %d, one store: %v", turn, err)
							return
						}
						time.Sleep(time.Millisecond)
						if err := lg.Release(); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		all.Wait()
	})
}

// addressedStore is a store that shows an address of its own.
type addressedStore struct {
	driver.Store
	address string
}

func withAddress(s driver.Store, address string) driver.Store {
	return addressedStore{s, address}
}

func (s addressedStore) Info() driver.Info {
	info := s.Store.Info()
	info.Store = s.address
	return info
}

// TestLockAllWaitsForOneLock: while a LockAll over several stores waits for a lock, it holds no other one, not even for
// its MinHold. It waits in the queue of the lock that was held, and its events are those of few attempts, none of which
// is a loss.
func TestLockAllWaitsForOneLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores := []*memory.Memory{bubbleMemory(), bubbleMemory(), bubbleMemory()}
		var items []Lockable
		var others []*Client
		var mu sync.Mutex
		var events []string
		note := func(e Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, strings.TrimPrefix(string(e.Kind), "lock_")+" "+e.Lock+" "+e.Reason)
		}
		for i, m := range stores {
			name := string(rune('a' + i)) // the address of the store and the name of the lock: c is tried last
			c := newClient(t, withAddress(m.Open(), name), &Options{OnEvent: note, TTL: 24 * time.Hour})
			items = append(items, c.Mutex(name, &LockOptions{MinHold: time.Hour, Fair: i == 2}))
			others = append(others, newClient(t, m.Open(), &Options{Owner: "other"}))
		}
		held := mustLock(t, others[2], "c", nil)
		done := make(chan error)
		var lg *LeaseGroup
		go func() {
			var err error
			lg, err = LockAll(t.Context(), items...)
			done <- err
		}()
		time.Sleep(time.Minute)
		for i, name := range []string{"a", "b"} {
			l, err := others[i].Mutex(name, nil).TryLock(t.Context())
			if err != nil {
				t.Errorf("%s is held by a LockAll that waits: %v", name, err)
				continue
			}
			if err := l.Release(); err != nil {
				t.Error(err)
			}
		}
		if lock, err := others[2].Inspect(t.Context(), "c"); err != nil || len(lock.Waiters) != 1 {
			t.Errorf("it does not wait for c: %+v, %v", lock, err)
		}
		if err := held.Release(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // events are delivered by then
		mu.Lock()
		got := strings.Join(events, ", ")
		mu.Unlock()
		for _, part := range []string{"lost", "failing"} {
			if strings.Contains(got, part) {
				t.Errorf("a try that gave way looks like a loss: %s", got)
			}
		}
		for part, times := range map[string]int{"acquire_attempt a ": 2, "acquired a ": 2, "released a ": 1,
			"acquire_attempt b ": 2, "acquired b ": 2, "released b ": 1,
			"acquire_attempt c ": 2, "failed c held": 1, "acquired c ": 1} {
			if n := strings.Count(got, part); n != times {
				t.Errorf("%d times %q in: %s", n, part, got)
			}
		}
		if err := lg.Release(); err != nil {
			t.Error(err)
		}
		for i, name := range []string{"a", "b"} {
			if _, err := others[i].Mutex(name, nil).TryLock(t.Context()); !errors.Is(err, ErrHeld) {
				t.Errorf("after a LockAll that has succeeded %s was not held for its MinHold: %v", name, err)
			}
		}
	})
}

// TestLockAllOverStoresEndsInTime: a LockAll over several stores ends when its context does, whatever it does just
// then. Its error names the holder, and nothing is left held.
func TestLockAllOverStoresEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores := []*memory.Memory{bubbleMemory(), bubbleMemory()}
		var c, other []*Client
		for _, m := range stores {
			c = append(c, newClient(t, m.Open(), nil))
			other = append(other, newClient(t, m.Open(), &Options{Owner: "other"}))
		}
		for i := range 2 {
			held := mustLock(t, other[i], "x", nil)
			for n := range 40 { // within the first pause, and later
				limit := time.Duration(n) * time.Millisecond / 2
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				start := time.Now()
				_, err := LockAll(ctx, c[0].Mutex("x", nil), c[1].Mutex("x", nil))
				took := time.Since(start)
				cancel()
				var e *Error
				if !errors.Is(err, context.DeadlineExceeded) || took != limit || errors.Is(err, ErrHeld) {
					t.Errorf("%v after %v, want a deadline after %v", err, took, limit)
				}
				if n > 0 && (!errors.As(err, &e) || e.Lock != "x" || len(e.Holders) != 1 || e.Holders[0].Owner != "other") {
					t.Errorf("the error does not name the holder: %v", err)
				}
			}
			synctest.Wait()
			if lock, err := other[1-i].Inspect(t.Context(), "x"); err != nil || len(lock.Holders) != 0 {
				t.Errorf("a claim is left: %+v, %v", lock, err)
			}
			if err := held.Release(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestLockAllCost: a LockAll of free locks makes one claim for each, and asks the stores nothing else, over one store
// or several, also if their addresses and the names are the same.
func TestLockAllCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := []*fakeStore{newFakeStore(), newFakeStore()}
		var items []Lockable
		for _, s := range f {
			c := newClient(t, s, nil)
			items = append(items, c.Mutex("b", nil), c.Mutex("a", nil), c.Mutex("c", nil))
		}
		lg, err := LockAll(t.Context(), items...)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range f {
			if a, i, r := s.readCount(&s.acquires), s.readCount(&s.inspects), s.readCount(&s.releases); a != 3 || i+r != 0 {
				t.Errorf("for three locks: %d claims, %d reads, %d releases", a, i, r)
			}
		}
		if err := lg.Release(); err != nil {
			t.Error(err)
		}
	})
}

// TestLockAllOverStoresTriesAgain: an answer to a try that may be another one next time does not end a LockAll over
// several stores. One that stays the same does.
func TestLockAllOverStoresTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := newFakeStore(), newFakeStore()
		a, b := newClient(t, one, nil).Mutex("a", nil), newClient(t, two, nil).Mutex("b", nil)
		for _, test := range []struct {
			refuse error
			final  bool
		}{
			{driver.ErrUncertain, false}, {driver.ErrQueueFull, false},
			{driver.ErrDenied, true}, {driver.ErrCorrupt, true}, {driver.ErrMismatch, true}, {driver.ErrUnsupported, true},
		} {
			two.update(func() { two.refuseOnce = test.refuse })
			lg, err := LockAll(t.Context(), a, b)
			switch {
			case test.final != errors.Is(err, test.refuse):
				t.Errorf("%v: %v", test.refuse, err)
			case err == nil:
				err = lg.Release()
			}
			if !test.final && err != nil {
				t.Error(err)
			}
			if two.update(func() { two.refuseOnce = nil }); one.isHeld("a") || two.isHeld("b") {
				t.Error("a claim is left")
			}
		}
	})
}

// TestLockAllWithMinHold: a LockAll that fails, in whatever way, leaves no lock held for its MinHold, because no work
// has begun under it. One that has succeeded does, and so does a lock that it has entered again.
func TestLockAllWithMinHold(t *testing.T) {
	const minHold = time.Hour
	o := &LockOptions{MinHold: minHold, Reentrant: true}
	fails := map[string]func(t *testing.T, c, operator *Client){
		"deadline": func(*testing.T, *Client, *Client) {},
		"close": func(t *testing.T, c, _ *Client) {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		},
		"loss": func(t *testing.T, _, operator *Client) {
			if err := operator.Break(t.Context(), "a", "", BreakGraceful, ""); err != nil {
				t.Error(err)
			}
		},
	}
	for name, fail := range fails {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := bubbleMemory()
				c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
				mustLock(t, other, "b", nil)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				time.AfterFunc(time.Second, func() { fail(t, c, other) })
				if _, err := LockAll(ctx, c.Mutex("a", o), c.Mutex("b", o)); err == nil {
					t.Fatal("LockAll got a lock that another client holds")
				}
				synctest.Wait() // what was acquired is released in the background
				wantAbout(t, waitUntilFree(t, other, "a", time.Now()), 0)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		start := time.Now()
		set, err := LockAll(t.Context(), c.Mutex("a", o), c.Mutex("b", o))
		if err != nil {
			t.Fatal(err)
		}
		outer := mustLock(t, c, "outer", o)
		held := mustLock(t, other, "z", nil)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(outer.Context()), time.Minute)
		defer cancel()
		time.AfterFunc(time.Second, func() { wantIs(t, outer.Release(), nil) }) // the work is done; its lock is still entered
		_, err = LockAll(ctx, c.Mutex("outer", o), c.Mutex("z", nil))
		wantIs(t, err, context.DeadlineExceeded)
		if err := errors.Join(held.Release(), set.Release()); err != nil {
			t.Error(err)
		}
		names := []string{"outer", "a", "b"}
		time.Sleep(minHold - time.Since(start) - time.Second)
		for _, name := range names {
			if _, err := other.Mutex(name, nil).TryLock(t.Context()); !errors.Is(err, ErrHeld) {
				t.Fatalf("%s is free before its MinHold has passed: %v", name, err)
			}
		}
		for _, name := range names {
			wantAbout(t, waitUntilFree(t, other, name, start), minHold)
		}
	})
}

// TestLockAllChecksFirst: LockAll refuses what is wrong with any of its items before it waits for the first lock.
func TestLockAllChecksFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c := newClient(t, m.Open(), nil)
		mutexOnly := newFakeStore() // of plain mutexes
		limited := newClient(t, mutexOnly, nil)
		mustLock(t, newClient(t, m.Open(), nil), "a", nil) // and never releases it
		reentrant := &LockOptions{Reentrant: true}
		reader, err := c.RWMutex("rw", reentrant).RLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		lost, err := c.Mutex("lost", &LockOptions{Reentrant: true, MaxHold: time.Second}).Lock(reader.Context())
		if err != nil {
			t.Fatal(err)
		}
		<-lost.Context().Done()
		carrying := context.WithoutCancel(lost.Context()) // carries both
		for _, test := range []struct {
			name string
			last Lockable
			want error
		}{
			{"no name", c.Mutex("", nil), ErrInvalid},
			{"permits above the limit", c.Semaphore("s", 3, nil).Permits(4), ErrInvalid},
			{"TTL", c.Mutex("z", &LockOptions{TTL: 1000 * time.Hour}), ErrInvalid},
			{"MinHold", c.Mutex("z", &LockOptions{MinHold: -1}), ErrInvalid},
			{"MinHold that the store cannot keep", limited.Mutex("z", &LockOptions{MinHold: time.Second}), ErrUnsupported},
			{"kind", limited.RWMutex("z", nil), ErrUnsupported},
			{"fair", limited.Mutex("z", &LockOptions{Fair: true}), ErrUnsupported},
			{"a writer that reads already", c.RWMutex("rw", reentrant), ErrInvalid},
			{"a re-entrant lock of another kind", c.Mutex("rw", reentrant), ErrMismatch},
			{"a re-entrant lock that was lost", c.Mutex("lost", reentrant), ErrLost},
		} {
			ctx, cancel := context.WithTimeout(carrying, time.Hour)
			start := time.Now()
			_, err := LockAll(ctx, c.Mutex("a", nil), test.last)
			cancel()
			if took := time.Since(start); !errors.Is(err, test.want) || took != 0 {
				t.Errorf("%s: %v after %v, want %v at once", test.name, err, took, test.want)
			}
		}
		if err := reader.Release(); err != nil {
			t.Error(err)
		}
	})
}

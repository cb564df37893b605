package holdfast

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// All locks are held by one call, of all kinds and several stores, in one order, doubles once and in their strongest
// form.
func TestLockAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, same, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil), newClient(t, bubbleMemory().Open(),
			nil)
		rw, sem := c.RWMutex("rw", nil), c.Semaphore("s", 5, nil)
		set, err := LockAll(t.Context(), sem.Permits(2), rw.Reader(), c.Mutex("b", nil), c.Mutex("a", nil), rw,
			sem.Permits(4), c.Mutex("b", nil),
			same.Mutex("b", nil), other.Mutex("b", nil))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, l := range set.All() {
			names = append(names, l.Name())
		}
		if len(names) != 5 || names[0] != "a" || names[1] != "b" || names[2] != "b" || names[3] != "rw" ||
			names[4] != "s" {
			t.Errorf("taken: %q", names)
		}
		if !set.All()[3].Exclusive() {
			t.Error("of a reader and a writer the reader was kept")
		}
		if !set.Valid() || set.Err() != nil || set.Context().Err() != nil || set.Remaining() != testTrust {
			t.Error("not valid, or not for as long as it should be")
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
			t.Error("valid after Unlock")
		}
		wantIs(t, context.Cause(set.Context()), ErrReleased)
		wantIs(t, set.Err(), ErrReleased)
		wantIs(t, set.Release(), ErrReleased)
		for _, c := range []*Client{c, other} {
			for lock := range c.List(t.Context(), "") {
				t.Errorf("left: %+v", lock)
			}
		}
	})
}

// A lock that two clients name as different kinds is refused, and not taken for the one of them that is held.
func TestLockAllMismatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		one, two := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		for _, other := range []Lockable{two.Mutex("x", nil), two.Semaphore("x", 3, nil).Permits(1),
			two.RWMutex("x", nil)} {
			_, err := LockAll(t.Context(), one.Semaphore("x", 10, nil).Permits(2), other)
			wantIs(t, err, ErrMismatch)
		}
		synctest.Wait() // what was taken is given back in the background
		for lock := range one.List(t.Context(), "") {
			t.Errorf("left: %+v", lock)
		}
	})
}

// What cannot be had leaves nothing behind, and the error says who was in the way.
func TestLockAllGivesBack(t *testing.T) {
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
		synctest.Wait() // it is given back in the background
		for lock := range other.List(t.Context(), "") {
			if lock.Name != "c" {
				t.Errorf("left: %+v", lock)
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

// When one is lost all are, while they are held and while the last is waited for.
func TestLockAllLosesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, operator := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		set, err := LockAll(t.Context(), c.Mutex("a", nil), c.Mutex("b", nil))
		if err != nil {
			t.Fatal(err)
		}
		b := set.All()[1]
		if err := operator.Break(t.Context(), "b", b.Ref(), BreakForce); err != nil {
			t.Fatal(err)
		}
		<-set.Context().Done()
		wantIs(t, context.Cause(set.Context()), ErrLost)
		wantIs(t, set.Err(), ErrLost)
		if set.Valid() || !set.All()[0].Valid() {
			t.Error("the whole is valid, or a part of it was given back before Unlock")
		}
		wantIs(t, set.Release(), ErrLost)

		held := mustLock(t, operator, "z", nil)
		time.AfterFunc(time.Minute, func() {
			lock, err := operator.Inspect(t.Context(), "a")
			if err != nil || len(lock.Holders) != 1 {
				t.Errorf("%+v, %v", lock, err)
				return
			}
			operator.Break(t.Context(), "a", lock.Holders[0].Ref, BreakForce)
		})
		_, err = LockAll(t.Context(), c.Mutex("a", nil), c.Mutex("z", nil))
		wantIs(t, err, ErrLost)
		if errors.Is(err, context.Canceled) {
			t.Errorf("the caller's context goes on, and the error says otherwise: %v", err)
		}
		if err := held.Release(); err != nil {
			t.Error(err)
		}
	})
}

// A set enters and carries re-entrant locks.
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

// A lock that is lost at the moment at which the last one is granted has all given back, or lost with it.
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
				t.Errorf("left: %+v", lock)
			}
		}
	})
}

// A LockAll whose time is over ends then, also if the store does not answer any more, and what it had is given back.
func TestLockAllEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := newClient(t, f, nil)
		held := mustLock(t, c, "b", nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		time.AfterFunc(59*time.Second, func() { f.set(func() { f.down = true }) })
		start := time.Now()
		_, err := LockAll(ctx, c.Mutex("a", nil), c.Mutex("b", nil))
		wantIs(t, err, context.DeadlineExceeded)
		if took := time.Since(start); took != time.Minute {
			t.Errorf("took %v", took)
		}
		f.set(func() { f.down = false })
		time.Sleep(testTrust)
		if f.holds("a") {
			t.Error("left behind")
		}
		wantIs(t, held.Release(), nil)
	})
}

// A set does not wait for itself when it cannot be seen whether a lock is the one that it has.
func TestLockAllCannotTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		one, two := newClient(t, f, nil), newClient(t, f, nil)
		f.set(func() { f.refuseLook = errors.New("connection refused") })
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := LockAll(ctx, one.Mutex("a", nil), two.Mutex("a", nil))
		wantIs(t, err, f.refuseLook)
		if f.holds("a") {
			t.Error("left behind")
		}
	})
}

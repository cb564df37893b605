package holdfast

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestReentrant: under a context that carries a lease, the lock can be acquired again. The lock is free after as many
// Releases as grants, in any order.
func TestReentrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c, other := newClient(t, f, nil), newClient(t, f, nil)
		m := c.Mutex("a", &LockOptions{Reentrant: true})
		outer, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(outer.Context())
		defer cancel()
		inner, err := m.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		deep, err := m.TryLock(inner.Context())
		if err != nil || deep.Token() != outer.Token() || f.readCount(&f.acquires) != 1 {
			t.Fatalf("%v, %d claims", err, f.readCount(&f.acquires))
		}
		for i, l := range []*Lease{outer, deep} {
			if err := l.Release(); err != nil || l.Valid() || l.Context().Err() == nil {
				t.Errorf("lease %d: %v, valid %v", i, err, l.Valid())
			}
			wantIs(t, l.Err(), ErrReleased)
			wantIs(t, l.Release(), ErrReleased)
			if !inner.Valid() || inner.Context().Err() != nil {
				t.Error("the last lease ended with another one")
			}
			_, err = other.Mutex("a", nil).TryLock(t.Context())
			wantIs(t, err, ErrHeld)
		}
		time.Sleep(time.Hour)
		if err := inner.Release(); err != nil || f.isHeld("a") {
			t.Errorf("%v, held: %v", err, f.isHeld("a"))
		}

		// The context carries a lease that was released, which does not count.
		next, err := m.TryLock(context.WithoutCancel(ctx))
		if err != nil || next.Token() <= outer.Token() {
			t.Fatalf("%v", err)
		}
		_, err = m.TryLock(t.Context()) // a context without the lease
		wantIs(t, err, ErrHeld)
		_, err = c.Mutex("a", nil).TryLock(next.Context()) // a mutex that is not re-entrant
		wantIs(t, err, ErrHeld)
		_, err = other.Mutex("a", &LockOptions{Reentrant: true}).TryLock(next.Context()) // another client
		wantIs(t, err, ErrHeld)
		if err := next.Release(); err != nil {
			t.Error(err)
		}
	})
}

// TestReentrantDo: the function of Do can acquire its own lock again.
func TestReentrantDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newClient(t, newFakeStore(), nil).Mutex("a", &LockOptions{Reentrant: true})
		err := m.Do(t.Context(), func(ctx context.Context, outer *Lease) error {
			return m.Do(ctx, func(ctx context.Context, inner *Lease) error {
				if inner.Token() != outer.Token() {
					t.Error("the lock was entered with another claim")
				}
				return nil
			})
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestReentrantLost: a loss ends all leases of a re-entrant lock, and a lost lock cannot be entered again.
func TestReentrantLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		m := newClient(t, f, nil).Mutex("a", &LockOptions{Reentrant: true})
		outer, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		inner, err := m.Lock(outer.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.update(func() { f.down = true })
		<-inner.Context().Done()
		<-outer.Context().Done()
		wantLoss(t, context.Cause(inner.Context()), LossUnreachable)
		_, err = m.Lock(context.WithoutCancel(outer.Context()))
		wantLoss(t, err, LossUnreachable)
		_, err = m.Lock(outer.Context())
		wantLoss(t, err, LossUnreachable)
		f.update(func() { f.down = false })
		wantIs(t, outer.Release(), ErrLost)
		synctest.Wait()
		if f.readCount(&f.releases) != 0 {
			t.Error("the claim was released while a lease remains")
		}
		wantIs(t, inner.Release(), ErrLost)
		synctest.Wait()
		if f.readCount(&f.releases) != 1 {
			t.Errorf("%d releases", f.readCount(&f.releases))
		}
	})
}

// TestReentrantStrength: a held lock can be entered again with the same weight or a smaller one.
func TestReentrantStrength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, bubbleMemory().Open(), nil)
		o := &LockOptions{Reentrant: true}
		rw, sem := c.RWMutex("rw", o), c.Semaphore("s", 5, o)
		w, err := rw.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r, err := rw.RLock(w.Context())
		if err != nil {
			t.Fatal(err)
		}
		wantIs(t, w.Downgrade(t.Context()), ErrInvalid)
		_, err = w.Detach()
		wantIs(t, err, ErrInvalid)
		if !w.Valid() || !r.Valid() {
			t.Error("a refusal ended the lease")
		}
		_, err = c.Mutex("rw", o).Lock(w.Context())
		wantIs(t, err, ErrMismatch)
		if err := errors.Join(r.Release(), w.Downgrade(t.Context())); err != nil {
			t.Fatal(err)
		}
		_, err = rw.Lock(w.Context())
		wantIs(t, err, ErrInvalid)
		r, err = rw.TryRLock(w.Context())
		if err := errors.Join(err, r.Release(), w.Release()); err != nil {
			t.Fatal(err)
		}

		err = sem.Do(t.Context(), 3, func(ctx context.Context, l *Lease) error {
			_, err := sem.Acquire(ctx, 4)
			wantIs(t, err, ErrInvalid)
			_, err = sem.TryAcquire(t.Context(), 3) // a context without the lease
			wantIs(t, err, ErrHeld)
			return sem.Do(ctx, 3, func(context.Context, *Lease) error { return nil })
		})
		if err != nil {
			t.Error(err)
		}
	})
}

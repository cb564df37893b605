package holdfast

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestNewestOnly: of the waiters that are newest-only, in one process and in several, only the last one to come gets
// the lock. The others give up soon after it came, and say so in their events. A holder does not.
func TestNewestOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		var reasons []string
		a := newClient(t, m.Open(), &Options{OnEvent: func(e Event) {
			if e.Kind == EventFailed {
				reasons = append(reasons, e.Reason)
			}
		}})
		b := newClient(t, m.Open(), nil)
		o := &LockOptions{NewestOnly: true}
		held := mustLock(t, a, "a", o)
		first, ahead := newClient(t, m.Open(), nil), make(chan error, 1)
		go func() { // a claim that is not newest-only waits ahead of all: it is woken by what happens behind it, and they are not
			l, err := first.Mutex("a", &LockOptions{Fair: true}).Lock(t.Context())
			if err == nil {
				err = l.Release()
			}
			ahead <- err
		}()
		time.Sleep(time.Second)
		type outcome struct {
			lease *Lease
			err   error
			after time.Duration
		}
		wait := func(c *Client) <-chan outcome {
			done, began := make(chan outcome, 1), time.Now()
			go func() {
				l, err := c.Mutex("a", o).Lock(t.Context())
				done <- outcome{l, err, time.Since(began)}
			}()
			time.Sleep(10 * time.Second) // far longer than it takes to look
			return done
		}
		last := wait(a)
		for i, c := range []*Client{a, b, a, b} {
			newer := wait(c)
			got := <-last
			if !errors.Is(got.err, ErrSuperseded) || got.after < 10*time.Second || got.after > 12500*time.Millisecond {
				t.Errorf("waiter %d: %v after %v", i, got.err, got.after)
			}
			last = newer
		}
		if !held.Valid() {
			t.Error(held.Err())
		}
		if err := held.Release(); err != nil {
			t.Error(err)
		}
		if err := <-ahead; err != nil {
			t.Error(err)
		}
		got := <-last
		if got.err != nil {
			t.Fatal(got.err)
		}
		if l, err := a.Mutex("a", o).TryLock(t.Context()); !errors.Is(err, ErrHeld) {
			t.Errorf("%v, %v", l, err)
		}
		_ = got.lease.Release()
		time.Sleep(time.Second)
		synctest.Wait() // for the last event
		if len(reasons) != 4 || reasons[0] != string(FailureSuperseded) || reasons[3] != string(FailureHeld) {
			t.Errorf("reasons: %q", reasons)
		}
	})
}

// TestNewestOnlyOfTurn: a waiter whose turn comes before it could look for a newer one gives up even then.
func TestNewestOnlyOfTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		a, b, c := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		o := &LockOptions{NewestOnly: true}
		held := mustLock(t, a, "a", nil)
		older, newer := make(chan error, 1), make(chan error, 1)
		lock := func(c *Client, done chan error) {
			l, err := c.Mutex("a", o).Lock(t.Context())
			if err == nil {
				time.Sleep(time.Second)
				err = l.Release()
			}
			done <- err
		}
		go lock(b, older)
		time.Sleep(10 * time.Second)
		go lock(c, newer)
		time.Sleep(100 * time.Millisecond)
		if err := held.Release(); err != nil {
			t.Error(err)
		}
		wantIs(t, <-older, ErrSuperseded)
		if err := <-newer; err != nil {
			t.Error(err)
		}
	})
}

// TestNewestOnlyRefused: NewestOnly is refused where there is no order of arrival, and for readers. A LockAll and an
// election end by it.
func TestNewestOnlyRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &LockOptions{NewestOnly: true}
		_, err := newClient(t, newFakeStore(), nil).Mutex("a", o).Lock(t.Context())
		wantIs(t, err, ErrUnsupported)
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		_, err = c.RWMutex("rw", o).RLock(t.Context())
		wantIs(t, err, ErrInvalid)
		if l, err := c.RWMutex("rw", o).Lock(t.Context()); err != nil || l.Release() != nil {
			t.Error(err)
		}
		held := mustLock(t, other, "a", nil)
		all, elected := make(chan error, 1), make(chan error, 1)
		go func() { _, err := LockAll(t.Context(), c.Mutex("0", nil), c.Mutex("a", o)); all <- err }()
		time.Sleep(time.Second)
		go func() {
			elected <- c.Election("a", o).Run(t.Context(), func(context.Context, *Lease) error { return nil })
		}()
		wantIs(t, <-all, ErrSuperseded)
		newest := make(chan error, 1)
		go func() { _, err := other.Semaphore("a", 1, o).TryAcquire(t.Context(), 1); newest <- err }()
		wantIs(t, <-newest, ErrMismatch)
		go func() { _, err := other.Mutex("a", o).Lock(t.Context()); newest <- err }()
		wantIs(t, <-elected, ErrSuperseded)
		if err := held.Release(); err != nil || <-newest != nil {
			t.Error(err)
		}
	})
}

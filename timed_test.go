package holdfast

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// free waits until the lock can be had, and tells how long that took from start.
func free(t *testing.T, c *Client, name string, start time.Time) time.Duration {
	t.Helper()
	l := mustLock(t, c, name, nil)
	took := time.Since(start)
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	return took
}

func wantAbout(t *testing.T, got, want time.Duration) {
	t.Helper()
	if got < want || got > want+time.Second {
		t.Errorf("after %v, want %v", got, want)
	}
}

// Whoever renews a claim that an operator broke hears it, and then passes the lock on.
func TestABrokenHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, bubbleMemory().Open(), nil)
		h, err := mustLock(t, c, "a", nil).Detach()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Break(t.Context(), "a", h.Ref, BreakGraceful); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var loss *LossError
		if err := c.Renew(t.Context(), h); !errors.As(err, &loss) || loss.Cause != LossBroken {
			t.Errorf("want %q, got %v", LossBroken, err)
		}
		_, err = c.Mutex("a", nil).TryLock(t.Context()) // the work may go on yet
		wantIs(t, err, ErrHeld)
		if err := c.Release(t.Context(), h); err != nil {
			t.Error(err)
		}
		wantAbout(t, free(t, c, "a", start), 0)
	})
}

// A lease that was left to lapse ends, and the lock is held until its TTL has passed, also if its client is closed.
func TestLapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		l := mustLock(t, c, "a", nil)
		time.Sleep(time.Hour)
		start := time.Now()
		if _, err := l.Detach(); err != nil {
			t.Fatal(err)
		}
		wantIs(t, l.Err(), ErrReleased)
		wantIs(t, l.Release(), ErrReleased)
		if l.Valid() || l.Context().Err() == nil {
			t.Error("valid after it was left")
		}
		c.Close()
		wantAbout(t, free(t, other, "a", start), testTTL)
	})
}

// What was lost because the store did not answer is left to nobody: there is no handle on it.
func TestLapseAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, &unrenewed{Store: bubbleMemory().Open()}, nil)
		l := mustLock(t, c, "a", nil)
		<-l.Context().Done()
		h, err := l.Detach()
		wantLoss(t, err, LossUnreachable)
		if h != (Handle{}) || errors.Is(err, ErrUncertain) {
			t.Errorf("%+v, %v", h, err)
		}
	})
}

// unrenewed is a store on which claims can be detached, and whose renewals hang.
type unrenewed struct{ driver.Store }

func (s *unrenewed) Renew(ctx context.Context, g []driver.Grant, done func(int, driver.Renewal)) {
	<-ctx.Done()
	for i := range g {
		done(i, driver.Renewal{Err: driverutil.Uncertain(ctx.Err())})
	}
}

func (s *unrenewed) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	return s.Store.(driver.Detacher).Detach(ctx, g, keep)
}

// The handle of a lapsing claim renews and releases it in another process, and nothing else.
func TestHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		sem := c.Semaphore("s", 3, nil)
		l, err := sem.Acquire(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		h, err := l.Detach()
		if err != nil || h.Token != l.Token() || h.TTL != testTTL || h.Weight != 2 || h.Limit != 3 ||
			h.Kind != KindSemaphore {
			t.Fatalf("%+v, %v", h, err)
		}
		data, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		h = Handle{}
		if err := json.Unmarshal(data, &h); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			time.Sleep(testTTL / 2)
			if err := other.Renew(t.Context(), h); err != nil {
				t.Fatal(err)
			}
		}
		_, err = sem.TryAcquire(t.Context(), 2)
		wantIs(t, err, ErrHeld)
		if err := other.Release(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		wantIs(t, other.Release(t.Context(), h), ErrLost)
		wantIs(t, other.Renew(t.Context(), h), ErrLost)
		wantIs(t, other.Renew(t.Context(), Handle{Name: "s"}), ErrInvalid)
		wantIs(t, other.Release(t.Context(), Handle{Name: "s"}), ErrInvalid)
		other.Close()
		wantIs(t, other.Renew(t.Context(), h), ErrClosed)
	})
}

// A Renew of a handle that gets no answer has not renewed.
func TestHandleWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.renewal = func(context.Context, driver.Grant) (driver.Renewal, bool) { return driver.Renewal{}, false }
		err := newClient(t, f, nil).Renew(t.Context(), Handle{Name: "a", ID: "id", Ref: "ref", Token: 1, TTL: testTTL})
		wantIs(t, err, ErrUncertain)
	})
}

// MinHold keeps a lock for its least time though it was unlocked or its client closed, and not longer.
func TestMinHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		o := &LockOptions{MinHold: 2 * time.Minute}
		l := mustLock(t, c, "a", o)
		start := time.Now()
		time.Sleep(time.Second)
		if err := l.Release(); err != nil || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		wantAbout(t, free(t, other, "a", start), o.MinHold)

		l = mustLock(t, c, "a", o)
		time.Sleep(o.MinHold)
		start = time.Now()
		if err := l.Release(); err != nil {
			t.Error(err)
		}
		wantAbout(t, free(t, other, "a", start), 0)

		mustLock(t, c, "a", o)
		start = time.Now()
		c.Close()
		wantAbout(t, free(t, other, "a", start), o.MinHold)
	})
}

// An operator's break is stronger than a MinHold.
func TestMinHoldBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		l := mustLock(t, c, "a", &LockOptions{MinHold: time.Hour})
		if err := other.Break(t.Context(), "a", l.Ref(), BreakGraceful); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		wantLoss(t, l.Release(), LossBroken)
		wantAbout(t, free(t, other, "a", start), 0)
	})
}

// MaxHold ends a lease to the tick, however well it is renewed, and lets others in a margin later.
func TestMaxHold(t *testing.T) {
	for _, hold := range []time.Duration{time.Second, testTTL - 5*time.Second, testTTL, 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			m := bubbleMemory()
			c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
			l := mustLock(t, c, "a", &LockOptions{MaxHold: hold})
			start := time.Now()
			if l.Remaining() != min(hold, testTrust) {
				t.Errorf("remaining %v", l.Remaining())
			}
			<-l.Context().Done()
			if took := time.Since(start); took != hold {
				t.Errorf("ended after %v, want %v", took, hold)
			}
			wantLoss(t, context.Cause(l.Context()), LossMaxHold)
			got := free(t, other, "a", start)
			wantAbout(t, got, hold+time.Second)
			wantLoss(t, l.Release(), LossMaxHold)
		})
	}
}

// A lease that cannot last longer is not renewed.
func TestMaxHoldRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		l := mustLock(t, newClient(t, f, nil), "a", &LockOptions{MaxHold: testTTL/3 + testTrust - time.Second})
		<-l.Context().Done()
		if n := f.count(&f.renews); n != 1 {
			t.Errorf("%d renewals", n)
		}
	})
}

// Times that cannot be kept are refused.
func TestTimedInvalid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, bubbleMemory().Open(), nil)
		for _, o := range []LockOptions{
			{MinHold: -1}, {MinHold: driver.MaxTTL + 1}, {MaxHold: -1}, {MaxHold: time.Millisecond},
			{MinHold: time.Minute, MaxHold: time.Minute - 1},
		} {
			_, err := c.Mutex("a", &o).Lock(t.Context())
			wantIs(t, err, ErrInvalid)
		}
		f := newClient(t, newFake(), nil)
		_, err := f.Mutex("a", &LockOptions{MinHold: time.Second}).Lock(t.Context())
		wantIs(t, err, ErrUnsupported)
		l := mustLock(t, f, "a", nil)
		_, err = l.Detach()
		wantIs(t, err, ErrUnsupported)
		if !l.Valid() {
			t.Error("a refusal ended the lease")
		}
	})
}

// A holder that listens is told when it is asked to give up, whenever it begins to listen.
func TestAskedChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		l := mustLock(t, c, "a", nil)
		early := l.ReleaseRequested()
		select {
		case <-early:
			t.Error("asked by nobody")
		default:
		}
		for range 2 {
			if err := other.RequestRelease(t.Context(), "a", l.Ref()); err != nil {
				t.Error(err)
			}
			time.Sleep(testTTL / 2)
		}
		<-early
		<-l.ReleaseRequested()
		fresh := mustLock(t, c, "b", nil)
		if err := other.RequestRelease(t.Context(), "b", fresh.Ref()); err != nil {
			t.Error(err)
		}
		time.Sleep(testTTL / 2)
		<-fresh.ReleaseRequested()
		if !l.Valid() || !fresh.Valid() {
			t.Error("asking ended a lease")
		}
	})
}

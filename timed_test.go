package holdfast

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// waitUntilFree acquires the lock, and returns how long after start that was possible.
func waitUntilFree(t *testing.T, c *Client, name string, start time.Time) time.Duration {
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

// TestBrokenHandle: a client that renews a detached claim learns that an operator broke it, and can then release it.
func TestBrokenHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, bubbleMemory().Open(), nil)
		h, err := mustLock(t, c, "a", nil).Detach()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Break(t.Context(), "a", h.Ref, BreakGraceful, ""); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var loss *LossError
		if _, err := c.Renew(t.Context(), h); !errors.As(err, &loss) || loss.Cause != LossBroken {
			t.Errorf("want %q, got %v", LossBroken, err)
		}
		_, err = c.Mutex("a", nil).TryLock(t.Context()) // the work may still run
		wantIs(t, err, ErrHeld)
		if err := c.Release(t.Context(), h); err != nil {
			t.Error(err)
		}
		wantAbout(t, waitUntilFree(t, c, "a", start), 0)
	})
}

// TestDetach: a detached lease ends, and the lock is held until its TTL has passed, even if its client is closed.
func TestDetach(t *testing.T) {
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
			t.Error("the lease is valid after Detach")
		}
		c.Close()
		wantAbout(t, waitUntilFree(t, other, "a", start), testTTL)
	})
}

// TestDetachAfterLoss: a lease that was lost because the store did not answer cannot be detached: there is no handle.
func TestDetachAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, &hangingRenewals{Store: bubbleMemory().Open()}, nil)
		l := mustLock(t, c, "a", nil)
		<-l.Context().Done()
		h, err := l.Detach()
		wantLoss(t, err, LossUnreachable)
		if h != (Handle{}) || errors.Is(err, ErrUncertain) {
			t.Errorf("%+v, %v", h, err)
		}
	})
}

// hangingRenewals is a store whose claims can be detached, and whose renewals hang.
type hangingRenewals struct{ driver.Store }

func (s *hangingRenewals) Renew(ctx context.Context, g []driver.Grant, done func(int, driver.Renewal)) {
	<-ctx.Done()
	for i := range g {
		done(i, driver.Renewal{Err: driverutil.Uncertain(ctx.Err())})
	}
}

// TestHandle: another process can renew and release a detached claim by its handle.
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
			if ttl, err := other.Renew(t.Context(), h); err != nil || ttl != testTTL {
				t.Fatal(ttl, err)
			}
		}
		_, err = sem.TryAcquire(t.Context(), 2)
		wantIs(t, err, ErrHeld)
		if err := other.Release(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		wantIs(t, other.Release(t.Context(), h), ErrLost)
		wantIs(t, renewError(t, other, h), ErrLost)
		wantIs(t, renewError(t, other, Handle{Name: "s"}), ErrInvalid)
		wantIs(t, other.Release(t.Context(), Handle{Name: "s"}), ErrInvalid)
		other.Close()
		wantIs(t, renewError(t, other, h), ErrClosed)
	})
}

// TestHandleWithoutReply: a Renew of a handle that gets no reply returns an error.
func TestHandleWithoutReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.renewal = func(context.Context, driver.Grant) (driver.Renewal, bool) { return driver.Renewal{}, false }
		h := Handle{Name: "a", ID: "id", Ref: "ref", Token: 1, TTL: testTTL}
		wantIs(t, renewError(t, newClient(t, f, nil), h), ErrUncertain)
	})
}

// TestChangedHandle: anyone who has a handle can write any TTL into it. A renewal reports the TTL that the store has, and
// refuses one that no store grants.
func TestChangedHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, bubbleMemory().Open(), nil)
		h, err := mustLock(t, c, "a", nil).Detach()
		if err != nil {
			t.Fatal(err)
		}
		granted := h.TTL
		h.TTL = c.Info().MaxTTL
		if ttl, err := c.Renew(t.Context(), h); err != nil || ttl != granted {
			t.Errorf("renewed for %v, want %v; %v", ttl, granted, err)
		}
		h.TTL++
		wantIs(t, renewError(t, c, h), ErrInvalid)
	})
}

func renewError(t *testing.T, c *Client, h Handle) error {
	t.Helper()
	_, err := c.Renew(t.Context(), h)
	return err
}

// TestMinHold: MinHold keeps a lock for its minimal time, and no longer, although it was released or its client was
// closed.
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
		wantAbout(t, waitUntilFree(t, other, "a", start), o.MinHold)

		l = mustLock(t, c, "a", o)
		time.Sleep(o.MinHold)
		start = time.Now()
		if err := l.Release(); err != nil {
			t.Error(err)
		}
		wantAbout(t, waitUntilFree(t, other, "a", start), 0)

		mustLock(t, c, "a", o)
		start = time.Now()
		c.Close()
		wantAbout(t, waitUntilFree(t, other, "a", start), o.MinHold)
	})
}

// TestMinHoldBroken: an operator's break ends a lock within its MinHold.
func TestMinHoldBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		l := mustLock(t, c, "a", &LockOptions{MinHold: time.Hour})
		if err := other.Break(t.Context(), "a", l.Ref(), BreakGraceful, ""); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		wantLoss(t, l.Release(), LossBroken)
		wantAbout(t, waitUntilFree(t, other, "a", start), 0)
	})
}

// TestMaxHold: MaxHold ends a lease exactly in time, however often it is renewed, and the lock is free one margin
// later.
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
			got := waitUntilFree(t, other, "a", start)
			wantAbout(t, got, hold+time.Second)
			wantLoss(t, l.Release(), LossMaxHold)
		})
	}
}

// TestMaxHoldRenewals: a lease whose MaxHold does not allow a longer time is not renewed.
func TestMaxHoldRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		l := mustLock(t, newClient(t, f, nil), "a", &LockOptions{MaxHold: testTTL/3 + testTrust - time.Second})
		<-l.Context().Done()
		if n := f.readCount(&f.renews); n != 1 {
			t.Errorf("%d renewals", n)
		}
	})
}

// TestTimedInvalid: invalid values of MinHold and MaxHold are refused.
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
		f := newClient(t, newFakeStore(), nil)
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

// TestReleaseRequestedChannel: a holder receives a request to release on the channel, whenever it starts to listen.
func TestReleaseRequestedChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		l := mustLock(t, c, "a", nil)
		early := l.ReleaseRequested()
		select {
		case <-early:
			t.Error("no release was requested, but the channel is closed")
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
			t.Error("a request to release ended a lease")
		}
	})
}

// TestRenewalOfHandle: a renewal makes a detached lock last for the TTL of its handle from then on, and no longer. If the
// lock was detached for what was left of its MinHold, that is the TTL of the handle.
func TestRenewalOfHandle(t *testing.T) {
	for _, test := range []struct {
		minHold, maxHold, held, ttl time.Duration
	}{
		{0, 0, time.Hour, testTTL},
		{time.Hour, 0, 0, time.Hour},
		{time.Hour, 0, 20 * time.Minute, 40 * time.Minute},
		{time.Hour, 0, time.Hour - time.Second, testTTL},
		{time.Hour, 2 * time.Hour, 30 * time.Minute, 30 * time.Minute},
		{time.Second, time.Hour, time.Hour - 10*time.Second, 10 * time.Second},
	} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := bubbleMemory()
				c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
				l := mustLock(t, c, "a", &LockOptions{TTL: testTTL, MinHold: test.minHold, MaxHold: test.maxHold})
				time.Sleep(test.held)
				h, err := l.Detach()
				if err != nil || h.TTL != test.ttl {
					t.Fatalf("the handle has a TTL of %v, want %v; %v", h.TTL, test.ttl, err)
				}
				for range 3 {
					time.Sleep(h.TTL * 9 / 10)
					if ttl, err := c.Renew(t.Context(), h); err != nil || ttl != h.TTL {
						t.Fatal(ttl, err)
					}
				}
				wantAbout(t, waitUntilFree(t, other, "a", time.Now()), h.TTL)
			})
		})
	}
}

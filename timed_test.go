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

// TestChangedHandle: anyone who has a handle can write any TTL into it. A renewal reports the TTL that the store has,
// and refuses one that no store grants.
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

// TestTimedInvalid: invalid values of MinHold, MaxHold and Progress are refused.
func TestTimedInvalid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, bubbleMemory().Open(), nil)
		for _, o := range []LockOptions{
			{MinHold: -1}, {MinHold: driver.MaxTTL + 1}, {MaxHold: -1}, {MaxHold: time.Millisecond},
			{Progress: -1}, {Progress: time.Millisecond},
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

// TestRenewalOfHandle: a renewal makes a detached lock last for the TTL of its handle from then on, and no longer. If
// the lock was detached for what was left of its MinHold, that is the TTL of the handle.
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

// TestProgress: a lease that is bound to progress is valid for as long as that is noted in time, and renewed
// meanwhile. It ends when it was not noted for that long, with a cause of its own, and others get the lock a moment
// later.
func TestProgress(t *testing.T) {
	for _, progress := range []time.Duration{time.Second, testTTL / 3, testTTL, 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			m := bubbleMemory()
			c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
			l := mustLock(t, c, "a", &LockOptions{Progress: progress})
			if l.Remaining() != min(progress, testTrust) {
				t.Errorf("remaining %v", l.Remaining())
			}
			for range 20 {
				time.Sleep(progress - 10*time.Millisecond)
				if !l.Progress() {
					t.Fatalf("lost: %v", l.Err())
				}
			}
			last := time.Now()
			select {
			case <-l.Context().Done():
			case <-time.After(2 * progress):
			}
			if took := time.Since(last); took != progress {
				t.Fatalf("ended %v after the last progress, want %v", took, progress)
			}
			wantLoss(t, context.Cause(l.Context()), LossNoProgress)
			if l.Progress() {
				t.Error("progress is noted after the end")
			}
			got := waitUntilFree(t, other, "a", last)
			wantAbout(t, got, progress+time.Second)
			wantLoss(t, l.Release(), LossNoProgress)
		})
	}
}

// TestProgressAfterEnd: progress that is noted too late does not bring a lease back whose end no timer has found yet,
// because the machine slept: that time counts.
func TestProgressAfterEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		l := mustLock(t, newClient(t, f, nil), "a", &LockOptions{Progress: 5 * time.Second})
		f.suspend(6 * time.Second)
		if l.Progress() {
			t.Error("the lease is valid")
		}
		wantLoss(t, l.Err(), LossNoProgress)
	})
}

// TestProgressOfLostStore: a lease whose store cannot be reached ends by its TTL, however much progress there is.
func TestProgressOfLostStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		l := mustLock(t, newClient(t, f, nil), "a", &LockOptions{Progress: testTTL})
		f.update(func() { f.down = true })
		start := time.Now()
		for l.Progress() {
			time.Sleep(time.Second)
		}
		if took := time.Since(start); took < testTrust || took > testTrust+time.Second {
			t.Errorf("ended after %v", took)
		}
		wantLoss(t, l.Err(), LossUnreachable)
		f.update(func() { f.down = false })
	})
}

// TestProgressOfGroup: while a LockAll waits for its other locks, no work can have begun, so that no progress is missed
// under those that it has.
func TestProgressOfGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		held := mustLock(t, other, "b", nil)
		time.AfterFunc(time.Minute, func() { _ = held.Release() })
		o := &LockOptions{Progress: 10 * time.Second}
		lg, err := LockAll(t.Context(), c.Mutex("a", o), c.Mutex("b", nil))
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			time.Sleep(9 * time.Second)
			if !lg.Progress() {
				t.Fatalf("lost: %v", lg.Err())
			}
		}
		last := time.Now()
		<-lg.Context().Done()
		if took := time.Since(last); took != o.Progress {
			t.Errorf("ended %v after the last progress", took)
		}
		wantLoss(t, context.Cause(lg.Context()), LossNoProgress)
		_ = lg.Release()
	})
}

// TestProgressOfReentrant: each lease on a lock that was entered again notes the progress of all of them.
func TestProgressOfReentrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, bubbleMemory().Open(), nil)
		mu := c.Mutex("a", &LockOptions{Progress: 10 * time.Second, Reentrant: true})
		outer, err := mu.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		inner, err := mu.Lock(outer.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			time.Sleep(9 * time.Second)
			if !inner.Progress() || !outer.Valid() {
				t.Fatalf("lost: %v", outer.Err())
			}
		}
		if err := inner.Release(); err != nil {
			t.Error(err)
		}
		time.Sleep(5 * time.Second)
		if inner.Progress() {
			t.Error("a lease that was released is valid")
		}
		time.Sleep(5 * time.Second)
		wantLoss(t, outer.Err(), LossNoProgress)
	})
}

// TestProgressOfRun: a run without progress is lost, and its worker can still report that it has failed.
func TestProgressOfRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		ledger := c.Ledger("l", &LedgerOptions{Progress: 10 * time.Second})
		run, err := ledger.Begin(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Second)
		if !run.Progress() {
			t.Error(run.Err())
		}
		time.Sleep(10 * time.Second)
		wantLoss(t, run.Err(), LossNoProgress)
		time.Sleep(5 * time.Second)
		if _, err := other.Ledger("l", nil).Begin(t.Context(), "k", nil); !errors.Is(err, ErrInProgress) {
			t.Errorf("before its worker has reported: %v", err)
		}
		if err := run.Fail(t.Context(), errors.New("it hung")); err != nil {
			t.Error(err)
		}
		runs, err := other.Ledger("l", nil).LastRuns(t.Context(), "k", 1)
		if err != nil || len(runs) != 1 || runs[0].State != RunFailed || runs[0].Error != "it hung" {
			t.Errorf("%+v, %v", runs, err)
		}
		_, err = c.Ledger("l", &LedgerOptions{Progress: time.Millisecond}).Begin(t.Context(), "k", nil)
		wantIs(t, err, ErrInvalid)
	})
}

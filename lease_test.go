package holdfast

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

const (
	testTTL   = 30 * time.Second
	testTrust = testTTL - (time.Second + testTTL/100) // Since + this is the deadline
)

// TestDeadlineWhileStoreHangs: a lease ends exactly at Since + TTL - margin, even while the store hangs and ignores
// contexts.
func TestDeadlineWhileStoreHangs(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, testTTL, 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeStore()
			c := newClient(t, f, nil)
			l := mustLock(t, c, "a", &LockOptions{TTL: ttl})
			start := time.Now()
			deaf := make(chan struct{})
			f.update(func() { f.renewHangs = deaf })
			defer close(deaf)
			<-l.Context().Done()
			if got, want := time.Since(start), ttl-driver.Margin(ttl); got != want {
				t.Errorf("TTL %v: ended after %v, want %v", ttl, got, want)
			}
			wantLoss(t, context.Cause(l.Context()), LossUnreachable)
			wantIs(t, l.Err(), ErrLost)
			if l.Valid() || l.Remaining() != 0 {
				t.Error("a lost lease is valid")
			}
		})
	}
}

// TestLeaseCountsFromStart: a lease counts from the start of the attempt, not from the reply.
func TestLeaseCountsFromStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.delay = 5 * time.Second
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		if got, want := l.Remaining(), testTrust-5*time.Second; got != want {
			t.Errorf("remaining %v, want %v", got, want)
		}
	})
}

// TestRenewalCountsFromStart: a renewal counts from the start of its request, too.
func TestRenewalCountsFromStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.renewal = func(ctx context.Context, g driver.Grant) (driver.Renewal, bool) {
			since := f.clock().Now()
			time.Sleep(3 * time.Second)
			return driver.Renewal{Since: since, GrantedTTL: g.GrantedTTL}, true
		}
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		time.Sleep(testTTL/3 + 3*time.Second)
		synctest.Wait()
		if got, want := l.Remaining(), testTrust-3*time.Second; got != want {
			t.Errorf("remaining %v, want %v", got, want)
		}
	})
}

// TestGrantTooLate: a grant that arrives after its own end is no lease: Lock tries again, TryLock returns an error, and
// the claim is released.
func TestGrantTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.delay = testTTL
		c := newClient(t, f, nil)
		_, err := c.Mutex("a", nil).TryLock(t.Context())
		wantIs(t, err, ErrUncertain)
		synctest.Wait()
		if f.isHeld("a") {
			t.Error("the claim of the late grant still exists")
		}
		time.AfterFunc(testTTL/2, func() { f.update(func() { f.delay = 0 }) })
		l := mustLock(t, c, "a", nil)
		if !l.Valid() || l.Remaining() < testTrust-time.Second {
			t.Errorf("remaining %v after a late first grant", l.Remaining())
		}
		if n := len(f.released); n != 2 {
			t.Errorf("%d claims released, want both late ones", n)
		}
	})
}

// TestShortCutLosesNothing: a client that is cut off from the store for less than a third of the TTL, at any time,
// loses nothing, whether requests hang or fail at once.
func TestShortCutLosesNothing(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, testTTL} {
		for begin := time.Duration(0); begin < ttl; begin += ttl / 50 {
			for _, hang := range []bool{true, false} {
				synctest.Test(t, func(t *testing.T) {
					f := newFakeStore()
					c := newClient(t, f, nil)
					l := mustLock(t, c, "a", &LockOptions{TTL: ttl})
					time.Sleep(begin)
					f.update(func() {
						f.down = hang
						if !hang {
							f.renewal = func(context.Context, driver.Grant) (driver.Renewal, bool) {
								return driver.Renewal{Err: errors.New("connection refused")}, true
							}
						}
					})
					time.Sleep(ttl/3 - time.Millisecond)
					f.update(func() { f.down, f.renewal = false, nil })
					time.Sleep(3 * ttl)
					if err := l.Err(); err != nil {
						t.Errorf("TTL %v, cut at %v, hanging %v: %v", ttl, begin, hang, err)
					}
				})
			}
		}
	}
}

// TestRenewalFailing: failing renewals are reported with the remaining time. They are retried at ever shorter
// intervals, but a bounded number of times, and end in a loss with the last error.
func TestRenewalFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, refused := newFakeStore(), errors.New("connection refused")
		f.renewal = func(context.Context, driver.Grant) (driver.Renewal, bool) {
			return driver.Renewal{Err: refused}, true
		}
		var r recorder
		l := mustLock(t, newClient(t, f, &Options{OnEvent: r.addEvent}), "a", nil)
		<-l.Context().Done()
		synctest.Wait()
		wantLoss(t, context.Cause(l.Context()), LossUnreachable)
		wantIs(t, l.Err(), refused)
		failing := r.eventsOf(EventRenewalFailing)
		if n := len(failing); n < 5 || n > 60 {
			t.Errorf("%d attempts, want 5 to 60", n)
		}
		for i, e := range failing {
			if i > 0 && e.Remaining >= failing[i-1].Remaining || e.Remaining <= 0 || !errors.Is(e.Err, refused) {
				t.Errorf("event %d: %+v", i, e)
			}
		}
		if n := len(r.eventsOf(EventLost)); n != 1 {
			t.Errorf("%d losses reported", n)
		}
	})
}

// TestRefusedRenewalIsTheCause: the store's last error is the cause of a loss, even if later requests got no reply in
// the little time that remained.
func TestRefusedRenewalIsTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.renewal = func(ctx context.Context, _ driver.Grant) (driver.Renewal, bool) {
			answers := time.NewTimer(100 * time.Millisecond)
			defer answers.Stop()
			select {
			case <-answers.C:
				return driver.Renewal{Err: fmt.Errorf("%w: the user has no rights", ErrDenied)}, true
			case <-ctx.Done():
				return driver.Renewal{Err: driverutil.Uncertain(ctx.Err())}, true
			}
		}
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		<-l.Context().Done()
		wantLoss(t, l.Err(), LossUnreachable)
		wantIs(t, l.Err(), ErrDenied)
	})
}

// TestRenewWithoutReply: if Renew returns without a result for a grant, the outcome is unknown.
func TestRenewWithoutReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.renewal = func(context.Context, driver.Grant) (driver.Renewal, bool) { return driver.Renewal{}, false }
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		time.Sleep(testTTL / 2)
		f.update(func() { f.renewal = nil })
		time.Sleep(testTTL)
		if err := l.Err(); err != nil {
			t.Error(err)
		}
	})
}

// TestSuspend: if the machine sleeps past the deadline, Valid returns false immediately after waking, and the context
// ends within half of the margin. After a shorter sleep, the renewal follows soon.
func TestSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, nil)
		l, other := mustLock(t, c, "a", nil), mustLock(t, c, "b", nil)
		time.Sleep(time.Second)
		f.suspend(time.Hour)
		woken := time.Now()
		if l.Valid() {
			t.Error("the lease is valid after an hour of sleep")
		}
		<-other.Context().Done()
		if late := time.Since(woken); late > driver.Margin(testTTL)/2 {
			t.Errorf("the context ended %v after waking", late)
		}
		wantLoss(t, context.Cause(other.Context()), LossExpired)

		l = mustLock(t, c, "c", nil)
		time.Sleep(time.Second)
		f.suspend(testTTL / 2)
		time.Sleep(driver.Margin(testTTL) / 2)
		if got := l.Remaining(); got < testTrust-time.Second {
			t.Errorf("remaining %v: not renewed soon after waking", got)
		}
	})
}

// TestPause: a pause of the machine that stops all its clocks is noticed when the wall clock is set right. Then all
// leases are renewed at once: one whose lock was granted to another client meanwhile is lost within half of its margin,
// and the others remain valid.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, nil)
		taken, kept := mustLock(t, c, "a", nil), mustLock(t, c, "b", nil)
		time.Sleep(time.Second)
		f.update(func() {
			f.renewal = func(_ context.Context, g driver.Grant) (driver.Renewal, bool) {
				if g.Name == "a" {
					return driver.Renewal{Err: &driver.LossError{Cause: driver.LossTaken}}, true
				}
				return driver.Renewal{Since: f.clock().Now(), GrantedTTL: g.GrantedTTL}, true
			}
			f.paused = time.Hour
		})
		stepped := time.Now()
		<-taken.Context().Done()
		if late := time.Since(stepped); late > driver.Margin(testTTL)/2 {
			t.Errorf("the loss was noticed %v after the clock was set", late)
		}
		wantLoss(t, context.Cause(taken.Context()), LossTaken)
		synctest.Wait()
		f.mu.Lock()
		renews := f.renews
		f.mu.Unlock()
		if got := kept.Remaining(); got < testTrust-driver.Margin(testTTL)/2 || renews != 1 {
			t.Errorf("the other lease: %v remain after %d calls of Renew", got, renews)
		}
		f.update(func() { f.paused = 0 }) // a clock that is set back proves nothing
		time.Sleep(driver.Margin(testTTL))
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.renews != 1 {
			t.Errorf("%d calls of Renew", f.renews)
		}
	})
}

// TestPauseDuringRenewal: a renewal that was in flight while the machine was paused proves nothing, so another one
// follows.
func TestPauseDuringRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		requested, answer := make(chan bool, 1), make(chan driver.Renewal)
		f.renewal = func(context.Context, driver.Grant) (driver.Renewal, bool) {
			requested <- true
			return <-answer, true
		}
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		<-requested
		since := f.clock().Now()
		f.update(func() { f.paused = time.Hour })
		time.Sleep(driver.Margin(testTTL))
		answer <- driver.Renewal{Since: since, GrantedTTL: testTTL}
		<-requested
		if got := f.clock().Since(since); got > driver.Margin(testTTL)+minSleep {
			t.Errorf("the next renewal came only after %v", got)
		}
		answer <- driver.Renewal{Err: &driver.LossError{Cause: driver.LossTaken}}
		<-l.Context().Done()
		wantLoss(t, context.Cause(l.Context()), LossTaken)
	})
}

// TestPauseDuringGrant: a grant that was in flight while the machine was paused proves nothing, so a renewal follows.
func TestPauseDuringGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, nil)
		mustLock(t, c, "a", nil) // so that the step of the wall clock is noticed while the grant is in flight
		f.update(func() { f.delay = time.Second })
		time.AfterFunc(time.Second/10, func() {
			f.update(func() {
				delete(f.held, "b") // it has expired
				f.paused = time.Hour
			})
		})
		l := mustLock(t, c, "b", nil)
		granted := time.Now()
		<-l.Context().Done()
		wantLoss(t, context.Cause(l.Context()), LossTaken)
		if late := time.Since(granted); late > driver.Margin(testTTL)/2 {
			t.Errorf("the loss was noticed %v after the grant", late)
		}
	})
}

// clockedStore is a store with another clock.
type clockedStore struct {
	*fakeStore
	other driver.Clock
}

func (s clockedStore) Info() driver.Info {
	info := s.fakeStore.Info()
	info.Clock = s.other
	return info
}

// TestSuspendAfterFailedRenewal: if the machine sleeps for longer than the TTL just when a renewal has failed, the
// lease ends when the machine is awake again.
func TestSuspendAfterFailedRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		clock := f.clock()
		var readings atomic.Int64 // how many there are until the machine sleeps
		clock.Boottime = func() time.Duration {
			if readings.Add(-1) == 0 {
				f.suspend(2 * testTTL)
			}
			return f.clock().Boottime()
		}
		var failed time.Time
		f.renewal = func(context.Context, driver.Grant) (driver.Renewal, bool) {
			time.Sleep(time.Millisecond) // so that nothing else reads the clock at the same time
			failed = time.Now()
			readings.Store(2)
			return driver.Renewal{Err: errors.New("down")}, true
		}
		l := mustLock(t, newClient(t, clockedStore{f, clock}, nil), "a", nil)
		<-l.Context().Done()
		wantLoss(t, context.Cause(l.Context()), LossUnreachable)
		if late := time.Since(failed); late > driver.Margin(testTTL)/2 {
			t.Errorf("the context ended %v after the machine was awake again", late)
		}
	})
}

// TestSuspendBetweenLeases: leases from before and after a sleep each end by the clock reading that has advanced more
// for them, in either order.
func TestSuspendBetweenLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.renewal = func(context.Context, driver.Grant) (driver.Renewal, bool) {
			return driver.Renewal{Err: errors.New("down")}, true
		}
		c := newClient(t, f, nil)
		before := mustLock(t, c, "a", nil)
		time.Sleep(time.Second)
		f.suspend(10 * time.Second)
		after := mustLock(t, c, "b", &LockOptions{TTL: 10 * time.Second})
		start := time.Now()
		<-after.Context().Done()
		if got := time.Since(start); got != 9*time.Second {
			t.Errorf("the later lease ended after %v, want 9s", got)
		}
		<-before.Context().Done()
		if got, want := time.Since(start), testTrust-11*time.Second; got != want {
			t.Errorf("the earlier lease ended after %v, want %v", got, want)
		}
	})
}

// TestClockSetBackAndForth: a boottime clock that is set back, and forward again, ends no lease early that was not
// renewed in between.
func TestClockSetBackAndForth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		for range 5 {
			time.Sleep(2 * time.Second)
			f.suspend(-time.Hour)
			time.Sleep(2 * time.Second)
			f.suspend(time.Hour)
		}
		time.Sleep(testTTL)
		if err := l.Err(); err != nil {
			t.Error(err)
		}
	})
}

// TestLateRenewalDoesNotResurrect: Valid notices the end of a lease before the timer does, and a later reply to a
// renewal does not restore the lease.
func TestLateRenewalDoesNotResurrect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		answer := make(chan struct{})
		f.renewal = func(ctx context.Context, g driver.Grant) (driver.Renewal, bool) {
			<-answer
			return driver.Renewal{Since: f.clock().Now(), GrantedTTL: g.GrantedTTL}, true
		}
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		time.Sleep(testTTL / 2)
		f.suspend(testTTL)
		if l.Valid() {
			t.Error("the lease is valid after its deadline")
		}
		close(answer)
		synctest.Wait()
		if l.Valid() || l.Context().Err() == nil {
			t.Error("a late reply restored the lease")
		}
	})
}

// TestReplyAfterDeadline: a reply to a renewal that arrives after the deadline ends the lease, even if nothing has
// noticed the end yet.
func TestReplyAfterDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.renewal = func(ctx context.Context, g driver.Grant) (driver.Renewal, bool) {
			f.suspend(testTTL)
			return driver.Renewal{Since: f.clock().Now(), GrantedTTL: g.GrantedTTL}, true
		}
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		time.Sleep(testTTL / 3)
		synctest.Wait()
		if l.Context().Err() == nil || l.Valid() {
			t.Error("a reply after the deadline renewed the lease")
		}
	})
}

// TestRenewalNeverShortens: a reply that would make the deadline earlier changes nothing, and does not cause renewals
// in a loop.
func TestRenewalNeverShortens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.renewal = func(ctx context.Context, g driver.Grant) (driver.Renewal, bool) {
			return driver.Renewal{Since: driver.Instant{}, GrantedTTL: time.Second}, true
		}
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		start := time.Now()
		time.Sleep(testTTL/3 + 50*time.Millisecond)
		if got, want := l.Remaining(), testTrust-time.Since(start); got != want {
			t.Errorf("remaining %v, want %v", got, want)
		}
		if n := f.readCount(&f.renews); n > 6 {
			t.Errorf("%d renewals in 50 ms", n)
		}
	})
}

// TestLossReportedByStore: a loss that the store reports ends the context at once, with the store's cause.
func TestLossReportedByStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.renewal = func(context.Context, driver.Grant) (driver.Renewal, bool) {
			return driver.Renewal{Err: fmt.Errorf("renew: %w", &driver.LossError{Cause: driver.LossBroken})}, true
		}
		var r recorder
		l := mustLock(t, newClient(t, f, &Options{OnEvent: r.addEvent}), "a", nil)
		start := time.Now()
		<-l.Context().Done()
		if got := time.Since(start); got != testTTL/3 {
			t.Errorf("ended after %v", got)
		}
		wantLoss(t, context.Cause(l.Context()), LossBroken)
		synctest.Wait()
		if n := len(r.eventsOf(EventLost)); n != 1 {
			t.Errorf("%d loss events", n)
		}
	})
}

// TestReleaseRequested: a holder learns of a request to release once, and keeps its lease.
func TestReleaseRequested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.renewal = func(ctx context.Context, g driver.Grant) (driver.Renewal, bool) {
			return driver.Renewal{Since: f.clock().Now(), GrantedTTL: g.GrantedTTL, ReleaseRequested: true}, true
		}
		var r recorder
		l := mustLock(t, newClient(t, f, &Options{OnEvent: r.addEvent}), "a", nil)
		time.Sleep(2 * testTTL)
		if n := len(r.eventsOf(EventReleaseRequested)); n != 1 || !l.Valid() {
			t.Errorf("%d events, valid %v", n, l.Valid())
		}
	})
}

// TestReleaseFromManyGoroutines: of many concurrent calls of Release, one releases, and all others return that the
// lease was released before.
func TestReleaseFromManyGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		var wg sync.WaitGroup
		errs := make([]error, 50)
		for i := range errs {
			wg.Go(func() { errs[i] = l.Release() })
		}
		wg.Wait()
		nils := 0
		for _, err := range errs {
			if err == nil {
				nils++
			} else {
				wantIs(t, err, ErrReleased)
			}
		}
		if nils != 1 || f.releases != 1 {
			t.Errorf("%d succeeded, %d releases", nils, f.releases)
		}
		wantIs(t, context.Cause(l.Context()), ErrReleased)
		wantIs(t, l.Err(), ErrReleased)
	})
}

// TestNoRenewalAfterRelease: no renewal is sent after Release was called, and the result of one in flight changes
// nothing.
func TestNoRenewalAfterRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		answer := make(chan struct{})
		f.renewal = func(ctx context.Context, g driver.Grant) (driver.Renewal, bool) {
			<-answer
			return driver.Renewal{Err: &driver.LossError{Cause: driver.LossTaken}}, true
		}
		var r recorder
		c := newClient(t, f, &Options{OnEvent: r.addEvent})
		if err := mustLock(t, c, "never renewed", nil).Release(); err != nil {
			t.Error(err)
		}
		time.Sleep(testTTL)
		l := mustLock(t, c, "a", nil)
		time.Sleep(testTTL / 3)
		synctest.Wait()
		if err := l.Release(); err != nil {
			t.Error(err)
		}
		close(answer)
		time.Sleep(2 * testTTL)
		if f.renews != 1 || len(r.eventsOf(EventLost)) != 0 {
			t.Errorf("%d renewals, events %v", f.renews, r.events)
		}
		wantIs(t, l.Err(), ErrReleased)
	})
}

// TestLossIsCertain: a loss while the store hangs is reported as a loss, not as an unknown outcome, and not as the end
// of a caller's context.
func TestLossIsCertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, nil)
		err := c.Do(t.Context(), "a", func(ctx context.Context, l *Lease) error {
			f.update(func() { f.down = true })
			<-ctx.Done()
			f.update(func() { f.down = false })
			return nil
		})
		wantLoss(t, err, LossUnreachable)
		for _, other := range []error{ErrUncertain, context.DeadlineExceeded, context.Canceled} {
			if errors.Is(err, other) {
				t.Errorf("%v is %v", err, other)
			}
		}
		if !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
			t.Errorf("%v does not contain the store's last error", err)
		}
	})
}

// TestReleaseAfterLoss: a loss does not release the claim, because the work may still run. Release then releases it,
// once, and returns the loss.
func TestReleaseAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, nil)
		l := mustLock(t, c, "a", nil)
		f.update(func() { f.down = true })
		<-l.Context().Done()
		f.update(func() { f.down = false })
		synctest.Wait()
		if n := f.readCount(&f.releases); n != 0 {
			t.Errorf("%d releases at the loss", n)
		}
		if !f.isHeld("a") {
			t.Error("the claim was removed before Release")
		}
		for range 3 {
			wantLoss(t, l.Release(), LossUnreachable)
		}
		synctest.Wait()
		if n := f.readCount(&f.releases); n != 1 || f.isHeld("a") {
			t.Errorf("%d releases after Release, held %v", n, f.isHeld("a"))
		}
	})
}

// TestReleaseAfterDeadline: Release reads the clock: a lease past its deadline is lost and not released, even if no
// timer has noticed it.
func TestReleaseAfterDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		synctest.Wait()
		f.suspend(time.Hour)
		wantLoss(t, l.Release(), LossExpired)
		wantIs(t, l.Release(), ErrLost)
		synctest.Wait()
		if f.isHeld("a") {
			t.Error("the claim still exists")
		}
	})
}

// TestReleaseFindsLoss: Release reports a loss if the claim had ended without the lease knowing it.
func TestReleaseFindsLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		var r recorder
		l := mustLock(t, newClient(t, f, &Options{OnEvent: r.addEvent}), "a", nil)
		f.update(func() { clear(f.held) })
		wantIs(t, l.Release(), ErrLost)
		wantIs(t, l.Release(), ErrLost)
		synctest.Wait()
		if n := len(r.eventsOf(EventLost)); n != 1 {
			t.Errorf("%d loss events", n)
		}
	})
}

// TestReleaseUnreachable: a Release that cannot reach the store takes a bounded time, returns an unknown outcome, and
// is completed in the background once the store answers.
func TestReleaseUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		f.update(func() { f.down = true })
		start := time.Now()
		err := l.Release()
		wantIs(t, err, ErrUncertain, context.DeadlineExceeded)
		if got := time.Since(start); got != 10*time.Second {
			t.Errorf("took %v", got)
		}
		f.update(func() { f.down = false })
		time.Sleep(11 * time.Second)
		if f.isHeld("a") {
			t.Error("the claim still exists")
		}
	})
}

// TestReleaseUnderEndedContext: a Release under an ended context ends the lease at once, and the claim is released in
// the background.
func TestReleaseUnderEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantIs(t, l.ReleaseContext(ctx), ErrUncertain, context.Canceled)
		wantIs(t, context.Cause(l.Context()), ErrReleased)
		synctest.Wait()
		if f.isHeld("a") {
			t.Error("the claim still exists")
		}
	})
}

// TestLeaseContext: the lease's context has the values of Lock's context, but does not end with it.
func TestLeaseContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		c := newClient(t, newFakeStore(), nil)
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "v"), time.Minute)
		l, err := c.Mutex("a", nil).Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if l.Context().Err() != nil || l.Context().Value(key{}) != "v" {
			t.Errorf("err %v, value %v", l.Context().Err(), l.Context().Value(key{}))
		}
		if _, ok := l.Context().Deadline(); ok {
			t.Error("the lease has the deadline of the wait")
		}
	})
}

package holdfast

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
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

// A lease ends at Since + TTL - margin to the tick, even while the store hangs and does not heed contexts.
func TestDeadlineWhileStoreHangs(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, testTTL, 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			c := newClient(t, f, nil)
			l := mustLock(t, c, "a", &LockOptions{TTL: ttl})
			start := time.Now()
			deaf := make(chan struct{})
			f.set(func() { f.deaf = deaf })
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

// Trust is counted from the start of the attempt, not from the reply.
func TestTrustCountsFromStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.delay = 5 * time.Second
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		if got, want := l.Remaining(), testTrust-5*time.Second; got != want {
			t.Errorf("remaining %v, want %v", got, want)
		}
	})
}

// A renewal counts from the start of its request, too.
func TestRenewalCountsFromStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
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

// A grant that arrives after its own end is not a lease: Lock tries again, TryLock says so, and the claim is released.
func TestGrantTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.delay = testTTL
		c := newClient(t, f, nil)
		_, err := c.Mutex("a", nil).TryLock(t.Context())
		wantIs(t, err, ErrUncertain)
		synctest.Wait()
		if f.holds("a") {
			t.Error("the late grant still stands")
		}
		time.AfterFunc(testTTL/2, func() { f.set(func() { f.delay = 0 }) })
		l := mustLock(t, c, "a", nil)
		if !l.Valid() || l.Remaining() < testTrust-time.Second {
			t.Errorf("remaining %v after a late first grant", l.Remaining())
		}
		if n := len(f.released); n != 2 {
			t.Errorf("%d claims released, want both late ones", n)
		}
	})
}

// A store that is cut off for less than a third of the TTL, at any time, loses nothing: neither if requests hang nor
// if they fail at once.
func TestCutBelowAThirdLosesNothing(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, testTTL} {
		for begin := time.Duration(0); begin < ttl; begin += ttl / 50 {
			for _, hang := range []bool{true, false} {
				synctest.Test(t, func(t *testing.T) {
					f := newFake()
					c := newClient(t, f, nil)
					l := mustLock(t, c, "a", &LockOptions{TTL: ttl})
					time.Sleep(begin)
					f.set(func() {
						f.down = hang
						if !hang {
							f.renewal = func(context.Context, driver.Grant) (driver.Renewal, bool) {
								return driver.Renewal{Err: errors.New("connection refused")}, true
							}
						}
					})
					time.Sleep(ttl/3 - time.Millisecond)
					f.set(func() { f.down, f.renewal = false, nil })
					time.Sleep(3 * ttl)
					if err := l.Err(); err != nil {
						t.Errorf("TTL %v, cut at %v, hanging %v: %v", ttl, begin, hang, err)
					}
				})
			}
		}
	}
}

// Failing renewals are reported with what is left, are retried in ever shorter steps but a bounded number of times, and
// end in a loss that carries the last error.
func TestRenewalFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, refused := newFake(), errors.New("connection refused")
		f.renewal = func(context.Context, driver.Grant) (driver.Renewal, bool) {
			return driver.Renewal{Err: refused}, true
		}
		var r recorder
		l := mustLock(t, newClient(t, f, &Options{OnEvent: r.hear}), "a", nil)
		<-l.Context().Done()
		synctest.Wait()
		wantLoss(t, context.Cause(l.Context()), LossUnreachable)
		wantIs(t, l.Err(), refused)
		failing := r.of(EventRenewalFailing)
		if n := len(failing); n < 5 || n > 60 {
			t.Errorf("%d attempts, want 5 to 60", n)
		}
		for i, e := range failing {
			if i > 0 && e.Remaining >= failing[i-1].Remaining || e.Remaining <= 0 || !errors.Is(e.Err, refused) {
				t.Errorf("event %d: %+v", i, e)
			}
		}
		if n := len(r.of(EventLost)); n != 1 {
			t.Errorf("%d losses reported", n)
		}
	})
}

// What a store has said is the cause of a loss, also where its last answers did not come in the little time that was
// left.
func TestRefusedRenewalIsTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
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

// A Renew that never answers for a grant counts as unknown when it returns.
func TestRenewWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.renewal = func(context.Context, driver.Grant) (driver.Renewal, bool) { return driver.Renewal{}, false }
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		time.Sleep(testTTL / 2)
		f.set(func() { f.renewal = nil })
		time.Sleep(testTTL)
		if err := l.Err(); err != nil {
			t.Error(err)
		}
	})
}

// When the machine sleeps past the deadline, Valid says so at once after waking and the context ends within half of the
// margin; a sleep that leaves time makes the renewal come soon after it.
func TestSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := newClient(t, f, nil)
		l, other := mustLock(t, c, "a", nil), mustLock(t, c, "b", nil)
		time.Sleep(time.Second)
		f.suspend(time.Hour)
		woken := time.Now()
		if l.Valid() {
			t.Error("valid after an hour of sleep")
		}
		<-other.Context().Done()
		if late := time.Since(woken); late > driver.Margin(testTTL)/2 {
			t.Errorf("ended %v after waking", late)
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

// When the machine was paused with all of its clocks, nothing tells until its wall clock is set right. Then all leases
// are renewed at once: the one that somebody else was granted meanwhile is lost within half of its margin, and the
// others go on.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := newClient(t, f, nil)
		taken, kept := mustLock(t, c, "a", nil), mustLock(t, c, "b", nil)
		time.Sleep(time.Second)
		f.set(func() {
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
			t.Errorf("the other one: %v remain after %d calls of Renew", got, renews)
		}
		f.set(func() { f.paused = 0 }) // a clock that is set back tells nothing
		time.Sleep(driver.Margin(testTTL))
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.renews != 1 {
			t.Errorf("%d calls of Renew", f.renews)
		}
	})
}

// A renewal that was under way when the machine was paused proves nothing: another one follows it.
func TestPauseDuringRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		asked, answer := make(chan bool, 1), make(chan driver.Renewal)
		f.renewal = func(context.Context, driver.Grant) (driver.Renewal, bool) {
			asked <- true
			return <-answer, true
		}
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		<-asked
		since := f.clock().Now()
		f.set(func() { f.paused = time.Hour })
		time.Sleep(driver.Margin(testTTL))
		answer <- driver.Renewal{Since: since, GrantedTTL: testTTL}
		<-asked
		if got := f.clock().Since(since); got > driver.Margin(testTTL)+minSleep {
			t.Errorf("asked again only after %v", got)
		}
		answer <- driver.Renewal{Err: &driver.LossError{Cause: driver.LossTaken}}
		<-l.Context().Done()
		wantLoss(t, context.Cause(l.Context()), LossTaken)
	})
}

// Leases from before and after a sleep each end by the hand that has moved more for them, in whichever order.
func TestSuspendBetweenLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
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
			t.Errorf("the later one ended after %v, want 9s", got)
		}
		<-before.Context().Done()
		if got, want := time.Since(start), testTrust-11*time.Second; got != want {
			t.Errorf("the earlier one ended after %v, want %v", got, want)
		}
	})
}

// A real hand that is set back, and forth again, ends no lease early that was not renewed in between.
func TestClockSetBackAndForth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
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

// Valid finds an end that the timer has not, and no renewal that is answered later brings the lease back.
func TestLateRenewalDoesNotResurrect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		answer := make(chan struct{})
		f.renewal = func(ctx context.Context, g driver.Grant) (driver.Renewal, bool) {
			<-answer
			return driver.Renewal{Since: f.clock().Now(), GrantedTTL: g.GrantedTTL}, true
		}
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		time.Sleep(testTTL / 2)
		f.suspend(testTTL)
		if l.Valid() {
			t.Error("valid past the deadline")
		}
		close(answer)
		synctest.Wait()
		if l.Valid() || l.Context().Err() == nil {
			t.Error("a late answer brought the lease back")
		}
	})
}

// The answer itself, coming after the deadline before anybody looked, finds the lease lost.
func TestAnswerAfterDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.renewal = func(ctx context.Context, g driver.Grant) (driver.Renewal, bool) {
			f.suspend(testTTL)
			return driver.Renewal{Since: f.clock().Now(), GrantedTTL: g.GrantedTTL}, true
		}
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		time.Sleep(testTTL / 3)
		synctest.Wait()
		if l.Context().Err() == nil || l.Valid() {
			t.Error("an answer after the deadline renewed the lease")
		}
	})
}

// An answer that would bring the deadline forward changes nothing, and does not make the client ask in a loop.
func TestRenewalNeverShortens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.renewal = func(ctx context.Context, g driver.Grant) (driver.Renewal, bool) {
			return driver.Renewal{Since: driver.Instant{}, GrantedTTL: time.Second}, true
		}
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		start := time.Now()
		time.Sleep(testTTL/3 + 50*time.Millisecond)
		if got, want := l.Remaining(), testTrust-time.Since(start); got != want {
			t.Errorf("remaining %v, want %v", got, want)
		}
		if n := f.count(&f.renews); n > 6 {
			t.Errorf("%d renewals in 50 ms", n)
		}
	})
}

// A loss that the store reports ends the context at once, with the store's reason as its cause.
func TestLossReportedByStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.renewal = func(context.Context, driver.Grant) (driver.Renewal, bool) {
			return driver.Renewal{Err: fmt.Errorf("renew: %w", &driver.LossError{Cause: driver.LossBroken})}, true
		}
		var r recorder
		l := mustLock(t, newClient(t, f, &Options{OnEvent: r.hear}), "a", nil)
		start := time.Now()
		<-l.Context().Done()
		if got := time.Since(start); got != testTTL/3 {
			t.Errorf("ended after %v", got)
		}
		wantLoss(t, context.Cause(l.Context()), LossBroken)
		synctest.Wait()
		if n := len(r.of(EventLost)); n != 1 {
			t.Errorf("%d loss events", n)
		}
	})
}

// A holder that is asked to give up is told once, and keeps its lease.
func TestAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.renewal = func(ctx context.Context, g driver.Grant) (driver.Renewal, bool) {
			return driver.Renewal{Since: f.clock().Now(), GrantedTTL: g.GrantedTTL, ReleaseRequested: true}, true
		}
		var r recorder
		l := mustLock(t, newClient(t, f, &Options{OnEvent: r.hear}), "a", nil)
		time.Sleep(2 * testTTL)
		if n := len(r.of(EventReleaseRequested)); n != 1 || !l.Valid() {
			t.Errorf("%d events, valid %v", n, l.Valid())
		}
	})
}

// Of any number of Unlocks one releases, and all others say that it was released before.
func TestUnlockFromManyGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
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

// After Unlock has begun no renewal is sent, and one under way changes nothing.
func TestNoRenewalAfterUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		answer := make(chan struct{})
		f.renewal = func(ctx context.Context, g driver.Grant) (driver.Renewal, bool) {
			<-answer
			return driver.Renewal{Err: &driver.LossError{Cause: driver.LossTaken}}, true
		}
		var r recorder
		c := newClient(t, f, &Options{OnEvent: r.hear})
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
		if f.renews != 1 || len(r.of(EventLost)) != 0 {
			t.Errorf("%d renewals, events %v", f.renews, r.events)
		}
		wantIs(t, l.Err(), ErrReleased)
	})
}

// A loss while the store hangs is one: not an outcome that is not known, and not the end of a context of the caller's.
func TestLossIsCertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := newClient(t, f, nil)
		err := c.Do(t.Context(), "a", func(ctx context.Context, l *Lease) error {
			f.set(func() { f.down = true })
			<-ctx.Done()
			f.set(func() { f.down = false })
			return nil
		})
		wantLoss(t, err, LossUnreachable)
		for _, other := range []error{ErrUncertain, context.DeadlineExceeded, context.Canceled} {
			if errors.Is(err, other) {
				t.Errorf("%v is %v", err, other)
			}
		}
		if !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
			t.Errorf("%v does not tell what the store said last", err)
		}
	})
}

// A loss does not release the claim, since the work may still run; Unlock then does, once, and says why it was lost.
func TestUnlockAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := newClient(t, f, nil)
		l := mustLock(t, c, "a", nil)
		f.set(func() { f.down = true })
		<-l.Context().Done()
		f.set(func() { f.down = false })
		synctest.Wait()
		if n := f.count(&f.releases); n != 0 {
			t.Errorf("%d releases at the loss", n)
		}
		if !f.holds("a") {
			t.Error("the claim is gone before Unlock")
		}
		for range 3 {
			wantLoss(t, l.Release(), LossUnreachable)
		}
		synctest.Wait()
		if n := f.count(&f.releases); n != 1 || f.holds("a") {
			t.Errorf("%d releases after Unlock, holds %v", n, f.holds("a"))
		}
	})
}

// Unlock reads the clock: a lease past its deadline is lost, and not released, even if no timer has noticed yet.
func TestUnlockPastDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		synctest.Wait()
		f.suspend(time.Hour)
		wantLoss(t, l.Release(), LossExpired)
		wantIs(t, l.Release(), ErrLost)
		synctest.Wait()
		if f.holds("a") {
			t.Error("the claim still stands")
		}
	})
}

// Unlock says so if the claim had ended without the lease knowing.
func TestUnlockFindsLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var r recorder
		l := mustLock(t, newClient(t, f, &Options{OnEvent: r.hear}), "a", nil)
		f.set(func() { clear(f.held) })
		wantIs(t, l.Release(), ErrLost)
		wantIs(t, l.Release(), ErrLost)
		synctest.Wait()
		if n := len(r.of(EventLost)); n != 1 {
			t.Errorf("%d loss events", n)
		}
	})
}

// An Unlock that cannot reach the store is bounded, says that the outcome is not known, and is finished in the
// background as soon as the store is back.
func TestUnlockUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		f.set(func() { f.down = true })
		start := time.Now()
		err := l.Release()
		wantIs(t, err, ErrUncertain, context.DeadlineExceeded)
		if got := time.Since(start); got != 10*time.Second {
			t.Errorf("took %v", got)
		}
		f.set(func() { f.down = false })
		time.Sleep(11 * time.Second)
		if f.holds("a") {
			t.Error("the claim still stands")
		}
	})
}

// An Unlock under an ended context still ends the lease at once, and the claim goes in the background.
func TestUnlockEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		l := mustLock(t, newClient(t, f, nil), "a", nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantIs(t, l.ReleaseContext(ctx), ErrUncertain, context.Canceled)
		wantIs(t, context.Cause(l.Context()), ErrReleased)
		synctest.Wait()
		if f.holds("a") {
			t.Error("the claim still stands")
		}
	})
}

// The lease's context has the values of Lock's context, and not its end.
func TestLeaseContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		c := newClient(t, newFake(), nil)
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
			t.Error("the waiting's deadline became the lease's")
		}
	})
}

package holdfast

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestLockCancelled: Lock returns at once when its context ends, even while the store hangs. The claim is released in
// the background, once the store answers again.
func TestLockCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.down = true
		c := newClient(t, f, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := c.Mutex("a", nil).Lock(ctx)
		wantIs(t, err, context.DeadlineExceeded)
		if errors.Is(err, ErrUncertain) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		synctest.Wait()
		id := "the claim had taken effect"
		f.update(func() { f.held["a"] = fakeHolder{claim: driver.Claim{ID: id}}; f.down = false })
		time.Sleep(testTTL)
		f.update(func() {
			if len(f.released) != 1 || f.releases > 10 {
				t.Errorf("released %v in %d calls", f.released, f.releases)
			}
		})
	})
}

// TestCleanUpIsBounded: a cleanup stops when the claim's TTL has passed, since the claim has expired then.
func TestCleanUpIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.down = true
		c := newClient(t, f, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel2 := time.AfterFunc(time.Second, cancel)
		defer cancel2.Stop()
		_, err := c.Mutex("a", nil).Lock(ctx)
		wantIs(t, err, context.Canceled)
		time.Sleep(testTTL + time.Second)
		n := f.readCount(&f.releases)
		time.Sleep(testTTL)
		if n == 0 || f.readCount(&f.releases) != n {
			t.Errorf("%d releases within a TTL, then %d", n, f.readCount(&f.releases))
		}
	})
}

// TestCleanUpAfterAnyError: after any error that is no refusal, the claim may exist, and is released.
func TestCleanUpAfterAnyError(t *testing.T) {
	for _, err := range []error{ErrCorrupt, errors.New("connection refused"), errors.Join(ErrUncertain, ErrQueueFull),
		errors.Join(ErrUncertain, &driver.HeldError{})} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeStore()
			f.refuse = err
			_, got := newClient(t, f, nil).Mutex("a", nil).TryLock(t.Context())
			wantIs(t, got, err)
			synctest.Wait()
			if f.releases != 1 {
				t.Errorf("%d releases after %v", f.releases, err)
			}
		})
	}
}

// TestNoCleanUpAfterRefusal: nothing is released after a refusal.
func TestNoCleanUpAfterRefusal(t *testing.T) {
	for _, refusal := range []error{
		ErrQueueFull, ErrMismatch, ErrInvalid, ErrUnsupported, ErrDenied, &driver.HeldError{},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeStore()
			f.refuse = refusal
			_, err := newClient(t, f, nil).Mutex("a", nil).TryLock(t.Context())
			wantIs(t, err, refusal)
			synctest.Wait()
			if f.releases != 0 {
				t.Errorf("%v: %d releases", refusal, f.releases)
			}
		})
	}
}

// TestTimeoutNamesHolder: the error of a wait that timed out names the holder, whether the caller waited in the process
// or in the store.
func TestTimeoutNamesHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c, other := newClient(t, f, &Options{Owner: "me"}), newClient(t, &sameStore{f}, &Options{Owner: "other"})
		mustLock(t, c, "a", nil)
		for _, waits := range []*Client{c, other} {
			ctx, cancel := context.WithTimeoutCause(t.Context(), 1500*time.Millisecond, errors.New("no time left"))
			_, err := waits.Mutex("a", nil).Lock(ctx)
			cancel()
			wantIs(t, err, context.DeadlineExceeded)
			var e *Error
			if !errors.As(err, &e) || len(e.Holders) != 1 || e.Holders[0].Owner != "me" {
				t.Errorf("holders of %#v", err)
			}
			for _, part := range []string{`lock "a" on fake: `, "held by me", "no time left"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not contain %q", err, part)
				}
			}
		}
	})
}

// TestTimeoutOfSilentStore: the error of a wait that timed out tells a store that does not answer from a lock that is
// held.
func TestTimeoutOfSilentStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.down = true
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		_, err := newClient(t, f, nil).Mutex("a", nil).Lock(ctx)
		wantIs(t, err, context.DeadlineExceeded)
		var e *Error
		if !errors.As(err, &e) || e.Silent != 1500*time.Millisecond ||
			!strings.Contains(err.Error(), "the store has not answered for 1.5s") {
			t.Errorf("%#v", err)
		}
	})
}

// refusingStore refuses all claims for now, until the caller gives up.
type refusingStore struct{ *fakeStore }

func (s refusingStore) Acquire(ctx context.Context, _ driver.Claim) (driver.Grant, error) {
	<-ctx.Done()
	return driver.Grant{}, &driver.SilentError{For: time.Minute, Reason: errors.New("no memory is left"), Err: ctx.Err()}
}

// TestTimeoutOfRefusingStore: the error of a wait that timed out says what the store has answered.
func TestTimeoutOfRefusingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := newClient(t, refusingStore{newFakeStore()}, nil).Mutex("a", nil).Lock(ctx)
		wantIs(t, err, context.DeadlineExceeded)
		if !strings.Contains(err.Error(),
			"context deadline exceeded; the last request: no memory is left; no request to the store has succeeded for 1m0s") {
			t.Error(err)
		}
		if silent, ok := errors.AsType[*driver.SilentError](err); !ok || silent.Reason == nil {
			t.Errorf("no reason is found in %v", err)
		}
	})
}

// TestTimeoutAfterStoreFellSilent: if the store has answered during the wait, the error says who held the lock then,
// and how long the store has been silent, unless that is no longer than a request may take. The error of a release
// says it, too.
func TestTimeoutAfterStoreFellSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c, other := newClient(t, f, &Options{Owner: "me"}), newClient(t, &sameStore{f}, nil)
		l := mustLock(t, c, "a", nil)
		for _, silent := range []time.Duration{4800 * time.Millisecond, 800 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(t.Context(), 6500*time.Millisecond) // the store is asked once a second
			time.AfterFunc(6500*time.Millisecond-silent, func() { f.update(func() { f.down = true }) })
			_, err := other.Mutex("a", nil).Lock(ctx)
			cancel()
			f.update(func() { f.down = false })
			var e *Error
			if !errors.As(err, &e) || len(e.Holders) != 1 || !strings.Contains(err.Error(), "held by me") {
				t.Errorf("%#v", err)
			}
			if says := strings.Contains(err.Error(), "the store has not answered for 4.5s"); says != (silent > time.Second) ||
				says != (e.Silent > 0) {
				t.Errorf("after %v of silence: %v", silent, err)
			}
		}
		f.update(func() { f.down = true })
		err := l.Release()
		wantIs(t, err, ErrUncertain)
		if !strings.HasSuffix(err.Error(), "; the store has not answered for 10s") {
			t.Error(err)
		}
		f.update(func() { f.down = false })
	})
}

// sameStore is another client of the same store.
type sameStore struct{ *fakeStore }

func (s *sameStore) Close() error { return nil }

// TestQueueOfThousands: thousands of callers of one lock are served in the order of their arrival, one at a time, with
// two calls to the store per handover. Callers that are canceled return at once, and delay no other.
func TestQueueOfThousands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 5000
		f := newFakeStore()
		c := newClient(t, f, nil)
		first := mustLock(t, c, "a", nil)
		var holding, granted, canceled, last atomic.Int64
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if i%5 == 0 { // a fifth is canceled, at all places of the queue
					time.AfterFunc(rand.N(n*time.Millisecond), cancel)
				}
				l, err := c.Mutex("a", nil).Lock(ctx)
				if err != nil {
					wantIs(t, err, context.Canceled)
					canceled.Add(1)
					return
				}
				if holding.Add(1) != 1 {
					t.Error("two holders")
				}
				if int64(i) < last.Swap(int64(i)) {
					t.Errorf("caller %d was overtaken", i)
				}
				time.Sleep(time.Millisecond)
				holding.Add(-1)
				granted.Add(1)
				if err := l.Release(); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait() // so that they are queued in order
		}
		if f.acquires != 1 {
			t.Errorf("%d Acquires while the lock is held in the process", f.acquires)
		}
		first.Release()
		wg.Wait()
		t.Logf("%d granted, %d canceled, %d acquires, %d releases", granted.Load(), canceled.Load(), f.acquires,
			f.releases)
		if granted.Load()+canceled.Load() != n || canceled.Load() < n/20 {
			t.Error("some callers have not returned")
		}
		if most := int(granted.Load()) + 10; f.acquires > most || f.releases > most {
			t.Errorf("%d acquires and %d releases for %d grants", f.acquires, f.releases, granted.Load())
		}
		if len(c.queue.turns)+len(c.queue.byName) != 0 {
			t.Error("a queue was not removed")
		}
	})
}

// TestQueueContinuesAfterLoss: when the first caller's lease is lost, the next one claims the lock without waiting for
// a Release.
func TestQueueContinuesAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, nil)
		lost := mustLock(t, c, "a", nil)
		f.update(func() {
			f.renewal = func(context.Context, driver.Grant) (driver.Renewal, bool) {
				return driver.Renewal{Err: errors.New("down")}, true
			}
		})
		l := mustLock(t, c, "a", nil)
		f.update(func() { f.renewal = nil })
		if lost.Valid() || !l.Valid() {
			t.Error("the wrong lease is valid")
		}
		wantIs(t, lost.Release(), ErrLost)
		synctest.Wait()
		time.Sleep(testTTL)
		if !l.Valid() || !f.isHeld("a") {
			t.Error("the cleanup of the lost lease has removed the next claim")
		}
	})
}

// TestTryLock: TryLock overtakes no caller that waits in the process, names the holder, and acquires a free lock.
func TestTryLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, &Options{Owner: "me"})
		m := c.Mutex("a", nil)
		l, err := m.TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.TryLock(t.Context())
		wantIs(t, err, ErrHeld)
		if !strings.Contains(err.Error(), "held by me") {
			t.Errorf("%q does not name the holder", err)
		}
		f.update(func() { f.refuse = &driver.HeldError{} }) // the waiter waits in the store
		got := make(chan *Lease)
		go func() { l, _ := m.Lock(context.Background()); got <- l }()
		synctest.Wait()
		l.Release()
		synctest.Wait()
		acquires := f.readCount(&f.acquires)
		_, err = m.TryLock(t.Context())
		wantIs(t, err, ErrHeld)
		if f.readCount(&f.acquires) != acquires {
			t.Error("TryLock overtook a waiter")
		}
		f.update(func() { f.refuse = nil })
		(<-got).Release()
		l, err = m.TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		l.Release()
	})
}

// TestQueueSharesRefusals: a final refusal of the store is returned to all waiting callers after one call. A timeout of
// the store is returned to those that have waited long enough.
func TestQueueSharesRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, nil)
		errs := make(chan error, 200)
		wait := func(n int) {
			for range n {
				go func() { _, err := c.Mutex("a", nil).Lock(t.Context()); errs <- err }()
			}
			synctest.Wait()
		}
		expect := func(n int, target error) {
			synctest.Wait()
			if len(errs) != n {
				t.Errorf("%d callers got the refusal, want %d", len(errs), n)
			}
			for range len(errs) {
				wantIs(t, <-errs, target)
			}
		}
		first := mustLock(t, c, "a", nil)
		wait(100)
		f.update(func() { f.refuse = ErrDenied })
		first.Release()
		expect(100, ErrDenied)
		if f.acquires != 2 {
			t.Errorf("%d acquires", f.acquires)
		}

		unreachable := errors.New("no route to host")
		f.update(func() { f.refuse = nil })
		first = mustLock(t, c, "a", nil)
		wait(50)
		time.Sleep(10 * time.Second)
		wait(50) // these have just come
		f.update(func() { f.refuse = unreachable })
		first.ReleaseContext(t.Context())
		synctest.Wait()
		if f.acquires != 3+1+50 {
			t.Errorf("%d acquires", f.acquires)
		}
		expect(100, unreachable)
	})
}

// TestQueueAfterBreak: if an operator breaks a claim while it is being made, only the wait of its own caller ends.
func TestQueueAfterBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, &breakingStore{fakeStore: f, nth: 2}, nil)
		first := mustLock(t, c, "a", nil)
		var ends [2]chan error // each waiter has its own: the second may be done before the first has said what it got
		for i := range ends {
			ends[i] = make(chan error, 1)
			go func() {
				l, err := c.Mutex("a", nil).Lock(t.Context())
				if err == nil {
					err = l.Release()
				}
				ends[i] <- err
			}()
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		if err := first.Release(); err != nil {
			t.Error(err)
		}
		wantLoss(t, <-ends[0], LossBroken)
		wantIs(t, <-ends[1], nil)
	})
}

// breakingStore is a store whose nth claim is broken while it is made.
type breakingStore struct {
	*fakeStore
	nth int
}

func (s *breakingStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if s.readCount(&s.acquires) == s.nth-1 {
		s.update(func() { s.acquires++ })
		return driver.Grant{}, &driver.LossError{Cause: driver.LossBroken}
	}
	return s.fakeStore.Acquire(ctx, c)
}

// TestClose: Close ends leases and waiting calls with ErrClosed, releases the locks, and leaves no goroutine (the
// bubble checks this).
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		var r recorder
		c := newClient(t, f, &Options{OnEvent: r.addEvent})
		var leases []*Lease
		for i := range 100 {
			leases = append(leases, mustLock(t, c, fmt.Sprint(i), nil))
		}
		done := leases[0]
		done.Release()
		errs := make(chan error, 20)
		f.update(func() { f.held["x"] = fakeHolder{ends: time.Hour} })
		for _, name := range []string{"1", "2", "x", "x"} {
			go func() { _, err := c.Mutex(name, nil).Lock(context.Background()); errs <- err }()
			go func() { _, err := c.Mutex(name, &LockOptions{Fair: true}).Lock(context.Background()); errs <- err }()
		}
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		for range 8 {
			wantIs(t, <-errs, ErrClosed)
		}
		for _, l := range leases[1:] {
			wantIs(t, context.Cause(l.Context()), ErrClosed)
			wantIs(t, l.Release(), ErrClosed)
			wantIs(t, l.Err(), ErrClosed)
			if l.Valid() || f.isHeld(l.Name()) {
				t.Error("still held after Close")
			}
		}
		wantIs(t, done.Release(), ErrReleased)
		_, err := c.Mutex("new", nil).TryLock(t.Context())
		wantIs(t, err, ErrClosed)
		_, err = c.Inspect(t.Context(), "new")
		wantIs(t, err, ErrClosed)
		if !f.closed || c.Close() != nil {
			t.Error("the store was not closed, or not once")
		}
		if n := len(r.eventsOf(EventReleased)); n != 100 {
			t.Errorf("%d release events when Close returned", n)
		}
	})
}

// TestCloseIsBounded: Close waits for a cleanup in flight for a limited time, and counts the claims that it could not
// release.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, nil)
		l := mustLock(t, c, "a", nil)
		mustLock(t, c, "c", nil)
		f.update(func() { f.down = true })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c.Mutex("b", nil).Lock(ctx)
		start := time.Now()
		err := c.Close()
		if wantIs(t, err, ErrUncertain); !strings.Contains(err.Error(), ": 2 claims may exist") {
			t.Error(err)
		}
		if got := time.Since(start); got > 11*time.Second {
			t.Errorf("took %v", got)
		}
		wantIs(t, l.Err(), ErrClosed)
	})
}

// TestCloseWaitsForCleanUp: Close waits until the claim of a canceled Lock is released.
func TestCloseWaitsForCleanUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.down = true
		c := newClient(t, f, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c.Mutex("b", nil).Lock(ctx)
		time.AfterFunc(2*time.Second, func() { f.update(func() { f.down = false }) })
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if len(f.released) != 0 && f.closed {
			return
		}
		t.Errorf("released %v, store closed %v", f.released, f.closed)
	})
}

// TestCleanUpWhileDenied: the claim of a canceled Lock is released also if the store has denied that at first.
func TestCleanUpWhileDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.down = true
		c := newClient(t, f, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c.Mutex("a", nil).Lock(ctx)
		f.update(func() { f.down, f.refuseRelease = false, ErrDenied })
		time.Sleep(testTTL / 3)
		f.update(func() { f.refuseRelease = nil })
		time.Sleep(testTTL / 3)
		if denied := f.readCount(&f.releases) - 1; denied < 1 || len(f.released) != 1 {
			t.Errorf("after %d denied releases, the claims %q are released", denied, f.released)
		}
	})
}

// partlyHanging is a store in which the locks whose names begin with x do not answer a release.
type partlyHanging struct{ *fakeStore }

func (s partlyHanging) Release(ctx context.Context, c driver.Claim, ref string) error {
	if strings.HasPrefix(c.Name, "x") {
		<-ctx.Done()
		return errors.Join(driver.ErrUncertain, ctx.Err())
	}
	return s.fakeStore.Release(ctx, c, ref)
}

// TestCloseOfPartlyHangingStore: locks in a part of the store that hangs do not keep Close from releasing the others,
// however many they are.
func TestCloseOfPartlyHangingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, partlyHanging{f}, nil)
		const locks = 5 * maxReleases
		for _, part := range []string{"x", "y"} {
			for i := range locks {
				mustLock(t, c, fmt.Sprint(part, i), nil)
			}
		}
		start := time.Now()
		if err := c.Close(); !strings.Contains(fmt.Sprint(err), fmt.Sprint(": ", locks, " claims may exist")) {
			t.Errorf("Close: %v", err)
		}
		if took := time.Since(start); took > closeTimeout+time.Second || len(f.released) != locks {
			t.Errorf("Close took %v and released %d locks, want %d", took, len(f.released), locks)
		}
	})
}

// TestCloseTwice: a second CloseContext waits for the first one until its own context ends.
func TestCloseTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, nil)
		mustLock(t, c, "a", nil)
		f.update(func() { f.down = true })
		go c.Close()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		wantIs(t, c.CloseContext(ctx), ErrUncertain, context.DeadlineExceeded)
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v", took)
		}
		if err := errors.Join(c.Close(), c.CloseContext(ctx)); err != nil || !f.closed {
			t.Errorf("%v, closed: %v", err, f.closed)
		}
	})
}

// TestWatchByPolling: on a store without notifications, Watch polls, and yields only changes.
func TestWatchByPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, nil)
		l := mustLock(t, c, "a", nil)
		time.AfterFunc(10*time.Second, func() { _ = l.Release() })
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var seen []int
		for lock, err := range c.Watch(ctx, "a") {
			if err != nil {
				wantIs(t, err, context.DeadlineExceeded)
				break
			}
			seen = append(seen, len(lock.Holders))
		}
		if !slices.Equal(seen, []int{1, 0}) || f.inspects < 20 || f.inspects > 41 {
			t.Errorf("yielded %v holders, with %d calls of Inspect", seen, f.inspects)
		}
	})
}

// TestCloseEndsReads: Close does not wait for reads of a store that does not answer, including the read of a TryLock
// that looks for the holder.
func TestCloseEndsReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, &hangingReads{newFakeStore()}, nil)
		mustLock(t, c, "a", nil)
		errs := make(chan error, 1)
		go func() { _, err := c.Mutex("a", nil).TryLock(context.Background()); errs <- err }()
		reads := make(chan error, 3)
		go func() { _, err := c.Inspect(t.Context(), "a"); reads <- err }()
		go func() {
			for _, err := range c.List(context.Background(), "a") {
				reads <- err
			}
		}()
		go func() {
			for _, err := range c.Watch(context.Background(), "a") {
				reads <- err
			}
		}()
		synctest.Wait()
		start := time.Now()
		if err := c.Close(); err != nil || time.Since(start) != 0 {
			t.Errorf("%v, after %v", err, time.Since(start))
		}
		wantIs(t, <-errs, ErrHeld)
		for range cap(reads) {
			wantIs(t, <-reads, ErrClosed)
		}
	})
}

// hangingReads is a store whose reads hang.
type hangingReads struct{ *fakeStore }

func (s *hangingReads) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	<-ctx.Done()
	return driver.Lock{}, ctx.Err()
}

func (s *hangingReads) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) { yield(s.Inspect(ctx, prefix)) }
}

// TestSlowOnEvent: a slow OnEvent delays no renewal and no deadline. The events that it misses are counted.
func TestSlowOnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		var received, dropped int
		slow := func(e Event) {
			received, dropped = received+1, dropped+e.Dropped
			if received == 1 {
				time.Sleep(5 * testTTL)
			}
		}
		c := newClient(t, f, &Options{OnEvent: slow})
		l := mustLock(t, c, "a", nil)
		const n = maxEvents
		for range n {
			mustLock(t, c, "b", nil).Release()
		}
		time.Sleep(2 * testTTL)
		if !l.Valid() {
			t.Error("the lease was lost: renewals waited for OnEvent")
		}
		f.update(func() { f.down = true })
		time.Sleep(testTTL)
		if l.Context().Err() == nil {
			t.Error("the deadline waited for OnEvent")
		}
		f.update(func() { f.down = false })
		time.Sleep(3 * testTTL)
		mustLock(t, c, "b", nil).Release()
		synctest.Wait()
		if all := received + dropped; dropped == 0 || all < 1+2*n+2 {
			t.Errorf("%d events received, %d dropped, of at least %d", received, dropped, 1+2*n+2)
		}
	})
}

// TestEventsOfHandover: the events of a lock's next holder always follow those of the previous one. At most as many
// events are kept as the queue of a receiver allows.
func TestEventsOfHandover(t *testing.T) {
	const workers, turns = 4, maxEvents / 3 / 4
	var r recorder
	c := newClient(t, newFakeStore(), &Options{OnEvent: r.addEvent})
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range turns {
				l, err := c.Mutex("a", nil).Lock(t.Context())
				if err == nil {
					err = l.Release()
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if len(r.events) != 3*workers*turns {
		t.Errorf("%d events of %d turns", len(r.events), workers*turns)
	}
	turnEvents := slices.DeleteFunc(r.events, func(e Event) bool { return e.Kind == EventAttempt })
	for i, e := range turnEvents {
		if want := []EventKind{EventAcquired, EventReleased}[i%2]; e.Kind != want || e.Token != int64(i/2+1) {
			t.Fatalf("event %d: %q of token %d", i, e.Kind, e.Token)
		}
	}
}

// TestLogger: losses are logged as errors, and what is usual is not logged unless the logger asks for it.
func TestLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		f := newFakeStore()
		c := newClient(t, f, &Options{Logger: slog.New(slog.NewTextHandler(&out, nil))})
		l := mustLock(t, c, "a", nil)
		f.update(func() { f.down = true })
		<-l.Context().Done()
		synctest.Wait()
		text := out.String()
		for _, part := range []string{"level=WARN", "event=renewal_failing", "remaining=", "level=ERROR",
			"event=lock_lost", "lock=a"} {
			if !strings.Contains(text, part) {
				t.Errorf("no %q in %s", part, text)
			}
		}
		if strings.Contains(text, "level=DEBUG") {
			t.Errorf("a line for debugging is in %s", text)
		}
	})
}

// TestEventWaitTime: the event of a grant has the time that its caller waited, in the process or in the store.
func TestEventWaitTime(t *testing.T) {
	for _, fair := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var r recorder
			c, o := newClient(t, newFakeStore(), &Options{OnEvent: r.addEvent}), &LockOptions{Fair: fair}
			first := mustLock(t, c, "a", o)
			time.AfterFunc(3*time.Second, func() { first.Release() })
			mustLock(t, c, "a", o)
			waitForEvents()
			if got := r.eventsOf(EventAcquired); len(got) != 2 || got[0].Waited != 0 || got[1].Waited != 3*time.Second {
				t.Errorf("fair %v: %v", fair, got)
			}
		})
	}
}

// TestDo: the context of Do's function ends with the lease. A loss is returned as an error even if the function
// returned nil. Both the function's error and the loss can be found in the result.
func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, nil)
		own := errors.New("own")
		if err := c.Do(t.Context(), "a", func(ctx context.Context, l *Lease) error { return nil }); err != nil {
			t.Error(err)
		}
		wantIs(t, c.Do(t.Context(), "a", func(ctx context.Context, l *Lease) error { return own }), own)
		if err := c.Do(t.Context(), "a", func(ctx context.Context, l *Lease) error { return l.Release() }); err != nil {
			t.Error(err)
		}
		for _, result := range []error{nil, own} {
			err := c.Do(t.Context(), "a", func(ctx context.Context, l *Lease) error {
				f.update(func() { f.down = true })
				<-ctx.Done()
				f.update(func() { f.down = false })
				wantIs(t, context.Cause(ctx), ErrLost)
				return result
			})
			wantIs(t, err, ErrLost)
			if result != nil {
				wantIs(t, err, result)
			}
		}
		err := c.Do(t.Context(), "a", func(ctx context.Context, l *Lease) error {
			f.update(func() { delete(f.held, "a") })
			_ = l.Release()
			wantIs(t, l.Err(), ErrLost)
			return nil
		})
		wantIs(t, err, ErrLost)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = c.Do(ctx, "a", func(ctx context.Context, l *Lease) error { <-ctx.Done(); return ctx.Err() })
		wantIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		if f.isHeld("a") {
			t.Error("still held")
		}
	})
}

// TestDoPanics: a panic in Do's function is not recovered, and the lock is released when the function has ended.
func TestDoPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, nil)
		defer func() {
			if recover() != "boom" || f.isHeld("a") {
				t.Errorf("still held: %v", f.isHeld("a"))
			}
		}()
		c.Do(t.Context(), "a", func(ctx context.Context, l *Lease) error {
			defer func() {
				if !l.Valid() {
					t.Error("released before f had ended")
				}
			}()
			panic("boom")
		})
	})
}

// TestDefaultOwner: a client without an owner gets a valid default, whatever the program's name is.
func TestDefaultOwner(t *testing.T) {
	defer func(name string) { os.Args[0] = name }(os.Args[0])
	for i := range 3 {
		os.Args[0] = strings.Repeat("鍵", 84) + "\xff" + strings.Repeat("x", i)
		if _, err := New(newFakeStore(), nil); err != nil {
			t.Error(err)
		}
	}
}

// TestInvalidArguments: every argument is checked, and the error names it.
func TestInvalidArguments(t *testing.T) {
	c := newClient(t, newFakeStore(), nil)
	lock := func(name string, o *LockOptions) error {
		_, err := c.Mutex(name, o).TryLock(t.Context())
		return err
	}
	acquire := func(limit, weight int64) error {
		_, err := c.Semaphore("s", limit, nil).TryAcquire(t.Context(), weight)
		return err
	}
	open := func(o Options) error {
		_, err := New(newFakeStore(), &o)
		return err
	}
	all := func(items ...Lockable) error {
		_, err := LockAll(t.Context(), items...)
		return err
	}
	_, noStore := New(nil, nil)
	long := strings.Repeat("x", 1025)
	for _, tt := range []struct {
		err  error
		want string
	}{
		{lock("", nil), "empty"},
		{lock(long[:513], nil), "512 bytes"},
		{lock("\xff", nil), "UTF-8"},
		{lock("a\x00b", nil), "NUL"},
		{lock("a", &LockOptions{TTL: -1}), "1s to 24h0m0s"},
		{lock("a", &LockOptions{TTL: 999 * time.Millisecond}), "1s to 24h0m0s"},
		{lock("a", &LockOptions{TTL: 25 * time.Hour}), "1s to 24h0m0s"},
		{lock("a", &LockOptions{TTL: time.Second + 1}), "milliseconds"},
		{lock("a", &LockOptions{Meta: long}), "1024 bytes"},
		{lock("a", &LockOptions{Meta: "\xff"}), "UTF-8"},
		{acquire(0, 1), "limit"},
		{acquire(1, 0), "weight"},
		{acquire(3, 4), "never be granted"},
		{open(Options{TTL: time.Millisecond}), "1s to 24h0m0s"},
		{open(Options{Owner: long}), "256 bytes"},
		{open(Options{Meta: long}), "1024 bytes"},
		{noStore, "store is nil"},
		{all(nil), "item 1 is nil"},
		{all(c.Mutex("a", nil), (*Mutex)(nil)), "item 2 is nil"},
		{all((*RWMutex)(nil)), "item 1 is nil"},
		{c.Break(t.Context(), "a", "r", 7, ""), "break mode"},
	} {
		if !errors.Is(tt.err, ErrInvalid) || !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("%v: want ErrInvalid with %q", tt.err, tt.want)
		}
	}
	if err := lock(long[:512], &LockOptions{TTL: time.Second, Meta: long[:1024]}); err != nil {
		t.Errorf("at the limits: %v", err)
	}
}

// TestClaimID: a claim id is 16 random bytes as 26 lower-case base32 characters.
func TestClaimID(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := newID()
		if len(id) != 26 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz234567") != "" || seen[id] {
			t.Fatalf("bad id %q", id)
		}
		seen[id] = true
	}
}

// TestManyLeases: a held lease costs no goroutine and a bounded number of bytes, and thousands of leases are renewed in
// one call.
func TestManyLeases(t *testing.T) {
	const n = 20_000
	var before, after runtime.MemStats
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("lock-", i)
	}
	synctest.Test(t, func(t *testing.T) {
		f := &forgetfulStore{fakeStore: newFakeStore()}
		c := newClient(t, f, nil)
		leases := make([]*Lease, n)
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range leases {
			l, err := c.Mutex(names[i], nil).TryLock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			leases[i] = l
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		each := (after.HeapAlloc - before.HeapAlloc) / n
		goroutines := runtime.NumGoroutine()
		time.Sleep(5 * testTTL)
		calls := f.readCount(&f.renews)
		t.Logf("%d bytes per lease, %d goroutines, %d Renew calls in 5 TTLs", each, goroutines, calls)
		if each > 1024 {
			t.Errorf("%d bytes per lease, want at most 1024", each)
		}
		if goroutines > 20 {
			t.Errorf("%d goroutines while holding", goroutines)
		}
		if calls > 15*(n/maxBatch+2) {
			t.Errorf("%d Renew calls", calls)
		}
		for _, l := range leases {
			if !l.Valid() {
				t.Fatal("a lease was lost")
			}
			if err := l.Release(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(idleDelay)
		synctest.Wait()
		if c.renewer.running {
			t.Error("the client's timer still runs although it holds nothing")
		}
	})
}

// forgetfulStore is a store without state: it grants and renews every claim.
type forgetfulStore struct{ *fakeStore }

func (f *forgetfulStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	return driver.Grant{Claim: c, Token: 1, Since: f.clock().Now(), GrantedTTL: c.TTL, Ref: c.ID}, nil
}

func (f *forgetfulStore) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	f.update(func() { f.renews++ })
	for i, g := range grants {
		done(i, driver.Renewal{Since: f.clock().Now(), GrantedTTL: g.GrantedTTL})
	}
}

func (f *forgetfulStore) Release(context.Context, driver.Claim, string) error { return nil }

// TestRetriesAreBatched: leases whose renewals have failed one after the other are tried again together.
func TestRetriesAreBatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		f := &slowlyFailingStore{fakeStore: newFakeStore()}
		c := newClient(t, f, nil)
		for i := range n {
			mustLock(t, c, fmt.Sprint(i), nil)
		}
		time.Sleep(testTTL/3 + n*failsEach) // all have failed once
		before := f.readCount(&f.renews)
		time.Sleep(testTTL / 6)
		if calls := f.readCount(&f.renews) - before; calls > n/50 {
			t.Errorf("%d Renew calls for %d leases", calls, n)
		}
	})
}

// failsEach is how much later than the last one a slowlyFailingStore fails to renew a grant.
const failsEach = time.Millisecond / 2

// slowlyFailingStore fails to renew grants, one after the other.
type slowlyFailingStore struct{ *fakeStore }

func (f *slowlyFailingStore) Renew(_ context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	f.update(func() { f.renews++ })
	for i := range grants {
		time.Sleep(failsEach)
		done(i, driver.Renewal{Err: errors.New("too many requests")})
	}
}

// TestRenewalsAreBatched: leases that were acquired one after the other are renewed together.
func TestRenewalsAreBatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, nil)
		for i := range 3000 { // for 30 s
			mustLock(t, c, fmt.Sprint(i), nil)
			time.Sleep(10 * time.Millisecond)
		}
		n := f.readCount(&f.renews)
		time.Sleep(testTTL)
		if n = f.readCount(&f.renews) - n; n > 3*40 {
			t.Errorf("%d Renew calls for 3000 leases in a TTL", n)
		}
	})
}

// TestHangingRenewalsDelayNoOthers: renewals that hang do not prevent the renewals of other leases, whatever their TTLs
// are.
func TestHangingRenewalsDelayNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.renewal = func(ctx context.Context, g driver.Grant) (driver.Renewal, bool) {
			if g.Name[0] == 'h' {
				<-ctx.Done()
				return driver.Renewal{Err: ctx.Err()}, true
			}
			return driver.Renewal{Since: f.clock().Now(), GrantedTTL: g.GrantedTTL}, true
		}
		c := newClient(t, f, nil)
		good, short := mustLock(t, c, "good", &LockOptions{TTL: 60 * time.Second}), mustLock(t, c, "short",
			&LockOptions{TTL: 2 * time.Second})
		for i := range 100 {
			mustLock(t, c, fmt.Sprint("h", i), &LockOptions{TTL: testTTL + time.Duration(i)*time.Second})
			mustLock(t, c, fmt.Sprint("h long", i), &LockOptions{TTL: time.Hour + time.Duration(i)*time.Second})
			time.Sleep(300 * time.Millisecond)
		}
		time.Sleep(25 * time.Minute) // the long ones are due after 20
		if err := errors.Join(good.Err(), short.Err()); err != nil {
			t.Error(err)
		}
	})
}

// TestAttemptsHaveOwnLimits: a lease that expires soon does not shorten the attempt of another lease that is renewed
// with it.
func TestAttemptsHaveOwnLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.renewal = func(ctx context.Context, g driver.Grant) (driver.Renewal, bool) {
			if sleepContext(ctx, 700*time.Millisecond); ctx.Err() != nil {
				return driver.Renewal{Err: ctx.Err()}, true
			}
			return driver.Renewal{Since: f.clock().Now(), GrantedTTL: g.GrantedTTL}, true
		}
		var r recorder
		c := newClient(t, f, &Options{OnEvent: r.addEvent})
		mustLock(t, c, "long", &LockOptions{TTL: 60 * time.Second})
		time.Sleep(19400 * time.Millisecond)
		mustLock(t, c, "short", &LockOptions{TTL: 1800 * time.Millisecond})
		time.Sleep(5 * time.Second)
		failing := r.eventsOf(EventRenewalFailing)
		for _, e := range failing {
			if e.Lock == "long" {
				t.Errorf("the attempt of the long lease failed: %v", e.Err)
			}
		}
		if len(failing) == 0 {
			t.Error("the attempt of the short lease did not fail: the test proves nothing")
		}
	})
}

// TestTurnOfCancelledWaiter: a waiter whose context ends just as it gets its turn passes the turn on.
func TestTurnOfCancelledWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q queue
		q.tryTurn("a")
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- q.waitForTurn(ctx, t.Context(), "a", testTTL) }()
		synctest.Wait()
		go func() { second <- q.waitForTurn(t.Context(), t.Context(), "a", testTTL) }()
		synctest.Wait()
		q.mu.Lock()
		cancel()
		for range 1000 {
			runtime.Gosched() // lets the waiter wake up and wait for mu
		}
		q.passTurnLocked("a")
		q.mu.Unlock()
		wantIs(t, <-first, context.Canceled)
		if err := <-second; err != nil {
			t.Error(err)
		}
		q.passTurn("a")
		if len(q.turns)+len(q.byName) != 0 {
			t.Error("the queue was not removed")
		}
	})
}

// TestEndWatcher: while a client holds anything, one call at a time receives the endings that the store reports.
func TestEndWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &endingStore{fakeStore: newFakeStore(), endings: make(chan driver.Ending, 1)}
		var r recorder
		c := newClient(t, f, &Options{OnEvent: r.addEvent})
		a, b := mustLock(t, c, "a", nil), mustLock(t, c, "b", nil)
		synctest.Wait()
		if f.watchers.Load() != 1 {
			t.Errorf("%d watchers", f.watchers.Load())
		}
		f.endings <- driver.Ending{Name: "b", ID: b.ID(), ReleaseRequested: true}
		synctest.Wait()
		f.endings <- driver.Ending{Name: "a", ID: a.ID(), Err: &driver.LossError{Cause: driver.LossSessionExpired}}
		<-a.Context().Done()
		wantLoss(t, context.Cause(a.Context()), LossSessionExpired)
		synctest.Wait()
		if !b.Valid() || len(r.eventsOf(EventReleaseRequested)) != 1 {
			t.Errorf("b valid %v, events %v", b.Valid(), r.events)
		}
		for range 10 {
			b.Release()
			b = mustLock(t, c, "b", nil)
			synctest.Wait()
			if f.watchers.Load() != 1 {
				t.Errorf("%d watchers", f.watchers.Load())
			}
		}
		b.Release()
		synctest.Wait()
		if f.watchers.Load() != 0 {
			t.Error("NextEnding is still called although nothing is held")
		}
	})
}

// TestEndingsAreFound: holds are indexed only while endings come. An ending finds its hold whether that was granted
// before the index was made, while it existed, or after it was dropped.
func TestEndingsAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &endingStore{fakeStore: newFakeStore(), endings: make(chan driver.Ending, 1)}
		c := newClient(t, f, nil)
		isIndexed := func() bool {
			c.renewer.mu.Lock()
			defer c.renewer.mu.Unlock()
			return c.renewer.byID != nil
		}
		end := func(l *Lease) {
			t.Helper()
			f.endings <- driver.Ending{Name: l.Name(), ID: l.ID(), Err: &driver.LossError{Cause: driver.LossSessionExpired}}
			synctest.Wait()
			if l.Valid() || !isIndexed() {
				t.Errorf("after the ending of %q: valid %v, indexed %v", l.Name(), l.Valid(), isIndexed())
			}
		}
		a, b := mustLock(t, c, "a", nil), mustLock(t, c, "b", nil)
		mustLock(t, c, "held to the end", nil)
		if isIndexed() {
			t.Error("indexed before an ending")
		}
		end(a)
		end(mustLock(t, c, "granted meanwhile", nil))
		time.Sleep(testTTL / 2)
		if !b.Valid() || isIndexed() {
			t.Errorf("later: valid %v, indexed %v", b.Valid(), isIndexed())
		}
		end(b)
	})
}

type endingStore struct {
	*fakeStore
	endings  chan driver.Ending
	watchers atomic.Int64
}

func (f *endingStore) Info() driver.Info {
	i := f.fakeStore.Info()
	i.Abilities.Endings = true
	return i
}

func (f *endingStore) NextEnding(ctx context.Context) (driver.Ending, error) {
	f.watchers.Add(1)
	defer f.watchers.Add(-1)
	select {
	case e := <-f.endings:
		return e, nil
	case <-ctx.Done():
		return driver.Ending{}, ctx.Err()
	}
}

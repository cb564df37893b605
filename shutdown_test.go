package holdfast

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// startShutdown calls Shutdown, and returns when it waits. The channel gets its error.
func startShutdown(ctx context.Context, c *Client) <-chan error {
	done := make(chan error, 1)
	go func() { done <- c.Shutdown(ctx) }()
	synctest.Wait()
	return done
}

// TestShutdown: Shutdown ends waits and refuses new calls, but leases are renewed until their work releases them.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		held, rw := mustLock(t, c, "held", nil), c.RWMutex("rw", nil)
		written, err := rw.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		waits := make(chan error, 2)
		go func() { _, err := c.Mutex("held", nil).Lock(context.Background()); waits <- err }()
		go func() { _, err := c.Mutex("held", &LockOptions{Fair: true}).Lock(context.Background()); waits <- err }()
		synctest.Wait()
		done := startShutdown(t.Context(), c)
		wantIs(t, <-waits, ErrClosed)
		wantIs(t, <-waits, ErrClosed)
		_, err = c.Mutex("new", nil).TryLock(t.Context())
		wantIs(t, err, ErrClosed)
		_, err = c.Inspect(t.Context(), "held")
		wantIs(t, err, ErrClosed)

		time.Sleep(3 * testTTL)
		if !held.Valid() || !written.Valid() || len(done) > 0 {
			t.Fatalf("the leases have ended, or Shutdown has: %v, %v", held.Err(), written.Err())
		}
		if _, err := other.Mutex("held", nil).TryLock(t.Context()); !errors.Is(err, ErrHeld) {
			t.Errorf("another client got %v", err)
		}
		if err := errors.Join(written.Downgrade(t.Context()), held.Release()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if len(done) > 0 {
			t.Error("Shutdown has returned while a lease was held")
		}
		if err := errors.Join(written.Release(), <-done); err != nil {
			t.Error(err)
		}
		mustLock(t, other, "held", nil)
		wantIs(t, held.Release(), ErrReleased)
		if err := errors.Join(c.Shutdown(t.Context()), c.Close()); err != nil {
			t.Errorf("once more: %v", err)
		}
	})
}

// TestShutdownTooLong: when its context ends, Shutdown ends what is still held as Close does, and says so.
func TestShutdownTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		l := mustLock(t, c, "a", nil)
		run, err := c.Ledger("events", nil).Begin(t.Context(), "1", nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = c.Shutdown(ctx)
		wantIs(t, err, context.DeadlineExceeded)
		if !strings.Contains(err.Error(), "ended 2 that were still held") {
			t.Errorf("the error is %v", err)
		}
		wantIs(t, context.Cause(l.Context()), ErrClosed)
		wantIs(t, context.Cause(run.Context()), ErrClosed)
		mustLock(t, other, "a", nil)
	})
}

// TestCloseDuringShutdown: Close ends a Shutdown that waits, and the leases with it.
func TestCloseDuringShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, bubbleMemory().Open(), nil)
		l := mustLock(t, c, "a", nil)
		done := startShutdown(t.Context(), c)
		if err := errors.Join(c.Close(), <-done); err != nil {
			t.Error(err)
		}
		wantIs(t, l.Err(), ErrClosed)
	})
}

// TestShutdownDuringRun: a run that is in progress can be reported during Shutdown, and counts.
func TestShutdownDuringRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		run, err := c.Ledger("events", nil).Begin(t.Context(), "1", nil)
		if err != nil {
			t.Fatal(err)
		}
		done := startShutdown(t.Context(), c)
		time.Sleep(3 * testTTL)
		_, err = c.Ledger("events", nil).Begin(t.Context(), "2", nil)
		wantIs(t, err, ErrClosed)
		if err := errors.Join(run.Succeed(t.Context(), []byte("done")), <-done); err != nil {
			t.Error(err)
		}
		_, err = other.Ledger("events", nil).Begin(t.Context(), "1", nil)
		wantIs(t, err, ErrSucceeded)
	})
}

// TestShutdownOfLeader: the function of an election leads until it returns, and another candidate follows.
func TestShutdownOfLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		ctx, stop := context.WithCancel(t.Context())
		led := make(chan error, 1)
		go func() {
			led <- c.Election("e", nil).Run(ctx, func(ctx context.Context, l *Lease) error {
				<-ctx.Done()
				time.Sleep(3 * testTTL) // what must be put in order
				return l.Err()
			})
		}()
		synctest.Wait()
		done := startShutdown(t.Context(), c)
		stop()
		start := time.Now()
		if _, err := other.Election("e", nil).Campaign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 3*testTTL {
			t.Errorf("the next one leads after %v", took)
		}
		if err := errors.Join(<-led, <-done); err != nil {
			t.Error(err)
		}
	})
}

// lateGranter is a store whose grant of "late" arrives when told, even if nobody waits for it any more.
type lateGranter struct {
	driver.Store
	asked, answer chan struct{}
}

func (s lateGranter) Acquire(_ context.Context, c driver.Claim) (driver.Grant, error) {
	g, err := s.Store.Acquire(context.Background(), c)
	if c.Name == "late" {
		close(s.asked)
		<-s.answer
	}
	return g, err
}

// TestGrantDuringShutdown: a grant that arrives when Shutdown has begun is no lease, and is given back.
func TestGrantDuringShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		s := lateGranter{m.Open(), make(chan struct{}), make(chan struct{})}
		c, other := newClient(t, s, nil), newClient(t, m.Open(), nil)
		work := mustLock(t, c, "held", nil) // so that the client is not closed yet
		held := make(chan *Lease, 1)
		failed := make(chan error, 1)
		go func() {
			l, err := c.Mutex("late", nil).Lock(context.Background())
			held <- l
			failed <- err
		}()
		<-s.asked
		done := startShutdown(t.Context(), c)
		close(s.answer)
		if l := <-held; l != nil {
			t.Error("a lease was returned")
			_ = l.Release() // otherwise Shutdown waits for it
		}
		wantIs(t, <-failed, ErrClosed)
		if err := errors.Join(work.Release(), <-done); err != nil {
			t.Error(err)
		}
		if _, err := other.Mutex("late", nil).TryLock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestMaxHoldDuringShutdown: work whose lease reaches its MaxHold has the same time to notice during Shutdown.
func TestMaxHoldDuringShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, other := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		start := time.Now()
		mustLock(t, c, "a", &LockOptions{MaxHold: time.Minute})
		done := startShutdown(t.Context(), c)
		wantAbout(t, waitUntilFree(t, other, "a", start), time.Minute+time.Second)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

package holdfasttest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/holdfasttest"
)

// failureRecorder is a testing.TB that records failures instead of failing the test.
type failureRecorder struct {
	testing.TB
	failures []string
}

func (r *failureRecorder) Helper() {}
func (r *failureRecorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}
func (r *failureRecorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); panic(r) }
func (r *failureRecorder) Fatal(args ...any)                 { r.Errorf("%s", fmt.Sprint(args...)); panic(r) }

// requireFailure runs f, which must fail the test once, with a message that contains the words.
func requireFailure(t *testing.T, words string, f func(t testing.TB)) {
	t.Helper()
	r := &failureRecorder{TB: t}
	func() {
		defer func() {
			if p := recover(); p != nil && p != r {
				panic(p)
			}
		}()
		f(r)
	}()
	if len(r.failures) != 1 || !strings.Contains(r.failures[0], words) {
		t.Errorf("failures %q, want one with %q", r.failures, words)
	}
}

func mustLock(t *testing.T, c *holdfasttest.Client, name string) *holdfast.Lease {
	t.Helper()
	l, err := c.Mutex(name, nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func requireLoss(t *testing.T, l *holdfast.Lease, cause holdfast.LossCause) {
	t.Helper()
	var loss *holdfast.LossError
	if l.Context().Err() == nil || !errors.As(context.Cause(l.Context()), &loss) || loss.Cause != cause {
		t.Errorf("the lease's context ended by %v, want %q", context.Cause(l.Context()), cause)
	}
}

func TestAssertions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := holdfasttest.New(t)
		c := s.Client(t, &holdfast.Options{Owner: "me"})
		s.AssertFree(t, "a")
		requireFailure(t, `nobody holds "a"`, func(tb testing.TB) { s.AssertHeld(tb, "a") })
		l := mustLock(t, c, "a")
		s.AssertHeld(t, "a")
		s.AssertHeldBy(t, l)
		requireFailure(t, `me holds "a"`, func(tb testing.TB) { s.AssertFree(tb, "a") })
		if err := l.Release(); err != nil {
			t.Fatal(err)
		}
		requireFailure(t, "has ended", func(tb testing.TB) { s.AssertHeldBy(tb, l) })
		for _, f := range []func(testing.TB){
			func(tb testing.TB) { s.Expire(tb, "a") },
			func(tb testing.TB) { s.Steal(tb, "a") },
			func(tb testing.TB) { s.Break(tb, "a", holdfast.BreakGraceful) },
		} {
			requireFailure(t, `nobody holds "a"`, f)
		}
	})
}

// TestAdvance: a client that reaches the store keeps its lease however much time passes. A client that is cut off loses
// it exactly when its TTL has passed. All this has happened when Advance returns.
func TestAdvance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := holdfasttest.New(t)
		healthy, cut := s.Client(t, nil), s.Client(t, nil)
		a, b := mustLock(t, healthy, "a"), mustLock(t, cut, "b")
		s.Advance(t, 24*time.Hour)
		s.AssertHeldBy(t, a)
		s.AssertHeldBy(t, b)
		cut.Partition()
		left := b.Remaining()
		s.Advance(t, left-1)
		s.AssertHeldBy(t, b)
		s.Advance(t, 1)
		requireLoss(t, b, holdfast.LossUnreachable)
		got := make(chan *holdfast.Lease, 1)
		go func() {
			l, err := healthy.Mutex("b", nil).Lock(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
		s.Advance(t, 5*time.Second)
		s.AssertHeldBy(t, <-got)
		cut.Heal()
		if err := b.Release(); !errors.Is(err, holdfast.ErrLost) {
			t.Error(err)
		}
		s.AssertHeldBy(t, a)
	})
}

// TestPausedClient: the requests of a paused client reach the store when it is resumed.
func TestPausedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := holdfasttest.New(t)
		c := s.Client(t, nil)
		l := mustLock(t, c, "a")
		c.Pause()
		s.Advance(t, holdfast.DefaultTTL/2)
		c.Resume()
		s.Advance(t, time.Second)
		s.AssertHeldBy(t, l)
		s.Advance(t, holdfast.DefaultTTL)
		s.AssertHeldBy(t, l)
		c.Pause()
		s.Advance(t, holdfast.DefaultTTL)
		requireLoss(t, l, holdfast.LossUnreachable)
		s.AssertFree(t, "a")
	})
}

func TestExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := holdfasttest.New(t)
		l := mustLock(t, s.Client(t, nil), "a")
		s.Expire(t, "a")
		requireLoss(t, l, holdfast.LossExpired)
		s.AssertFree(t, "a")
	})
	t.Run("in real time", func(t *testing.T) {
		s := holdfasttest.New(t)
		l := mustLock(t, s.Client(t, nil), "a")
		s.Expire(t, "a")
		<-l.Context().Done()
		requireLoss(t, l, holdfast.LossExpired)
		requireFailure(t, "synctest.Test", func(tb testing.TB) { s.Advance(tb, time.Second) })
	})
}

// TestSteal: after a theft, two leases are valid at the same time, and the later one has the larger token.
func TestSteal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := holdfasttest.New(t)
		c := s.Client(t, nil)
		l := mustLock(t, c, "a")
		thief := s.Steal(t, "a")
		if !l.Valid() || !thief.Valid() || thief.Token() <= l.Token() {
			t.Error("the holder has learned of the theft already, or the new token is not larger")
		}
		s.AssertHeldBy(t, thief)
		requireFailure(t, "its lease has not ended yet", func(tb testing.TB) { s.AssertHeldBy(tb, l) })
		s.Advance(t, holdfast.DefaultTTL/2)
		requireLoss(t, l, holdfast.LossBroken)
		s.Expire(t, "a")
		requireLoss(t, thief, holdfast.LossExpired)
		sem, err := c.Semaphore("s", 3, nil).Acquire(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		thief = s.Steal(t, "s")
		if !thief.Exclusive() || sem.Token() >= thief.Token() {
			t.Error("not all of the semaphore was stolen")
		}
		if err := thief.Release(); err != nil {
			t.Error(err)
		}
		if _, err := c.RWMutex("rw", nil).RLock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if thief := s.Steal(t, "rw"); !thief.Exclusive() {
			t.Error("the lock was stolen with a reader's claim only")
		}
	})
}

func TestBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := holdfasttest.New(t)
		l := mustLock(t, s.Client(t, nil), "a")
		s.RequestRelease(t, "a")
		s.Advance(t, holdfast.DefaultTTL/2)
		<-l.ReleaseRequested()
		s.AssertHeldBy(t, l)
		s.Break(t, "a", holdfast.BreakGraceful)
		s.Advance(t, holdfast.DefaultTTL/2)
		requireLoss(t, l, holdfast.LossBroken)
	})
}

// TestReasonOfBreak: the loss of a lease that a client has broken has the reason.
func TestReasonOfBreak(t *testing.T) {
	for _, mode := range []holdfast.BreakMode{holdfast.BreakGraceful, holdfast.BreakForce} {
		synctest.Test(t, func(t *testing.T) {
			s := holdfasttest.New(t)
			l := mustLock(t, s.Client(t, nil), "a")
			if err := s.Client(t, nil).Break(t.Context(), "a", l.Ref(), mode, "INC-1"); err != nil {
				t.Fatal(err)
			}
			s.Advance(t, holdfast.DefaultTTL/2)
			requireLoss(t, l, holdfast.LossBroken)
			if cause := context.Cause(l.Context()); cause == nil || !strings.Contains(cause.Error(), "INC-1") {
				t.Errorf("the loss is %v", cause)
			}
		})
	}
}

// TestRunImport: the code of the example runs, and stops when it loses its lock.
func TestRunImport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := holdfasttest.New(t)
		c := s.Client(t, nil)
		result := make(chan error, 1)
		go func() { result <- runImport(t.Context(), c.Client) }()
		s.Advance(t, time.Hour)
		s.AssertHeld(t, "import")
		c.Partition()
		s.Advance(t, holdfast.DefaultTTL+time.Second)
		if err := <-result; !errors.Is(err, holdfast.ErrLost) {
			t.Error(err)
		}
		s.AssertFree(t, "import")
	})
}

// TestLedgerOfDeadWorker: a worker that is cut off loses its run, another worker runs the key again, and the success
// that the first one reports late is refused.
func TestLedgerOfDeadWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := holdfasttest.New(t)
		dead, other := s.Client(t, nil), s.Client(t, nil)
		run, err := dead.Ledger("events", nil).Begin(t.Context(), "event-1", nil)
		if err != nil {
			t.Fatal(err)
		}
		s.Advance(t, time.Hour) // it is renewed
		dead.Partition()
		s.Advance(t, holdfast.DefaultTTL+time.Second)
		if !errors.Is(context.Cause(run.Context()), holdfast.ErrLost) {
			t.Errorf("the run of the dead worker is %v", run)
		}
		_, err = other.Ledger("events", nil).Do(t.Context(), "event-1", nil,
			func(context.Context, *holdfast.Run) ([]byte, error) { return []byte("done"), nil })
		if err != nil {
			t.Error(err)
		}
		dead.Heal()
		if err := run.Succeed(t.Context(), []byte("late")); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("the late success: %v", err)
		}
		runs, err := other.Ledger("events", nil).History(t.Context(), "event-1")
		if err != nil || len(runs) != 2 || runs[0].State != holdfast.RunAbandoned || string(runs[1].Result) != "done" {
			t.Errorf("the history is %+v, %v", runs, err)
		}
	})
}

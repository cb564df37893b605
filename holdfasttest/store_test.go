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

// heard is a testing.TB that notes the failures it is told of.
type heard struct {
	testing.TB
	failures []string
}

func (h *heard) Helper() {}
func (h *heard) Errorf(format string, args ...any) {
	h.failures = append(h.failures, fmt.Sprintf(format, args...))
}
func (h *heard) Fatalf(format string, args ...any) { h.Errorf(format, args...); panic(h) }
func (h *heard) Fatal(args ...any)                 { h.Errorf("%s", fmt.Sprint(args...)); panic(h) }

// fails runs f and demands that it fails with a message that has the words.
func fails(t *testing.T, words string, f func(t testing.TB)) {
	t.Helper()
	h := &heard{TB: t}
	func() {
		defer func() {
			if r := recover(); r != nil && r != h {
				panic(r)
			}
		}()
		f(h)
	}()
	if len(h.failures) != 1 || !strings.Contains(h.failures[0], words) {
		t.Errorf("failures %q, want one with %q", h.failures, words)
	}
}

func lock(t *testing.T, c *holdfasttest.Client, name string) *holdfast.Lease {
	t.Helper()
	l, err := c.Mutex(name, nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func wantLoss(t *testing.T, l *holdfast.Lease, cause holdfast.LossCause) {
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
		fails(t, `nobody holds "a"`, func(tb testing.TB) { s.AssertHeld(tb, "a") })
		l := lock(t, c, "a")
		s.AssertHeld(t, "a")
		s.AssertHeldBy(t, l)
		fails(t, `me holds "a"`, func(tb testing.TB) { s.AssertFree(tb, "a") })
		if err := l.Release(); err != nil {
			t.Fatal(err)
		}
		fails(t, "has ended", func(tb testing.TB) { s.AssertHeldBy(tb, l) })
		for _, f := range []func(testing.TB){
			func(tb testing.TB) { s.Expire(tb, "a") },
			func(tb testing.TB) { s.Steal(tb, "a") },
			func(tb testing.TB) { s.Break(tb, "a", holdfast.BreakGraceful) },
		} {
			fails(t, `nobody holds "a"`, f)
		}
	})
}

// A healthy client keeps its lease however far the clock is moved, one that is cut off loses it to the tick, and all of
// that has happened when Advance returns.
func TestAdvance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := holdfasttest.New(t)
		healthy, cut := s.Client(t, nil), s.Client(t, nil)
		a, b := lock(t, healthy, "a"), lock(t, cut, "b")
		s.Advance(t, 24*time.Hour)
		s.AssertHeldBy(t, a)
		s.AssertHeldBy(t, b)
		cut.Partition()
		left := b.Remaining()
		s.Advance(t, left-1)
		s.AssertHeldBy(t, b)
		s.Advance(t, 1)
		wantLoss(t, b, holdfast.LossUnreachable)
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

// What a paused client has asked goes through when it is resumed.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := holdfasttest.New(t)
		c := s.Client(t, nil)
		l := lock(t, c, "a")
		c.Pause()
		s.Advance(t, holdfast.DefaultTTL/2)
		c.Resume()
		s.Advance(t, time.Second)
		s.AssertHeldBy(t, l)
		s.Advance(t, holdfast.DefaultTTL)
		s.AssertHeldBy(t, l)
		c.Pause()
		s.Advance(t, holdfast.DefaultTTL)
		wantLoss(t, l, holdfast.LossUnreachable)
		s.AssertFree(t, "a")
	})
}

func TestExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := holdfasttest.New(t)
		l := lock(t, s.Client(t, nil), "a")
		s.Expire(t, "a")
		wantLoss(t, l, holdfast.LossExpired)
		s.AssertFree(t, "a")
	})
	t.Run("in real time", func(t *testing.T) {
		s := holdfasttest.New(t)
		l := lock(t, s.Client(t, nil), "a")
		s.Expire(t, "a")
		<-l.Context().Done()
		wantLoss(t, l, holdfast.LossExpired)
		fails(t, "synctest.Test", func(tb testing.TB) { s.Advance(tb, time.Second) })
	})
}

// A theft shows what a token is for: two believe, and the later token is the larger one.
func TestSteal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := holdfasttest.New(t)
		c := s.Client(t, nil)
		l := lock(t, c, "a")
		thief := s.Steal(t, "a")
		if !l.Valid() || !thief.Valid() || thief.Token() <= l.Token() {
			t.Error("the holder knows already, or the thief's token is not larger")
		}
		s.AssertHeldBy(t, thief)
		fails(t, "though its holder believes so", func(tb testing.TB) { s.AssertHeldBy(tb, l) })
		s.Advance(t, holdfast.DefaultTTL/2)
		wantLoss(t, l, holdfast.LossBroken)
		s.Expire(t, "a")
		wantLoss(t, thief, holdfast.LossExpired)
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
			t.Error("stolen for reading")
		}
	})
}

func TestBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := holdfasttest.New(t)
		l := lock(t, s.Client(t, nil), "a")
		s.RequestRelease(t, "a")
		s.Advance(t, holdfast.DefaultTTL/2)
		<-l.ReleaseRequested()
		s.AssertHeldBy(t, l)
		s.Break(t, "a", holdfast.BreakGraceful)
		s.Advance(t, holdfast.DefaultTTL/2)
		wantLoss(t, l, holdfast.LossBroken)
	})
}

// The code of the example runs, and stops when it loses its lock.
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

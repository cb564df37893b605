package foreign_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/foreign"
	"github.com/holdfast-go/holdfast/engine/record"
)

// world is a bubble with writes whose replies a test makes.
type world struct {
	*testing.T
	writes  *foreign.Writes
	life    *driverutil.Lifetime
	began   time.Time
	removed []string // marks, when they were late
}

func inBubble(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, life: driverutil.NewLifetime(), began: time.Now()}
		hand := func() time.Duration { return time.Since(w.began) }
		w.writes = foreign.NewWrites(w.life, driver.Clock{Monotonic: hand, Boottime: hand}, foreign.MaxLateness,
			func(_ context.Context, _, mark string) { w.removed = append(w.removed, mark) })
		test(w)
		w.life.End()
		w.life.Wait()
	})
}

// write makes a write whose reply comes after a time.
func (w *world) write(ctx context.Context, mark string, after time.Duration, reply error) error {
	_, err := foreign.Do(ctx, w.writes, "m", mark, func(context.Context) (int, error) {
		time.Sleep(after)
		return 1, reply
	})
	return err
}

// expectAt checks how much time has passed.
func (w *world) expectAt(what string, want time.Duration) {
	w.Helper()
	if d := time.Since(w.began); d != want {
		w.Errorf("%s after %v, not %v", what, d, want)
	}
}

func (w *world) settle() (waited bool) {
	w.Helper()
	called := time.Now()
	if err := w.writes.Settle(w.Context(), "m"); err != nil {
		w.Error(err)
	}
	return time.Since(called) > 0
}

// TestUnknownCreation: a creation of unknown outcome can come for MaxLateness after its start, and no lock is free
// before. Then its object is removed, unless it was seen before.
func TestUnknownCreation(t *testing.T) {
	t.Parallel()
	lost := errors.New("no reply")
	inBubble(t, func(w *world) {
		if err := w.write(w.Context(), "a", 2*time.Second, lost); !errors.Is(err, lost) {
			w.Error(err)
		}
		w.expectAt("a reply", 2*time.Second)
		if !w.settle() {
			w.Error("a creation of unknown outcome is settled")
		}
		w.expectAt("settled", foreign.MaxLateness)
		if !slices.Equal(w.removed, []string{"a"}) {
			w.Errorf("removed is %q", w.removed)
		}
		if w.settle() {
			w.Error("a creation is not settled twice")
		}
	})
	inBubble(t, func(w *world) {
		_ = w.write(w.Context(), "a", 0, lost)
		w.writes.Saw("m", "b")
		w.writes.Saw("other", "a")
		ended, cancel := context.WithCancel(w.Context())
		cancel()
		if err := w.writes.Settle(ended, "m"); !errors.Is(err, record.ErrUnsent) || !errors.Is(err, context.Canceled) {
			w.Errorf("before its object was seen: %v", err)
		}
		w.writes.Saw("m", "a")
		if w.settle() || w.removed != nil {
			w.Errorf("its object was seen, and removed is %q", w.removed)
		}
	})
}

// TestCreationRepeated: an object is not removed because one of two creations by the same claim had no reply, if the
// other one is known to have made it.
func TestCreationRepeated(t *testing.T) {
	t.Parallel()
	lost := errors.New("no reply")
	inBubble(t, func(w *world) {
		if err := w.write(w.Context(), "a", time.Second, lost); !errors.Is(err, lost) {
			w.Error(err)
		}
		if err := w.write(w.Context(), "a", time.Second, nil); err != nil {
			w.Error(err)
		}
		if !w.settle() {
			w.Error("a creation of unknown outcome is settled")
		}
		w.expectAt("settled", foreign.MaxLateness)
		if w.removed != nil {
			w.Errorf("removed is %q", w.removed)
		}
	})
}

// TestKnownWrites: a write whose outcome is known, and one that replaces an object, hold up no release.
func TestKnownWrites(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		for _, reply := range []error{nil, record.ErrConflict, record.ErrUnsent, driver.ErrDenied} {
			if err := w.write(w.Context(), "a", 0, reply); !errors.Is(err, reply) || w.settle() {
				w.Errorf("a creation whose reply was %v: %v", reply, err)
			}
		}
		if err := w.write(w.Context(), "", 0, errors.New("no reply")); err == nil || w.settle() {
			w.Errorf("a write that replaces an object: %v", err)
		}
		w.expectAt("settled", 0)
	})
}

// TestAbandonedWrites: a write goes on when its caller gives up, and a read of its lock waits for it; a read of another
// lock does not, nor one next to a write that replaces an object and whose caller is there. A write whose context has
// ended is not begun.
func TestAbandonedWrites(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		soon, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		go func() { _ = w.write(w.Context(), "", 3*time.Second, nil) }()
		if err := w.write(soon, "", 2*time.Second, nil); !errors.Is(err, context.DeadlineExceeded) {
			w.Error(err)
		}
		w.expectAt("the caller was told", time.Second)
		if err := w.writes.Await(w.Context(), "other"); err != nil {
			w.Error(err)
		}
		w.expectAt("another lock is read", time.Second)
		if err := w.writes.Await(w.Context(), "m"); err != nil {
			w.Error(err)
		}
		w.expectAt("the lock is read", 2*time.Second)
		if err := w.write(soon, "c", time.Hour, nil); !errors.Is(err, record.ErrUnsent) || w.settle() {
			w.Errorf("a write whose context has ended: %v", err)
		}
	})
}

// TestCreationUnderWay: a read of a lock waits for a creation whose caller is there, and no lock is free before that.
func TestCreationUnderWay(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		for i := range 2 {
			go func() { _ = w.write(w.Context(), "a", 3*time.Second, nil) }()
			time.Sleep(time.Second)
			if i == 0 {
				if err := w.writes.Await(w.Context(), "m"); err != nil {
					w.Error(err)
				}
			} else if !w.settle() {
				w.Error("the creation is settled")
			}
			w.expectAt("the creation has ended", time.Duration(i+1)*3*time.Second)
		}
	})
}

// TestClosedWrites: when the store is closed, nobody waits any more, and no write begins.
func TestClosedWrites(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		_ = w.write(w.Context(), "a", 0, errors.New("no reply"))
		w.life.End()
		if err := w.writes.Settle(w.Context(), "m"); !errors.Is(err, driver.ErrClosed) {
			w.Error(err)
		}
		if err := w.write(w.Context(), "b", 0, nil); !errors.Is(err, driver.ErrClosed) {
			w.Error(err)
		}
		w.expectAt("closed", 0)
	})
}

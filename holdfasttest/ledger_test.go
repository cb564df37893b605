package holdfasttest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/holdfasttest"
)

// TestWorkerDies: the run of a worker that is cut off ends before another one can begin, and the late success of that
// worker is refused.
func TestWorkerDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := holdfasttest.New(t)
		dying, next := s.Client(t, nil), s.Client(t, nil)
		first, err := dying.Ledger("mails", nil).Begin(t.Context(), "m1", nil)
		if err != nil {
			t.Fatal(err)
		}
		s.AssertRuns(t, "mails", "m1", holdfast.RunStarted)
		dying.Partition()
		s.Advance(t, holdfast.DefaultTTL+time.Second)
		if first.Valid() || !errors.Is(context.Cause(first.Context()), holdfast.ErrLost) {
			t.Error("the run of a worker that is cut off is valid after its TTL")
		}
		s.AssertRuns(t, "mails", "m1", holdfast.RunAbandoned)
		second, err := next.Ledger("mails", nil).Begin(t.Context(), "m1", nil)
		if err != nil {
			t.Fatal(err)
		}
		if second.Token() <= first.Token() {
			t.Errorf("token %d follows token %d", second.Token(), first.Token())
		}
		dying.Heal()
		if err := first.Succeed(t.Context(), nil); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("the late success: %v", err)
		}
		if err := second.Succeed(t.Context(), nil); err != nil {
			t.Error(err)
		}
		s.AssertRuns(t, "mails", "m1", holdfast.RunAbandoned, holdfast.RunSucceeded)
	})
}

// TestSlotTurns: a job that runs every hour runs again when an hour of the test's clock has passed.
func TestSlotTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := holdfasttest.New(t)
		ledger := s.Client(t, nil).Ledger("jobs", nil)
		slots := map[string]int{}
		for range 6 {
			slot, err := ledger.CurrentSlot(t.Context(), holdfast.Every(time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			key := slot.Key("report")
			if _, err := ledger.Do(t.Context(), key, nil, func(context.Context, *holdfast.Run) ([]byte, error) {
				slots[key]++
				return nil, nil
			}); err != nil {
				t.Fatal(err)
			}
			s.AssertRuns(t, "jobs", key, holdfast.RunSucceeded)
			s.Advance(t, 30*time.Minute)
		}
		if len(slots) != 3 {
			t.Errorf("six attempts in three hours ran %v", slots)
		}
		for key, runs := range slots {
			if runs != 1 {
				t.Errorf("%s ran %d times", key, runs)
			}
		}
	})
}

// TestAssertRuns: the assertion fails for other states.
func TestAssertRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := holdfasttest.New(t)
		s.AssertRuns(t, "l", "k")
		requireFailure(t, "[succeeded]", func(tb testing.TB) { s.AssertRuns(tb, "l", "k", holdfast.RunSucceeded) })
	})
}

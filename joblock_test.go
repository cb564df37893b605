package holdfast_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

// currentSlot returns the current slot of a schedule.
func currentSlot(t *testing.T, l *holdfast.Ledger, every time.Duration) *holdfast.Slot {
	t.Helper()
	slot, err := l.CurrentSlot(t.Context(), holdfast.Every(every))
	if err != nil {
		t.Fatal(err)
	}
	return &slot
}

// beginSlot begins a run of a job in a slot that must not overlap with others.
func beginSlot(t *testing.T, l *holdfast.Ledger, job string, slot *holdfast.Slot) *holdfast.Run {
	t.Helper()
	run, err := l.Begin(t.Context(), slot.Key(job), &holdfast.RunOptions{Slot: slot})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// slotBegin is a Begin that waits.
type slotBegin struct {
	run *holdfast.Run
	err error
}

func startSlot(ctx context.Context, l *holdfast.Ledger, job string, slot *holdfast.Slot) <-chan slotBegin {
	done := make(chan slotBegin, 1)
	go func() {
		run, err := l.Begin(ctx, slot.Key(job), &holdfast.RunOptions{Slot: slot})
		done <- slotBegin{run, err}
	}()
	synctest.Wait()
	return done
}

// requireNoRuns checks that a key has no history.
func requireNoRuns(t *testing.T, l *holdfast.Ledger, key string) {
	t.Helper()
	if runs, err := l.History(t.Context(), key); err != nil || len(runs) > 0 {
		t.Errorf("%s has the runs %+v, %v", key, runs, err)
	}
}

// TestSlotsOfJob: a slot waits while another slot of its job is run. When it ends before that, it is missed and has no
// run. Other jobs do not wait, nor does a run without RunOptions.Slot.
func TestSlotsOfJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := openLedgers(t, nil)
		first := currentSlot(t, a, time.Minute)
		long := beginSlot(t, a, "job", first)
		time.Sleep(time.Until(first.End))
		second := currentSlot(t, b, time.Minute)
		if err := beginSlot(t, b, "other", second).Succeed(t.Context(), nil); err != nil {
			t.Error(err)
		}
		begun := time.Now()
		_, err := b.Begin(t.Context(), second.Key("job"), &holdfast.RunOptions{Slot: second})
		var held *holdfast.HeldError
		if !errors.Is(err, holdfast.ErrMissed) || !errors.As(err, &held) || len(held.Holders) != 1 ||
			held.Holders[0].Meta != first.Key("job") || holdfast.FailureReasonOf(err) != holdfast.FailureMissed {
			t.Errorf("a slot that ends while another one is run: %v, %+v", err, held)
		}
		if waited := time.Since(begun); waited != time.Minute {
			t.Errorf("it was waited for %v", waited)
		}
		requireNoRuns(t, b, second.Key("job"))

		third := currentSlot(t, b, time.Minute)
		apart, err := b.Begin(t.Context(), third.Key("job"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := apart.Withdraw(t.Context()); err != nil {
			t.Error(err)
		}
		next := startSlot(t.Context(), b, "job", third)
		time.Sleep(20 * time.Second)
		if len(next) > 0 || !long.Valid() {
			t.Errorf("%d begun; the long run: %v", len(next), long)
		}
		if err := long.Succeed(t.Context(), nil); err != nil || !errors.Is(context.Cause(long.Context()), holdfast.ErrReleased) {
			t.Errorf("%v, %v", err, long)
		}
		got := <-next
		if got.err != nil || got.run.Attempt() != 1 || !got.run.Valid() {
			t.Fatalf("when the long run has ended: %+v", got)
		}
		for run, err := range openOther(t).ListRuns(t.Context()) {
			if err != nil || run.Ledger != "events" {
				t.Errorf("listed: %+v, %v", run, err)
			}
		}
		if err := got.run.Fail(t.Context(), errors.New("no")); err != nil {
			t.Error(err)
		}
		if again := beginSlot(t, a, "job", third); again.Attempt() != 2 {
			t.Errorf("a retry in the slot: %v", again)
		}
	})
}

// openOther opens a client with a run in progress, which it lists.
func openOther(t *testing.T) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(memory.New(nil).Open(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	l := c.Ledger("events", nil)
	beginSlot(t, l, "listed", currentSlot(t, l, time.Hour))
	return c
}

// breakClaim ends the only claim on a name of a ledger, as another client that has found it expired does.
func breakClaim(t *testing.T, m *memory.Memory, name string) {
	t.Helper()
	ledger, err := m.Open().OpenLedger(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lock, err := ledger.Inspect(t.Context(), name)
	if err != nil || len(lock.Holders) != 1 {
		t.Fatalf("%s: %+v, %v", name, lock, err)
	}
	if err := ledger.Break(t.Context(), name, lock.Holders[0].Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
		t.Fatal(err)
	}
}

// TestSlotEndsWithLockOfJob: a run whose job's lock is lost has ended, and its report counts. A run that is lost itself
// keeps the lock until its worker reports.
func TestSlotEndsWithLockOfJob(t *testing.T) {
	for _, name := range []string{"/events/job", ""} {
		synctest.Test(t, func(t *testing.T) {
			m := memory.New(nil)
			client, err := holdfast.New(m.Open(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			l := client.Ledger("events", nil)
			slot := currentSlot(t, l, 10*time.Second)
			run := beginSlot(t, l, "job", slot)
			broken := name
			if broken == "" {
				broken = "events/" + run.Key()
			}
			breakClaim(t, m, broken)
			awaitLoss(t, run.Context())
			if cause := context.Cause(run.Context()); !errors.Is(cause, holdfast.ErrLost) || run.Valid() || run.Progress() ||
				!errors.Is(run.Err(), holdfast.ErrLost) || !strings.Contains(cause.Error(), broken) {
				t.Errorf("%v: %v", cause, run)
			}
			time.Sleep(time.Until(slot.End))
			next := startSlot(t.Context(), l, "job", currentSlot(t, l, 10*time.Second))
			if waits := len(next) == 0; waits != (name == "") {
				t.Errorf("after the loss of %s the next slot waits: %t", broken, waits)
			}
			if err := run.Succeed(t.Context(), nil); errors.Is(err, holdfast.ErrLost) != (name == "") {
				t.Errorf("after the loss of %s a report has the error %v", broken, err)
			}
			if got := <-next; got.err != nil {
				t.Error(got.err)
			}
		})
	}
}

// TestSlotOfHangingWorker: a run that is lost because its worker hangs does not keep the lock of its job for longer
// than the TTL, although the worker's process lives.
func TestSlotOfHangingWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := holdfast.New(memory.New(nil).Open(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		l := client.Ledger("events", &holdfast.LedgerOptions{TTL: 10 * time.Second, Progress: 5 * time.Second})
		slot := currentSlot(t, l, time.Minute)
		hanging := beginSlot(t, l, "job", slot)
		awaitLoss(t, hanging.Context())
		lost := time.Now()
		time.Sleep(time.Until(slot.End))
		next := beginSlot(t, l, "job", currentSlot(t, l, time.Minute))
		if hanging.Valid() || time.Since(lost) > time.Minute+10*time.Second {
			t.Errorf("the next slot began %v after the loss of %v", time.Since(lost), hanging)
		}
		if err := next.Succeed(t.Context(), nil); err != nil {
			t.Error(err)
		}
	})
}

// TestSlotOfDeadWorker: when a worker dies, its slot can be run again after its TTL, and by then the lock of the job
// has ended as well.
func TestSlotOfDeadWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New(nil)
		cut := &cutLedger{Store: m.Open()}
		var ledgers []*holdfast.Ledger
		for _, s := range []driver.Store{cut, m.Open()} {
			c, err := holdfast.New(s, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			ledgers = append(ledgers, c.Ledger("events", nil))
		}
		slot := currentSlot(t, ledgers[1], time.Hour)
		dead := beginSlot(t, ledgers[0], "job", slot)
		cut.cut.Store(true)
		defer cut.cut.Store(false)
		died := time.Now()
		run, err := ledgers[1].Begin(t.Context(), slot.Key("job"), &holdfast.RunOptions{Slot: slot, Wait: true})
		if err != nil || run.Attempt() != 2 || dead.Valid() {
			t.Fatalf("%v, %v; the dead one: %v", run, err, dead)
		}
		if took := time.Since(died); took < 30*time.Second || took > 35*time.Second {
			t.Errorf("the next run began after %v", took)
		}
		if err := run.Succeed(t.Context(), nil); err != nil {
			t.Error(err)
		}
	})
}

// TestSlotGivenUp: a Begin that is given up while it waits for another slot leaves no run, and uses up no attempt: when
// its context ends, when the client is closed, and when it is shut down.
func TestSlotGivenUp(t *testing.T) {
	for _, how := range []string{"canceled", "closed", "shut down"} {
		synctest.Test(t, func(t *testing.T) {
			m := memory.New(nil)
			var clients []*holdfast.Client
			for range 2 {
				c, err := holdfast.New(m.Open(), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				clients = append(clients, c)
			}
			opts := &holdfast.LedgerOptions{MaxAttempts: 1}
			a, b := clients[0].Ledger("events", opts), clients[1].Ledger("events", opts)
			first := currentSlot(t, a, time.Minute)
			long := beginSlot(t, a, "job", first)
			time.Sleep(time.Until(first.End))
			slot := currentSlot(t, a, time.Minute)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			waiting := startSlot(ctx, b, "job", slot)
			want := holdfast.ErrClosed
			switch how {
			case "canceled":
				want = context.Canceled
				cancel()
			case "closed":
				_ = clients[1].Close()
			default:
				_ = clients[1].Shutdown(t.Context())
			}
			if got := <-waiting; !errors.Is(got.err, want) {
				t.Errorf("%s: %v", how, got.err)
			}
			synctest.Wait()
			requireNoRuns(t, a, slot.Key("job"))
			if err := long.Succeed(t.Context(), nil); err != nil {
				t.Error(err)
			}
			beginSlot(t, a, "job", slot)
		})
	}
}

// TestSlotAfterSleep: a machine that sleeps while it waits, and gets the lock of the job when its slot has ended, does
// not run the slot.
func TestSlotAfterSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, setClock := openLedgerAt(t, mustParseTime(t, "2100-01-01T00:00:00Z"))
		long := beginSlot(t, l, "job", currentSlot(t, l, 20*time.Second))
		setClock(mustParseTime(t, "2100-01-01T00:00:21Z"))
		slot := currentSlot(t, l, 20*time.Second)
		waiting := startSlot(t.Context(), l, "job", slot)
		setClock(mustParseTime(t, "2100-01-01T00:00:41Z"))
		_ = long.Fail(t.Context(), errors.New("no"))
		if got := <-waiting; !errors.Is(got.err, holdfast.ErrMissed) {
			t.Errorf("%+v", got)
		}
		requireNoRuns(t, l, slot.Key("job"))
	})
}

// TestSlotRefused: a key of another slot is invalid, and a store without locks cannot keep slots apart.
func TestSlotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := openLedgers(t, nil)
		slot := currentSlot(t, a, time.Hour)
		for _, key := range []string{"job", slot.Key(""), "job@2020-01-01T00:00:00Z"} {
			if _, err := a.Begin(t.Context(), key, &holdfast.RunOptions{Slot: slot}); !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("the key %q: %v", key, err)
			}
		}
		client, err := holdfast.New(runsOnly{memory.New(nil).Open()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		l := client.Ledger("events", nil)
		_, err = l.Begin(t.Context(), slot.Key("job"), &holdfast.RunOptions{Slot: slot})
		if !errors.Is(err, holdfast.ErrUnsupported) || !strings.Contains(err.Error(), "set no RunOptions.Slot") {
			t.Errorf("without locks: %v", err)
		}
		requireNoRuns(t, l, slot.Key("job"))
	})
}

// runsOnly is a store that keeps no locks.
type runsOnly struct{ driver.Store }

func (s runsOnly) Info() driver.Info {
	info := s.Store.Info()
	info.Kinds = nil
	return info
}

// countedLedger counts the requests to a ledger.
type countedLedger struct {
	driver.Store
	acquires, releases, renewals, others atomic.Int64
}

type countedRuns struct {
	driver.Ledger
	s *countedLedger
}

func (s *countedLedger) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	l, err := s.Store.OpenLedger(ctx)
	return countedRuns{l, s}, err
}

func (l countedRuns) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	l.s.acquires.Add(1)
	return l.Ledger.Acquire(ctx, c)
}

func (l countedRuns) Release(ctx context.Context, c driver.Claim, ref string) error {
	l.s.releases.Add(1)
	return l.Ledger.Release(ctx, c, ref)
}

func (l countedRuns) Renew(ctx context.Context, g []driver.Grant, done func(int, driver.Renewal)) {
	l.s.renewals.Add(1)
	l.Ledger.Renew(ctx, g, done)
}

func (l countedRuns) ReadClock(ctx context.Context) (time.Time, time.Duration, error) {
	l.s.others.Add(1)
	return l.Ledger.ReadClock(ctx)
}

// TestSlotCost: a slot that does not overlap costs one acquire and one release more, is renewed together with its lock,
// and does not ask for the time again. What is refused costs nothing more. The lock makes no events of runs.
func TestSlotCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var counts []*countedLedger
		for _, overlaps := range []bool{true, false} {
			s := &countedLedger{Store: memory.New(nil).Open()}
			counts = append(counts, s)
			var started atomic.Int64
			client, err := holdfast.New(s, &holdfast.Options{OnEvent: func(e holdfast.Event) {
				if e.Kind == holdfast.EventRunStarted {
					started.Add(1)
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			l := client.Ledger("events", nil)
			slot := currentSlot(t, l, 24*time.Hour)
			s.others.Store(0)
			opts := &holdfast.RunOptions{Slot: slot}
			if overlaps {
				opts = nil
			}
			run, err := l.Begin(t.Context(), slot.Key("job"), opts)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(95 * time.Second)
			if err := run.Succeed(t.Context(), nil); err != nil {
				t.Error(err)
			}
			if _, err = l.Begin(t.Context(), slot.Key("job"), opts); !errors.Is(err, holdfast.ErrSucceeded) {
				t.Error(err)
			}
			_ = client.Close()
			if started.Load() != 1 {
				t.Errorf("%d runs have started", started.Load())
			}
		}
		without, with := counts[0], counts[1]
		// When a renewal is due is random by some seconds, so there may be one more. If the lock were renewed by
		// itself, there would be twice as many.
		if with.acquires.Load() != without.acquires.Load()+1 || with.releases.Load() != without.releases.Load()+1 ||
			with.renewals.Load() > without.renewals.Load()+1 || with.others.Load() > 0 {
			t.Errorf("%d acquires for %d, %d releases for %d, %d renewals for %d, %d readings of the clock",
				with.acquires.Load(), without.acquires.Load(), with.releases.Load(), without.releases.Load(),
				with.renewals.Load(), without.renewals.Load(), with.others.Load())
		}
	})
}

// awaitLoss waits until ctx ends, for a minute at most: what is wrong should not go on until the test's own timeout.
func awaitLoss(t *testing.T, ctx context.Context) {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(time.Minute):
		t.Fatal("it is not lost")
	}
}

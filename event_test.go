package holdfast

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

type contextKey struct{}

// waitForEvents waits until all events have been delivered, also those that are not urgent.
func waitForEvents() {
	time.Sleep(2 * eventDelay)
	synctest.Wait()
}

// TestEventFields: the events of a lock have the fields that their comments promise, and no others.
func TestEventFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		var r recorder
		c := newClient(t, m.Open(), &Options{Owner: "me", Meta: "note", OnEvent: r.addEvent})
		ctx := context.WithValue(t.Context(), contextKey{}, 7)
		o := &LockOptions{TTL: testTTL, Expected: time.Minute}
		l, err := c.Mutex("a", o).Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		_, err = newClient(t, m.Open(), &Options{Owner: "you", OnEvent: r.addEvent}).RWMutex("a", nil).TryRLock(t.Context())
		wantIs(t, err, ErrMismatch)
		time.Sleep(testTTL / 2)
		if err := l.Release(); err != nil {
			t.Fatal(err)
		}
		waitForEvents()
		attempt := Event{Kind: EventAttempt, Lock: "a", LockKind: KindMutex, ID: l.ID(), Owner: "me", Weight: 1, Limit: 1,
			TTL: testTTL, Expected: time.Minute, Wait: true}
		acquired := attempt
		acquired.Kind, acquired.Ref, acquired.Token = EventAcquired, l.Ref(), l.Token()
		renewed := acquired
		renewed.Kind, renewed.Held, renewed.Remaining = EventRenewed, testTTL/3, testTTL-testTTL/10
		released := acquired
		released.Kind, released.Held = EventReleased, testTTL/2
		own := slices.DeleteFunc(slices.Clone(r.events), func(e Event) bool { return e.Owner != "me" })
		want := []Event{attempt, acquired, renewed, released}
		if len(own) != len(want) {
			t.Fatalf("%d events: %v", len(own), own)
		}
		for i, e := range own {
			if e.Context.Value(contextKey{}) != 7 || e.Time.IsZero() {
				t.Errorf("event %v of %v has the context %v", e, e.Time, e.Context)
			}
			// a grant of the store in memory need not repeat what only the claim needs
			e.Time, e.Context, e.Wait = time.Time{}, nil, want[i].Wait
			if diff := e.Remaining - want[i].Remaining; diff.Abs() <= testTTL/10 {
				e.Remaining = want[i].Remaining
			}
			if diff := e.Held - want[i].Held; diff.Abs() <= testTTL/20 {
				e.Held = want[i].Held
			}
			if e != want[i] {
				t.Errorf("event %d is\n%+v, want\n%+v", i, e, want[i])
			}
		}
		failed := r.eventsOf(EventFailed)
		if len(failed) != 1 || failed[0].Reason != string(FailureMismatch) || failed[0].LockKind != KindRW ||
			failed[0].Wait || failed[0].Token != 0 || !errors.Is(failed[0].Err, ErrMismatch) {
			t.Errorf("%+v", failed)
		}
	})
}

// TestFailureReasons: each way in which a lock is not acquired has a reason of its own.
func TestFailureReasons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		f := newFakeStore()
		c := newClient(t, f, &Options{OnEvent: r.addEvent})
		held := mustLock(t, c, "a", nil)
		wantReason := func(err error, want FailureReason) {
			t.Helper()
			if got := FailureReasonOf(err); got != want {
				t.Errorf("%v is %s, want %s", err, got, want)
			}
		}
		_, err := c.Mutex("a", nil).TryLock(t.Context())
		wantIs(t, err, ErrHeld)
		wantReason(err, FailureHeld)
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Mutex("a", nil).Lock(soon)
		wantIs(t, err, context.DeadlineExceeded)
		wantReason(err, FailureTimeout)
		ctx, cancelNow := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancelNow)
		_, err = c.Mutex("a", &LockOptions{Fair: true}).Lock(ctx)
		wantIs(t, err, context.Canceled)
		wantReason(err, FailureCanceled)
		if err := held.Release(); err != nil {
			t.Error(err)
		}
		waitForEvents()
		var got []string
		for _, e := range r.eventsOf(EventFailed) {
			got = append(got, fmt.Sprint(e.Reason, e.Waited, e.Wait))
		}
		want := []string{"held0s false", "timeout1s true", "canceled1s true"}
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
	for _, f := range failureReasons {
		if got := FailureReasonOf(fmt.Errorf("said the store: %w", f.err)); got != f.reason {
			t.Errorf("%v is %s, want %s", f.err, got, f.reason)
		}
	}
	if got := FailureReasonOf(errors.New("connection refused")); got != FailureStore || !got.IsStoreFailure() {
		t.Errorf("an error of the store is %s", got)
	}
	if got := FailureReasonOf(nil); got != "" {
		t.Errorf("no error is %s", got)
	}
}

// TestRunEvents: the runs of a ledger have events of their own. They are delivered in one sequence with those of locks.
func TestRunEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		var r recorder
		c := newClient(t, m.Open(), &Options{TTL: testTTL, OnEvent: r.addEvent})
		ledger := c.Ledger("jobs", nil)
		begin := func() *Run {
			t.Helper()
			run, err := ledger.Begin(t.Context(), "k", nil)
			if err != nil {
				t.Fatal(err)
			}
			return run
		}
		first := begin()
		_, err := ledger.Begin(t.Context(), "k", nil)
		wantIs(t, err, ErrInProgress)
		time.Sleep(testTTL / 2)
		if err := first.Fail(t.Context(), errors.New("no luck")); err != nil {
			t.Fatal(err)
		}
		if err := begin().Succeed(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		_, err = ledger.Begin(t.Context(), "k", nil)
		wantIs(t, err, ErrSucceeded)
		other, err := ledger.Begin(t.Context(), "left", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		var got []string
		for _, e := range r.events {
			s := fmt.Sprintf("%s %s %d %s", e.Kind, e.Lock, e.Attempt, e.Reason)
			got = append(got, strings.TrimSpace(s))
		}
		want := []string{"run_attempt jobs/k 0", "run_started jobs/k 1", "run_attempt jobs/k 0",
			"run_refused jobs/k 0 in-progress", "run_renewed jobs/k 1", "run_failed jobs/k 1", "run_attempt jobs/k 0",
			"run_started jobs/k 2", "run_succeeded jobs/k 2", "run_attempt jobs/k 0", "run_refused jobs/k 0 succeeded",
			"run_attempt jobs/left 0", "run_started jobs/left 1", "run_failed jobs/left 1"}
		if !slices.Equal(got, want) {
			t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if e := r.events[len(r.events)-1]; e.Token != other.Token() || e.ID != other.ID() {
			t.Errorf("the last event is %+v", e)
		}
	})
}

// refusingLedger is a store whose ledger answers the end of each run with an error.
type refusingLedger struct {
	driver.Store
	err error
}

type refusingRuns struct {
	driver.Ledger
	err error
}

func (s refusingLedger) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	l, err := s.Store.OpenLedger(ctx)
	return refusingRuns{l, s.err}, err
}

func (l refusingRuns) FinishRun(ctx context.Context, g driver.Grant, o driver.RunOutcome) error {
	if l.err == nil {
		return l.Ledger.FinishRun(ctx, g, o)
	}
	return l.err
}

func (l refusingRuns) Release(ctx context.Context, c driver.Claim, ref string) error {
	if l.err == nil {
		return l.Ledger.Release(ctx, c, ref)
	}
	return l.err
}

// TestLastEventOfRun: the last event of a run is the state that the ledger shows for it in the end, whether its
// worker has reported or its client was closed, and whether the ledger has confirmed or refused that.
func TestLastEventOfRun(t *testing.T) {
	ends := map[string]func(*Client, *Run) error{
		"success": func(_ *Client, r *Run) error { return r.Succeed(context.Background(), nil) },
		"failure": func(_ *Client, r *Run) error { return r.Fail(context.Background(), nil) },
		"close":   func(c *Client, _ *Run) error { return c.Close() },
	}
	for _, c := range []struct {
		end   string
		err   error
		event EventKind
		state RunState
	}{
		{"success", nil, EventRunSucceeded, RunSucceeded}, {"success", ErrDenied, EventRunAbandoned, RunAbandoned},
		{"success", ErrCorrupt, EventRunAbandoned, RunAbandoned},
		{"failure", nil, EventRunFailed, RunFailed}, {"failure", ErrDenied, EventRunAbandoned, RunAbandoned},
		{"close", nil, EventRunFailed, RunFailed}, {"close", ErrDenied, EventRunAbandoned, RunAbandoned},
		{"close", ErrUncertain, EventRunAbandoned, RunAbandoned},
	} {
		t.Run(fmt.Sprint(c.end, " ", c.err), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := bubbleMemory()
				var r recorder
				client := newClient(t, refusingLedger{m.Open(), c.err}, &Options{TTL: testTTL, OnEvent: r.addEvent})
				run, err := client.Ledger("jobs", nil).Begin(t.Context(), "k", nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := ends[c.end](client, run); !errors.Is(err, c.err) && c.end != "close" {
					t.Errorf("the end of the run: %v, want %v", err, c.err)
				}
				waitForEvents()
				if e := r.events[len(r.events)-1]; e.Kind != c.event || !errors.Is(e.Err, c.err) {
					t.Errorf("the last event is %s with %v, want %s with %v", e.Kind, e.Err, c.event, c.err)
				}
				time.Sleep(2 * testTTL)
				runs, err := newClient(t, m.Open(), nil).Ledger("jobs", nil).History(t.Context(), "k")
				if err != nil || len(runs) != 1 || runs[0].State != c.state {
					t.Errorf("the ledger shows %+v, %v, want %s", runs, err, c.state)
				}
			})
		})
	}
}

// TestLostRunEvents: a worker that lost its run and then reports in time is seen in both events.
func TestLostRunEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		var r recorder
		c := newClient(t, m.Open(), &Options{TTL: testTTL, OnEvent: r.addEvent})
		run, err := c.Ledger("jobs", nil).Begin(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		run.lease.hold.endAs(stateLost, &LossError{Cause: LossExpired})
		run.lease.hold.client.handleLoss(run.lease.hold)
		if err := run.Succeed(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		waitForEvents()
		if lost, done := r.eventsOf(EventRunLost), r.eventsOf(EventRunSucceeded); len(lost) != 1 ||
			lost[0].Reason != string(LossExpired) || len(done) != 1 || len(r.eventsOf(EventLost)) != 0 {
			t.Errorf("lost: %v, reported: %v", lost, done)
		}
	})
}

// TestLogLines: each event is one line with the documented attributes. The note of the claim is not logged.
func TestLogLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		c := newClient(t, bubbleMemory().Open(), &Options{Logger: logger, Owner: "me", Meta: "a note", TTL: testTTL})
		l := mustLock(t, c, "a", &LockOptions{Expected: time.Second})
		_, err := c.Mutex("a", nil).TryLock(t.Context())
		wantIs(t, err, ErrHeld)
		time.Sleep(testTTL / 2)
		if err := l.Release(); err != nil {
			t.Fatal(err)
		}
		waitForEvents()
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		claim := []string{"lock=a", "kind=mutex", "owner=me", "id=" + l.ID(), "ttl=30s"}
		grant := append(slices.Clone(claim), "ref="+l.Ref(), fmt.Sprint("token=", l.Token()), "expected=1s")
		want := [][]string{
			append([]string{"event=lock_acquire_attempt", "wait=true"}, claim...),
			append([]string{"event=lock_acquired", "waited=0s"}, grant...),
			{"event=lock_acquire_attempt", "wait=false"},
			{"event=lock_failed", "level=DEBUG", "reason=held", "waited=0s", "error="},
			append([]string{"event=lock_renewed", "level=DEBUG", "held=", "round_trip=", "remaining="}, grant...),
			append([]string{"event=lock_released", "held=15s"}, grant...),
		}
		if len(lines) != len(want) || strings.Contains(out.String(), "a note") {
			t.Fatalf("the lines are\n%s", out.String())
		}
		for i, parts := range want {
			for _, part := range parts {
				if !strings.Contains(lines[i]+" ", part) {
					t.Errorf("no %q in %s", part, lines[i])
				}
			}
		}
	})
}

// TestHangingReceiver: a receiver that never returns delays no lock, and Close no longer than its bound.
func TestHangingReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		defer close(end)
		c := newClient(t, newFakeStore(), &Options{TTL: testTTL, OnEvent: func(Event) { <-end }})
		start := time.Now()
		for range 1000 {
			if err := mustLock(t, c, "a", nil).Release(); err != nil {
				t.Fatal(err)
			}
		}
		l := mustLock(t, c, "a", nil)
		if d := time.Since(start); d != 0 {
			t.Errorf("the locks took %v", d)
		}
		time.Sleep(3 * testTTL)
		if !l.Valid() {
			t.Error("the renewals waited for the receiver")
		}
		start = time.Now()
		_ = c.Close()
		if d := time.Since(start); d > closeTimeout+time.Second {
			t.Errorf("Close took %v", d)
		}
	})
}

// TestEventsOfLateGrant: a grant that arrives after its own end is a failed attempt, and the claim that is made in its
// place another one with its own id: each id has one attempt and one end. The caller's wait counts from its beginning.
func TestEventsOfLateGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.delay = testTTL
		var r recorder
		c := newClient(t, f, &Options{OnEvent: r.addEvent})
		time.AfterFunc(testTTL/2, func() { f.update(func() { f.delay = 0 }) })
		l := mustLock(t, c, "a", nil)
		if err := l.Release(); err != nil {
			t.Error(err)
		}
		f.update(func() { f.delay = testTTL })
		ctx, cancel := context.WithTimeout(t.Context(), testTTL+minPause/2) // it ends before the next attempt is made
		defer cancel()
		_, err := c.Mutex("a", nil).Lock(ctx)
		wantIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Minute)
		synctest.Wait()
		var got []string
		ids := map[string]int{}
		for _, e := range r.events {
			if ids[e.ID] == 0 {
				ids[e.ID] = len(ids) + 1
			}
			got = append(got, fmt.Sprint(ids[e.ID], e.Kind, e.Reason))
		}
		want := []string{"1lock_acquire_attempt", "1lock_faileduncertain", "2lock_acquire_attempt", "2lock_acquired",
			"2lock_released", "3lock_acquire_attempt", "3lock_faileduncertain", "4lock_acquire_attempt", "4lock_failedtimeout"}
		if !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
		if waited := r.eventsOf(EventAcquired)[0].Waited; waited <= testTTL {
			t.Errorf("the caller waited for %v", waited)
		}
	})
}

// TestEventsCostNothing: without a receiver an event costs no allocation.
func TestEventsCostNothing(t *testing.T) {
	c := newClient(t, newFakeStore(), nil)
	l := mustLock(t, c, "a", nil)
	claim, o, start := l.hold.claim(), LockOptions{}, time.Now()
	if n := testing.AllocsPerRun(100, func() {
		c.emitAttempt(t.Context(), &claim, &o, start)
		c.emitEvent(EventAcquired, l.hold, eventDetails{})
		c.emitEvent(EventReleased, l.hold, eventDetails{})
		c.emitFailure(t.Context(), &claim, &o, start, ErrHeld)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestEventKinds: each kind of event has one row in the table from which logs, metrics and traces know what it means.
// The kind that takes its place in the events of runs means the same.
func TestEventKinds(t *testing.T) {
	source, err := os.ReadFile("eventkind.go")
	if err != nil {
		t.Fatal(err)
	}
	constants := regexp.MustCompile(`(?m)^\tEvent\w+ +EventKind = "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	if len(constants) < 16 || len(EventKinds()) != len(constants) {
		t.Errorf("%d rows for %d constants", len(EventKinds()), len(constants))
	}
	for _, c := range constants {
		kind := EventKind(c[1])
		row := rowsByKind[kind]
		if row == nil {
			t.Errorf("%s has no row", kind)
			continue
		}
		phases := []EventPhase{PhaseAttempt, PhaseGrant, PhaseFailure, PhaseRenewal, PhaseNotice, PhaseLoss, PhaseEnd}
		if !slices.Contains(phases, row.phase) || !strings.Contains(row.description, " ") ||
			kind.Description() != row.description ||
			kind.OfRuns() != strings.HasPrefix(c[1], "run_") {
			t.Errorf("%+v", row)
		}
		if other := rowsByKind[row.onRun]; row.onRun != "" && (other == nil || !other.ofRuns || row.ofRuns ||
			other.phase != row.phase || other.level != row.level || other.urgent != row.urgent) {
			t.Errorf("%+v is %+v for runs", row, other)
		}
	}
	if k := EventKind("new"); k.Phase() != "" || k.Description() != "new" || k.OfRuns() {
		t.Errorf("an unknown kind is %q, %q", k.Phase(), k.Description())
	}
}

// TestEventDocs: docs/metrics.md lists all events, reasons and attributes of log lines, and no other events.
func TestEventDocs(t *testing.T) {
	data, err := os.ReadFile("docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	events, attributes, _ := strings.Cut(string(data), "## Attributes of log lines")
	for _, row := range eventRows {
		level := map[slog.Level]string{slog.LevelWarn: "warning"}[row.level]
		line := fmt.Sprintf("\n| `%s` | %s", row.kind, cmp.Or(level, strings.ToLower(row.level.String())))
		if row.kind == EventRunRefused {
			line = "\n| `run_refused` | as `lock_failed`"
		}
		if !strings.Contains(events, line) {
			t.Errorf("docs/metrics.md has no line that begins with %q", line)
		}
	}
	if n := strings.Count(events, "\n| `"); n != len(eventRows) {
		t.Errorf("docs/metrics.md lists %d events of %d", n, len(eventRows))
	}
	for _, r := range failureReasons {
		if !strings.Contains(attributes, fmt.Sprintf("`%s`", r.reason)) {
			t.Errorf("docs/metrics.md does not list the reason %s", r.reason)
		}
	}
	source, err := os.ReadFile("eventlog.go")
	if err != nil {
		t.Fatal(err)
	}
	attribute := regexp.MustCompile(`(?:addText|addTime|slog\.[A-Z]\w+)\("(\w+)"`)
	for _, name := range attribute.FindAllStringSubmatch(string(source), -1) {
		if !strings.Contains(attributes, "\n| `"+name[1]+"` |") {
			t.Errorf("docs/metrics.md does not list the attribute %s", name[1])
		}
	}
}

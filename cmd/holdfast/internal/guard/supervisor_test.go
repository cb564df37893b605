//go:build linux

package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver/clock"
)

// watchedTree is a supervisor of a tree that no signal ends, with a clock and a lease that the test sets.
type watchedTree struct {
	*supervisor
	now      time.Duration
	expiry   time.Duration // of the lease
	ctx      context.Context
	cancel   context.CancelCauseFunc
	messages []string
	events   []string
}

func (w *watchedTree) Name() string             { return "a" }
func (w *watchedTree) Context() context.Context { return w.ctx }

func (w *watchedTree) EndsBy() string { return CodeExpired }

func (w *watchedTree) Remaining() time.Duration {
	if w.ctx.Err() == nil && w.expiry <= w.now {
		w.cancel(&Loss{Code: CodeExpired, Why: ExpiredText})
	}
	if w.ctx.Err() != nil {
		return 0
	}
	return w.expiry - w.now
}

// watchTree makes a supervisor of a tree without processes, which never ends.
func watchTree(ttl, grace time.Duration) *watchedTree {
	w := &watchedTree{expiry: ttl}
	w.ctx, w.cancel = context.WithCancelCause(context.Background())
	w.supervisor = newSupervisor(&Tree{}, w, KillPolicy{Signal: unix.SIGTERM, Grace: grace, CheckInterval: time.Second}, nil,
		func(format string, args ...any) { w.messages = append(w.messages, fmt.Sprintf(format, args...)) },
		func(r Report) { w.events = append(w.events, r.Event) })
	read := func() time.Duration { return w.now }
	w.clock = clock.Clock{Monotonic: read, Boottime: read}
	w.supervisor.expiry = clock.Instant{}.Add(ttl)
	w.lost = w.ctx.Done()
	return w
}

// runUntil lets the time pass to an instant, with all checks that are due, and returns how many there were.
func (w *watchedTree) runUntil(at time.Duration) (checks int) {
	for {
		checks++
		next := w.now + w.checkDeadline()
		if next > at {
			w.now = at
			return checks
		}
		w.now = next
	}
}

// TestLateRenewalSparesNobody: a tree that was told to end, because its lease was about to expire, is killed when that
// time has passed, even if the lease was renewed meanwhile.
func TestLateRenewalSparesNobody(t *testing.T) {
	t.Parallel()
	w := watchTree(30*time.Second, 5*time.Second)
	w.runUntil(26 * time.Second)
	if !slices.Equal(w.events, []string{ReportTerminating}) {
		t.Fatalf("it has reported %q", w.events)
	}
	w.expiry = 60 * time.Second
	if w.runUntil(29 * time.Second); slices.Contains(w.events, ReportKilled) {
		t.Error("it was killed before its grace had passed")
	}
	if w.runUntil(31 * time.Second); !slices.Contains(w.events, ReportKilled) {
		t.Errorf("it runs on under a lease that was renewed: %q", w.events)
	}
}

// TestLossShortensGrace: a tree that was asked to end while the lease was valid is killed at once when the lease is
// lost, and gets no second grace when the lease is broken.
func TestLossShortensGrace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		loss *Loss
		left time.Duration
	}{
		{&Loss{Code: "taken", Why: "taken"}, 0},
		{&Loss{Code: "broken", Why: "broken", StaysHeld: true}, 3 * time.Second},
	} {
		w := watchTree(30*time.Second, 5*time.Second)
		w.runUntil(10 * time.Second)
		w.endTree()
		w.runUntil(12 * time.Second)
		w.cancel(c.loss)
		if c.left > 0 {
			w.runUntil(12*time.Second + c.left - time.Millisecond)
		}
		if slices.Contains(w.events, ReportKilled) {
			t.Errorf("%s: it was killed with %v left", c.loss, c.left)
		}
		if w.runUntil(12*time.Second + c.left + time.Millisecond); !slices.Contains(w.events, ReportKilled) {
			t.Errorf("%s: it was not killed after %v", c.loss, c.left)
		}
	}
}

// TestKillsSlowDown: what no SIGKILL ends is killed again and again, less and less often, and is reported only when
// SIGKILL has had time to work.
func TestKillsSlowDown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		end   func(*watchedTree)
		start time.Duration // of the killing
	}{
		{"the lease is lost", func(w *watchedTree) { w.cancel(errors.New("taken")) }, 0},
		{"its release is requested", func(w *watchedTree) { w.endTree() }, time.Second},
	} {
		w := watchTree(time.Hour, time.Second)
		c.end(w)
		w.runUntil(c.start + 800*time.Millisecond)
		if !slices.Contains(w.events, ReportKilled) || slices.Contains(w.events, ReportUnkillable) {
			t.Errorf("%s: after 0.8 s of killing it has reported %q", c.name, w.events)
		}
		if w.runUntil(c.start + 5*time.Second); !slices.Contains(w.events, ReportUnkillable) {
			t.Errorf("%s: it was never reported", c.name)
		}
		if n := w.runUntil(w.now + time.Minute); n > 62 {
			t.Errorf("%s: %d rounds in a minute", c.name, n)
		}
	}
}

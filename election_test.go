package holdfast

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestElection: one of several candidates leads and publishes its note. When it resigns, another one leads.
func TestElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		a := newClient(t, m.Open(), &Options{Owner: "A"}).Election("e", &LockOptions{Meta: "a:1"})
		b := newClient(t, m.Open(), &Options{Owner: "B"}).Election("e", &LockOptions{Meta: "b:1"})
		if s, err := b.Leader(t.Context()); err != nil || s.Ref != "" {
			t.Errorf("before the election %+v leads, %v", s, err)
		}
		first, err := a.Campaign(t.Context())
		if err != nil || !a.IsLeader() || b.IsLeader() {
			t.Fatal(err, a.IsLeader(), b.IsLeader())
		}
		if again, err := a.Campaign(t.Context()); again != first || err != nil {
			t.Errorf("campaigning again while leading: %v, %v", again, err)
		}
		s, err := b.Leader(t.Context())
		if err != nil || s.Meta != "a:1" || s.Owner != "A" || s.Token != first.Token() {
			t.Errorf("%+v, %v", s, err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = b.Campaign(short)
		wantIs(t, err, context.DeadlineExceeded)
		if err := b.Resign(); err != nil {
			t.Errorf("resigning from nothing: %v", err)
		}
		if err := a.Resign(); err != nil || a.IsLeader() {
			t.Errorf("resigning: %v, still leads: %v", err, a.IsLeader())
		}
		second, err := b.Campaign(t.Context())
		if err != nil || second.Token() <= first.Token() {
			t.Fatal(err)
		}
	})
}

// TestCampaignsOfOneCandidate: concurrent campaigns of one candidate share its one leadership. One that is canceled
// does not affect the others.
func TestCampaignsOfOneCandidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, nil)
		held := mustLock(t, newClient(t, f, nil), "e", nil)
		e := c.Election("e", nil)
		won := make(chan *Lease, 3)
		for range 3 {
			go func() {
				l, err := e.Campaign(t.Context())
				if err != nil {
					t.Error(err)
				}
				won <- l
			}()
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := e.Campaign(short)
		wantIs(t, err, context.DeadlineExceeded)
		if err := held.Release(); err != nil {
			t.Error(err)
		}
		first, second, third := <-won, <-won, <-won
		if first != second || first != third || !first.Valid() {
			t.Error("one candidate leads more than once")
		}
	})
}

// TestElectionStepsDown: a candidate is no longer leader as soon as its lease ends, without a request to the store.
func TestElectionStepsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		e := newClient(t, f, nil).Election("e", nil)
		l, err := e.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.update(func() { f.down = true })
		start := time.Now()
		f.suspend(testTrust)
		if e.IsLeader() {
			t.Error("the candidate leads after its deadline")
		}
		<-l.Context().Done()
		if took := time.Since(start); took != 0 {
			t.Errorf("the context ended %v late", took)
		}
		f.update(func() { f.down = false })
		wantIs(t, e.Resign(), ErrLost)
	})
}

// TestElectionRun: Run campaigns again after a loss, never runs two functions at the same time, and ends with the work
// or with its context.
func TestElectionRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		c, operator := newClient(t, m.Open(), nil), newClient(t, m.Open(), nil)
		e := c.Election("e", nil)
		own := errors.New("own")
		terms, running := 0, atomic.Int32{}
		err := e.Run(t.Context(), func(ctx context.Context, l *Lease) error {
			defer running.Add(-1)
			if running.Add(1) > 1 || !e.IsLeader() {
				t.Error("two functions run at the same time, or not as the leader")
			}
			if terms++; terms == 3 {
				return own
			}
			if err := operator.Break(t.Context(), "e", l.Ref(), BreakForce, ""); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			wantIs(t, context.Cause(ctx), ErrLost)
			return ctx.Err()
		})
		if !errors.Is(err, own) || terms != 3 || e.IsLeader() {
			t.Errorf("%v after %d leaderships, leads: %v", err, terms, e.IsLeader())
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = e.Run(ctx, func(ctx context.Context, l *Lease) error { <-ctx.Done(); return ctx.Err() })
		wantIs(t, err, context.DeadlineExceeded)
		if l, err := operator.Mutex("e", nil).TryLock(t.Context()); err != nil {
			t.Errorf("the leadership was not released: %v", err)
		} else if err := l.Release(); err != nil {
			t.Error(err)
		}

		mustLockFor(t, operator, "e", time.Minute)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = e.Run(short, func(context.Context, *Lease) error { t.Error("leads"); return nil })
		wantIs(t, err, context.DeadlineExceeded)
		bad := c.Election("", nil)
		wantIs(t, bad.Run(t.Context(), func(context.Context, *Lease) error { return nil }), ErrInvalid)
	})
}

func mustLockFor(t *testing.T, c *Client, name string, d time.Duration) {
	l := mustLock(t, c, name, nil)
	time.AfterFunc(d, func() { l.Release() })
}

// TestElectionRunEndsAfterLoss: a Run whose context ends after its leadership was lost returns the context's error.
func TestElectionRunEndsAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		ctx, cancel := context.WithCancel(t.Context())
		err := newClient(t, f, nil).Election("e", nil).Run(ctx, func(ctx context.Context, l *Lease) error {
			f.update(func() { f.down = true })
			<-ctx.Done()
			cancel()
			return context.Cause(ctx)
		})
		wantIs(t, err, context.Canceled)
	})
}

// TestElectionResignAfterwards: after Release, or after the end of Run, Resign does nothing.
func TestElectionResignAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newClient(t, newFakeStore(), nil).Election("e", nil)
		if err := e.Run(t.Context(), func(context.Context, *Lease) error { return nil }); err != nil {
			t.Error(err)
		}
		wantIs(t, e.Resign(), nil)
		l, err := e.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wantIs(t, l.Release(), nil)
		wantIs(t, e.Resign(), nil)
	})
}

// TestElectionRunRetries: Run tries again while the store is unreachable.
func TestElectionRunRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		f.refuse = errors.New("no way to the store")
		time.AfterFunc(time.Minute, func() { f.update(func() { f.refuse = nil }) })
		led := false
		err := newClient(t, f, nil).Election("e", nil).Run(t.Context(),
			func(context.Context, *Lease) error { led = true; return nil })
		if err != nil || !led || f.readCount(&f.acquires) > 100 {
			t.Errorf("%v, led %v, %d calls", err, led, f.readCount(&f.acquires))
		}
	})
}

// changeFeed is a store whose NextChange returns the states of a channel.
type changeFeed struct {
	driver.Store
	feed chan driver.Lock
}

func (w *changeFeed) NextChange(ctx context.Context, seen driver.Lock) (driver.Lock, error) {
	select {
	case l := <-w.feed:
		return l, nil
	case <-ctx.Done():
		return driver.Lock{}, ctx.Err()
	}
}

// TestElectionObserve: observers see the leader at first, and then each change, with or without notifications of the
// store.
func TestElectionObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		a := newClient(t, m.Open(), nil).Election("e", &LockOptions{Meta: "a"})
		b := newClient(t, m.Open(), nil).Election("e", &LockOptions{Meta: "b"})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		seen, ended := make(chan ClaimInfo), make(chan error, 1)
		go func() {
			for s, err := range newClient(t, m.Open(), nil).Election("e", nil).Observe(ctx) {
				if err != nil {
					ended <- err
					continue
				}
				seen <- s
			}
			close(ended)
		}()
		next := func(meta string) {
			t.Helper()
			for timeout := time.After(2 * time.Second); ; {
				select {
				case s := <-seen:
					if s.Meta == "" && meta != "" {
						continue // an observer may see or miss the time between two leaders
					}
					if s.Meta != meta {
						t.Errorf("%q leads, want %q", s.Meta, meta)
					}
				case <-timeout:
					t.Errorf("the observer did not learn that %q leads", meta)
				}
				return
			}
		}
		next("")
		if _, err := a.Campaign(t.Context()); err != nil {
			t.Fatal(err)
		}
		next("a")
		time.Sleep(time.Hour) // renewals are no changes
		if err := a.Resign(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Campaign(t.Context()); err != nil {
			t.Fatal(err)
		}
		next("b")
		if err := b.Resign(); err != nil {
			t.Fatal(err)
		}
		next("")
		cancel()
		wantIs(t, <-ended, context.Canceled)
		if _, more := <-ended; more {
			t.Error("the observer continues after its context has ended")
		}
	})
}

func TestElectionObserveWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		w := &changeFeed{Store: f, feed: make(chan driver.Lock, 3)}
		c, err := New(w, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, ref := range []string{"x", "x", "y"} {
			w.feed <- driver.Lock{Holders: []driver.ClaimInfo{{Ref: ref}}}
		}
		var got []string
		for s, err := range c.Election("e", nil).Observe(t.Context()) {
			if err != nil {
				wantIs(t, err, ErrClosed)
				continue
			}
			got = append(got, s.Ref)
			if s.Ref == "y" {
				time.AfterFunc(time.Hour, func() { c.Close() })
			}
		}
		if len(got) != 3 || got[1] != "x" || got[2] != "y" {
			t.Errorf("seen %q", got)
		}
		if n := f.readCount(&f.inspects); n != 1 {
			t.Errorf("%d calls of Inspect", n)
		}
	})
}

// TestElectionObserveErrors: an error of the store is reported, and the leader is reported again once it is known
// again.
func TestElectionObserveErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, nil)
		mustLock(t, c, "e", nil)
		known, errs := 0, 0
		for _, err := range c.Election("e", nil).Observe(t.Context()) {
			switch {
			case err != nil:
				errs++
				f.update(func() { f.refuseInspect = nil })
			case known == 0:
				known++
				f.update(func() { f.refuseInspect = errors.New("no way to the store") })
			default:
				known++
			}
			if known == 2 {
				break
			}
		}
		if errs != 1 {
			t.Errorf("%d errors", errs)
		}
		f.update(func() { f.refuseInspect = ErrDenied })
		for _, err := range c.Election("e", nil).Observe(t.Context()) {
			wantIs(t, err, ErrDenied)
		}
		f.update(func() { f.refuseInspect = nil })
	})
}

// TestRunOfCandidateTwice: a second Run of a candidate is refused while the first one is under way, whether that
// waits or leads, so lead never runs twice at the same time. After that the candidate can run again.
func TestRunOfCandidateTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore()
		c := newClient(t, f, nil)
		held := mustLock(t, newClient(t, f, nil), "e", nil)
		e := c.Election("e", nil)
		leading, end, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		lead := func(context.Context, *Lease) error {
			leading <- struct{}{}
			<-end
			return nil
		}
		refused := func(when string) {
			t.Helper()
			start := time.Now()
			err := e.Run(t.Context(), func(context.Context, *Lease) error {
				t.Errorf("%s: lead runs a second time", when)
				return nil
			})
			wantIs(t, err, ErrInvalid)
			if took := time.Since(start); took != 0 {
				t.Errorf("%s: refused after %v", when, took)
			}
		}
		go func() { done <- e.Run(t.Context(), lead) }()
		synctest.Wait()
		refused("while the first Run waits")
		if err := held.Release(); err != nil {
			t.Fatal(err)
		}
		<-leading
		refused("while the first Run leads")
		close(end)
		wantIs(t, <-done, nil)
		go func() { done <- e.Run(t.Context(), lead) }()
		<-leading
		wantIs(t, <-done, nil)
	})
}

package holdfast

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// A writer becomes a reader: those who read get in beside it, those who write do not, and its token stays.
func TestDowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bubbleMemory()
		rw, other := newClient(t, m.Open(), nil).RWMutex("rw", nil), newClient(t, m.Open(), nil).RWMutex("rw", nil)
		l, err := rw.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		token := l.Token()
		_, err = other.TryRLock(t.Context())
		wantIs(t, err, ErrHeld)
		if err := errors.Join(l.Downgrade(t.Context()), l.Downgrade(t.Context())); err != nil {
			t.Fatal(err)
		}
		if l.Exclusive() || l.Token() != token || !l.Valid() {
			t.Error("still exclusive, under another token, or ended")
		}
		r, err := other.TryRLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = other.TryLock(t.Context())
		wantIs(t, err, ErrHeld)
		err = l.TryUpgrade(t.Context())
		var e *Error
		if !errors.Is(err, ErrHeld) || !errors.As(err, &e) || len(e.Holders) != 1 || e.Holders[0].Ref != r.Ref() {
			t.Errorf("want the other holder named, and no one else: %v", err)
		}
		wantIs(t, r.TryUpgrade(t.Context()), ErrHeld) // both ask, and neither waits for the other
		time.Sleep(time.Hour)
		if !l.Valid() || !r.Valid() || l.Exclusive() || r.Exclusive() {
			t.Error("a refusal changed a lease")
		}
		if err := r.Release(); err != nil {
			t.Fatal(err)
		}
		if err := l.TryUpgrade(t.Context()); err != nil || !l.Exclusive() || l.Token() != token {
			t.Errorf("%v, exclusive %v", err, l.Exclusive())
		}
		_, err = other.TryRLock(t.Context())
		wantIs(t, err, ErrHeld)
		time.Sleep(time.Hour)
		if err := l.Release(); err != nil {
			t.Fatal(err)
		}
		wantIs(t, l.Downgrade(t.Context()), ErrReleased)
		next, err := other.Lock(t.Context())
		if err != nil || next.Token() <= token {
			t.Fatalf("%v", err)
		}
	})
}

// From the call on a downgraded lease is a reader's, whatever becomes of the answer; a lost one is lost.
func TestReweighFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &weightSetting{Store: bubbleMemory().Open(), err: driver.ErrUncertain}
		c := newClient(t, f, nil)
		rw := c.RWMutex("rw", nil)
		l, err := rw.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.during = func() {
			if l.Exclusive() {
				t.Error("a writer while it is downgraded")
			}
		}
		wantIs(t, l.Downgrade(t.Context()), ErrUncertain)
		if l.Exclusive() || !l.Valid() {
			t.Error("a writer after an unknown outcome, or no reader")
		}
		f.err = errors.New("connection refused") // a store need not say that this leaves it open
		wantIs(t, l.TryUpgrade(t.Context()), ErrUncertain, f.err)
		wantIs(t, l.Downgrade(t.Context()), ErrUncertain, f.err)
		if l.Exclusive() {
			t.Error("a writer after an unknown outcome")
		}
		f.err = &driver.LossError{Cause: driver.LossBroken}
		wantLoss(t, l.TryUpgrade(t.Context()), LossBroken)
		wantLoss(t, context.Cause(l.Context()), LossBroken)
		wantLoss(t, l.Downgrade(t.Context()), LossBroken)

		wantIs(t, mustLock(t, c, "a", nil).Downgrade(t.Context()), ErrInvalid)
		plain := newClient(t, newFake(), nil)
		r, err := plain.RWMutex("rw", nil).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wantIs(t, r.Downgrade(t.Context()), ErrUnsupported)
		if !r.Exclusive() {
			t.Error("a refusal changed the lease")
		}
		f.err = driver.ErrUnsupported // as an engine says whose store cannot do it
		if r, err = rw.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantIs(t, r.Downgrade(t.Context()), ErrUnsupported)
		if !r.Exclusive() {
			t.Error("a refusal changed the lease")
		}
	})
}

// A Downgrade behind an upgrade that hangs waits no longer than its context, and the lease is a reader's then.
func TestReweighBehindOneThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		f := &weightSetting{Store: bubbleMemory().Open(), during: func() { <-hang }}
		l, err := newClient(t, f, nil).RWMutex("rw", nil).RLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		upgraded := make(chan error)
		go func() { upgraded <- l.TryUpgrade(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		wantIs(t, l.Downgrade(ctx), ErrUncertain, context.DeadlineExceeded)
		if took := time.Since(start); took != time.Second || l.Exclusive() {
			t.Errorf("took %v, a writer: %v", took, l.Exclusive())
		}
		close(hang)
		wantIs(t, <-upgraded, nil)
		wantIs(t, l.Downgrade(t.Context()), nil)
		if l.Exclusive() {
			t.Error("still a writer")
		}
	})
}

// weightSetting is a store that answers SetWeight as a test says.
type weightSetting struct {
	driver.Store
	during func()
	err    error
}

func (r *weightSetting) SetWeight(context.Context, driver.Grant, int64) error {
	if r.during != nil {
		r.during()
	}
	r.during = nil
	return r.err
}

// Do and RDo run under a writer's and a reader's lease.
func TestRWDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rw := newClient(t, bubbleMemory().Open(), nil).RWMutex("rw", nil)
		err := rw.Do(t.Context(), func(ctx context.Context, l *Lease) error {
			if !l.Exclusive() {
				t.Error("not a writer")
			}
			_, err := rw.TryRLock(ctx)
			wantIs(t, err, ErrHeld)
			return nil
		})
		err = errors.Join(err, rw.RDo(t.Context(), func(ctx context.Context, l *Lease) error {
			return rw.RDo(ctx, func(context.Context, *Lease) error { return nil })
		}))
		if err != nil {
			t.Error(err)
		}
	})
}

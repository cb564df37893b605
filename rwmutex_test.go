package holdfast

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestDowngrade: a writer becomes a reader: other readers are granted next to it, writers are not, and its token
// remains.
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
			t.Error("the lease is still exclusive, has another token, or has ended")
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
			t.Errorf("the error should name only the other holder: %v", err)
		}
		wantIs(t, r.TryUpgrade(t.Context()), ErrHeld) // both try, and neither waits for the other
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

// TestSetWeightFails: from the call of Downgrade on, a lease counts as a reader's, whatever the outcome. A lost lease
// is lost.
func TestSetWeightFails(t *testing.T) {
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
				t.Error("the lease is a writer's during its downgrade")
			}
		}
		wantIs(t, l.Downgrade(t.Context()), ErrUncertain)
		if l.Exclusive() || !l.Valid() {
			t.Error("the lease is a writer's after an unknown outcome, or has ended")
		}
		f.err = errors.New("connection refused") // the store does not have to mark this as an unknown outcome
		wantIs(t, l.TryUpgrade(t.Context()), ErrUncertain, f.err)
		wantIs(t, l.Downgrade(t.Context()), ErrUncertain, f.err)
		if l.Exclusive() {
			t.Error("the lease is a writer's after an unknown outcome")
		}
		f.err = &driver.LossError{Cause: driver.LossBroken}
		wantLoss(t, l.TryUpgrade(t.Context()), LossBroken)
		wantLoss(t, context.Cause(l.Context()), LossBroken)
		wantLoss(t, l.Downgrade(t.Context()), LossBroken)

		wantIs(t, mustLock(t, c, "a", nil).Downgrade(t.Context()), ErrInvalid)
		plain := newClient(t, newFakeStore(), nil)
		r, err := plain.RWMutex("rw", nil).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wantIs(t, r.Downgrade(t.Context()), ErrUnsupported)
		if !r.Exclusive() {
			t.Error("a refusal changed the lease")
		}
		f.err = driver.ErrUnsupported // an engine returns this if its store does not support it
		if r, err = rw.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantIs(t, r.Downgrade(t.Context()), ErrUnsupported)
		if !r.Exclusive() {
			t.Error("a refusal changed the lease")
		}
	})
}

// TestSetWeightDuringHangingOne: a Downgrade during an upgrade that hangs returns when its context ends, and the lease
// is a reader's then.
func TestSetWeightDuringHangingOne(t *testing.T) {
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
			t.Errorf("took %v, exclusive: %v", took, l.Exclusive())
		}
		close(hang)
		wantIs(t, <-upgraded, nil)
		wantIs(t, l.Downgrade(t.Context()), nil)
		if l.Exclusive() {
			t.Error("the lease is still a writer's")
		}
	})
}

// weightSetting is a store whose SetWeight returns what the test sets.
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

// TestRWDo: Do and RDo run under a writer's and a reader's lease.
func TestRWDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rw := newClient(t, bubbleMemory().Open(), nil).RWMutex("rw", nil)
		err := rw.Do(t.Context(), func(ctx context.Context, l *Lease) error {
			if !l.Exclusive() {
				t.Error("the lease is not a writer's")
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

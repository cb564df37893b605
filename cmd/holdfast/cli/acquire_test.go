package cli

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

// endingStore ends a number of waits with errors before it lets one continue.
type endingStore struct {
	driver.Store
	ends atomic.Pointer[func(n int64, wait bool) error]
	n    atomic.Int64
}

func (s *endingStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if ends := s.ends.Load(); ends != nil {
		if err := (*ends)(s.n.Add(1), c.Wait); err != nil {
			return driver.Grant{}, err
		}
	}
	return s.Store.Acquire(ctx, c)
}

// TestWaitEndedByStore: a wait that the store ended (because the program was stopped for longer than its TTL, or the
// server was unreachable) continues, within --wait. Only a wait that an operator ended is refused as such. A lock that
// was free is never reported as not acquired, because --skip-ok would then skip the job.
func TestWaitEndedByStore(t *testing.T) {
	t.Parallel()
	session, broken := &driver.LossError{Cause: driver.LossSessionExpired}, &driver.LossError{Cause: driver.LossBroken}
	away := errors.New("connection refused")
	for _, c := range []struct {
		name    string
		ends    func(n int64, wait bool) error
		held    bool
		limited bool
		noWait  bool
		code    int // -1: granted
		words   string
	}{
		{"the wait continues", func(n int64, _ bool) error {
			if n < 3 {
				return session
			}
			return nil
		}, false, false, false, -1, ""},
		{"an operator", func(int64, bool) error { return broken }, true, false, false, 75, "ended by an operator"},
		{"in the end it is free", func(_ int64, wait bool) error {
			if wait {
				return session
			}
			return nil
		}, false, true, false, -1, ""},
		{"in the end it is held", func(_ int64, wait bool) error {
			if wait {
				return session
			}
			return nil
		}, true, true, false, 75, "was not free within 80ms; it is held by boss"},
		{"in the end the store is away", func(_ int64, wait bool) error {
			if wait {
				return session
			}
			return away
		}, true, true, false, 69, "connection refused"},
		{"a try", func(int64, bool) error { return session }, false, false, true, 69, "session"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			all := memory.New(nil)
			s := &endingStore{Store: all.Open()}
			client, err1 := holdfast.New(s, nil)
			other, err2 := holdfast.New(all.Open(), &holdfast.Options{Owner: "boss"})
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			defer other.Close()
			if c.held {
				if _, err := other.Mutex("a", nil).TryLock(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			s.ends.Store(&c.ends)
			r := &lockRequest{name: "a", kind: holdfast.KindMutex, noWait: c.noWait}
			if c.limited {
				r.waitLimit = waitLimit{limited: true, limit: 80 * time.Millisecond}
			}
			lease, err := r.acquireWithinLimit(t.Context(), client)
			switch {
			case c.code < 0 && err != nil:
				t.Error(err)
			case c.code < 0:
				if err := lease.Release(); err != nil {
					t.Error(err)
				}
			case err == nil:
				t.Error("granted")
			case storeError(err).code != c.code || !strings.Contains(err.Error(), c.words):
				t.Errorf("want exit %d with %q, got %d: %v", c.code, c.words, storeError(err).code, err)
			}
		})
	}
}

// attachedStore is a store whose claims end with their client.
type attachedStore struct{ driver.Store }

func (s attachedStore) Info() driver.Info {
	info := s.Store.Info()
	info.Abilities.Detach = false
	return info
}

// TestAcquireWithoutDetach: acquire does not wait for a lock that it could not leave held.
func TestAcquireWithoutDetach(t *testing.T) {
	t.Parallel()
	all := memory.New(nil)
	other, err1 := holdfast.New(all.Open(), nil)
	client, err2 := holdfast.New(attachedStore{all.Open()}, nil)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	defer client.Close()
	if _, err := other.Mutex("a", nil).TryLock(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := &lockRequest{name: "a", kind: holdfast.KindMutex, detached: true,
		waitLimit: waitLimit{limited: true, limit: 10 * time.Second}, began: time.Now()}
	if _, err := r.acquireWithinLimit(t.Context(), client); err == nil || storeError(err).code != exitUsage {
		t.Errorf("got %v", err)
	}
}

// silentStore does not answer to attempts that do not wait.
type silentStore struct{ driver.Store }

func (s silentStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if !c.Wait {
		began := time.Now()
		<-ctx.Done()
		return driver.Grant{}, &driver.SilentError{For: time.Since(began), Err: ctx.Err()}
	}
	return s.Store.Acquire(ctx, c)
}

// TestLastAttemptWithoutAnswer: if the store does not answer to the last attempt, when --wait has passed, that is said.
func TestLastAttemptWithoutAnswer(t *testing.T) {
	t.Parallel()
	all := memory.New(nil)
	other, err1 := holdfast.New(all.Open(), nil)
	client, err2 := holdfast.New(silentStore{all.Open()}, nil)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	defer client.Close()
	if _, err := other.Mutex("a", nil).TryLock(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := &lockRequest{name: "a", kind: holdfast.KindMutex, waitLimit: waitLimit{limited: true}, began: time.Now()}
	_, err := r.acquireWithinLimit(t.Context(), client)
	if storeError(err).code != exitUnavailable || !errors.Is(err, errNoAnswer) ||
		!strings.Contains(err.Error(), "the store has not answered for 2") || silenceOf(err) < inspectTimeout {
		t.Errorf("got %v, after a silence of %v", err, silenceOf(err))
	}
}

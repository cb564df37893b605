package acquire

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

// contradictingStore refuses every claim as one of another kind, whatever its Inspect shows. After many claims it
// refuses for another reason, so that a loop that never ends fails.
type contradictingStore struct {
	driver.Store
	kinds  []driver.Kind // what Inspect shows, in turn; empty: a free lock
	claims atomic.Int64
	looks  atomic.Int64
}

const tooManyClaims = 100

func (s *contradictingStore) Acquire(context.Context, driver.Claim) (driver.Grant, error) {
	if s.claims.Add(1) > tooManyClaims {
		return driver.Grant{}, driver.ErrCorrupt
	}
	return driver.Grant{}, driver.ErrMismatch
}

func (s *contradictingStore) Inspect(_ context.Context, name string) (driver.Lock, error) {
	kind := s.kinds[int(s.looks.Add(1)-1)%len(s.kinds)]
	if kind == "" {
		return driver.Lock{Name: name}, nil
	}
	return driver.Lock{Name: name, Kind: kind, Limit: 1, Holders: []driver.ClaimInfo{{Ref: "r", Owner: "boss"}}}, nil
}

// TestContradiction: a store that refuses a lock as one of another kind, and shows no other kind, ends the acquire with
// its own error: soon, with pauses, and whether the acquire waits or not.
func TestContradiction(t *testing.T) {
	t.Parallel()
	mutex, rw, semaphore := driver.KindMutex, driver.KindRW, driver.KindSemaphore
	for _, c := range []struct {
		name   string
		shows  []driver.Kind
		shared bool
		waits  []bool // with and without a wait, unless it says otherwise
		want   error
	}{
		{"the kind that was claimed", []driver.Kind{mutex}, false, nil, holdfast.ErrMismatch},
		{"a free lock", []driver.Kind{""}, false, nil, holdfast.ErrMismatch},
		{"another kind, which is refused, too", []driver.Kind{rw}, false, nil, holdfast.ErrMismatch},
		{"now free, now the kind that was claimed", []driver.Kind{"", mutex}, false, nil, holdfast.ErrMismatch},
		{"a reader's own kind", []driver.Kind{rw}, true, nil, holdfast.ErrMismatch},
		{"a semaphore", []driver.Kind{semaphore}, false, nil, holdfast.ErrMismatch},
		{"the kind that was not claimed, each time", []driver.Kind{rw, mutex}, false, []bool{false}, holdfast.ErrHeld},
		{"a mutex, to a reader", []driver.Kind{mutex}, true, []bool{false}, holdfast.ErrHeld},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.waits == nil {
				c.waits = []bool{false, true}
			}
			for _, wait := range c.waits {
				synctest.Test(t, func(t *testing.T) {
					s := &contradictingStore{Store: memory.New(nil).Open(), kinds: c.shows}
					client, err := holdfast.New(s, nil)
					if err != nil {
						t.Fatal(err)
					}
					defer client.Close()
					r := Request{Name: "a", Kind: mutex, Wait: wait, AnyKind: true}
					if c.shared {
						r.Kind, r.Shared = rw, true
					}
					_, err = r.Acquire(t.Context(), client)
					if n := s.claims.Load(); !errors.Is(err, c.want) || n > maxContradictions+1 {
						t.Errorf("wait %v: %v, after %d claims", wait, err, n)
					}
				})
			}
		})
	}
}

// TestKindsTakeTurns: a claim that waits follows a lock that has another kind each time, with pauses, until it is
// granted. One that shows itself as something else only for a while is no contradiction.
func TestKindsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &contradictingStore{Store: memory.New(nil).Open(), kinds: []driver.Kind{driver.KindRW, driver.KindMutex}}
		client, err := holdfast.New(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		r := Request{Name: "a", Kind: driver.KindMutex, Wait: true, AnyKind: true}
		if _, err := r.Acquire(t.Context(), client); !errors.Is(err, holdfast.ErrCorrupt) {
			t.Errorf("it was ended after %d claims: %v", s.claims.Load(), err)
		}
	})
}

// TestAnyKind: a plain claim joins readers as a writer, and so does one that waits. A claim that names its kind is
// refused.
func TestAnyKind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := memory.New(nil)
		theirs, err1 := holdfast.New(all.Open(), &holdfast.Options{Owner: "boss"})
		client, err2 := holdfast.New(all.Open(), nil)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		defer theirs.Close()
		defer client.Close()
		reader, err := theirs.RWMutex("a", nil).RLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r := Request{Name: "a", Kind: driver.KindMutex, AnyKind: true}
		var held *holdfast.HeldError
		if _, err := r.Acquire(t.Context(), client); !errors.As(err, &held) || held.Holders[0].Owner != "boss" {
			t.Errorf("a try: %v", err)
		}
		named := r
		named.AnyKind = false
		if _, err := named.Acquire(t.Context(), client); !errors.Is(err, holdfast.ErrMismatch) {
			t.Errorf("a mutex and nothing else: %v", err)
		}
		r.Wait = true
		granted := make(chan error, 1)
		go func() {
			lease, err := r.Acquire(t.Context(), client)
			if err == nil {
				err = lease.Release()
			}
			granted <- err
		}()
		synctest.Wait()
		if lock, err := client.Inspect(t.Context(), "a"); err != nil || len(lock.Waiters) != 1 {
			t.Errorf("it does not wait among the readers: %+v, %v", lock, err)
		}
		if err := errors.Join(reader.Release(), <-granted); err != nil {
			t.Error(err)
		}
	})
}

// interruptedStore ends the first waits for a lock or a run as a store does whose session with the client has
// expired, and then as one whose queue is full.
type interruptedStore struct {
	driver.Store
	left atomic.Int64
}

func (s *interruptedStore) interrupt() error {
	switch n := s.left.Add(-1); {
	case n >= 2:
		return &driver.LossError{Cause: driver.LossSessionExpired}
	case n >= 0:
		return driver.ErrQueueFull
	}
	return nil
}

func (s *interruptedStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := s.interrupt(); err != nil {
		return driver.Grant{}, err
	}
	return s.Store.Acquire(ctx, c)
}

func (s *interruptedStore) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	l, err := s.Store.OpenLedger(ctx)
	return interruptedLedger{l, s}, err
}

type interruptedLedger struct {
	driver.Ledger
	store *interruptedStore
}

func (l interruptedLedger) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := l.store.interrupt(); err != nil {
		return driver.Grant{}, err
	}
	return l.Ledger.Acquire(ctx, c)
}

// TestWaitBegunAgain: a wait for a lock or for the end of a run is begun again after the store has ended it, and
// after it found the queue full; one that does not wait is not.
func TestWaitBegunAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &interruptedStore{Store: memory.New(nil).Open()}
		client, err := holdfast.New(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		const interruptions = 4
		for _, wait := range []bool{true, false} {
			s.left.Store(interruptions)
			r := Request{Name: "a", Kind: driver.KindMutex, Wait: wait}
			lease, err := r.Acquire(t.Context(), client)
			if (err == nil) != wait || wait && lease.Release() != nil {
				t.Errorf("a lock, wait %v: %v", wait, err)
			}
			s.left.Store(interruptions)
			run, err := Begin(t.Context(), client.Ledger("jobs", nil), "k", &holdfast.RunOptions{Wait: wait})
			if (err == nil) != wait || wait && run.Fail(t.Context(), nil) != nil {
				t.Errorf("a run, wait %v: %v", wait, err)
			}
		}
	})
}

package holdfasttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/store/memory"
)

// Store is a store in memory. Its clock is the test's clock. In a bubble of testing/synctest, that is the bubble's.
type Store struct {
	memory   *memory.Memory
	operator *holdfast.Client
	bubble   bool

	mu      sync.Mutex
	clients []*Client
	thefts  int // how often Steal was called
}

// New returns an empty store for one test. If it is called in a bubble, all clients must be made in the same bubble.
func New(t testing.TB) *Store {
	t.Helper()
	start := time.Now()
	sinceStart := func() time.Duration { return time.Since(start) }
	clock := driver.Clock{Monotonic: sinceStart, Boottime: sinceStart}
	s := &Store{memory: memory.New(&memory.Options{Clock: clock}), bubble: inBubble()}
	s.operator = s.openClient(t, s.memory.Open(), &holdfast.Options{Owner: "the test"})
	return s
}

// inBubble reports whether the caller runs in a bubble. Outside a bubble, synctest.Wait panics.
func inBubble() (in bool) {
	defer func() { in = recover() == nil }()
	synctest.Wait()
	return true
}

func (s *Store) openClient(t testing.TB, store driver.Store, o *holdfast.Options) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(store, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Client returns a new client of the store. Two clients are like two processes: they exclude each other. o may be nil.
// The client is closed when the test ends.
func (s *Store) Client(t testing.TB, o *holdfast.Options) *Client {
	t.Helper()
	l := newLink()
	n := &endingNotifier{Store: record.New(&linkedTable{s.memory.Table(), l}), endings: make(chan driver.Ending, maxEndings)}
	c := &Client{link: l, notifier: n}
	c.Client = s.openClient(t, n, o)
	t.Cleanup(c.openLink) // before the client is closed, so that its releases reach the store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients = append(s.clients, c)
	return c
}

// Advance lets d pass. When it returns, everything that was due in that time has happened: renewals, losses, the
// expiry of claims whose holders stopped renewing, and what waiting goroutines did then. It fails the test outside a
// bubble.
func (s *Store) Advance(t testing.TB, d time.Duration) {
	t.Helper()
	if !s.bubble {
		t.Fatal("holdfasttest: Advance needs a bubble: make the store inside synctest.Test")
	}
	time.Sleep(d)
	synctest.Wait()
}

// waitForEffects returns, in a bubble, when everything that was started has had its effect. Elsewhere it does nothing.
func (s *Store) waitForEffects() {
	if s.bubble {
		synctest.Wait()
	}
}

// Expire ends all leases on a lock as if their holders had not renewed them for a TTL: the lock is free, and the leases
// are lost with the cause [holdfast.LossExpired]. Outside a bubble, the holders learn of it shortly after Expire has
// returned. Expire fails the test if the lock has no holder.
func (s *Store) Expire(t testing.TB, name string) {
	t.Helper()
	for _, h := range s.requireHolders(t, name) {
		s.breakClaim(t, name, h.Ref, holdfast.BreakForce)
		s.mu.Lock()
		for _, c := range s.clients {
			c.notifier.notify(driver.Ending{Name: name, ID: h.Ref, Err: &driver.LossError{Cause: driver.LossExpired}})
		}
		s.mu.Unlock()
	}
	s.waitForEffects()
}

// Steal takes a lock from its holders, and returns the lease of a new client that holds it instead. The old holders do
// not know this before their next renewal, within a third of their TTL, like a process that was frozen for too long.
// Their leases are then lost with the cause [holdfast.LossBroken], since Steal uses a forced break. Until then, the
// resource that the lock protects must refuse what they do under their old token. Steal fails the test if the lock has
// no holder, or if other clients are always faster.
func (s *Store) Steal(t testing.TB, name string) *holdfast.Lease {
	t.Helper()
	lock := s.mustInspect(t, name)
	if len(lock.Holders) == 0 {
		t.Fatalf("holdfasttest: nobody holds %q, so it cannot be stolen", name)
	}
	s.mu.Lock()
	s.thefts++
	owner := fmt.Sprintf("thief %d", s.thefts)
	s.mu.Unlock()
	thief := s.Client(t, &holdfast.Options{Owner: owner})
	const maxTries = 10 // a waiter may be faster
	for range maxTries {
		for _, h := range s.mustInspect(t, name).Holders {
			s.breakClaim(t, name, h.Ref, holdfast.BreakForce)
		}
		l, err := takeWholeLock(thief.Client, lock)
		if err == nil {
			return l
		}
		if !errors.Is(err, holdfast.ErrHeld) {
			t.Fatalf("holdfasttest: stealing %q: %v", name, err)
		}
	}
	t.Fatalf("holdfasttest: %q could not be stolen: in %d tries, waiting clients were faster", name, maxTries)
	return nil
}

// takeWholeLock takes all of a lock, with the kind and limit that it has.
func takeWholeLock(c *holdfast.Client, lock holdfast.Lock) (*holdfast.Lease, error) {
	switch lock.Kind {
	case holdfast.KindRW:
		return c.RWMutex(lock.Name, nil).TryLock(context.Background())
	case holdfast.KindSemaphore:
		return c.Semaphore(lock.Name, lock.Limit, nil).TryAcquire(context.Background(), lock.Limit)
	}
	return c.Mutex(lock.Name, nil).TryLock(context.Background())
}

// Break breaks the claims of all holders of a lock, as [holdfast.Client.Break] does. The holders learn of it at their
// next renewal, within a third of their TTL. Break fails the test if the lock has no holder.
func (s *Store) Break(t testing.TB, name string, mode holdfast.BreakMode) {
	t.Helper()
	for _, h := range s.requireHolders(t, name) {
		s.breakClaim(t, name, h.Ref, mode)
	}
}

// RequestRelease asks all holders of a lock to release it, as [holdfast.Client.RequestRelease] does. They learn of it
// at their next renewal, within a third of their TTL. RequestRelease fails the test if the lock has no holder.
func (s *Store) RequestRelease(t testing.TB, name string) {
	t.Helper()
	for _, h := range s.requireHolders(t, name) {
		if err := s.operator.RequestRelease(context.Background(), name, h.Ref); err != nil &&
			!errors.Is(err, holdfast.ErrLost) {
			t.Fatalf("holdfasttest: %v", err)
		}
	}
}

// breakClaim breaks one claim, which may have ended meanwhile.
func (s *Store) breakClaim(t testing.TB, name, ref string, mode holdfast.BreakMode) {
	t.Helper()
	if err := s.operator.Break(context.Background(), name, ref, mode, ""); err != nil && !errors.Is(err, holdfast.ErrLost) {
		t.Fatalf("holdfasttest: %v", err)
	}
}

// requireHolders returns the holders of a lock, and fails the test if there are none.
func (s *Store) requireHolders(t testing.TB, name string) []holdfast.ClaimInfo {
	t.Helper()
	holders := s.mustInspect(t, name).Holders
	if len(holders) == 0 {
		t.Fatalf("holdfasttest: nobody holds %q", name)
	}
	return holders
}

func (s *Store) mustInspect(t testing.TB, name string) holdfast.Lock {
	t.Helper()
	lock, err := s.operator.Inspect(context.Background(), name)
	if err != nil {
		t.Fatalf("holdfasttest: %v", err)
	}
	return lock
}

// AssertHeld fails the test if nobody holds the lock.
func (s *Store) AssertHeld(t testing.TB, name string) {
	t.Helper()
	if len(s.mustInspect(t, name).Holders) == 0 {
		t.Errorf("nobody holds %q", name)
	}
}

// AssertFree fails the test if somebody holds the lock.
func (s *Store) AssertFree(t testing.TB, name string) {
	t.Helper()
	for _, h := range s.mustInspect(t, name).Holders {
		t.Errorf("%s holds %q, under token %d", h.Owner, name, h.Token)
	}
}

// AssertHeldBy fails the test if the lease has ended, or if it does not hold its lock according to the store. The
// second happens after Steal, before the holder's next renewal.
func (s *Store) AssertHeldBy(t testing.TB, l *holdfast.Lease) {
	t.Helper()
	if err := l.Err(); err != nil {
		t.Errorf("the lease of %q has ended: %v", l.Name(), err)
		return
	}
	holders := s.mustInspect(t, l.Name()).Holders
	for _, h := range holders {
		if h.Ref == l.Ref() && h.Token == l.Token() {
			return
		}
	}
	t.Errorf("%q is not held under token %d any more, and its lease has not ended yet: the lock has %d other holders",
		l.Name(), l.Token(), len(holders))
}

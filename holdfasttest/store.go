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

// Store is a store in memory. It is judged by the test's clock, which in a bubble of testing/synctest is the bubble's.
type Store struct {
	memory   *memory.Memory
	operator *holdfast.Client
	bubble   bool

	mu      sync.Mutex
	clients []*Client
	thieves int
}

// New makes an empty store for one test. All clients must be made in the bubble in which it was made, if any.
func New(t testing.TB) *Store {
	t.Helper()
	start := time.Now()
	hand := func() time.Duration { return time.Since(start) }
	s := &Store{memory: memory.New(&memory.Options{Clock: driver.Clock{Monotonic: hand, Boottime: hand}}),
		bubble: inBubble()}
	s.operator = s.open(t, s.memory.Open(), &holdfast.Options{Owner: "the test"})
	return s
}

// inBubble reports whether the caller runs in a bubble: outside of one synctest.Wait panics.
func inBubble() (in bool) {
	defer func() { in = recover() == nil }()
	synctest.Wait()
	return true
}

func (s *Store) open(t testing.TB, store driver.Store, o *holdfast.Options) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(store, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Client makes a client of the store, as another process would: two clients exclude each other. o may be nil. The
// client is closed when the test ends.
func (s *Store) Client(t testing.TB, o *holdfast.Options) *Client {
	t.Helper()
	l := newLink(s.memory.Table())
	w := &told{Store: record.New(l), endings: make(chan driver.Ending, maxEndings)}
	c := &Client{link: l, told: w}
	c.Client = s.open(t, w, o)
	t.Cleanup(c.restore) // before it is closed, so that this finds its way
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients = append(s.clients, c)
	return c
}

// Advance lets d pass. When it returns, all that was due in that time has taken effect: renewals, losses, the ends of
// silent claims, and what waiting goroutines did then. It needs a bubble.
func (s *Store) Advance(t testing.TB, d time.Duration) {
	t.Helper()
	if !s.bubble {
		t.Fatal("holdfasttest: Advance needs a bubble: make the store inside of synctest.Test")
	}
	time.Sleep(d)
	synctest.Wait()
}

// settle lets what was begun take effect, in a bubble.
func (s *Store) settle() {
	if s.bubble {
		synctest.Wait()
	}
}

// Expire ends all leases on a lock as if their holders had been silent for a TTL: the lock is free, and the leases are
// lost, by [holdfast.LossExpired]. Outside of a bubble their holders hear of it a moment after Expire has returned.
func (s *Store) Expire(t testing.TB, name string) {
	t.Helper()
	for _, h := range s.holders(t, name) {
		s.breaks(t, name, h.Ref, holdfast.BreakForce)
		s.mu.Lock()
		for _, c := range s.clients {
			c.told.tell(driver.Ending{Name: name, ID: h.Ref, Err: &driver.LossError{Cause: driver.LossExpired}})
		}
		s.mu.Unlock()
	}
	s.settle()
}

// Steal takes a lock from its holders and gives it to a thief, whose lease it returns. The holders do not know: they go
// on believing until their next renewal, a third of their TTL at most, as a process does that was frozen for too long.
// They are then told [holdfast.LossBroken], since the lock is taken by a forced break.
// What they do under their token meanwhile is for the guarded resource to refuse.
func (s *Store) Steal(t testing.TB, name string) *holdfast.Lease {
	t.Helper()
	lock := s.inspect(t, name)
	if len(lock.Holders) == 0 {
		t.Fatalf("holdfasttest: nobody holds %q, so it cannot be stolen", name)
	}
	s.mu.Lock()
	s.thieves++
	owner := fmt.Sprintf("thief %d", s.thieves)
	s.mu.Unlock()
	thief := s.Client(t, &holdfast.Options{Owner: owner})
	const tries = 10 // another waiter may be quicker
	for range tries {
		for _, h := range s.inspect(t, name).Holders {
			s.breaks(t, name, h.Ref, holdfast.BreakForce)
		}
		l, err := take(thief.Client, lock)
		if err == nil {
			return l
		}
		if !errors.Is(err, holdfast.ErrHeld) {
			t.Fatalf("holdfasttest: stealing %q: %v", name, err)
		}
	}
	t.Fatalf("holdfasttest: %q could not be stolen: others stand in line for it", name)
	return nil
}

// take takes the whole of a lock, as what it was.
func take(c *holdfast.Client, lock holdfast.Lock) (*holdfast.Lease, error) {
	switch lock.Kind {
	case holdfast.KindRW:
		return c.RWMutex(lock.Name, nil).TryLock(context.Background())
	case holdfast.KindSemaphore:
		return c.Semaphore(lock.Name, lock.Limit, nil).TryAcquire(context.Background(), lock.Limit)
	}
	return c.Mutex(lock.Name, nil).TryLock(context.Background())
}

// Break acts on all holders of a lock as an operator does; see holdfast.Client.Break. They hear of it with their next
// renewal, a third of their TTL at most.
func (s *Store) Break(t testing.TB, name string, mode holdfast.BreakMode) {
	t.Helper()
	for _, h := range s.holders(t, name) {
		s.breaks(t, name, h.Ref, mode)
	}
}

// RequestRelease asks all holders of a lock to release it, as holdfast.Client.RequestRelease does. They learn of it
// with their next renewal, within a third of their TTL.
func (s *Store) RequestRelease(t testing.TB, name string) {
	t.Helper()
	for _, h := range s.holders(t, name) {
		if err := s.operator.RequestRelease(context.Background(), name, h.Ref); err != nil &&
			!errors.Is(err, holdfast.ErrLost) {
			t.Fatalf("holdfasttest: %v", err)
		}
	}
}

func (s *Store) breaks(t testing.TB, name, ref string, mode holdfast.BreakMode) {
	t.Helper()
	if err := s.operator.Break(context.Background(), name, ref, mode); err != nil && !errors.Is(err, holdfast.ErrLost) {
		t.Fatalf("holdfasttest: %v", err)
	}
}

// holders are those of a lock, of which there must be one.
func (s *Store) holders(t testing.TB, name string) []holdfast.ClaimInfo {
	t.Helper()
	holders := s.inspect(t, name).Holders
	if len(holders) == 0 {
		t.Fatalf("holdfasttest: nobody holds %q", name)
	}
	return holders
}

func (s *Store) inspect(t testing.TB, name string) holdfast.Lock {
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
	if len(s.inspect(t, name).Holders) == 0 {
		t.Errorf("nobody holds %q", name)
	}
}

// AssertFree fails the test if somebody holds the lock.
func (s *Store) AssertFree(t testing.TB, name string) {
	t.Helper()
	for _, h := range s.inspect(t, name).Holders {
		t.Errorf("%s holds %q, under token %d", h.Owner, name, h.Token)
	}
}

// AssertHeldBy fails the test if the lease is not valid, or the store says that its lock is not held under it.
func (s *Store) AssertHeldBy(t testing.TB, l *holdfast.Lease) {
	t.Helper()
	if err := l.Err(); err != nil {
		t.Errorf("the lease of %q has ended: %v", l.Name(), err)
		return
	}
	holders := s.inspect(t, l.Name()).Holders
	for _, h := range holders {
		if h.Ref == l.Ref() && h.Token == l.Token() {
			return
		}
	}
	t.Errorf("%q is not held under token %d any more, though its holder believes so: %d others hold it", l.Name(),
		l.Token(), len(holders))
}

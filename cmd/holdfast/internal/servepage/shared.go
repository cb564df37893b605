package servepage

import (
	"context"
	"sync"
	"time"
)

// notifier wakes subscribers. What one of them has not yet noticed is not repeated, so a slow one costs nothing.
type notifier struct {
	mu          sync.Mutex
	subscribers map[chan struct{}]struct{}
}

// subscribe returns a channel that is notified, and the function that ends that.
func (n *notifier) subscribe() (changed <-chan struct{}, unsubscribe func()) {
	c := make(chan struct{}, 1)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.subscribers == nil {
		n.subscribers = map[chan struct{}]struct{}{}
	}
	n.subscribers[c] = struct{}{}
	return c, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.subscribers, c)
	}
}

func (n *notifier) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.subscribers)
}

func (n *notifier) notifyAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.subscribers {
		wake(c)
	}
}

// wake leaves a note in a channel with room for one, unless there is one already.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// shared is something in the store that is read once for all who look at it: on demand, and again and again while there
// are subscribers. It is read by one goroutine at a time.
type shared[T any] struct {
	base    context.Context
	every   time.Duration // the pause between two reads for subscribers; on demand, half of it is fresh enough
	read    func(ctx context.Context) T
	differs func(a, b T) bool

	notifier notifier
	wakeup   chan struct{} // ends the pause

	mu        sync.Mutex
	value     T
	startedAt time.Time     // of the read of value; zero if there is none
	notBefore time.Time     // a value whose read started earlier is out of date
	took      time.Duration // the last read
	reading   chan struct{} // closed when the read that is under way has ended; nil if there is none
	looping   bool
	touched   time.Time // when somebody last asked
}

func newShared[T any](base context.Context, every time.Duration, read func(context.Context) T,
	differs func(a, b T) bool) *shared[T] {
	return &shared[T]{base: base, every: every, read: read, differs: differs, wakeup: make(chan struct{}, 1),
		touched: time.Now()}
}

// get returns a value that is fresh. It waits for a read that is under way instead of starting another one.
func (s *shared[T]) get(ctx context.Context) (T, error) {
	asked := time.Now()
	for {
		s.mu.Lock()
		s.touched = time.Now()
		oldest := asked.Add(-s.every / 2)
		if s.notBefore.After(oldest) {
			oldest = s.notBefore
		}
		if !s.startedAt.IsZero() && !s.startedAt.Before(oldest) {
			defer s.mu.Unlock()
			return s.value, nil
		}
		if s.reading == nil {
			s.reading = make(chan struct{})
			go s.readOnce(s.reading)
		}
		reading := s.reading
		s.mu.Unlock()
		select {
		case <-reading:
		case <-ctx.Done():
			var none T
			return none, ctx.Err()
		case <-s.base.Done():
			var none T
			return none, s.base.Err()
		}
	}
}

// readOnce reads the value. The read belongs to all viewers, so it does not end with one of them.
func (s *shared[T]) readOnce(done chan struct{}) {
	ctx, cancel := context.WithTimeout(s.base, readTimeout)
	defer cancel()
	start := time.Now()
	value := s.read(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.value, s.startedAt, s.took, s.reading = value, start, time.Since(start), nil
	close(done)
}

// invalidate makes the next get read again, and tells the subscribers soon if the value differs.
func (s *shared[T]) invalidate() {
	s.mu.Lock()
	s.notBefore = time.Now()
	s.mu.Unlock()
	wake(s.wakeup)
}

// subscribe returns a channel that is notified after changes, and the function that ends that.
func (s *shared[T]) subscribe() (changed <-chan struct{}, unsubscribe func()) {
	changed, unsubscribe = s.notifier.subscribe()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.looping {
		s.looping = true
		go s.loop()
	}
	return changed, unsubscribe
}

// quietReads is after how many reads without a change the subscribers are notified nevertheless: times have moved on,
// because leases were renewed.
const quietReads = 3

// loop reads while there are subscribers, and notifies them.
func (s *shared[T]) loop() {
	var last T
	known, quiet := false, 0
	for {
		if value, err := s.get(s.base); err == nil {
			if quiet++; !known || quiet >= quietReads || s.differs(last, value) {
				s.notifier.notifyAll()
				quiet = 0
			}
			last, known = value, true
		}
		s.mu.Lock()
		if s.base.Err() != nil || s.notifier.count() == 0 {
			s.looping = false
			s.mu.Unlock()
			return
		}
		pause := max(s.every, 4*s.took) // a store that takes long is asked less often
		s.mu.Unlock()
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-s.wakeup:
		case <-s.base.Done():
		}
		timer.Stop()
	}
}

// idleSince is when somebody last looked at it; now, if somebody looks.
func (s *shared[T]) idleSince() time.Time {
	if s.notifier.count() > 0 {
		return time.Now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.touched
}

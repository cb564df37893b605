package redis

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// lookout listens to one lock for all claims of this client that wait for it. What it hears is a hint: whoever is told
// looks for itself, and would look in time if nothing were ever heard.
type lookout struct {
	s        *Store
	lock     string   // the lock's key
	channels []string // on which it is told of, all in one hash slot
	end      context.CancelFunc
	seats    map[*seat]struct{} // guarded by the store's mutex, like what follows
	since    time.Time          // when the last seat was left
	idle     *time.Timer        // ends a lookout for which nobody sits any more; nil before the first one was left

	mu    sync.Mutex
	ready chan struct{} // closed while it listens
	live  bool
}

// seat is one claim that waits.
type seat struct {
	lookout *lookout
	id      string
	inLine  bool
	told    chan time.Duration // buffered. 0: look now; else look when that has passed
}

// How soon a lookout listens again after it could not: a server that is away is not to be asked by all of them all the time.
const (
	leastPause = 50 * time.Millisecond
	mostPause  = time.Second
)

// linger is how long a lookout goes on when nobody waits any more: a contended lock is soon waited for again.
const linger = 5 * time.Second

// sit has a claim told what concerns it, and reports whether the lookout listens already. It gives nil when the store is
// closed.
func (s *Store) sit(lock, id string, inLine bool) (*seat, bool) {
	general := s.steps.tells(lock)
	return s.sitOn(lock, id, inLine, general, general+":"+s.session)
}

// sitOn is sit for any key that is told of on these channels.
func (s *Store) sitOn(lock, id string, inLine bool, channels ...string) (*seat, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return nil, false
	}
	l := s.lookouts[lock]
	if l == nil {
		l = &lookout{s: s, lock: lock, channels: channels, seats: map[*seat]struct{}{}, ready: make(chan struct{})}
		var ctx context.Context
		ctx, l.end = context.WithCancel(s.life)
		s.lookouts[lock] = l
		s.inBackground.Go(func() { l.run(ctx) })
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seat(id, inLine), l.live
}

// join is sit for a claim that is about to come to stand in line, where this client listens to the lock anyway; else it gives nil.
func (s *Store) join(lock, id string) *seat {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lookouts[lock]; l != nil {
		return l.seat(id, true)
	}
	return nil
}

// seat is called with the store's mutex held.
func (l *lookout) seat(id string, inLine bool) *seat {
	t := &seat{l, id, inLine, make(chan time.Duration, 4)}
	l.seats[t] = struct{}{}
	return t
}

// leave gives the seat up.
func (t *seat) leave() {
	s, l := t.lookout.s, t.lookout
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(l.seats, t)
	if len(l.seats) > 0 || s.life.Err() != nil {
		return
	}
	l.since = time.Now()
	if l.idle == nil {
		l.idle = time.AfterFunc(linger, l.rest)
	}
}

// rest ends the lookout if nobody has sat for it for long enough.
func (l *lookout) rest() {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	switch left := linger - time.Since(l.since); {
	case len(l.seats) > 0:
		l.idle = nil
	case left > 0:
		l.idle.Reset(left)
	default:
		delete(l.s.lookouts, l.lock)
		l.end()
	}
}

// listening gives a channel that is closed when the lookout listens.
func (l *lookout) listening() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ready
}

// run listens until the lookout is ended. After an interruption all look for themselves: something may have been missed.
func (l *lookout) run(ctx context.Context) {
	for pause := leastPause; ctx.Err() == nil; pause = min(2*pause, mostPause) {
		// A client of the user's may make a link anew, and subscribe again, by itself.
		var listened atomic.Bool
		sub := rueidis.WithOnSubscriptionHook(ctx, func(e rueidis.PubSubSubscription) {
			if !strings.HasSuffix(e.Kind, "unsubscribe") && e.Channel == l.channels[len(l.channels)-1] {
				l.listens(true) // the last is confirmed last
				listened.Store(true)
			}
		})
		var cmd rueidis.Completed
		if l.s.sharded.Load() {
			cmd = l.s.client.B().Ssubscribe().Channel(l.channels...).Build()
		} else {
			cmd = l.s.client.B().Subscribe().Channel(l.channels...).Build()
		}
		_ = l.s.client.Receive(sub, cmd, func(m rueidis.PubSubMessage) { l.hear(m.Message) })
		l.listens(false)
		if listened.Load() {
			pause = leastPause
		}
		_ = l.s.sleep(ctx, pause/2+rand.N(pause/2))
	}
	if !l.s.owned || l.s.life.Err() == nil { // the connection goes on, and should not carry this for ever
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if l.s.sharded.Load() {
			l.s.client.Do(bounded, l.s.client.B().Sunsubscribe().Channel(l.channels...).Build())
		} else {
			l.s.client.Do(bounded, l.s.client.B().Unsubscribe().Channel(l.channels...).Build())
		}
	}
}

func (l *lookout) listens(now bool) {
	l.mu.Lock()
	switch {
	case now && !l.live:
		l.live = true
		close(l.ready)
	case !now && l.live:
		l.live = false
		l.ready = make(chan struct{})
	}
	l.mu.Unlock()
	if now {
		l.wake(func(*seat) bool { return true }, 0)
	}
}

// hear acts on a message: "free", "roll <ms>", "call <id>" or "next <id> <ms>".
func (l *lookout) hear(message string) {
	what, rest, _ := strings.Cut(message, " ")
	switch what {
	case "free", "0", "": // "0" is what Redisson says, and nothing is what a row's change says
		l.wake(func(s *seat) bool { return !s.inLine }, 0)
	case "roll":
		ms, _ := strconv.ParseInt(rest, 10, 64)
		l.wakeSpread(func(s *seat) bool { return s.inLine }, millis(ms))
	case "call":
		l.wake(func(s *seat) bool { return s.id == rest }, 0)
	case "next":
		id, ms, _ := strings.Cut(rest, " ")
		if n, err := strconv.ParseInt(ms, 10, 64); err == nil {
			l.wake(func(s *seat) bool { return s.id == id }, millis(n)+time.Millisecond)
		}
	}
}

func (l *lookout) wake(whom func(*seat) bool, after time.Duration) {
	l.wakeEach(whom, func() time.Duration { return after })
}

// wakeSpread has those who are woken look at some time within a span, each at another.
func (l *lookout) wakeSpread(whom func(*seat) bool, span time.Duration) {
	l.wakeEach(whom, func() time.Duration {
		if span <= 0 {
			return 0
		}
		return rand.N(span)
	})
}

func (l *lookout) wakeEach(whom func(*seat) bool, after func() time.Duration) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	for t := range l.seats {
		if whom(t) {
			select {
			case t.told <- after():
			default: // it has enough to do
			}
		}
	}
}

// listenTime is how long a claim waits for its lookout to listen before it looks again anyway.
func (s *Store) listenTime() time.Duration { return time.Second }

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

// waiterHub listens to one lock for all claims of this client that wait for it. What it hears is a hint: whoever is
// told looks for itself, and would look in time if nothing were ever heard.
type waiterHub struct {
	store         *store
	lock          string   // the lock's key
	channels      []string // on which it is told of, all in one hash slot
	cancel        context.CancelFunc
	subscriptions map[*subscription]struct{} // guarded by the store's mutex, like what follows
	idleSince     time.Time                  // when the last seat was left
	// ends a hub for which nobody sits any more; nil before the first one was left
	idleTimer *time.Timer

	mu        sync.Mutex
	ready     chan struct{} // closed while it listens
	listening bool
}

// subscription is one claim that waits.
type subscription struct {
	hub     *waiterHub
	id      string
	inQueue bool
	notices chan time.Duration // buffered. 0: look now; else look when that has passed
}

// How soon a hub listens again after it could not: a server that is away is not to be asked by all of them all the
// time.
const (
	minListenPause = 50 * time.Millisecond
	maxListenPause = time.Second
)

// hubIdleTime is how long a hub goes on when nobody waits any more: a contended lock is soon waited for again.
const hubIdleTime = 5 * time.Second

// subscribeToLock has a claim told what concerns it, and reports whether the hub listens already. It gives nil when
// the store is closed.
func (s *store) subscribeToLock(lock, id string, inLine bool) (*subscription, bool) {
	general := s.scripts.channel(lock)
	return s.subscribeToKey(lock, id, inLine, general, general+":"+s.session)
}

// subscribeToKey is sit for any key that is told of on these channels.
func (s *store) subscribeToKey(lock, id string, inLine bool, channels ...string) (*subscription, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return nil, false
	}
	l := s.hubs[lock]
	if l == nil {
		l = &waiterHub{store: s, lock: lock, channels: channels, subscriptions: map[*subscription]struct{}{},
			ready: make(chan struct{})}
		var ctx context.Context
		ctx, l.cancel = context.WithCancel(s.life)
		s.hubs[lock] = l
		s.inBackground.Go(func() { l.run(ctx) })
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addSubscription(id, inLine), l.listening
}

// subscribeIfListening is sit for a claim that is about to come to stand in line, where this client listens to the lock
// anyway; else it gives nil.
func (s *store) subscribeIfListening(lock, id string) *subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.hubs[lock]; l != nil {
		return l.addSubscription(id, true)
	}
	return nil
}

// addSubscription is called with the store's mutex held.
func (l *waiterHub) addSubscription(id string, inLine bool) *subscription {
	t := &subscription{l, id, inLine, make(chan time.Duration, 4)}
	l.subscriptions[t] = struct{}{}
	return t
}

// unsubscribe gives the seat up.
func (t *subscription) unsubscribe() {
	s, l := t.hub.store, t.hub
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(l.subscriptions, t)
	if len(l.subscriptions) > 0 || s.life.Err() != nil {
		return
	}
	l.idleSince = time.Now()
	if l.idleTimer == nil {
		l.idleTimer = time.AfterFunc(hubIdleTime, l.stopIfIdle)
	}
}

// stopIfIdle ends the hub if nobody has sat for it for long enough.
func (l *waiterHub) stopIfIdle() {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	switch left := hubIdleTime - time.Since(l.idleSince); {
	case len(l.subscriptions) > 0:
		l.idleTimer = nil
	case left > 0:
		l.idleTimer.Reset(left)
	default:
		delete(l.store.hubs, l.lock)
		l.cancel()
	}
}

// listeningSignal gives a channel that is closed when the hub listens.
func (l *waiterHub) listeningSignal() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ready
}

// run listens until the hub is ended. After an interruption all look for themselves: something may have been
// missed.
func (l *waiterHub) run(ctx context.Context) {
	for pause := minListenPause; ctx.Err() == nil; pause = min(2*pause, maxListenPause) {
		// A client of the user's may make a link again, and subscribe again, by itself.
		var listened atomic.Bool
		sub := rueidis.WithOnSubscriptionHook(ctx, func(e rueidis.PubSubSubscription) {
			if !strings.HasSuffix(e.Kind, "unsubscribe") && e.Channel == l.channels[len(l.channels)-1] {
				l.setListening(true) // the last is confirmed last
				listened.Store(true)
			}
		})
		var cmd rueidis.Completed
		if l.store.sharded.Load() {
			cmd = l.store.client.B().Ssubscribe().Channel(l.channels...).Build()
		} else {
			cmd = l.store.client.B().Subscribe().Channel(l.channels...).Build()
		}
		_ = l.store.client.Receive(sub, cmd, func(m rueidis.PubSubMessage) { l.handleMessage(m.Message) })
		l.setListening(false)
		if listened.Load() {
			pause = minListenPause
		}
		_ = l.store.sleepOrClosed(ctx, pause/2+rand.N(pause/2))
	}
	if !l.store.owned || l.store.life.Err() == nil { // the connection goes on, and should not carry this for ever
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if l.store.sharded.Load() {
			l.store.client.Do(bounded, l.store.client.B().Sunsubscribe().Channel(l.channels...).Build())
		} else {
			l.store.client.Do(bounded, l.store.client.B().Unsubscribe().Channel(l.channels...).Build())
		}
	}
}

func (l *waiterHub) setListening(now bool) {
	l.mu.Lock()
	switch {
	case now && !l.listening:
		l.listening = true
		close(l.ready)
	case !now && l.listening:
		l.listening = false
		l.ready = make(chan struct{})
	}
	l.mu.Unlock()
	if now {
		l.notifyAfter(func(*subscription) bool { return true }, 0)
	}
}

// handleMessage acts on a message: "free", "roll <ms>", "call <id>" or "next <id> <ms>".
func (l *waiterHub) handleMessage(message string) {
	what, rest, _ := strings.Cut(message, " ")
	switch what {
	case "free", "0", "": // "0" is what Redisson says, and nothing is what a row's change says
		l.notifyAfter(func(s *subscription) bool { return !s.inQueue }, 0)
	case "roll":
		ms, _ := strconv.ParseInt(rest, 10, 64)
		l.notifySpread(func(s *subscription) bool { return s.inQueue }, millis(ms))
	case "call":
		l.notifyAfter(func(s *subscription) bool { return s.id == rest }, 0)
	case "next":
		id, ms, _ := strings.Cut(rest, " ")
		if n, err := strconv.ParseInt(ms, 10, 64); err == nil {
			l.notifyAfter(func(s *subscription) bool { return s.id == id }, millis(n)+time.Millisecond)
		}
	}
}

func (l *waiterHub) notifyAfter(whom func(*subscription) bool, after time.Duration) {
	l.notifyMatching(whom, func() time.Duration { return after })
}

// notifySpread has those who are woken look at some time within a span, each at another.
func (l *waiterHub) notifySpread(whom func(*subscription) bool, span time.Duration) {
	l.notifyMatching(whom, func() time.Duration {
		if span <= 0 {
			return 0
		}
		return rand.N(span)
	})
}

func (l *waiterHub) notifyMatching(whom func(*subscription) bool, after func() time.Duration) {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	for t := range l.subscriptions {
		if whom(t) {
			select {
			case t.notices <- after():
			default: // it has enough to do
			}
		}
	}
}

// listenTimeout is how long a claim waits for its hub to listen before it looks again anyway.
func (s *store) listenTimeout() time.Duration { return time.Second }

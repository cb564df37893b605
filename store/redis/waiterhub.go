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

// waiterHub listens to one lock for all claims of this client that wait for it. There is one per lock and client, so
// that a thousand waiting goroutines need one subscription, and it is ended some time after the last of them.
//
// Redis delivers a message at most once, and only to those that listen at that time (redis.io: "Redis Pub/Sub"). So a
// notice is only a hint: a claim that is notified asks the server, and it would ask soon enough even if no notice ever
// came.
type waiterHub struct {
	store         *store
	lock          string   // the lock's key
	channels      []string // that it listens to, all in one hash slot
	cancel        context.CancelFunc
	subscriptions map[*subscription]struct{} // guarded by the store's mutex, like what follows
	idleSince     time.Time                  // when the last subscription ended
	// ends a hub without subscriptions; nil until its last subscription has ended for the first time
	idleTimer *time.Timer

	mu        sync.Mutex
	ready     chan struct{} // closed while the hub listens
	listening bool
}

// subscription is one waiting claim.
type subscription struct {
	hub     *waiterHub
	id      string
	notices chan time.Duration // buffered. 0: ask the server now; else: ask when that has passed
}

// The delay before a hub listens again after it failed. It grows, since a client that waits for many locks has many
// hubs, which must not all keep asking a server that is away.
const (
	minListenPause = 50 * time.Millisecond
	maxListenPause = time.Second
)

// hubIdleTime is how long a hub without subscriptions goes on: a contended lock is often waited for again soon, and
// then the claim saves the round trips of a new subscription.
const hubIdleTime = 5 * time.Second

// hubListenTimeout is how long a claim waits for its hub to listen before it asks the server anyway. A user without the
// permission to subscribe can still wait for locks, by polling.
const hubListenTimeout = time.Second

// subscribeToLock subscribes a claim to the notices about its lock, and reports whether the hub listens already. It
// returns nil when the store is closed. The general channel has the notices for all clients; this client's own channel
// has those for its claims.
func (s *store) subscribeToLock(lock, id string) (*subscription, bool) {
	general := s.scripts.channel(lock)
	return s.subscribeToKey(lock, id, general, general+":"+s.session)
}

// subscribeToKey is subscribeToLock for any key with these channels. With the first subscription it starts the hub.
func (s *store) subscribeToKey(lock, id string, channels ...string) (*subscription, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return nil, false
	}
	// The hub is found and joined with the store's mutex held, so that stopIfIdle cannot end it in between.
	h := s.hubs[lock]
	if h == nil {
		h = &waiterHub{store: s, lock: lock, channels: channels, subscriptions: map[*subscription]struct{}{},
			ready: make(chan struct{})}
		var ctx context.Context
		ctx, h.cancel = context.WithCancel(s.life)
		if !s.life.Go(func() { h.run(ctx) }) {
			h.cancel()
			return nil, false
		}
		s.hubs[lock] = h
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.addSubscription(id), h.listening
}

// subscribeIfListening subscribes a claim that is about to enter the queue if this client has a hub for the lock
// already. Else it returns nil, since a hub that is only just starting would not help: see waitInQueue.
func (s *store) subscribeIfListening(lock, id string) *subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.hubs[lock]; h != nil {
		return h.addSubscription(id)
	}
	return nil
}

// contendedTime is for how long a lock counts as contended after the last claim of this client has waited for it: long
// enough for claims that come and go all the time.
const contendedTime = 50 * time.Millisecond

// isContended reports whether a claim of this client waits for the lock, or did just now. Others probably wait for it,
// too. Then the scripts for a lock with a queue are the right ones, which the others could only reply.
func (s *store) isContended(lock string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hubs[lock]
	return h != nil && (len(h.subscriptions) > 0 || time.Since(h.idleSince) < contendedTime)
}

// addSubscription is called with the store's mutex held. The buffer keeps a few notices for a claim whose request is
// under way.
func (h *waiterHub) addSubscription(id string) *subscription {
	sub := &subscription{h, id, make(chan time.Duration, 4)}
	h.subscriptions[sub] = struct{}{}
	return sub
}

// unsubscribe ends a subscription. The hub goes on for hubIdleTime after the last one.
func (sub *subscription) unsubscribe() {
	s, h := sub.hub.store, sub.hub
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(h.subscriptions, sub)
	if len(h.subscriptions) > 0 || s.life.Err() != nil {
		return
	}
	h.idleSince = time.Now()
	if h.idleTimer == nil {
		h.idleTimer = time.AfterFunc(hubIdleTime, h.stopIfIdle)
	}
}

// stopIfIdle ends the hub if it had no subscription for long enough. One timer serves all: a subscription does not stop
// it, and an early call sets it again.
func (h *waiterHub) stopIfIdle() {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	switch left := hubIdleTime - time.Since(h.idleSince); {
	case len(h.subscriptions) > 0:
		h.idleTimer = nil
	case left > 0:
		h.idleTimer.Reset(left)
	default:
		delete(h.store.hubs, h.lock)
		h.cancel()
	}
}

// listeningSignal returns a channel that is closed while the hub listens.
func (h *waiterHub) listeningSignal() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ready
}

// run listens until the hub is ended. After an interruption messages may have been missed, so all claims ask the server
// once the hub listens again.
func (h *waiterHub) run(ctx context.Context) {
	for pause := minListenPause; ctx.Err() == nil; pause = min(2*pause, maxListenPause) {
		// A client of the user's may reconnect and subscribe again while Receive goes on. The hook is called for each
		// new subscription, so it is what notifies the claims.
		var listened atomic.Bool
		sub := rueidis.WithOnSubscriptionHook(ctx, func(e rueidis.PubSubSubscription) {
			if !strings.HasSuffix(e.Kind, "unsubscribe") && e.Channel == h.channels[len(h.channels)-1] {
				h.setListening(true) // the channels are confirmed in order, so all of them are now
				listened.Store(true)
			}
		})
		_ = h.store.client.Receive(sub, h.store.subscribeTo(h.channels), func(m rueidis.PubSubMessage) { h.handleMessage(m.Message) })
		h.setListening(false)
		// The hub has listened since the last delay, so this is a new interruption, and the delays begin again.
		if listened.Load() {
			pause = minListenPause
		}
		_ = h.store.life.Sleep(ctx, pause/2+rand.N(pause/2))
	}
	// The connection is shared and stays open, so the server would go on sending the messages of these channels.
	if !h.store.owned || h.store.life.Err() == nil {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		h.store.client.Do(bounded, h.store.unsubscribeFrom(h.channels))
	}
}

// setListening notes whether the hub listens. Each time that it begins to, all claims are notified.
func (h *waiterHub) setListening(now bool) {
	h.mu.Lock()
	switch {
	case now && !h.listening:
		h.listening = true
		close(h.ready)
	case !now && h.listening:
		h.listening = false
		h.ready = make(chan struct{})
	}
	h.mu.Unlock()
	if now {
		h.notifyAfter(func(*subscription) bool { return true }, 0)
	}
}

// handleMessage acts on a message of a script:
// - "0" of Redisson, and the empty one of swap_row.lua: the lock may be free, or the row has changed.
// - "roll <ms>": all claims in the queue show that they are alive, at random times within so many milliseconds.
// - "turn <id>": this claim was promoted, or an operator ended it.
// - "next <id> <ms>": this claim is the next, after one that was promoted now. It asks after the confirm window.
func (h *waiterHub) handleMessage(message string) {
	what, rest, _ := strings.Cut(message, " ")
	switch what {
	case "0", "":
		h.notifyAfter(func(*subscription) bool { return true }, 0)
	// The script computed the span from the length of the queue.
	case "roll":
		ms, _ := strconv.ParseInt(rest, 10, 64)
		h.notifySpread(func(*subscription) bool { return true }, millis(ms))
	case "turn":
		h.notifyAfter(func(s *subscription) bool { return s.id == rest }, 0)
	case "next":
		id, ms, _ := strings.Cut(rest, " ")
		if n, err := strconv.ParseInt(ms, 10, 64); err == nil {
			h.notifyAfter(func(s *subscription) bool { return s.id == id }, millis(n)+time.Millisecond)
		}
	}
}

// notifyAfter notifies the claims that match, to ask the server after some time.
func (h *waiterHub) notifyAfter(whom func(*subscription) bool, after time.Duration) {
	h.notifyMatching(whom, func() time.Duration { return after })
}

// notifySpread notifies the claims that match, each to ask at another, random time within the span: thousands of
// requests at once would keep the server busy.
func (h *waiterHub) notifySpread(whom func(*subscription) bool, span time.Duration) {
	h.notifyMatching(whom, func() time.Duration {
		if span <= 0 {
			return 0
		}
		return rand.N(span)
	})
}

// notifyMatching never blocks: it is called by the reader of the connection.
func (h *waiterHub) notifyMatching(whom func(*subscription) bool, after func() time.Duration) {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	for sub := range h.subscriptions {
		if whom(sub) {
			select {
			case sub.notices <- after():
			default: // its buffer is full: it will ask anyway
			}
		}
	}
}

package holdfast

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// EventKind says what happened to a lease. Its values are codes, fit for logs and JSON.
type EventKind string

const (
	EventAcquired         EventKind = "lock_acquired"     // a lease was granted
	EventRenewalFailing   EventKind = "renewal_failing"   // a renewal failed or had no answer, and is tried again
	EventReleaseRequested EventKind = "release_requested" // the holder was asked to release; the lease goes on
	EventLost             EventKind = "lock_lost"         // the lease ended before its holder released it
	EventReleased         EventKind = "lock_released"     // the holder released or detached the lease
)

var eventDescriptions = map[EventKind]string{
	EventAcquired:         "the lock was acquired",
	EventRenewalFailing:   "a renewal failed and is tried again",
	EventReleaseRequested: "the holder was asked to release the lock",
	EventLost:             "the lock was lost",
	EventReleased:         "the lock was released",
}

// Description says what the code means, in a few words for people. The words may change. An unknown code describes
// itself.
func (k EventKind) Description() string {
	if text, ok := eventDescriptions[k]; ok {
		return text
	}
	return string(k)
}

// Event is something that happened to a lease of a client. See Options.OnEvent.
type Event struct {
	Kind      EventKind
	Time      time.Time
	Lock      string        // the lock's name
	Token     int64         // the lease's fencing token
	Waited    time.Duration // EventAcquired: how long the caller waited
	Remaining time.Duration // EventRenewalFailing: how long the lease remains valid if no renewal succeeds
	// Err is, for EventLost, a *LossError; for EventRenewalFailing, why the renewal failed; for EventReleased, why the
	// store has not confirmed the release, or nil.
	Err     error
	Dropped int // how many events were dropped before this one because OnEvent was too slow
}

// String shows the event for logs.
func (e Event) String() string {
	s := fmt.Sprintf("%s %q, token %d", e.Kind, e.Lock, e.Token)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// maxEvents is how many events may wait for a slow OnEvent.
const maxEvents = 16384

// events delivers events by one goroutine that exists only while there are any.
type events struct {
	client  *Client
	mu      sync.Mutex
	queue   []Event
	dropped int
	running bool
}

// emitEvent queues an event of a hold. It never blocks, and calls no code of the user.
func (c *Client) emitEvent(kind EventKind, h *hold, e Event) {
	if c.opts.OnEvent == nil && c.opts.Logger == nil {
		return
	}
	e.Kind, e.Time, e.Lock, e.Token = kind, time.Now(), h.grant.Name, h.grant.Token
	c.events.addEvent(e)
}

func (s *events) addEvent(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) >= maxEvents {
		s.dropped++
		return
	}
	e.Dropped, s.dropped = s.dropped, 0
	s.queue = append(s.queue, e)
	if !s.running {
		s.running = s.client.inflight.start(s.run)
	}
	if !s.running { // the client is closed, and delivers nothing any more
		s.queue = nil
	}
}

func (s *events) run() {
	for {
		s.mu.Lock()
		batch := s.queue
		s.queue = nil
		s.running = len(batch) > 0
		s.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for _, e := range batch {
			s.client.deliverEvent(e)
		}
	}
}

func (c *Client) deliverEvent(e Event) {
	if c.opts.OnEvent != nil {
		c.opts.OnEvent(e)
	}
	if c.opts.Logger == nil {
		return
	}
	attrs := []slog.Attr{slog.String("event", string(e.Kind)), slog.String("lock", e.Lock),
		slog.Int64("token", e.Token)}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("error", e.Err))
	}
	if e.Kind == EventRenewalFailing {
		attrs = append(attrs, slog.Duration("remaining", e.Remaining))
	}
	if e.Kind == EventAcquired {
		attrs = append(attrs, slog.Duration("waited", e.Waited))
	}
	if e.Dropped > 0 {
		attrs = append(attrs, slog.Int("dropped", e.Dropped))
	}
	c.opts.Logger.LogAttrs(context.Background(), e.logLevel(), "holdfast: "+e.Kind.Description(), attrs...)
}

func (e Event) logLevel() slog.Level {
	switch {
	case e.Kind == EventLost:
		return slog.LevelError
	case e.Kind == EventRenewalFailing, e.Err != nil:
		return slog.LevelWarn
	case e.Kind == EventReleaseRequested:
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

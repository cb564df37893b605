package holdfast

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// EventKind says what happened to a lease.
type EventKind string

// The kinds of events.
const (
	EventAcquired         EventKind = "acquired"         // a lease was granted
	EventRenewalFailing   EventKind = "renewal failing"  // a renewal got no answer and is tried again; Err and Left say how it stands
	EventReleaseRequested EventKind = "asked to give up" // somebody would like the holder to give up; nothing has changed yet
	EventLost             EventKind = "lost"             // the lease ended by loss; Err is a *LossError
	EventReleased         EventKind = "released"         // the lease was given up; Err is set if the store has not confirmed it
)

// Event is something that happened to a lease of a client. See Options.OnEvent.
type Event struct {
	Kind      EventKind
	Time      time.Time
	Lock      string        // the lock's name
	Token     int64         // the lease's token
	Waited    time.Duration // EventAcquired: how long the caller waited
	Remaining time.Duration // EventFailing: how long the lease is still good for
	Err       error
	Dropped   int // how many events were dropped before this one, because the receiver was too slow
}

// maxEvents is how many events may wait for a slow receiver.
const maxEvents = 16384

// events hands events to their receivers, by one goroutine that lives only while there are any.
type events struct {
	client  *Client
	mu      sync.Mutex
	queue   []Event
	dropped int
	running bool
}

// emit queues an event of a tenure. It never blocks, and calls nothing of the user's.
func (c *Client) emit(kind EventKind, t *tenure, e Event) {
	if c.opts.OnEvent == nil && c.opts.Logger == nil {
		return
	}
	e.Kind, e.Time, e.Lock, e.Token = kind, time.Now(), t.grant.Name, t.grant.Token
	c.events.add(e)
}

func (s *events) add(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) >= maxEvents {
		s.dropped++
		return
	}
	e.Dropped, s.dropped = s.dropped, 0
	s.queue = append(s.queue, e)
	if !s.running {
		s.running = s.client.crew.spawn(s.deliver)
	}
	if !s.running { // the client has been closed, and nobody is there to tell
		s.queue = nil
	}
}

func (s *events) deliver() {
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
			s.client.tell(e)
		}
	}
}

func (c *Client) tell(e Event) {
	if c.opts.OnEvent != nil {
		c.opts.OnEvent(e)
	}
	if c.opts.Logger == nil {
		return
	}
	attrs := []slog.Attr{slog.String("lock", e.Lock), slog.Int64("token", e.Token)}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("error", e.Err))
	}
	if e.Kind == EventRenewalFailing {
		attrs = append(attrs, slog.Duration("left", e.Remaining))
	}
	if e.Kind == EventAcquired {
		attrs = append(attrs, slog.Duration("waited", e.Waited))
	}
	if e.Dropped > 0 {
		attrs = append(attrs, slog.Int("dropped", e.Dropped))
	}
	c.opts.Logger.LogAttrs(context.Background(), e.level(), "holdfast: lease "+string(e.Kind), attrs...)
}

func (e Event) level() slog.Level {
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

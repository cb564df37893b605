package holdfast

import (
	"sync"
	"time"
)

const (
	maxEvents  = 16384                 // how many events may wait for a slow receiver
	eventDelay = 10 * time.Millisecond // how long an event that is not urgent may wait for others
	fullBatch  = 256                   // so many events end the delay: they still fit into a processor's cache
	keptEvents = 1024                  // the largest array of events that is kept to be used again
)

// eventQueue delivers events, in order, by one goroutine that exists only while there are any and eventDelay longer.
// That goroutine is the only one that calls the receivers, so a receiver that hangs delays nobody but itself.
//
// To start a goroutine, or to wake one, can cost more than to acquire a lock in memory. So events are delivered in
// batches with eventDelay between them, except that an urgent event and a full batch end the delay.
type eventQueue struct {
	inflight *inflight
	deliver  func(*Event)
	wake     chan struct{}

	mu      sync.Mutex
	queue   []Event
	spare   []Event // empty; its array is used again
	dropped int
	running bool
	closing bool // there is no delay any more
}

func newEventQueue(i *inflight, deliver func(*Event)) *eventQueue {
	return &eventQueue{inflight: i, deliver: deliver, wake: make(chan struct{}, 1)}
}

// addEvent queues a copy of an event. It never blocks.
func (q *eventQueue) addEvent(e *Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) >= maxEvents {
		q.dropped++
		return
	}
	e.Dropped, q.dropped = q.dropped, 0
	q.queue = append(q.queue, *e)
	switch {
	case !q.running:
		if q.running = q.inflight.start(q.run); !q.running { // the client is closed, and delivers nothing any more
			q.queue = nil
		}
	case len(q.queue) == fullBatch || q.closing || e.Kind.row().urgent:
		q.wakeUp()
	}
}

// wakeUp makes run look for events now. It never blocks.
func (q *eventQueue) wakeUp() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// close ends the delay, for Close, which waits until all events have been delivered.
func (q *eventQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closing = true
	q.wakeUp()
}

// run delivers events in batches, with a pause of eventDelay after each, so that a busy client wakes it seldom.
// When a batch is empty the goroutine ends, and the next event starts another one.
func (q *eventQueue) run() {
	for {
		batch := q.takeBatch()
		if len(batch) == 0 {
			return
		}
		for i := range batch {
			q.deliver(&batch[i])
		}
		clear(batch) // so that the array keeps nothing alive
		if q.keepArray(batch) {
			continue
		}
		timer := time.NewTimer(eventDelay)
		select {
		case <-timer.C:
		case <-q.wake:
			timer.Stop()
		}
	}
}

// takeBatch takes all events. If there are none, run must return.
func (q *eventQueue) takeBatch() []Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch := q.queue
	q.queue, q.spare = q.spare, nil
	q.running = len(batch) > 0
	if !q.running {
		q.queue = nil // an idle client keeps no arrays
	}
	return batch
}

// keepArray keeps the array of a batch that was delivered, and reports whether the next batch must not be delayed.
func (q *eventQueue) keepArray(batch []Event) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if cap(batch) <= keptEvents {
		q.spare = batch[:0]
	}
	return q.closing
}

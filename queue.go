package holdfast

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// queue lets the plain mutex claims of one client take turns, first come, first served, on stores where waiting costs
// something. Only who has a name's turn talks to the store about it; the lease keeps the turn until it ends. So a
// hand-over inside the process costs one Release and one Acquire, however many wait, and a waiter is a list element.
type queue struct {
	mu    sync.Mutex
	lines map[string]*line // a line exists while somebody has its turn
}

type line struct {
	tenure  *tenure   // who has the turn, once it is granted
	waiters list.List // of *waiter
}

type waiter struct {
	since    time.Time
	patience time.Duration
	turn     chan error // nil: it is your turn; else why it never will be. Buffered, and sent to once
}

// try takes the turn if nobody has it.
func (q *queue) try(name string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.take(name)
}

func (q *queue) take(name string) bool {
	if q.lines[name] != nil {
		return false
	}
	if q.lines == nil {
		q.lines = map[string]*line{}
	}
	q.lines[name] = &line{}
	return true
}

// enter waits for the turn, until ctx or closing ends.
func (q *queue) enter(ctx, closing context.Context, name string, ttl time.Duration) error {
	q.mu.Lock()
	if q.take(name) {
		q.mu.Unlock()
		return nil
	}
	w := &waiter{since: time.Now(), patience: driver.UnreachableTimeout(ttl), turn: make(chan error, 1)}
	l := q.lines[name]
	place := l.waiters.PushBack(w)
	q.mu.Unlock()

	select {
	case err := <-w.turn:
		return err
	case <-ctx.Done():
		return &waitEnded{contextError(ctx), q.leave(name, l, place)}
	case <-closing.Done():
		q.leave(name, l, place)
		return ErrClosed
	}
}

// leave takes a waiter out of the line, hands on a turn that it was given meanwhile, and tells who holds the lock.
func (q *queue) leave(name string, l *line, place *list.Element) []ClaimInfo {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := place.Value.(*waiter)
	l.waiters.Remove(place) // does nothing if the waiter was taken out before
	select {
	case err := <-w.turn:
		if err == nil {
			q.next(name)
		}
		return nil
	default:
	}
	if l.tenure == nil {
		return nil
	}
	return []ClaimInfo{l.tenure.standing()}
}

// hold notes which tenure has the turn.
func (q *queue) hold(name string, t *tenure) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lines[name].tenure = t
}

// pass hands the turn on.
func (q *queue) pass(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.next(name)
}

// refuse hands the turn on after the store refused who had it with err, and tells those for whom asking again would
// change nothing: everybody if the error is a lasting one, else those who have waited long enough and whose patience
// with a silent store is no longer than the given one, which has run out. Without that a line of thousands would find
// out one by one that the store is down.
func (q *queue) refuse(name string, err error, patience time.Duration) {
	lasting := isOneOf(err, ErrDenied, ErrCorrupt, ErrMismatch, ErrUnsupported, ErrClosed)
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[name]
	for e := l.waiters.Front(); e != nil; {
		w, following := e.Value.(*waiter), e.Next()
		if lasting || w.patience <= patience && w.patience <= time.Since(w.since) {
			l.waiters.Remove(e)
			w.turn <- err
		}
		e = following
	}
	q.next(name)
}

func (q *queue) next(name string) {
	l := q.lines[name]
	l.tenure = nil
	first := l.waiters.Front()
	if first == nil {
		delete(q.lines, name)
		return
	}
	l.waiters.Remove(first)
	first.Value.(*waiter).turn <- nil
}

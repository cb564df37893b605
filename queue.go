package holdfast

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// A plain mutex claim that finds the queue in the store full goes on waiting in its process, also on etcd, ZooKeeper
// and Consul, where waiting in the store costs nothing. They have room for 256 claims, Consul for 64: so the goroutines
// of one process could be too many, on some stores only. The claims that were refused take turns, as all plain ones do
// on other stores, and later ones of the client go behind them. The first of them tries again every 0.8 to 1.6 s, and
// when a claim of its client has left the queue. Rejected: to watch the lock for room, since each hand-over would wake
// all clients that wait for it. Rejected: the same for fair claims, which are promised the order of arrival.
//
// If a store fails for good, one answer notifies all callers of a plain mutex that wait in the process.

// queue lets the plain mutex claims of one client take turns, first come, first served, on stores where waiting in the
// store costs something, or has no room for them. Only the claim that has the turn for a name is made in the store; its
// lease keeps the turn until it ends. So a handover inside the process costs one Release and one Acquire, however many
// claims wait, and a waiting claim is a list element.
type queue struct {
	mu     sync.Mutex
	turns  map[string]*hold      // by name: who has the turn; nil until it is granted
	byName map[string]*nameQueue // a lock that is only held has none
}

// nameQueue exists from when somebody waits for a turn on, until nobody has it.
type nameQueue struct {
	waiters list.List     // of *waiter
	room    chan struct{} // buffered; for awaitRoom, nil until it is called
}

type waiter struct {
	since              time.Time
	unreachableTimeout time.Duration
	turn               chan error // nil: it is your turn; else why it never will be. Buffered, and sent to once
}

// queueOf returns the queue for a name, which it makes if there is none.
func (q *queue) queueOf(name string) *nameQueue {
	n := q.byName[name]
	if n == nil {
		n = &nameQueue{}
		q.byName[name] = n
	}
	return n
}

// firstWaiter returns nil if nobody waits.
func (q *queue) firstWaiter(name string) *list.Element {
	if n := q.byName[name]; n != nil {
		return n.waiters.Front()
	}
	return nil
}

// tryTurn takes the turn for a name if no claim has it.
func (q *queue) tryTurn(name string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.takeTurn(name)
}

// takeTurn takes the name's turn if nobody has it.
func (q *queue) takeTurn(name string) bool {
	if _, taken := q.turns[name]; taken {
		return false
	}
	if q.turns == nil {
		q.turns, q.byName = map[string]*hold{}, map[string]*nameQueue{}
	}
	q.turns[name] = nil
	return true
}

// isUsed reports whether a claim has the turn for a name.
func (q *queue) isUsed(name string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, used := q.turns[name]
	return used
}

// awaitRoom is called by the claim that has the turn, when it has found the queue in the store full. It returns when
// there may be room: when a claim of this client has left that queue, or after a time. It also returns when ctx or
// closing ends.
func (q *queue) awaitRoom(ctx, closing context.Context, name string, limit time.Duration) {
	q.mu.Lock()
	n := q.queueOf(name)
	if n.room == nil {
		n.room = make(chan struct{}, 1)
	}
	q.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-n.room:
	case <-timer.C:
	case <-ctx.Done():
	case <-closing.Done():
	}
}

// noteRoom is called when a claim that did not take turns has left the queue in the store.
func (q *queue) noteRoom(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := q.byName[name]; n != nil && n.room != nil {
		select {
		case n.room <- struct{}{}:
		default:
		}
	}
}

// waitForTurn waits for the turn, until ctx or closing ends.
func (q *queue) waitForTurn(ctx, closing context.Context, name string, ttl time.Duration) error {
	q.mu.Lock()
	if q.takeTurn(name) {
		q.mu.Unlock()
		return nil
	}
	w := &waiter{since: time.Now(), unreachableTimeout: driver.UnreachableTimeout(ttl), turn: make(chan error, 1)}
	n := q.queueOf(name)
	place := n.waiters.PushBack(w)
	q.mu.Unlock()

	select {
	case err := <-w.turn:
		return err
	case <-ctx.Done():
		return &waitEndedError{err: contextError(ctx), holders: q.leaveQueue(name, n, place)}
	case <-closing.Done():
		q.leaveQueue(name, n, place)
		return ErrClosed
	}
}

// leaveQueue removes a waiter, passes on a turn that it was given meanwhile, and returns who holds the lock.
func (q *queue) leaveQueue(name string, n *nameQueue, place *list.Element) []ClaimInfo {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := place.Value.(*waiter)
	n.waiters.Remove(place) // does nothing if the waiter was taken out before
	select {
	case err := <-w.turn:
		if err == nil {
			q.passTurnLocked(name)
		}
		return nil
	default:
	}
	if h := q.turns[name]; h != nil {
		return []ClaimInfo{h.claimInfo()}
	}
	return nil
}

// setHold notes which hold has the turn.
func (q *queue) setHold(name string, h *hold) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turns[name] = h
}

// passTurn gives the turn to the next waiter.
func (q *queue) passTurn(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.passTurnLocked(name)
}

// failTurn passes the turn on after the store has refused the claim that had it with err. It also returns err to the
// waiters that would get the same answer: to all if the error is a lasting one, else to those that have waited for
// their own unreachableTimeout, if that is no longer than the given one, which has passed without an answer. Without
// that, thousands of waiters would find out one by one that the store cannot be reached.
func (q *queue) failTurn(name string, err error, unreachableTimeout time.Duration) {
	lasting := isOneOf(err, ErrDenied, ErrCorrupt, ErrMismatch, ErrUnsupported, ErrClosed)
	q.mu.Lock()
	defer q.mu.Unlock()
	for e := q.firstWaiter(name); e != nil; {
		w, following := e.Value.(*waiter), e.Next()
		if lasting || w.unreachableTimeout <= unreachableTimeout && w.unreachableTimeout <= time.Since(w.since) {
			q.queueOf(name).waiters.Remove(e)
			w.turn <- err
		}
		e = following
	}
	q.passTurnLocked(name)
}

// passTurnLocked gives the turn to the first waiter in this process, or to nobody.
func (q *queue) passTurnLocked(name string) {
	first := q.firstWaiter(name)
	if first == nil {
		delete(q.turns, name)
		delete(q.byName, name)
		return
	}
	q.turns[name] = nil
	q.queueOf(name).waiters.Remove(first)
	first.Value.(*waiter).turn <- nil
}

package sequence

import (
	"container/list"
	"errors"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// minJoining is how many claims of one client join one lock at a time, at first. If thousands did that at once, each
// would list the whole queue, and most would get no answer within the requestTimeout. To add a claim takes about as
// long as a hand-over, so this many are enough for a lock that passes on as fast as it can. Each claim that is
// granted at once lets one more join: a hundred readers of a store that is far away need not wait for each other.
const minJoining = 16

// entrance is where the claims of one client wait until they may join one lock, first come, first served.
// A claim that waits here has sent nothing to the store and has no session. The entrance is guarded by the engine's
// mutex.
type entrance struct {
	joining  int       // how many claims are being added
	limit    int       // of joining
	waiting  list.List // of *applicant
	arrivals int       // how many have ever waited here
	nodes    []Node    // of the lock, as the last one that left has seen it
}

// applicant is a claim that waits at the entrance of its lock.
type applicant struct {
	*acquisition
	arrival int            // its number among all that have waited here
	since   driver.Instant // when it came
	answer  chan error     // nil: it may join; else why it need not try. Buffered, and sent to once
}

// enter waits until the claim may join its lock. It returns how many claims had arrived at the entrance by then, for
// leaveEntrance, which must follow. If it returns an error, the claim must not join.
func (a *acquisition) enter() (arrivals int, err error) {
	e := a.e
	e.mu.Lock()
	defer e.mu.Unlock()
	at := e.entrances[a.Name]
	if at == nil {
		at = &entrance{limit: minJoining}
		e.entrances[a.Name] = at
	}
	if at.joining < at.limit {
		at.joining++
		return at.arrivals, nil
	}
	at.arrivals++
	me := &applicant{a, at.arrivals, e.clock.Now(), make(chan error, 1)}
	place := at.waiting.PushBack(me)
	e.mu.Unlock()
	select {
	case err = <-me.answer:
		e.mu.Lock()
	case <-a.ctx.Done():
		e.mu.Lock()
		at.waiting.Remove(place) // does nothing if it has been answered
		select {
		case err = <-me.answer:
		default:
			err = e.contextError(a.ctx)
		}
	}
	if err == nil && a.ctx.Err() != nil { // given up in the moment in which it was let in
		e.leaveEntranceLocked(a.Name)
		err = e.contextError(a.ctx)
	}
	if at.nodes != nil {
		a.lastNodes = at.nodes
	}
	return at.arrivals, err
}

// leaveEntrance is called when the claim has joined its lock or has ended, with the error of that. If the lock had no
// room, it has none for the claims of its kind that waited here before this one was added: they get the same error and
// send nothing. Ten thousand that come at once would else be added and removed one by one. If the store has given no
// answer for the claim's limit, those that have waited here for theirs do not try once more.
func (a *acquisition) leaveEntrance(arrivals int, err error) {
	e := a.e
	e.mu.Lock()
	defer e.mu.Unlock()
	at := e.entrances[a.Name]
	isFull := errors.Is(err, driver.ErrQueueFull)
	isSilent := err != nil && !driverutil.IsFinal(err) && a.ctx.Err() == nil
	if err == nil || isFull {
		at.nodes = a.lastNodes
	}
	if err == nil {
		if i := findOwn(a.lastNodes, a.ID, a.cl.session.ID); i >= 0 && isGranted(a.lastNodes, i) {
			at.limit++
		}
	}
	for place := at.waiting.Front(); place != nil && (isFull || isSilent); {
		o, next := place.Value.(*applicant), place.Next()
		timeout := o.RetryLoop.Limit
		if isFull && o.arrival <= arrivals && o.isAlike(a.Claim) ||
			isSilent && timeout <= a.RetryLoop.Limit && timeout <= e.clock.Since(o.since) {
			at.waiting.Remove(place)
			o.answer <- err
		}
		place = next
	}
	e.leaveEntranceLocked(a.Name)
}

// isAlike reports whether the claim would get the same answer as another one that finds the queue full.
func (o *applicant) isAlike(c driver.Claim) bool {
	return o.Kind == c.Kind && o.Limit == c.Limit && o.Weight == c.Weight
}

// leaveEntranceLocked is called when a claim that may have joined does not do so any more. It lets in the next.
func (e *Engine) leaveEntranceLocked(name string) {
	at := e.entrances[name]
	at.joining--
	for first := at.waiting.Front(); first != nil && at.joining < at.limit; first = at.waiting.Front() {
		at.joining++
		at.waiting.Remove(first)
		first.Value.(*applicant).answer <- nil
	}
	if at.joining == 0 {
		delete(e.entrances, name)
	}
}

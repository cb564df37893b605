package sequence

import (
	"maps"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// fullFor is how long a client remembers that it has found the queue of a lock full.
const fullFor = 10 * time.Second

// noteFull remembers that the queue of a lock is full.
func (e *Engine) noteFull(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.clock.Monotonic()
	maps.DeleteFunc(e.fullSince, func(_ string, since time.Duration) bool { return now-since > fullFor })
	e.fullSince[name] = now
}

// checkRoom returns ErrQueueFull if the queue was full a moment ago and still is. Only then does it read the lock: to
// join a full queue costs an add, which lists the queue as well, and the removal of the node. Many clients may ask for
// room, every second or two.
func (a *acquisition) checkRoom() error {
	e := a.e
	e.mu.Lock()
	since, wasFull := e.fullSince[a.Name]
	wasFull = wasFull && e.clock.Monotonic()-since <= fullFor
	e.mu.Unlock()
	if !wasFull {
		return nil
	}
	seen, err := a.listNodes(false)
	switch {
	case err != nil: // the add will find out more
		return nil
	case checkMismatch(seen.Nodes, &a.Claim) == nil && !hasRoom(seen.Nodes, &a.Claim) &&
		len(seen.Nodes)-countGranted(seen.Nodes) >= e.info.MaxWaiters:
		e.noteFull(a.Name)
		a.lastNodes = seen.Nodes
		return driver.ErrQueueFull
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.fullSince, a.Name)
	return nil
}

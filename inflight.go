package holdfast

import (
	"context"
	"sync"
)

// inflight counts what is under way for a client, the calls of users and its own goroutines alike, so that Close can
// wait for the last of them. (A sync.WaitGroup cannot be added to while it is waited for, nor waited for with a bound.)
type inflight struct {
	mu       sync.Mutex
	count    int
	refusing bool          // no call of a user begins any more, except about a lease that is held
	closing  bool          // nothing begins any more once nothing is under way
	idle     chan struct{} // closed when nothing is under way and nothing can begin
}

// enter counts a call of a user. It returns false once the client is shutting down or closing.
func (i *inflight) enter() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.refusing {
		return false
	}
	i.count++
	return true
}

// enterHeld counts a call of a user about a lease that is held. It returns false once the client is closing.
func (i *inflight) enterHeld() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closing {
		return false
	}
	i.count++
	return true
}

// start runs f in a goroutine that is counted. It returns false only when a closing client has nothing under way any
// more.
func (i *inflight) start(f func()) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closing && i.count == 0 {
		return false
	}
	i.count++
	go func() {
		defer i.exit()
		f()
	}()
	return true
}

// exit ends what enter or enterHeld has counted.
func (i *inflight) exit() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.count--
	if i.closing && i.count == 0 {
		close(i.idle)
	}
}

// refuseCalls makes enter return false from now on.
func (i *inflight) refuseCalls() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.refusing = true
}

// close lets nothing begin once nothing is under way. The caller is counted itself, and exits afterwards.
func (i *inflight) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.refusing, i.closing = true, true
}

// waitIdle waits until nothing is under way or ctx ends, and reports whether nothing is under way.
func (i *inflight) waitIdle(ctx context.Context) bool {
	select {
	case <-i.idle:
	case <-ctx.Done():
	}
	select {
	case <-i.idle:
		return true
	default:
		return false
	}
}

package holdfast

import (
	"context"
	"sync"
)

// inflight counts what is under way for a client, the calls of users and its own goroutines alike, so that Close can
// wait for the last of them. (A sync.WaitGroup cannot be added to while it is waited for, nor waited for with a bound.)
type inflight struct {
	mu      sync.Mutex
	count   int
	closing bool
	idle    chan struct{} // closed when nothing is under way and nothing can begin
}

// enter counts a call of a user. It returns false once the client is closing.
func (i *inflight) enter() bool {
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

// exit ends what enter has counted.
func (i *inflight) exit() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.count--
	if i.closing && i.count == 0 {
		close(i.idle)
	}
}

// refuseCalls makes enter return false from now on. The caller has entered itself, and exits afterwards.
func (i *inflight) refuseCalls() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closing = true
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

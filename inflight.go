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
func (c *inflight) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return false
	}
	c.count++
	return true
}

// start runs f in a goroutine that is counted. It returns false only when a closing client has nothing under way any
// more.
func (c *inflight) start(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing && c.count == 0 {
		return false
	}
	c.count++
	go func() {
		defer c.exit()
		f()
	}()
	return true
}

// exit ends what enter has counted.
func (c *inflight) exit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count--
	if c.closing && c.count == 0 {
		close(c.idle)
	}
}

// refuseCalls makes enter return false from now on. The caller has entered itself, and exits afterwards.
func (c *inflight) refuseCalls() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closing = true
}

// waitIdle waits until nothing is under way or ctx ends, and reports whether nothing is under way.
func (c *inflight) waitIdle(ctx context.Context) bool {
	select {
	case <-c.idle:
	case <-ctx.Done():
	}
	select {
	case <-c.idle:
		return true
	default:
		return false
	}
}

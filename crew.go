package holdfast

import (
	"context"
	"sync"
)

// crew counts what is under way for a client, calls of users and goroutines of its own alike, so that Close can wait
// for the last of them. (A sync.WaitGroup cannot be joined while it is waited for, nor waited for with a bound.)
type crew struct {
	mu      sync.Mutex
	n       int
	closing bool
	idle    chan struct{} // closed when nothing is under way and nothing can begin
}

// join counts a call of a user's. It fails once the client is closing.
func (c *crew) join() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return false
	}
	c.n++
	return true
}

// spawn runs f in a goroutine. It fails only when a closing client has nothing under way any more.
func (c *crew) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing && c.n == 0 {
		return false
	}
	c.n++
	go func() {
		defer c.leave()
		f()
	}()
	return true
}

func (c *crew) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n--
	if c.closing && c.n == 0 {
		close(c.idle)
	}
}

// close lets no further user join. The caller has joined itself and leaves afterwards.
func (c *crew) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closing = true
}

// wait waits until nothing is under way, and reports whether that came true before ctx ended.
func (c *crew) wait(ctx context.Context) bool {
	select {
	case <-c.idle:
		return true
	case <-ctx.Done():
		return false
	}
}

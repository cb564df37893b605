package serve

import (
	"container/list"
	"sync"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/system"
)

// connectionTable bounds how many connections there are, because each of them takes a descriptor, and the store needs
// some to renew the locks. When there are too many, a new connection takes the place of the one that no request uses
// for the longest time. So clients without a token, which send no request, or none that is admitted, keep nobody out.
type connectionTable struct {
	max int

	mu     sync.Mutex
	open   int
	unused list.List // of *connection: those that no admitted request uses, the longest first
}

// maxReserve is how many descriptors are left for the store at most.
const maxReserve = 1024

// maxConnections is how many connections there may be if the process may have so many descriptors: a quarter of them is
// left for the store.
func maxConnections(descriptors uint64) int {
	descriptors = min(descriptors, 1<<30)
	return int(max(descriptors-min(descriptors/4, maxReserve), 1))
}

// init must be called before the table is used. most is how many connections there may be; 0: what the number of
// descriptors allows.
func (t *connectionTable) init(most int) {
	if t.max = most; most > 0 {
		return
	}
	t.max = maxConnections(system.OpenFileLimit())
}

// add counts a new connection, and may close another one for it. It returns false if requests use all of them.
func (t *connectionTable) add(c *connection) bool {
	t.mu.Lock()
	var victim *connection
	if t.open >= t.max {
		longest := t.unused.Front()
		if longest == nil {
			t.mu.Unlock()
			return false
		}
		victim = longest.Value.(*connection)
		t.removeLocked(victim)
	}
	t.open++
	c.unused = t.unused.PushBack(c)
	t.mu.Unlock()
	if victim != nil {
		_ = victim.Conn.Close()
	}
	return true
}

// use is called when an admitted request comes. The connection is not closed for others until release is called.
func (c *connection) use() (release func()) {
	t := c.table
	if t == nil { // in a test without a network
		return func() {}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.unused != nil {
		t.unused.Remove(c.unused)
		c.unused = nil
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if !c.closed {
			c.unused = t.unused.PushBack(c)
		}
	}
}

// remove is called when a connection is closed.
func (t *connectionTable) remove(c *connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(c)
}

// removeLocked counts a connection as closed, once.
func (t *connectionTable) removeLocked(c *connection) {
	if c.closed {
		return
	}
	c.closed = true
	t.open--
	if c.unused != nil {
		t.unused.Remove(c.unused)
		c.unused = nil
	}
}

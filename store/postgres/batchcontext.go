package postgres

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// batchContexts are the contexts of the batches that are on their way. The end of the batcher's life and the deadlines
// are watched for all of them together. To join three of package context's own contexts for each batch would cost a
// caller that is alone more than all else that the batcher does for it.
type batchContexts struct {
	life *driverutil.Lifetime // of the batcher

	mu    sync.Mutex
	all   map[*batchContext]struct{}
	timer *time.Timer // calls endOverdue at next; nil before the first
	next  time.Time   // no deadline is earlier; zero if the timer is not set
}

func newBatchContexts(life *driverutil.Lifetime) *batchContexts {
	return &batchContexts{life: life, all: map[*batchContext]struct{}{}}
}

// batchContext is the context of one batch: it ends with the context that the batch is sent for, with the life of the
// batcher, or at the deadline. It also ends the reads of a connection.
type batchContext struct {
	context.Context // what the batch is sent for
	set             *batchContexts
	until           time.Time
	done            chan struct{}
	stop            func() // ends the watching of Context

	mu   sync.Mutex
	err  error    // set when done is closed
	conn net.Conn // whose reads end with the context; nil: none
}

// add makes the context of a batch that is sent for ctx. Its leave must be called.
func (s *batchContexts) add(ctx context.Context, until time.Time) *batchContext {
	c := &batchContext{Context: ctx, set: s, until: until, done: make(chan struct{})}
	s.mu.Lock()
	s.all[c] = struct{}{}
	if s.next.IsZero() || until.Before(s.next) {
		s.setTimer(until)
	}
	s.mu.Unlock()
	if s.life.Err() != nil { // endAll may have come before
		c.end(context.Canceled)
	}
	c.stop = driverutil.AfterFunc(ctx, func() { c.end(ctx.Err()) })
	return c
}

// leave ends the watching.
func (c *batchContext) leave() {
	c.stop()
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	delete(c.set.all, c)
}

// setTimer is called with mu held.
func (s *batchContexts) setTimer(at time.Time) {
	s.next = at
	if s.timer == nil {
		s.timer = time.AfterFunc(time.Until(at), s.endOverdue)
		return
	}
	s.timer.Reset(time.Until(at))
}

// endOverdue ends the contexts whose deadline has passed, and sets the timer for the next deadline.
func (s *batchContexts) endOverdue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var next time.Time
	for c := range s.all {
		switch {
		case time.Until(c.until) <= 0:
			c.end(context.DeadlineExceeded)
		case next.IsZero() || c.until.Before(next):
			next = c.until
		}
	}
	if s.next = next; !next.IsZero() {
		s.setTimer(next)
	}
}

// endAll ends all contexts. It is called when the life has ended.
func (s *batchContexts) endAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.all {
		c.end(context.Canceled)
	}
}

// close stops the timer. It is called when no context is left.
func (s *batchContexts) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
}

// end ends the context, unless it has ended before.
func (c *batchContext) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	close(c.done)
	if c.conn != nil {
		interruptReads(c.conn)
	}
}

// interruptReads wakes the read that waits: a deadline in the past ends it.
func interruptReads(conn net.Conn) { _ = conn.SetReadDeadline(time.Unix(1, 0)) }

// beginReads makes the connection's reads return a timeout when the context ends. endReads must follow.
func (c *batchContext) beginReads(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = conn
	if c.err != nil {
		interruptReads(conn)
	}
}

// endReads leaves the connection to its next user: whatever ends later does not touch it.
func (c *batchContext) endReads() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		_ = c.conn.SetReadDeadline(time.Time{})
	}
	c.conn = nil
}

func (c *batchContext) Done() <-chan struct{} { return c.done }

func (c *batchContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *batchContext) Deadline() (time.Time, bool) {
	if at, ok := c.Context.Deadline(); ok && at.Before(c.until) {
		return at, true
	}
	return c.until, true
}

package zookeeper

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

func sessionName(id int64) string { return fmt.Sprintf("%016x", uint64(id)) }

// OpenSession begins a session on a connection of its own. What the servers grant it then it keeps, or it ends.
func (t *tree) OpenSession(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	c := t.newConn(ttl, false)
	t.spawn(c.run)
	if _, err := c.up(ctx); err != nil {
		c.stop()
		return sequence.Session{}, t.fault(err, t.root)
	}
	c.mu.Lock()
	id, granted := c.id, c.granted
	c.mu.Unlock()
	t.mu.Lock()
	t.sessions[sessionName(id)] = c
	if t.lead == nil {
		t.lead = c
	}
	t.mu.Unlock()
	// A follower tells the leader twice in a tick whom it has heard from. Half a tick is less than this and the margin
	// together, if a session is not set to the very least, which is two ticks.
	return sequence.Session{ID: sessionName(id), TTL: granted, ConfirmDelay: granted / 15, Ended: c.life.Done()}, nil
}

// leave ends a session that nobody has used.
func (t *tree) leave(c *conn) {
	ctx, cancel := context.WithTimeout(t.life, time.Second)
	defer cancel()
	_ = c.do(ctx, &call{op: opClose})
	c.finish(sequence.ErrSessionExpired)
}

// forgetSession takes a session that is over out of the books.
func (t *tree) forgetSession(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, o := range t.sessions {
		if o == c {
			delete(t.sessions, id)
			if len(t.ended) >= 1024 {
				clear(t.ended)
			}
			t.ended[id] = true
			ofIt := func(claim [2]string, _ bool) bool { return claim[0] == id }
			maps.DeleteFunc(t.doubts, ofIt)
			maps.DeleteFunc(t.anew, ofIt)
			maps.DeleteFunc(t.twins, func(path, _ string) bool { return strings.Contains(path, "-"+id+"-") })
		}
	}
	if t.reader == c {
		t.reader = nil
	}
	if t.lead == c {
		t.lead = nil
		for _, o := range t.sessions {
			t.lead = o
		}
	}
}

func (t *tree) session(id string) (*conn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.life.Err() != nil {
		return nil, driver.ErrClosed
	}
	c := t.sessions[id]
	if c == nil {
		return nil, sequence.ErrSessionExpired
	}
	return c, nil
}

// isOver reports whether a session was this client's.
func (t *tree) isOver(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended[id]
}

// granted is the session time that the servers have granted for a TTL, or the TTL if they were not asked yet.
func (t *tree) granted(ttl time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.sessions {
		if c.asked == ttl {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.granted
		}
	}
	return ttl
}

// standing is a session that there is, or nil.
func (t *tree) standing() *conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lead != nil {
		return t.lead
	}
	return t.reader
}

// readerTTL is the session time of a connection that keeps no claims.
const readerTTL = 30 * time.Second

// anyConn is a session by which anything can be asked.
func (t *tree) anyConn(ctx context.Context) (*conn, error) {
	t.mu.Lock()
	if t.life.Err() != nil {
		t.mu.Unlock()
		return nil, driver.ErrClosed
	}
	switch {
	case t.lead != nil:
		defer t.mu.Unlock()
		return t.lead, nil
	case t.reader == nil:
		t.reader = t.newConn(readerTTL, true)
		t.work.Go(t.reader.run)
	}
	c := t.reader
	t.mu.Unlock()
	_, err := c.up(ctx)
	return c, err
}

// KeepAlive is a write that is sure to be refused: of a node that is not there. The leader puts that to the quorum as it does any
// other. A read or a ping is answered by any server that once had a leader, and a sync by a leader that was deposed and has
// not heard of it.
func (t *tree) KeepAlive(ctx context.Context, session string) (promise time.Duration, err error) {
	c, err := t.session(session)
	if err == sequence.ErrSessionExpired && !t.isOver(session) {
		return 0, fmt.Errorf("%w: a ZooKeeper session is renewed by the client that opened it", driver.ErrUnsupported)
	}
	if err != nil {
		return 0, err
	}
	calls, err := c.ask(ctx, func() []*call { return []*call{deleteCall("/holdfast-beat", -1)} })
	if err == nil {
		err = calls[0].err
	}
	if err == codeNoNode || err == codeNoAuth {
		return 0, nil
	}
	return 0, t.fault(err, "/")
}

// EndSession closes a session; its nodes go with it.
func (t *tree) EndSession(ctx context.Context, session string) error {
	c, err := t.session(session)
	if err != nil {
		return err
	}
	err = c.do(ctx, &call{op: opClose})
	c.finish(sequence.ErrSessionExpired)
	return t.fault(err, "/")
}

package zookeeper

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

func sessionName(id int64) string { return fmt.Sprintf("%016x", uint64(id)) }

// OpenSession opens a session on a connection of its own. The session keeps the TTL that the servers grant it now,
// or ends.
//
// A session is ended by the servers and not by the client (Programmer's Guide, "ZooKeeper Sessions"): a client that is
// cut off learns only when it is connected again that its session has expired. Until then the engine's own clock must
// end its locks, so it is given the TTL as granted, and counts it from the keep-alives.
func (t *nodeStore) OpenSession(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	c := t.ensemble.NewConn(ttl, false)
	t.life.Go(c.Run)
	if err := c.WaitForLink(ctx); err != nil {
		c.Stop()
		return sequence.Session{}, t.explainError(err, t.root)
	}
	name, granted := sessionName(c.ID()), c.GrantedTTL()
	t.mu.Lock()
	t.sessions[name] = c
	if t.defaultConn == nil {
		t.defaultConn = c
	}
	t.mu.Unlock()
	// A follower tells the leader twice per tick which sessions it has heard from. Half a tick is less than this
	// delay and the margin together, unless the TTL is the minimum of two ticks.
	return sequence.Session{ID: name, TTL: granted, ConfirmDelay: granted / 15, Ended: c.Ended()}, nil
}

// closeUnused ends a session that has no nodes.
func (t *nodeStore) closeUnused(c *zk.Conn) {
	ctx, cancel := context.WithTimeout(t.life, time.Second)
	defer cancel()
	_ = c.Close(ctx) // else it expires
}

// forgetSession removes all that is kept of a session that has ended. It is called by the session's connection, for
// whatever reason it has ended.
func (t *nodeStore) forgetSession(c *zk.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, o := range t.sessions {
		if o != c {
			continue
		}
		delete(t.sessions, id)
		if len(t.endedSessions) >= 1024 { // it only makes an error more exact
			clear(t.endedSessions)
		}
		t.endedSessions[id] = true
		// The servers delete the nodes of the session, so there is nothing left to settle. What is cached of them
		// goes when the cache is full: their names never come again.
		isOfSession := func(k claimKey, _ bool) bool { return k.session == id }
		maps.DeleteFunc(t.pendingAdds, isOfSession)
		maps.DeleteFunc(t.reAdded, isOfSession)
		maps.DeleteFunc(t.secondNodes, func(path, _ string) bool { return strings.Contains(path, "-"+id+"-") })
	}
	if t.readerConn == c {
		t.readerConn = nil
	}
	if t.defaultConn == c {
		t.defaultConn = nil
		for _, o := range t.sessions {
			t.defaultConn = o
		}
	}
}

// sessionConn returns the connection of a session of the engine.
func (t *nodeStore) sessionConn(id string) (*zk.Conn, error) {
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

// wasOurSession reports whether a session that has ended was this client's.
func (t *nodeStore) wasOurSession(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.endedSessions[id]
}

// grantedTTL returns the session TTL that the servers have granted for a TTL, or the TTL itself if they were not
// asked yet.
func (t *nodeStore) grantedTTL(ttl time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.sessions {
		if c.AskedTTL() == ttl {
			return c.GrantedTTL()
		}
	}
	return ttl
}

// openConn returns a connection that exists already, or nil.
func (t *nodeStore) openConn() *zk.Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.defaultConn != nil {
		return t.defaultConn
	}
	return t.readerConn
}

// readerTTL is the TTL of a session that has no claims.
const readerTTL = 30 * time.Second

// anyConn returns a connection for requests that need no session of their own. If the engine has no session, it
// waits for one without claims: a client that only lists locks or breaks them needs one too, since ZooKeeper serves no
// request without a session.
func (t *nodeStore) anyConn(ctx context.Context) (*zk.Conn, error) {
	t.mu.Lock()
	if t.life.Err() != nil {
		t.mu.Unlock()
		return nil, driver.ErrClosed
	}
	switch {
	case t.defaultConn != nil:
		defer t.mu.Unlock()
		return t.defaultConn, nil
	case t.readerConn == nil:
		reader := t.ensemble.NewConn(readerTTL, true)
		if !t.life.Go(reader.Run) {
			t.mu.Unlock()
			return nil, driver.ErrClosed
		}
		t.readerConn = reader
	}
	c := t.readerConn
	t.mu.Unlock()
	return c, c.WaitForLink(ctx)
}

// KeepAlive sends a [zk.Barrier]. It is answered only when a quorum has logged it, so the answer proves that the server
// belongs to the current quorum. Any server that once had a leader answers a read or a ping.
func (t *nodeStore) KeepAlive(ctx context.Context, session string) (promise time.Duration, err error) {
	c, err := t.sessionConn(session)
	if err == sequence.ErrSessionExpired && !t.wasOurSession(session) {
		return 0, fmt.Errorf("%w: a ZooKeeper session is renewed by the client that opened it", driver.ErrUnsupported)
	}
	if err != nil {
		return 0, err
	}
	calls, err := c.Retry(ctx, func() []*zk.Call { return []*zk.Call{zk.Barrier()} })
	if err == nil {
		err = calls[0].BarrierError()
	}
	return 0, t.explainError(err, "/")
}

// EndSession closes a session. The servers delete its nodes in the transaction that closes it.
func (t *nodeStore) EndSession(ctx context.Context, session string) error {
	c, err := t.sessionConn(session)
	if err != nil {
		return err
	}
	return t.explainError(c.Close(ctx), "/")
}

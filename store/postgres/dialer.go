package postgres

import (
	"context"
	"net"
	"sync"
	"time"
)

// dialer makes the connections of a store's own pool, so that Close can put a deadline on all of them. The pool's own
// Close waits until every connection was given back, and one to a server that does not answer would not be.
type dialer struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func newDialer(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *dialer {
	return &dialer{dial: dial, conns: map[net.Conn]bool{}}
}

// Dial connects, and tracks the connection until it is closed.
func (d *dialer) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := d.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	tc := &trackedConn{Conn: c, dialer: d}
	d.conns[tc] = true
	return tc, nil
}

// limitAllConns gives what is running no more than this long.
func (d *dialer) limitAllConns(left time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		_ = c.SetDeadline(time.Now().Add(left))
	}
}

// trackedConn is a connection that leaves the dialer's set when it is closed.
type trackedConn struct {
	net.Conn
	dialer *dialer
}

func (c *trackedConn) Close() error {
	c.dialer.mu.Lock()
	delete(c.dialer.conns, c)
	c.dialer.mu.Unlock()
	return c.Conn.Close()
}

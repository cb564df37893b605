package postgres

import (
	"context"
	"net"
	"sync"
	"time"
)

// dialer makes the connections of a pool of this package's own, and can end them all at once.
type dialer struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func newDialer(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *dialer {
	return &dialer{dial: dial, conns: map[net.Conn]bool{}}
}

// Dial connects.
func (d *dialer) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := d.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	tc := &tracked{Conn: c, d: d}
	d.conns[tc] = true
	return tc, nil
}

// hurry gives what is under way no more than this long.
func (d *dialer) hurry(left time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		_ = c.SetDeadline(time.Now().Add(left))
	}
}

type tracked struct {
	net.Conn
	d *dialer
}

func (c *tracked) Close() error {
	c.d.mu.Lock()
	delete(c.d.conns, c)
	c.d.mu.Unlock()
	return c.Conn.Close()
}

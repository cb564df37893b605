package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/rueidis"
)

// A request on the shared connection passes through two goroutines of rueidis, one that writes and one that reads. They
// put many requests into one write, but for a single request they only cost time: the system wakes each of them up.
// So a caller that is alone uses a second connection, the direct one: it writes its request and reads the reply itself.
// When a context ends, its connection is closed, since nobody else could read the reply.

// directLink is the direct connection of a store, and what decides when it is used.
// Only a caller that is alone uses the fields without a lock of their own: calls orders the accesses.
type directLink struct {
	calls      atomic.Int32 // requests under way, on any connection
	conn       atomic.Pointer[directConn]
	connecting atomic.Bool

	after     int       // how many requests in a row must come alone before a connection is made
	streak    int       // how many have come
	lastStart time.Time // of a request that came alone
}

// directConn is one connection, with a client of its own that never connects again.
type directConn struct {
	client rueidis.Client
	conn   net.Conn
	socket syscall.RawConn
	cut    func() // ends the connection at once
	ready  bool
}

const (
	// A program that locks now and then does not gain from a second connection, so a store makes one only after so many
	// requests in a row, each soon after the last one.
	minDirectStreak = 32
	maxDirectPause  = 10 * time.Millisecond
	// A connection that was used within this time counts as open without a look at it, which is a system call. If it is
	// closed nevertheless, the request counts as one that may have run, as on any connection.
	maxUnchecked = time.Millisecond
)

// errDirectEnded is returned for a request after the end of its direct connection; such a request is not sent.
var errDirectEnded = errors.New("the direct connection has ended")

// takeDirect returns the direct connection if it is usable, and nil if the shared one has to be used. The caller must
// be alone.
func (s *store) takeDirect() *directConn {
	if s.settings == nil || s.topology != single || !s.settings.ForceSingleClient {
		return nil
	}
	d, now := &s.direct, time.Now()
	pause := now.Sub(d.lastStart)
	d.lastStart = now
	if c := d.conn.Load(); c != nil {
		// A server that has ended has closed the connection. Nothing was sent then, so nothing is uncertain.
		if pause < maxUnchecked || isOpen(c.socket) {
			return c
		}
		s.dropDirect(c)
		return nil
	}
	if pause > maxDirectPause {
		d.streak = 0
	}
	if d.streak++; d.streak >= d.after && d.connecting.CompareAndSwap(false, true) {
		d.streak = 0
		s.life.Go(func() {
			defer d.connecting.Store(false)
			if c, err := s.connectDirect(); err == nil { // without it, requests go on by the shared connection
				d.conn.Store(c)
			}
		})
	}
	return nil
}

// runDirect runs a script on the direct connection. The caller is alone, so nobody else uses the connection meanwhile.
func (s *store) runDirect(ctx context.Context, c *directConn, st *script,
	keys, args []string) (rueidis.RedisMessage, error) {
	if err := ctx.Err(); err != nil {
		return rueidis.RedisMessage{}, err
	}
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, c.cut)
	}
	// rueidis would start its goroutines for a context that can end. ConnWriteTimeout bounds the request.
	m, err := st.eval(context.Background(), c.client, keys, args)
	_, refused := rueidis.IsRedisErr(err)
	answered := err == nil || refused || rueidis.IsRedisNil(err)
	if wasCut := !stop(); wasCut || !answered {
		s.dropDirect(c)
	}
	switch {
	case answered:
		s.leaveReplica(err)
	case ctx.Err() != nil:
		return m, ctx.Err()
	default:
		s.linkUncertain.Store(true) // the shared connection may have ended, too
	}
	return m, err
}

// dropDirect ends a direct connection. The next one is made after as many lone requests as the first.
func (s *store) dropDirect(c *directConn) {
	if c == nil || !s.direct.conn.CompareAndSwap(c, nil) {
		return
	}
	c.cut()
	if !s.life.Go(c.client.Close) {
		c.client.Close()
	}
}

// connectDirect makes a direct connection. The end of the store ends it.
func (s *store) connectDirect() (*directConn, error) {
	c, o := &directConn{}, *s.settings
	o.AlwaysPipelining = false
	o.Dialer.KeepAlive = -1 // no pings by rueidis: one next to a request would start its goroutines
	o.DialFn = nil
	o.DialCtxFn = func(_ context.Context, addr string, _ *net.Dialer, config *tls.Config) (net.Conn, error) {
		if c.ready {
			return nil, &unsentError{errDirectEnded}
		}
		conn, err := s.dial(addr, config)
		if err != nil {
			return nil, err
		}
		stop := context.AfterFunc(s.life, func() { conn.Close() })
		c.conn, c.cut = conn, func() { stop(); conn.Close() }
		return conn, nil
	}
	client, err := rueidis.NewClient(o)
	if err != nil {
		if c.cut != nil {
			c.cut()
		}
		return nil, err
	}
	c.client, c.ready = client, true
	if c.socket = rawSocket(c.conn); c.socket == nil || s.life.Err() != nil {
		c.cut()
		client.Close()
		return nil, errDirectEnded
	}
	return c, nil
}

// dial connects as rueidis does, with the settings of the shared connection.
func (s *store) dial(addr string, config *tls.Config) (net.Conn, error) {
	dialer := s.settings.Dialer
	switch {
	case s.settings.DialCtxFn != nil:
		return s.settings.DialCtxFn(s.life, addr, &dialer, config)
	case s.settings.DialFn != nil:
		return s.settings.DialFn(addr, &dialer, config)
	case config != nil:
		return (&tls.Dialer{NetDialer: &dialer, Config: config}).DialContext(s.life, "tcp", addr)
	}
	return dialer.DialContext(s.life, "tcp", addr)
}

// rawSocket returns the socket below a connection, or nil if there is none to look at.
func rawSocket(conn net.Conn) syscall.RawConn {
	for {
		if c, ok := conn.(syscall.Conn); ok {
			if raw, err := c.SyscallConn(); err == nil {
				return raw
			}
			return nil
		}
		c, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		conn = c.NetConn()
	}
}

package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// listener gives each connection what holds need to know of it.
type listener struct{ net.Listener }

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepAlivePause, Interval: keepAlivePause, Count: 3})
	}
	return &connection{Conn: c}, nil
}

// connection remembers how it has ended.
type connection struct {
	net.Conn
	secure bool // by TLS, above this connection
	end    atomic.Int32

	lookUpPeer sync.Once
	peerName   string // the user at the other end of a unix socket
	peerPID    int
}

// peer names the process at the other end of a unix socket.
func (c *connection) peer() (userName string, pid int, ok bool) {
	conn, ok := c.Conn.(*net.UnixConn)
	if ok {
		c.lookUpPeer.Do(func() { c.peerName, c.peerPID = peerOf(conn) })
	}
	return c.peerName, c.peerPID, ok
}

func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.noteEnd(err)
	return n, err
}

// How a connection has ended.
const (
	notEnded       int32 = iota
	closedByClient       // or by its system when it died
	cutOff               // nothing comes from the client any more; it may be working
)

// noteEnd takes in the error of a read. Only the first one counts, and errors of writes do not: once the system has
// reported that the client does not answer, it reports the end of the stream, as if the client had closed it.
func (c *connection) noteEnd(err error) {
	switch {
	case err == nil || errors.Is(err, os.ErrDeadlineExceeded): // a deadline of this server
	case errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET):
		c.end.CompareAndSwap(notEnded, closedByClient)
	default:
		c.end.CompareAndSwap(notEnded, cutOff)
	}
}

// endWait is how long the end of a connection is awaited once there are signs of it.
const endWait = time.Second

// wasClosed reports whether the client has closed the connection. It is called when the server does not read any more.
// A client that uses TLS announces the close, and then closes; TLS reads the announcement only.
func (c *connection) wasClosed() bool {
	if c.secure && c.end.Load() == notEnded {
		_ = c.Conn.SetReadDeadline(time.Now().Add(endWait))
		_, _ = io.Copy(io.Discard, c)
	}
	return c.end.Load() == closedByClient
}

// prepareStream makes the system find a client that vanished, or that does not read, before the TTL of its hold has
// passed.
func (c *connection) prepareStream(ttl time.Duration) {
	switch conn := c.Conn.(type) {
	case *net.TCPConn:
		_ = conn.SetWriteBuffer(minWriteBuffer)
		setUserTimeout(conn, ttl/3)
	case *net.UnixConn:
		_ = conn.SetWriteBuffer(minWriteBuffer)
	}
}

// minWriteBuffer is the size of the buffer in which lines wait that the client does not read. The system enlarges it to
// what it needs itself, a few kilobytes.
const minWriteBuffer = 1

// endStream undoes what prepareStream did to a connection that may be used again.
func (c *connection) endStream() {
	if conn, ok := c.Conn.(*net.TCPConn); ok {
		setUserTimeout(conn, 0)
	}
}

// abort ends the connection so that its client sees an error, and not the end of an answer.
func (c *connection) abort() {
	if conn, ok := c.Conn.(*net.TCPConn); ok {
		_ = conn.SetLinger(0)
	}
	panic(http.ErrAbortHandler)
}

type connectionKey struct{}

func withConnection(ctx context.Context, c net.Conn) context.Context {
	t, secure := c.(*tls.Conn)
	if secure {
		c = t.NetConn()
	}
	if own, ok := c.(*connection); ok {
		own.secure = secure
		return context.WithValue(ctx, connectionKey{}, own)
	}
	return ctx
}

// connectionOf is the connection of a request. In a test without a network it is one that was never closed.
func connectionOf(r *http.Request) *connection {
	if c, ok := r.Context().Value(connectionKey{}).(*connection); ok {
		return c
	}
	return &connection{}
}

// isLocalSocket reports whether the request came over a unix socket, which no browser can be made to use.
func isLocalSocket(r *http.Request) bool {
	_, ok := connectionOf(r).Conn.(*net.UnixConn)
	return ok
}

// quietLog drops what net/http reports of single connections, such as failed TLS handshakes.
func quietLog() *log.Logger { return log.New(io.Discard, "", 0) }

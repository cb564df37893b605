package serve

import (
	"container/list"
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

// listener gives each connection what holds need to know of it, and bounds how many there are.
type listener struct {
	net.Listener
	table *connectionTable
}

// Accept returns the next connection for which the table has room, and closes the others. TCP asks a silent client
// whether it lives.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepAlivePause, Interval: keepAlivePause, Count: 3})
		}
		conn := &connection{Conn: c, table: l.table}
		if l.table.add(conn) {
			return conn, nil
		}
		_ = c.Close()
	}
}

// connection remembers how it has ended.
type connection struct {
	net.Conn
	secure *tls.Conn // above this connection; nil without TLS
	end    atomic.Int32
	// reading is held until the outcome of a read is noted. The system reports the reason of an end once, and to the
	// next reader only that there is an end: so nobody must judge by the second report before the first one is noted.
	reading sync.Mutex

	table  *connectionTable
	unused *list.Element // its place in the table while no request uses it; guarded by the table's mutex, as is closed
	closed bool

	trustedBy atomic.Pointer[certificates] // whose authorities have signed the client's certificate

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

// isUnix reports whether the connection is a unix socket: this machine's kernel alone is between the two ends.
func (c *connection) isUnix() bool {
	_, ok := c.Conn.(*net.UnixConn)
	return ok
}

// Read notes how the connection has ended: the client's input has ended, the client has closed it, or the network
// has cut it off. Only what the client itself did may free its locks at once.
func (c *connection) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	n, err := c.Conn.Read(p)
	switch {
	case err == nil || errors.Is(err, os.ErrDeadlineExceeded): // a deadline of this server
	case errors.Is(err, io.EOF):
		c.end.CompareAndSwap(notEnded, inputEnded)
	case errors.Is(err, syscall.ECONNRESET) && c.isUnix():
		c.end.CompareAndSwap(notEnded, closedByClient)
	default:
		c.end.CompareAndSwap(notEnded, cutOff)
	}
	return n, err
}

// Write notes an error that the system may report to the writer alone. EPIPE says only that there was an end before.
func (c *connection) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, syscall.EPIPE) && !c.isUnix() {
		c.end.Store(cutOff)
	}
	return n, err
}

// Close may be called more than once.
func (c *connection) Close() error {
	c.table.remove(c)
	return c.Conn.Close()
}

// How a connection has ended. The first sign of an end counts, because the system reports a plain end of the stream
// after any other one.
const (
	notEnded       int32 = iota
	inputEnded           // the client's end sends nothing more; whether it still reads is not known
	closedByClient       // or by its system when it died
	cutOff               // by whatever is in between, or by a system that gave up; the client may be working
)

// endWait is how long the end of a connection is awaited once there are signs of it.
const endWait = time.Second

// isInputEnded reports whether the client has ended its direction of the connection. It is called when there are
// signs of an end, and nothing is read any more. Over TLS the client must have announced that: anybody in between can
// make the connection below TLS end.
func (c *connection) isInputEnded() bool {
	if c.Conn == nil || c.Conn.SetReadDeadline(time.Now().Add(endWait)) != nil {
		return false
	}
	if c.secure != nil {
		if _, err := io.Copy(io.Discard, c.secure); err != nil || c.end.Load() != notEnded {
			return false
		}
	}
	_, _ = io.Copy(io.Discard, c)
	return c.end.Load() == inputEnded
}

// isProxied reports whether a proxy says that it has passed the request on. Its connection ends when the proxy wants
// it.
func isProxied(r *http.Request) bool {
	for _, name := range []string{"Via", "Forwarded", "X-Forwarded-For"} {
		if r.Header.Get(name) != "" {
			return true
		}
	}
	return false
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

// withConnection puts the connection into the context of its requests, with or without TLS.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	t, _ := c.(*tls.Conn)
	if t != nil {
		c = t.NetConn()
	}
	if own, ok := c.(*connection); ok {
		own.secure = t
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
	return connectionOf(r).isUnix()
}

// quietLog drops what net/http reports of single connections, such as failed TLS handshakes.
func quietLog() *log.Logger { return log.New(io.Discard, "", 0) }

package nats

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// dialer makes connections for nats.go.
type dialer driverutil.DialFunc

// Dial implements nats.CustomDialer.
func (d dialer) Dial(network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	return d(ctx, network, address)
}

// dialTimeout is how long one attempt to connect may take.
const dialTimeout = 2 * time.Second

// writeTimeout is how long a write to the socket of a connection of our own may block it.
const writeTimeout = 2 * time.Second

// newConfig returns the settings of a connection of our own. It reconnects forever, and sends nothing late.
func newConfig() nats.Options {
	c := nats.GetDefaultOptions()
	c.Name = "holdfast"
	c.Timeout, c.MaxReconnect, c.ReconnectBufSize = dialTimeout, -1, -1
	c.FlusherTimeout = writeTimeout
	c.ReconnectWait, c.ReconnectJitter, c.ReconnectJitterTLS = 100*time.Millisecond, 100*time.Millisecond,
		100*time.Millisecond
	c.PingInterval, c.MaxPingsOut = 3*time.Second, 2 // a connection without answers is given up
	c.IgnoreAuthErrorAbort = true
	c.AsyncErrorCB = func(*nats.Conn, *nats.Subscription, error) {} // our errors say what matters
	return c
}

// open opens a store with a connection of its own.
func (s *storeURL) open(ctx context.Context) (driver.Store, error) {
	return driverutil.OpenWithRetry(ctx, s.tryOpen)
}

func (s *storeURL) tryOpen(ctx context.Context) (driver.Store, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	js, err := s.jetStream(conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	t, err := newTable(ctx, js, s.bucket, &s.opts)
	if err != nil {
		conn.Close()
		return nil, err
	}
	t.closeConn = func() error { conn.Close(); return nil }
	_, tlsErr := conn.TLSConnectionState()
	t.isRemote = tlsErr != nil && isOtherMachine(connectedHost(conn))
	t.place = "nats://" + s.hosts + "/" + s.bucket
	return record.New(t), nil
}

func (s *storeURL) jetStream(conn *nats.Conn) (jetstream.JetStream, error) {
	if s.domain != "" {
		return jetstream.NewWithDomain(conn, s.domain)
	}
	return jetstream.New(conn)
}

// connect connects to one of the servers.
func (s *storeURL) connect(ctx context.Context) (*nats.Conn, error) {
	c := s.config
	if end, ok := ctx.Deadline(); ok {
		c.Timeout = max(min(c.Timeout, time.Until(end)), time.Millisecond)
	}
	// Connect takes no context, and asks the servers one after the other. It does not say why none could be reached.
	dial := c.CustomDialer
	if dial == nil {
		dial = dialer((&net.Dialer{}).DialContext)
	}
	record := &recordingDialer{dial: dial}
	c.CustomDialer = record
	type result struct {
		conn *nats.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		conn, err := c.Connect()
		done <- result{conn, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, explainConnect(r.err, record.lastError())
		}
		return r.conn, nil
	case <-ctx.Done():
		go func() {
			if r := <-done; r.conn != nil {
				r.conn.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// recordingDialer keeps the last error of a dialer.
type recordingDialer struct {
	dial nats.CustomDialer

	mu   sync.Mutex
	last error
}

// Dial implements nats.CustomDialer.
func (d *recordingDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.dial.Dial(network, address)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = err
	return conn, err
}

func (d *recordingDialer) lastError() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}

// explainConnect translates the error of an attempt to connect; dialErr is the error of the last dial.
func explainConnect(err, dialErr error) error {
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked),
		errors.Is(err, nats.ErrAccountAuthExpired):
		return fmt.Errorf("%w: %v: check the user, and its password or credentials; a token is given by token-file, not as "+
			"a user", driver.ErrDenied, err)
	case errors.Is(err, nats.ErrSecureConnRequired):
		return fmt.Errorf("%w: the server requires TLS: set tls=true", driver.ErrInvalid)
	case errors.Is(err, nats.ErrSecureConnWanted):
		return driverutil.RefuseWithoutTLS()
	case errors.As(err, &certificate):
		return fmt.Errorf("%w: %v", driver.ErrDenied, err)
	}
	if dialErr != nil {
		err = dialErr
	}
	return unsentError{fmt.Errorf("NATS cannot be reached: %v", err)}
}

// connectedHost is the host and port of the server that a connection leads to, as it was named.
func connectedHost(conn *nats.Conn) string {
	if u, err := url.Parse(conn.ConnectedUrlRedacted()); err == nil {
		return u.Host
	}
	return conn.ConnectedAddr()
}

// isOtherMachine reports whether a host and port are of another machine.
func isOtherMachine(at string) bool {
	host, _, err := net.SplitHostPort(at)
	return err == nil && !driverutil.IsLoopback(host)
}

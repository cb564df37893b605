package nats

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// The URL form:
//
//	nats://[user[:password]@]host[:4222][,host[:4222]...]/bucket[?options]
//
// Options:
//
//	prefix=locks        begins the keys: PREFIX.NAME
//	create=true         makes the bucket if it does not exist
//	replicas=3          how many servers keep the bucket that create makes
//	sync=always         says that all servers have sync_interval: always
//	clock-skew=1s       how far the clocks of the servers may be apart
//	timeout=3s          how long the servers may take to answer one request
//	domain=D            the JetStream domain
//	creds=FILE          the credentials of a user, in a file that nsc has made
//	password-file=FILE  reads the password from a file, which keeps it out of the URL
//	token-file=FILE     reads a token instead of a user and a password
//	tls=true            encrypts the connection, and checks the servers' certificates
//	tls-ca=FILE, tls-cert=FILE, tls-key=FILE, tls-name=NAME   as for the other stores
func init() { driver.Register("nats", openURL) }

func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	s, err := readURL(u)
	if err != nil {
		return nil, err
	}
	if dial := driverutil.DialerOf(ctx); dial != nil {
		s.config.CustomDialer = dialer(dial)
	}
	return s.open(ctx)
}

// dialer makes connections for nats.go.
type dialer driverutil.DialFunc

// Dial implements nats.CustomDialer.
func (d dialer) Dial(network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	return d(ctx, network, address)
}

// storeURL is a URL that was read.
type storeURL struct {
	config nats.Options
	hosts  string // as in the URL, but sorted
	bucket string
	domain string
	opts   Options
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

// readURL turns a URL into the connection's settings and ours. It sends nothing to a server.
func readURL(u *url.URL) (*storeURL, error) {
	hosts := strings.Split(u.Host, ",")
	slices.Sort(hosts)
	s := &storeURL{config: newConfig(), hosts: strings.Join(hosts, ","), bucket: strings.TrimPrefix(u.Path, "/")}
	c := &s.config
	c.User = u.User.Username()
	c.Password, _ = u.User.Password()
	password, token := driverutil.NewSecret(""), driverutil.NewSecret("")
	var secure driverutil.TLSOptions
	var creds string
	text := func(to *string) func(string) error { return func(v string) error { *to = v; return nil } }
	duration := func(to *time.Duration, least time.Duration) func(string) error {
		return func(v string) (err error) {
			if *to, err = time.ParseDuration(v); err == nil && *to < least {
				err = fmt.Errorf("must be %v or more", least)
			}
			return err
		}
	}
	err := driverutil.ParseOptions(u, secure.AddTo(map[string]func(string) error{
		"prefix":     text(&s.opts.Prefix),
		"domain":     text(&s.domain),
		"create":     func(v string) (err error) { s.opts.Create, err = strconv.ParseBool(v); return err },
		"replicas":   func(v string) (err error) { s.opts.Replicas, err = strconv.Atoi(v); return err },
		"timeout":    duration(&s.opts.Timeout, 50*time.Millisecond),
		"clock-skew": duration(&s.opts.ClockSkew, time.Millisecond),
		"sync": func(v string) error {
			if v != "always" {
				return errors.New("must be always")
			}
			s.opts.SyncAlways = true
			return nil
		},
		"creds":         text(&creds),
		"password-file": password.ReadFrom,
		"token-file":    token.ReadFrom,
	}))
	if err == nil {
		s.opts, err = s.opts.withDefaults()
	}
	if err != nil {
		return nil, err
	}
	if err := s.readHosts(u); err != nil {
		return nil, err
	}
	if creds != "" {
		if _, err := os.ReadFile(creds); err != nil {
			return nil, fmt.Errorf("%w: creds: %v", driver.ErrInvalid, err)
		}
		if err := nats.UserCredentials(creds)(c); err != nil {
			return nil, fmt.Errorf("%w: creds: %v", driver.ErrInvalid, err)
		}
	}
	files, err := secure.Open()
	if err != nil {
		return nil, err
	}
	if s.opts.secrets = slices.Concat(password.Sources(), token.Sources()); files != nil {
		s.opts.secrets = append(s.opts.secrets, files)
		c.Secure, c.TLSConfig = true, files.Config()
		c.RootCAsCB = func() (*x509.CertPool, error) { return files.Config().RootCAs, nil }
	}
	if user := c.User; password.IsFile() {
		c.User, c.Password = "", ""
		c.UserInfo = func() (string, string) { return user, password.Current() }
	}
	if token.IsFile() {
		c.TokenHandler = token.Current
	}
	return s, nil
}

func (s *storeURL) readHosts(u *url.URL) error {
	usage := func(what string) error {
		return fmt.Errorf("%w: the store's URL names no %s, as in nats://host:4222/bucket", driver.ErrInvalid, what)
	}
	for host := range strings.SplitSeq(u.Host, ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			host += ":4222"
		}
		if h, _, err := net.SplitHostPort(host); err != nil || h == "" {
			return usage("server")
		}
		s.config.Servers = append(s.config.Servers, "nats://"+host)
	}
	if !validBucket.MatchString(s.bucket) {
		return usage("bucket")
	}
	if u.Query().Has("password-file") && s.config.User == "" {
		return fmt.Errorf("%w: password-file takes a user: nats://user@%s", driver.ErrInvalid, u.Host)
	}
	return nil
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

// explainConnect translates the error of an attempt to connect; dialErr is that of the last dial.
func explainConnect(err, dialErr error) error {
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked),
		errors.Is(err, nats.ErrAccountAuthExpired):
		return fmt.Errorf("%w: %v: check the user, and its password or credentials; a token is given by token-file, not as "+
			"a user", driver.ErrDenied, err)
	case errors.Is(err, nats.ErrSecureConnRequired):
		return fmt.Errorf("%w: the server wants TLS: set tls=true", driver.ErrInvalid)
	case errors.Is(err, nats.ErrSecureConnWanted):
		return fmt.Errorf("%w: the server does not offer TLS: set it up there, or leave tls=true away on a network that "+
			"you trust", driver.ErrInvalid)
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

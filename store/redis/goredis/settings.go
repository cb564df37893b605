package goredis

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/redis/go-redis/v9/auth"
	"github.com/redis/rueidis"

	redisstore "github.com/holdfast-go/holdfast/store/redis"
)

// serverKind is what the addresses in settings are addresses of.
type serverKind int

const (
	oneServer serverKind = iota
	sentinels
	cluster
)

// settings are what all kinds of go-redis clients have in common.
type settings struct {
	kind      serverKind
	addresses []string
	primary   string // its name, which the Sentinels know
	database  int

	network string
	// dialer makes connections, with TLS where it is wanted. If it is nil, dialContext does that.
	dialer      func(ctx context.Context, network, addr string) (net.Conn, error)
	dialTimeout time.Duration // 0 if it is not set
	tls         *tls.Config

	clientName string
	anonymous  bool // the name of the client library is not sent

	credentials         credentials
	sentinelCredentials credentials
}

// clientOption returns the settings in the form of rueidis.
func (s *settings) clientOption() rueidis.ClientOption {
	o := redisstore.DefaultClientOption()
	o.InitAddress = append([]string(nil), s.addresses...)
	o.ForceSingleClient = s.kind == oneServer
	o.SelectDB = s.database
	o.TLSConfig = s.tls
	if s.dialTimeout > 0 {
		o.Dialer.Timeout = s.dialTimeout
	}
	o.ClientName = s.clientName
	if s.anonymous {
		o.ClientSetInfo = rueidis.DisableClientSetInfo
	}
	dial := s.dialContext
	if s.kind == sentinels {
		o.Sentinel.MasterSet = s.primary
		o.Sentinel.TLSConfig = s.tls
		o.Sentinel.ClientName = s.clientName
		o.Sentinel.Username, o.Sentinel.Password = s.sentinelCredentials.fixedPair()
		o.Sentinel.Dialer = o.Dialer
		// All connections of the client share one function for credentials, and Sentinels have others than servers. The
		// dialer tells them apart by this pointer; an empty Resolver works as none does.
		ofSentinels := &net.Resolver{}
		o.Sentinel.Dialer.Resolver = ofSentinels
		dial = func(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
			conn, err := s.dialContext(ctx, addr, d, config)
			if err == nil && d.Resolver == ofSentinels {
				conn = sentinelConn{conn}
			}
			return conn, err
		}
	}
	o.DialCtxFn = dial
	if !s.credentials.areProvided() {
		o.Username, o.Password = s.credentials.fixedPair()
		return o
	}
	timeout := o.Dialer.Timeout
	o.AuthCredentialsFn = func(of rueidis.AuthCredentialsContext) (a rueidis.AuthCredentials, err error) {
		if _, ok := of.Address.(sentinelAddr); ok {
			a.Username, a.Password = s.sentinelCredentials.fixedPair()
			return a, nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		a.Username, a.Password, err = s.credentials.currentPair(ctx)
		if s.credentials.streaming != nil {
			a.RefreshAfter = time.Now().Add(refreshInterval)
		}
		return a, err
	}
	return o
}

// dialContext makes a connection in the way of the go-redis client.
func (s *settings) dialContext(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	switch {
	case s.dialer != nil:
		return s.dialer(ctx, s.network, addr)
	case config != nil:
		return (&tls.Dialer{NetDialer: d, Config: config}).DialContext(ctx, s.network, addr)
	}
	return d.DialContext(ctx, s.network, addr)
}

// sentinelConn is a connection to a Sentinel.
type sentinelConn struct{ net.Conn }

func (c sentinelConn) RemoteAddr() net.Addr { return sentinelAddr{c.Conn.RemoteAddr()} }

// sentinelAddr is the address of a Sentinel.
type sentinelAddr struct{ net.Addr }

// refreshInterval is how often a connection is authenticated again where the credentials are a stream. A provider of
// tokens renews them many minutes before they expire.
const refreshInterval = time.Minute

// credentials are all the ways in which a go-redis client is given a user and a password. Of several, the last field
// that is set counts, as in go-redis.
type credentials struct {
	username, password string
	provider           func() (username, password string)
	providerContext    func(ctx context.Context) (username, password string, err error)
	streaming          auth.StreamingCredentialsProvider
}

// areProvided reports whether the credentials may change.
func (c *credentials) areProvided() bool {
	return c.provider != nil || c.providerContext != nil || c.streaming != nil
}

// fixedPair returns the user and password of the settings.
func (c *credentials) fixedPair() (username, password string) {
	return withPassword(c.username, c.password)
}

// currentPair returns the user and password for a connection that is made now.
func (c *credentials) currentPair(ctx context.Context) (username, password string, err error) {
	switch {
	case c.streaming != nil:
		now, unsubscribe, err := c.streaming.Subscribe(&ignoreUpdates{ctx})
		if err != nil {
			return "", "", err
		}
		_ = unsubscribe()
		username, password = now.BasicAuth()
	case c.providerContext != nil:
		if username, password, err = c.providerContext(ctx); err != nil {
			return "", "", err
		}
	case c.provider != nil:
		username, password = c.provider()
	default:
		username, password = c.username, c.password
	}
	username, password = withPassword(username, password)
	return username, password, nil
}

// withPassword leaves out a user without a password, as go-redis does: the connection is that of the default user.
func withPassword(username, password string) (string, string) {
	if password == "" {
		return "", ""
	}
	return username, password
}

// ignoreUpdates is subscribed for a moment only, to read the credentials. Providers compare listeners, so that each
// must be another one: it is a pointer to something that takes room.
type ignoreUpdates struct{ _ context.Context }

func (*ignoreUpdates) OnNext(auth.Credentials) {}

func (*ignoreUpdates) OnError(error) {}

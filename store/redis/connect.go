package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// DefaultClientOption returns the settings of the clients that this package makes for a URL. They have no address.
// Start from them to make a client for [New], or for [Connect].
func DefaultClientOption() rueidis.ClientOption {
	// They differ from rueidis's defaults because:
	//   - DisableRetry: this package repeats its scripts, and must know whether a request may have run without a reply.
	//   - DisableCache: nothing here reads through the client's cache, so no connection has to set it up.
	//   - AlwaysPipelining, and one connection (PipelineMultiplex -1): concurrent requests share a connection, and a
	//     call whose context ends does not close it under the others. Requests are sent and run in order (redis.io:
	//     "Redis pipelining").
	//     A caller that is alone would be slowed down by that, so a store on one server has another connection for it:
	//     see direct.go.
	//   - MaxFlushDelay: of many concurrent requests, more go into one write to the socket, which costs client and
	//     server more than a script does. A single request does not wait.
	//   - The buffers: rueidis makes 1 MiB for each connection. Ours carry requests and replies of less than 1 KiB, of
	//     which a client has thousands under way at most.
	//   - The timeouts and keep-alives: a broken connection is noticed within seconds, well before a usual TTL ends.
	return rueidis.ClientOption{
		DisableRetry:        true,
		DisableCache:        true,
		AlwaysPipelining:    true,
		PipelineMultiplex:   -1,
		MaxFlushDelay:       20 * time.Microsecond,
		ReadBufferEachConn:  32 << 10,
		WriteBufferEachConn: 32 << 10,
		ConnWriteTimeout:    2 * time.Second,
		Dialer:              net.Dialer{Timeout: 2 * time.Second, KeepAlive: time.Second},
	}
}

// Connect makes a store with a client of its own, which the store closes. It is for programs that build the settings of
// the client in code, where a URL cannot express them: start from [DefaultClientOption]. The client is for Sentinels if
// Sentinel.MasterSet is set, for one server if ForceSingleClient is, and otherwise for a Cluster.
//
// Connect returns when the servers have answered. While a server is being started it tries again, for up to 10 seconds,
// or until ctx ends. It returns ErrInvalid if there is no address or an option cannot work, ErrDenied if the servers
// refuse the credentials, and ErrUnsupported if they are not what the settings say.
func Connect(ctx context.Context, client rueidis.ClientOption, opts *Options) (driver.Store, error) {
	if len(client.InitAddress) == 0 {
		return nil, fmt.Errorf("%w: the settings of the client name no address", driver.ErrInvalid)
	}
	if _, err := opts.withDefaults(); err != nil {
		return nil, err
	}
	s, err := openClient(ctx, client, opts)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// useDialer makes the client connect as ctx says (see driverutil.WithDialer), and with the certificates that the files
// have at the time.
func (s *storeURL) useDialer(ctx context.Context) {
	dial := driverutil.DialerOf(ctx)
	if dial == nil && s.tls == nil && !s.password.IsFile() {
		return
	}
	s.client.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, d.Timeout)
		defer cancel()
		connect := d.DialContext
		if dial != nil {
			connect = dial
		}
		conn, err := connect(ctx, "tcp", addr)
		if err == nil && config != nil {
			conn, err = s.tls.Handshake(ctx, conn, addr)
		}
		if err == nil && d.Resolver == sentinelResolver {
			return sentinelConn{conn}, nil
		}
		return conn, err
	}
}

// sentinelResolver marks the dialer of Sentinels, which is known by it. It works like the default.
var sentinelResolver = new(net.Resolver)

// sentinelConn is a connection to a Sentinel. Its address shows that: see storeURL.credentials.
type sentinelConn struct{ net.Conn }

// sentinelAddr is the address of a Sentinel.
type sentinelAddr struct{ net.Addr }

func (c sentinelConn) RemoteAddr() net.Addr { return sentinelAddr{c.Conn.RemoteAddr()} }

// credentials returns the user and the password for one connection. Sentinels have their own.
func (s *storeURL) credentials(c rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
	if _, ok := c.Address.(sentinelAddr); ok {
		return rueidis.AuthCredentials{Username: s.client.Sentinel.Username, Password: s.client.Sentinel.Password}, nil
	}
	return rueidis.AuthCredentials{Username: s.client.Username, Password: s.password.Current()}, nil
}

// openClient makes a store with a client of its own, which connects at once.
func openClient(ctx context.Context, o rueidis.ClientOption, opts *Options) (*store, error) {
	var client rueidis.Client
	err := retryConnect(ctx, func() (err error) {
		client, err = connectClient(ctx, o)
		return err
	})
	if err != nil {
		return nil, err
	}
	s, err := newStore(client, opts)
	if err != nil {
		client.Close()
		return nil, err
	}
	s.owned, s.settings = true, &o
	if err := s.ensureChannelsKnown(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// retryConnect repeats connect while the error may pass, as when a server is restarting, for as long as a waiting claim
// would retry. A refused connection is retried for a shorter time: either the server is just starting, or the port is
// wrong, which the user should learn soon.
func retryConnect(ctx context.Context, connect func() error) error {
	start := time.Now()
	var last error
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		err := connect()
		if err != nil && ctx.Err() != nil && last != nil { // that ctx has ended says less than the error before it
			return last
		}
		last = err
		limit := driver.UnreachableTimeout(driver.MaxTTL)
		if errors.Is(err, syscall.ECONNREFUSED) {
			limit = refusedTimeout
		}
		if err == nil || !isTransient(err) || time.Since(start)+pause > limit {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
	}
}

// refusedTimeout is how long refused connections are retried.
const refusedTimeout = 3 * time.Second

// isTransient reports whether a new attempt to connect may succeed.
func isTransient(err error) bool {
	if dns := (*net.DNSError)(nil); errors.As(err, &dns) && dns.IsNotFound {
		return false
	}
	return !driverutil.IsFinal(err) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// connectClient makes a client, or gives up when ctx ends. rueidis.NewClient takes no context, and waits for each of
// many servers that hang in turn, so it runs in a goroutine. If it succeeds late, its client is closed. Errors contain
// no password.
func connectClient(ctx context.Context, o rueidis.ClientOption) (rueidis.Client, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	type made struct {
		client rueidis.Client
		err    error
	}
	results := make(chan made, 1)
	go func() {
		client, err := rueidis.NewClient(o)
		results <- made{client, err}
	}()
	var err error
	select {
	case m := <-results:
		if m.err == nil {
			return m.client, nil
		}
		err = m.err
	case <-ctx.Done():
		go func() {
			if m := <-results; m.err == nil {
				m.client.Close()
			}
		}()
		if o.TLSConfig != nil {
			return nil, fmt.Errorf("connecting to Redis by TLS: %w; if the server does not use TLS, open it as redis://", ctx.Err())
		}
		return nil, fmt.Errorf("connecting to Redis: %w", ctx.Err())
	}
	if r, ok := rueidis.IsRedisErr(err); ok {
		if strings.Contains(r.Error(), "NOAUTH") && o.Password == "" && o.AuthCredentialsFn == nil {
			return nil, fmt.Errorf("%w: Redis wants a password, and the URL has no password: write redis://:PASSWORD@host, "+
				"or password-file=FILE", driver.ErrDenied)
		}
		if f := finalReply(r.Error(), o.ForceSingleClient, "", &driverutil.Admission{}); f != nil {
			return nil, f
		}
	}
	return nil, connectError(err, &o)
}

package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// The URL forms:
//
//	redis://[user:password@]host[:6379][/database][?options]
//	rediss://...                                            the same over TLS
//	redis+sentinel://[user:password@]host[:26379]/primary-name[/database][?options]
//	redis+cluster://[user:password@]host[:6379][?options]
//	redlock://[user:password@]host[:6379]?addrs=host:port,host:port[&options]
//
// Options: prefix=P or template=P*Q, the keys of the locks; layout=plain or redisson; foreign-turn=100ms, see
// Options.ForeignTurn; replicas=N, how many must have a grant or a renewal; addrs=host:port,..., more servers,
// Sentinels or nodes; tls=true; tls-ca=FILE; tls-cert=FILE and tls-key=FILE; tls-name=NAME; timeout=2s, after which a
// connection without replies counts as broken; sentinel-user and sentinel-password; password-file=FILE, which keeps the
// password out of the URL.
func init() {
	for _, scheme := range []string{"redis", "rediss", "redis+sentinel", "redis+cluster"} {
		driver.Register(scheme, openURL)
	}
	driver.Register("redlock", openRedlockURL)
}

// storeURL is a URL that was read.
type storeURL struct {
	client   rueidis.ClientOption
	opts     Options
	password *driverutil.Secret
	tls      *driverutil.TLSFiles // nil: no TLS
}

// openURL opens the URLs of one server, of Sentinels and of a Cluster.
func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	p, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	p.useDialer(ctx)
	s, err := openClient(ctx, p.client, &p.opts)
	if err != nil {
		return nil, err
	}
	s.admission.Sources = p.password.Sources()
	return s, nil
}

// useDialer makes the client connect as ctx says (see driverutil.WithDialer), and with the certificates that the files
// have at the time.
func (p *storeURL) useDialer(ctx context.Context) {
	dial := driverutil.DialerOf(ctx)
	if dial == nil && p.tls == nil && !p.password.IsFile() {
		return
	}
	p.client.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, d.Timeout)
		defer cancel()
		connect := d.DialContext
		if dial != nil {
			connect = dial
		}
		conn, err := connect(ctx, "tcp", addr)
		if err == nil && config != nil {
			conn, err = p.tls.Handshake(ctx, conn, addr)
		}
		if err == nil && d.Resolver == sentinelResolver {
			return sentinelConn{conn}, nil
		}
		return conn, err
	}
}

// sentinelResolver is that of the dialer of Sentinels, by which it is known. It works like the default.
var sentinelResolver = new(net.Resolver)

// sentinelConn is a connection to a Sentinel. Its address shows that: see storeURL.credentials.
type sentinelConn struct{ net.Conn }

// sentinelAddr is the address of a Sentinel.
type sentinelAddr struct{ net.Addr }

func (c sentinelConn) RemoteAddr() net.Addr { return sentinelAddr{c.Conn.RemoteAddr()} }

// credentials returns the user and the password for one connection. Sentinels have their own.
func (p *storeURL) credentials(c rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
	if _, ok := c.Address.(sentinelAddr); ok {
		return rueidis.AuthCredentials{Username: p.client.Sentinel.Username, Password: p.client.Sentinel.Password}, nil
	}
	return rueidis.AuthCredentials{Username: p.client.Username, Password: p.password.Current()}, nil
}

// parseURL turns a URL into the options of a client and of a store. It sends no request.
func parseURL(u *url.URL) (*storeURL, error) {
	p := &storeURL{client: DefaultClientOption(), opts: Options{Place: driverutil.RedactURL(u)}}
	o := &p.client
	port := "6379"
	if u.Scheme == "redis+sentinel" {
		port = "26379"
	}
	if u.Host == "" {
		return nil, fmt.Errorf("%w: the store's URL names no server, as in %s://host:%s", driver.ErrInvalid, u.Scheme,
			port)
	}
	// The host of the URL may be a list, too.
	o.InitAddress = parseAddresses(u.Host, port)
	o.Username = u.User.Username()
	o.Password, _ = u.User.Password()
	p.password = driverutil.NewSecret(o.Password)
	var secure driverutil.TLSOptions
	err := driverutil.ParseOptions(u, secure.AddTo(map[string]func(string) error{
		"prefix":   func(v string) error { p.opts.Key = v + "*"; return rejectStar(v) },
		"template": func(v string) error { p.opts.Key = v; return nil },
		"layout":   func(v string) error { p.opts.Layout = Layout(v); return nil },
		"foreign-turn": func(v string) (err error) {
			p.opts.ForeignTurn, err = time.ParseDuration(v)
			return err
		},
		"replicas": func(v string) (err error) { p.opts.Replicas, err = strconv.Atoi(v); return err },
		"addrs": func(v string) error {
			o.InitAddress = append(o.InitAddress, parseAddresses(v, port)...)
			return nil
		},
		"timeout": func(v string) (err error) {
			o.ConnWriteTimeout, err = time.ParseDuration(v)
			if err == nil && o.ConnWriteTimeout < 10*time.Millisecond {
				err = errors.New("must be 10ms or more")
			}
			return err
		},
		"sentinel-user":     func(v string) error { o.Sentinel.Username = v; return nil },
		"sentinel-password": func(v string) error { o.Sentinel.Password = v; return nil },
		"password-file":     p.password.ReadFrom,
	}))
	if err != nil {
		return nil, err
	}
	if p.password.IsFile() {
		o.AuthCredentialsFn = p.credentials
	}
	secure.On = secure.On || u.Scheme == "rediss"
	if p.tls, err = secure.Open(); err != nil {
		return nil, err
	}
	if p.tls != nil {
		o.TLSConfig = p.tls.Config() // that TLS is used; see useDialer
		o.Sentinel.TLSConfig = o.TLSConfig
	}
	return p, p.parsePath(u)
}

// parsePath reads the database from the path, and before it the name of the primary that the Sentinels watch.
func (p *storeURL) parsePath(u *url.URL) error {
	path := strings.Trim(u.Path, "/")
	switch u.Scheme {
	case "redis+sentinel":
		var name string
		if name, path, _ = strings.Cut(path, "/"); name == "" {
			return fmt.Errorf("%w: the URL of Sentinels names their primary: redis+sentinel://host/name",
				driver.ErrInvalid)
		}
		p.client.Sentinel.MasterSet = name
		p.client.Sentinel.Dialer = p.client.Dialer
		p.client.Sentinel.Dialer.Resolver = sentinelResolver
	case "redis+cluster":
		if path != "" && path != "0" {
			return fmt.Errorf("%w: a Redis Cluster has no databases but 0", driver.ErrInvalid)
		}
		return nil
	default:
		// rueidis would otherwise ask the server whether it belongs to a Cluster, and follow the Cluster's other nodes.
		p.client.ForceSingleClient = true
		all := p.client.InitAddress
		if len(all) > 1 && u.Scheme != "redlock" {
			return fmt.Errorf("%w: a %s:// URL names one server; see redis+sentinel://, redis+cluster:// and redlock://", driver.ErrInvalid, u.Scheme)
		}
		if len(slices.Compact(slices.Sorted(slices.Values(all)))) < len(all) {
			return fmt.Errorf("%w: the URL names a server twice, and Redlock needs independent ones", driver.ErrInvalid)
		}
	}
	if path == "" {
		return nil
	}
	db, err := strconv.Atoi(path)
	if err != nil || db < 0 {
		return fmt.Errorf("%w: the database in the store's URL is a number, as in redis://host/2", driver.ErrInvalid)
	}
	p.client.SelectDB = db
	return nil
}

// rejectStar refuses a star in a prefix, which would become a second star in the template.
func rejectStar(v string) error {
	if strings.Contains(v, "*") {
		return errors.New("a prefix has no star; see template")
	}
	return nil
}

// parseAddresses reads hosts with or without ports, separated by commas.
func parseAddresses(list, port string) (as []string) {
	for a := range strings.SplitSeq(list, ",") {
		if _, _, err := net.SplitHostPort(a); err != nil {
			a = net.JoinHostPort(strings.Trim(a, "[]"), port)
		}
		as = append(as, a)
	}
	return as
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

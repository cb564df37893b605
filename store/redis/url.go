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
	client rueidis.ClientOption
	opts   Options
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
	return s, nil
}

// useDialer makes the client connect as ctx says: see driverutil.WithDialer.
func (p *storeURL) useDialer(ctx context.Context) {
	dial := driverutil.DialerOf(ctx)
	if dial == nil {
		return
	}
	p.client.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, d.Timeout)
		defer cancel()
		conn, err := dial(ctx, "tcp", addr)
		if err != nil || config == nil {
			return conn, err
		}
		if config.ServerName == "" {
			config = config.Clone()
			config.ServerName, _, _ = net.SplitHostPort(addr)
		}
		secure := tls.Client(conn, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			conn.Close()
			return nil, err
		}
		return secure, nil
	}
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
	var ca, cert, key, name string
	secure := u.Scheme == "rediss"
	err := driverutil.ParseOptions(u, map[string]func(string) error{
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
		"tls":      func(v string) (err error) { on, err := strconv.ParseBool(v); secure = secure || on; return err },
		"tls-ca":   func(v string) error { ca = v; return nil },
		"tls-cert": func(v string) error { cert = v; return nil },
		"tls-key":  func(v string) error { key = v; return nil },
		"tls-name": func(v string) error { name = v; return nil },
		"timeout": func(v string) (err error) {
			o.ConnWriteTimeout, err = time.ParseDuration(v)
			if err == nil && o.ConnWriteTimeout < 10*time.Millisecond {
				err = errors.New("must be 10ms or more")
			}
			return err
		},
		"sentinel-user":     func(v string) error { o.Sentinel.Username = v; return nil },
		"sentinel-password": func(v string) error { o.Sentinel.Password = v; return nil },
		"password-file":     func(v string) (err error) { o.Password, err = driverutil.ReadSecretFile(v); return err },
	})
	if err != nil {
		return nil, err
	}
	if secure || ca+cert+key+name != "" {
		if o.TLSConfig, err = driverutil.TLSConfig(ca, cert, key, name); err != nil {
			return nil, err
		}
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
		if f := finalReply(r.Error(), o.ForceSingleClient, ""); f != nil {
			return nil, f
		}
	}
	return nil, connectError(err, &o)
}

package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
)

func init() { driver.Register("etcd", openURL) }

// openURL opens etcd://[user:password@]host:port[,host:port...][?options]. The options:
//
//	password-file=FILE   the user's password, instead of in the URL
//	prefix=P      starts all keys; put before the name unchanged
//	tls=true      encrypts the connection, as does each of the following
//	tls-ca=FILE   the authorities to trust, in PEM, instead of the system's
//	tls-cert=FILE, tls-key=FILE   this client's own certificate
//	tls-name=N    the name that the servers' certificates are checked for
//
// The cluster need not be reachable. Only with a password must some server answer, because the client logs in first: it
// tries for ten seconds.
func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	cfg, o, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	if dial := driverutil.DialerOf(ctx); dial != nil {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithContextDialer(
			func(ctx context.Context, addr string) (net.Conn, error) { return dial(ctx, "tcp", addr) }))
	}
	return driverutil.OpenWithRetry(ctx, func(context.Context) (driver.Store, error) {
		cli, err := clientv3.New(cfg) // this logs in, if there is a password
		if err != nil {
			return nil, explainOpen(err)
		}
		nodes := newNodeStore(cli, o)
		nodes.closeClient = func() error {
			if err := cli.Close(); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		}
		return newStore(nodes), nil
	})
}

// explainOpen is the error of a login that has failed: the servers cannot be reached or have no leader, or they refuse it.
func explainOpen(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || codeOf(err) == codes.Unavailable {
		return fmt.Errorf("no server answers: %v", err)
	}
	return fmt.Errorf("%w: %w", driver.ErrDenied, err)
}

// parseURL reads a store's URL. It makes no request.
func parseURL(u *url.URL) (clientv3.Config, Options, error) {
	cfg := clientv3.Config{
		DialTimeout: 2 * time.Second,
		// A server that hangs is noticed in time for the smallest TTLs that make sense over a network. By default a
		// server allows a ping every five seconds.
		DialKeepAliveTime: 6 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second,
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2,
				MaxDelay: time.Second}})},
	}
	var o Options
	var secure driverutil.TLSOptions
	cfg.Username = u.User.Username()
	inURL, _ := u.User.Password()
	password := driverutil.NewSecret(inURL)
	err := driverutil.ParseOptions(u, secure.AddTo(map[string]func(string) error{
		"prefix":        func(v string) error { o.Prefix = v; return nil },
		"password-file": password.ReadFrom,
	}))
	if err == nil {
		err = checkPrefix(o.Prefix)
	}
	if err == nil {
		o.files, err = secure.Open()
	}
	if err != nil {
		return cfg, o, err
	}
	cfg.Password, o.secrets = password.Current(), password.Sources()
	if u.Path != "" && u.Path != "/" {
		return cfg, o, fmt.Errorf("%w: an etcd store's URL has no path; write ?prefix=... for what starts its keys",
			driver.ErrInvalid)
	}
	scheme := "http://"
	if o.files != nil {
		scheme, cfg.TLS = "https://", o.files.Config()
		o.TLS, o.secrets = cfg.TLS, append(o.secrets, o.files)
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithTransportCredentials(newHandshaker(o.files)))
	}
	for host := range strings.SplitSeq(u.Host, ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			host += ":2379"
		}
		if h, _, err := net.SplitHostPort(host); err != nil || h == "" {
			return cfg, o, fmt.Errorf("%w: an etcd store's URL is etcd://host:port,host:port", driver.ErrInvalid)
		}
		cfg.Endpoints = append(cfg.Endpoints, scheme+host)
	}
	if u.Query().Has("password-file") && cfg.Username == "" {
		return cfg, o, fmt.Errorf("%w: password-file takes a user: etcd://user@%s", driver.ErrInvalid, u.Host)
	}
	if u.User != nil {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithStreamInterceptor(openStream),
			grpc.WithChainUnaryInterceptor(login(password)))
	}
	return cfg, o, nil
}

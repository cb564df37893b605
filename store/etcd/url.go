package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/storeurl"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
)

func init() { driver.Register("etcd", openURL, storeurl.Describe((*storeURL).form)) }

// storeURL is what a URL says.
type storeURL struct {
	user     string
	password driverutil.Secret
	hosts    []string
	opts     Options
	tls      driverutil.TLSOptions
}

func (s *storeURL) form() *storeurl.Form {
	return &storeurl.Form{
		Shape: "etcd://[user[:password]@]host[:2379][,host...]",
		User:  &s.user, Password: &s.password, Hosts: &s.hosts,
		Options: []storeurl.Option{
			storeurl.PasswordFile(&s.password),
			storeurl.Prefix(&s.opts.Prefix, "the beginning of all keys", ""),
		},
		TLS:   &s.tls,
		Check: func() error { return checkPrefix(s.opts.Prefix) },
	}
}

// openURL opens the store. The cluster need not be reachable. Only with a password must some server answer, because the
// client logs in first: it tries for ten seconds.
func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	cfg, o, err := readURL(u)
	if err != nil {
		return nil, err
	}
	if dial := driverutil.DialerOf(ctx); dial != nil {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithContextDialer(
			func(ctx context.Context, addr string) (net.Conn, error) { return dial(ctx, "tcp", addr) }))
	}
	return driverutil.OpenWithRetry(ctx, func(context.Context) (driver.Store, error) {
		if o.handshakes != nil {
			o.handshakes.failure.Store(nil)
		}
		cli, err := clientv3.New(cfg) // this logs in, if there is a password
		if err != nil {
			return nil, o.explainOpen(err)
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

// explainOpen is the error of a login that has failed: the servers cannot be reached or have no leader, one side does
// not trust the other's certificate, or they refuse it. Until a connection is there, etcd's client reports only that
// time is up.
func (o *Options) explainOpen(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) && codeOf(err) != codes.Unavailable {
		return fmt.Errorf("%w: %w", driver.ErrDenied, err)
	}
	if o.handshakes != nil && errors.Is(err, context.DeadlineExceeded) {
		if failure := o.handshakes.failure.Load(); failure != nil {
			return driverutil.RefuseStore(driverutil.AddProblems(handshakeError((*failure).Error()), o.secrets))
		}
	}
	return fmt.Errorf("no server answers: %v", err)
}

// readURL turns a URL into the client's settings and ours. It makes no request.
func readURL(u *url.URL) (clientv3.Config, Options, error) {
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
	var s storeURL
	err := s.form().Read(u)
	if err == nil {
		s.opts.files, err = s.tls.Open()
	}
	if err != nil {
		return cfg, s.opts, err
	}
	cfg.Username, cfg.Password, s.opts.secrets = s.user, s.password.Current(), s.password.Sources()
	scheme := "http://"
	if files := s.opts.files; files != nil {
		scheme, cfg.TLS = "https://", files.Config()
		s.opts.TLS, s.opts.secrets = cfg.TLS, append(s.opts.secrets, files)
		s.opts.handshakes = newHandshaker(files)
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithTransportCredentials(s.opts.handshakes))
	}
	for _, host := range s.hosts {
		cfg.Endpoints = append(cfg.Endpoints, scheme+host)
	}
	if u.User != nil {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithStreamInterceptor(openStream),
			grpc.WithChainUnaryInterceptor(login(&s.password)))
	}
	return cfg, s.opts, nil
}

package foreign

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/torture"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
)

func startEtcd(t *testing.T, members int) (s server) {
	t.Helper()
	c, err := etcdtest.Start(t.Context(), etcdtest.Options{Direct: true, Members: members})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	s.address, s.text = strings.Join(c.Endpoints(), ","), fmt.Sprintf("etcd, %d servers", members)
	for _, m := range c.Servers() {
		s.pids = append(s.pids, m.PID())
	}
	client, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	s.list = func(ctx context.Context, prefix string) (names []string, err error) {
		r, err := client.Get(ctx, "/"+prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			return nil, err
		}
		for _, kv := range r.Kvs {
			names = append(names, strings.Split(string(kv.Key), "/")[1])
		}
		return names, nil
	}
	return s
}

// concurrencyClient has one session at a time, as most programs do, and believes until that session says that it is
// done.
type concurrencyClient struct {
	client *clientv3.Client
	ttl    time.Duration

	mu      sync.Mutex
	current *concurrency.Session
}

func openConcurrency(_ context.Context, o torture.ForeignOptions) (torture.ForeignClient, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(o.Store, ","), Logger: zap.NewNop(),
		DialTimeout: 2 * time.Second, DialKeepAliveTime: 6 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return o.Dial(ctx, "tcp", strings.TrimPrefix(address, "http://"))
			}),
			grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second, Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: time.Second}}),
		}})
	return &concurrencyClient{client: c, ttl: o.TTL}, err
}

func (c *concurrencyClient) Close() error {
	if s := c.current; s != nil {
		_ = s.Close() // a session that has ended cannot be closed
	}
	return c.client.Close()
}

// session is the present session, or a new one if that is done.
func (c *concurrencyClient) session() (*concurrency.Session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.current; s != nil && !isClosed(s.Done()) {
		return s, nil
	}
	s, err := concurrency.NewSession(c.client, concurrency.WithTTL(int(c.ttl.Seconds())))
	if err == nil {
		c.current = s
	}
	return s, err
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (c *concurrencyClient) Lock(ctx context.Context, name string) (torture.ForeignLock, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	m := concurrency.NewMutex(s, "/"+name)
	if err := m.Lock(ctx); err != nil {
		return nil, err
	}
	return &concurrencyLock{m, s, c.ttl}, nil
}

type concurrencyLock struct {
	mutex   *concurrency.Mutex
	session *concurrency.Session
	ttl     time.Duration
}

func (l *concurrencyLock) Valid() bool { return !isClosed(l.session.Done()) }

// Token is the revision of the reply that granted the lock.
func (l *concurrencyLock) Token() int64 { return l.mutex.Header().Revision }

func (l *concurrencyLock) Release() error {
	limited, cancel := context.WithTimeout(context.Background(), l.ttl)
	defer cancel()
	return l.mutex.Unlock(limited)
}

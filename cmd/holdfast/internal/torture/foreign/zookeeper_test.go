package foreign

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/torture"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func startZooKeeper(t *testing.T) (s server) {
	t.Helper()
	e, err := zktest.Start(t.Context(), zktest.Options{Direct: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	s.address, s.text = strings.Join(e.Endpoints(), ","), "ZooKeeper, three servers"
	for _, m := range e.Servers() {
		s.pids = append(s.pids, m.PID())
	}
	c, _, err := zk.Connect(e.Endpoints(), time.Minute, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	s.list = func(_ context.Context, prefix string) (names []string, err error) {
		locks, _, err := c.Children("/")
		for _, name := range locks {
			if !strings.HasPrefix(name, prefix) {
				continue
			}
			if nodes, _, err := c.Children("/" + name); err == nil && len(nodes) > 0 && name != "zookeeper" {
				names = append(names, name)
			}
		}
		return names, err
	}
	return s
}

// zkClient believes until its connection is lost, which is the first thing that the client tells, and the only one in
// time. The recipe itself tells nothing.
type zkClient struct {
	conn   *zk.Conn
	losses *atomic.Int64
}

func openZooKeeper(_ context.Context, o torture.ForeignOptions) (torture.ForeignClient, error) {
	losses := &atomic.Int64{}
	c, _, err := zk.Connect(strings.Split(o.Store, ","), o.TTL, zk.WithLogger(quiet{}),
		zk.WithDialer(func(network, address string, limit time.Duration) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			return o.Dial(ctx, network, address)
		}),
		zk.WithEventCallback(func(e zk.Event) {
			if e.State == zk.StateDisconnected || e.State == zk.StateExpired {
				losses.Add(1)
			}
		}))
	return &zkClient{c, losses}, err
}

func (c *zkClient) Close() error {
	c.conn.Close()
	return nil
}

// Lock leaves a wait that is given up to itself, because Lock of the recipe cannot be ended. If it is granted the lock
// later, it unlocks.
func (c *zkClient) Lock(ctx context.Context, name string) (torture.ForeignLock, error) {
	l := &zkLock{zk.NewLock(c.conn, "/"+name, zk.WorldACL(zk.PermAll)), c.losses, c.losses.Load()}
	result := make(chan error, 1)
	go func() { result <- l.lock.Lock() }()
	select {
	case err := <-result:
		if err != nil {
			return nil, err
		}
		return l, nil
	case <-ctx.Done():
		go func() {
			if <-result == nil {
				_ = l.lock.Unlock()
			}
		}()
		return nil, ctx.Err()
	}
}

type zkLock struct {
	lock   *zk.Lock
	losses *atomic.Int64
	before int64 // losses of the connection when the lock was asked for
}

func (l *zkLock) Valid() bool  { return l.losses.Load() == l.before }
func (l *zkLock) Token() int64 { return 0 }

// Release tries again: a node that is left would keep the lock from everybody while the session lives.
func (l *zkLock) Release() (err error) {
	for range 10 {
		if err = l.lock.Unlock(); err == nil || errors.Is(err, zk.ErrNoNode) {
			return err
		}
		time.Sleep(500 * time.Millisecond)
	}
	return err
}

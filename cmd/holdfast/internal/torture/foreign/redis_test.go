package foreign

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis9 "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/torture"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// startRedis starts a server that acknowledges what is on its disk. List finds keys by what precedes a lock's name.
func startRedis(t *testing.T, keyPrefix string) (s server) {
	t.Helper()
	r, err := redistest.Start("--appendonly", "yes", "--appendfsync", "always")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	s.address, s.pids, s.text = r.Addr, []int{r.PID()}, "Redis, appendfsync always"
	c := goredis9.NewClient(&goredis9.Options{Addr: r.Addr})
	t.Cleanup(func() { c.Close() })
	s.list = func(ctx context.Context, prefix string) (names []string, err error) {
		keys, err := c.Keys(ctx, keyPrefix+prefix+"*").Result()
		for _, k := range keys {
			names = append(names, strings.TrimPrefix(k, keyPrefix))
		}
		return names, err
	}
	return s
}

// redsyncClient renews each lock three times per TTL, which redsync leaves to its user, and believes until the time
// that redsync tells.
type redsyncClient struct {
	client *goredis9.Client
	locks  *redsync.Redsync
	ttl    time.Duration
}

func openRedsync(_ context.Context, o torture.ForeignOptions) (torture.ForeignClient, error) {
	c := goredis9.NewClient(&goredis9.Options{Addr: o.Store, Dialer: o.Dial,
		ContextTimeoutEnabled: true, // otherwise the time limits of redsync have no effect
	})
	return &redsyncClient{c, redsync.New(goredis.NewPool(c)), o.TTL}, nil
}

func (c *redsyncClient) Close() error { return c.client.Close() }

func (c *redsyncClient) Lock(ctx context.Context, name string) (torture.ForeignLock, error) {
	m := c.locks.NewMutex(name, redsync.WithExpiry(c.ttl), redsync.WithTries(1_000_000))
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	l := &redsyncLock{mutex: m}
	l.until.Store(new(m.Until()))
	renewing, stop := context.WithCancel(context.Background())
	l.stop = stop
	l.renewer.Go(func() { l.renew(renewing, c.ttl/3) })
	return l, nil
}

type redsyncLock struct {
	mutex   *redsync.Mutex
	until   atomic.Pointer[time.Time]
	stop    context.CancelFunc
	renewer sync.WaitGroup
}

func (l *redsyncLock) renew(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			limited, cancel := context.WithTimeout(ctx, every)
			if ok, err := l.mutex.ExtendContext(limited); ok && err == nil {
				l.until.Store(new(l.mutex.Until()))
			}
			cancel()
		}
	}
}

func (l *redsyncLock) Valid() bool  { return time.Now().Before(*l.until.Load()) }
func (l *redsyncLock) Token() int64 { return 0 }

func (l *redsyncLock) Release() error {
	l.stop()
	l.renewer.Wait()
	ok, err := l.mutex.Unlock()
	if err == nil && !ok {
		return errors.New("redsync did not unlock a majority")
	}
	return err
}

// rueidislockClient is set up as its documentation says for one server.
type rueidislockClient struct{ locks rueidislock.Locker }

func openRueidislock(_ context.Context, o torture.ForeignOptions) (torture.ForeignClient, error) {
	option := rueidis.ClientOption{InitAddress: []string{o.Store},
		DialCtxFn: func(ctx context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return o.Dial(ctx, "tcp", address)
		}}
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{KeyMajority: 1, NoLoopTracking: true, KeyValidity: o.TTL,
		ClientOption: option})
	return rueidislockClient{l}, err
}

func (c rueidislockClient) Close() error {
	c.locks.Close()
	return nil
}

// Lock waits for one second at a time, because a waiter of rueidislock misses a wake-up now and then. The context that
// is given to rueidislock must live as long as the lock, and a deadline of it would shorten the lock.
func (c rueidislockClient) Lock(ctx context.Context, name string) (torture.ForeignLock, error) {
	for {
		living, end := context.WithCancel(context.Background())
		limited, cancel := context.WithTimeout(ctx, time.Second)
		stop := context.AfterFunc(limited, end)
		held, release, err := c.locks.WithContext(living, name)
		stopped := stop()
		cancel()
		if err == nil && stopped {
			return rueidisLock{held, release}, nil
		}
		if err == nil {
			release()
		}
		end()
		if ctx.Err() != nil || errors.Is(err, rueidislock.ErrLockerClosed) {
			return nil, errors.Join(ctx.Err(), err)
		}
	}
}

// rueidisLock believes until its context ends. Its release has no result.
type rueidisLock struct {
	held    context.Context
	release context.CancelFunc
}

func (l rueidisLock) Valid() bool  { return l.held.Err() == nil }
func (l rueidisLock) Token() int64 { return 0 }

func (l rueidisLock) Release() error {
	l.release()
	return nil
}

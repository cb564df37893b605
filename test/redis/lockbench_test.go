package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis9 "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/holdfast-go/holdfast/internal/benchtest"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// BenchmarkLocks: the floor is two scripts that do what our mutex does: a token that rises with the server's clock, and
// a notice of the release. Next to it are two scripts with a token that falls if the server loses its data, and no
// notice. Where many want one lock, the least is one script that enters the queue, and one that hands the lock to the
// next one and tells it; in "confirmed" that one renews the lock before it trusts it.
func BenchmarkLocks(b *testing.B) {
	var server *redistest.Server
	s := benchtest.Store{
		Start: func(b testing.TB) string {
			var err error
			if server, err = redistest.Start(); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(server.Stop)
			return "redis://" + server.Addr
		},
		Requests: func(context.Context) (int64, error) { return server.CountScripts() },
		Lockers: append([]benchtest.Locker{
			benchtest.Floor(openScripts(floorTimedTake, floorNotifyingRelease)),
			scriptsWithoutClock(),
			{Name: "hand-over", In: []benchtest.Setup{benchtest.OneKey, benchtest.Processes}, Open: openHandOver(false)},
			{Name: "hand-over-confirmed", In: benchtest.Contended, Open: openHandOver(true)},
			benchtest.HandOverFloor(openHandOver(false)),
			{Name: "redsync", Open: openRedsync},
			{Name: "redislock", Open: openRedislock},
			{Name: "rueidislock", Open: openRueidislock(false)},
			{Name: "rueidislock-no-loop", Open: openRueidislock(true)},
		}, benchtest.Holdfast("")...),
	}
	s.Run(b)
}

// benchClient makes a client with the settings of Holdfast's own. A caller that is alone writes its request and reads
// the reply itself, until two callers come at the same time.
func benchClient(b testing.TB, address string) rueidis.Client {
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{hostOf(address)}, ForceSingleClient: true,
		DisableRetry: true, DisableCache: true, PipelineMultiplex: -1, MaxFlushDelay: 20 * time.Microsecond})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	return c
}

func hostOf(address string) string { return strings.TrimPrefix(address, "redis://") }

var (
	floorTimedTake = rueidis.NewLuaScript(`
		if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
		local last, t = redis.call('HGET', KEYS[2], 'token'), redis.call('TIME')
		local token = math.max((last or 0) + 1, t[1] * 1000000 + t[2])
		redis.call('HSET', KEYS[2], 'token', token, 'id', ARGV[1])
		return token`)
	floorNotifyingRelease = rueidis.NewLuaScript(`
		if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		redis.call('DEL', KEYS[1])
		redis.call('PUBLISH', KEYS[2], 'free')
		return 1`)
	plainTake = rueidis.NewLuaScript(`
		if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
		return redis.call('INCR', KEYS[2])`)
	plainRelease = rueidis.NewLuaScript(`
		if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		return redis.call('DEL', KEYS[1])`)

	enqueueScript = rueidis.NewLuaScript(`
		if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end
		redis.call('RPUSH', KEYS[3], ARGV[1])
		return 0`)
	handOverScript = rueidis.NewLuaScript(`
		if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		local next = redis.call('LPOP', KEYS[3])
		if not next then return redis.call('DEL', KEYS[1]) end
		redis.call('SET', KEYS[1], next, 'PX', ARGV[2])
		redis.call('PUBLISH', string.sub(next, 1, 26), next .. ' ' .. redis.call('INCR', KEYS[2]))
		return 1`)
	confirmScript = rueidis.NewLuaScript(`
		if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		return redis.call('PEXPIRE', KEYS[1], ARGV[2])`)
)

// ttlMillis is the TTL of the scripts.
var ttlMillis = fmt.Sprint(benchtest.TTL.Milliseconds())

func openScripts(take, release *rueidis.Lua) func(testing.TB, string) benchtest.Cycle {
	return func(b testing.TB, address string) benchtest.Cycle {
		c := benchClient(b, address)
		return func(ctx context.Context, lock string) error {
			id, keys := rand.Text(), []string{lock, "token:{" + lock + "}"}
			if n, err := take.Exec(ctx, c, keys, []string{id, ttlMillis}).AsInt64(); err != nil || n == 0 {
				return fmt.Errorf("not taken: %w", err)
			}
			return release.Exec(ctx, c, keys, []string{id}).Error()
		}
	}
}

func scriptsWithoutClock() benchtest.Locker {
	l := benchtest.Floor(openScripts(plainTake, plainRelease))
	l.Name = "scripts-without-clock"
	return l
}

func openHandOver(confirmed bool) func(testing.TB, string) benchtest.Lock {
	return func(b testing.TB, address string) benchtest.Lock {
		c := benchClient(b, address)
		session := rand.Text()
		var waiting sync.Map // id -> channel
		listens := make(chan struct{})
		go c.Receive(rueidis.WithOnSubscriptionHook(b.Context(), func(rueidis.PubSubSubscription) { close(listens) }),
			c.B().Subscribe().Channel(session).Build(), func(m rueidis.PubSubMessage) {
				id, _, _ := strings.Cut(m.Message, " ")
				if told, ok := waiting.Load(id); ok {
					told.(chan struct{}) <- struct{}{}
				}
			})
		<-listens
		return func(ctx context.Context, name string, _ int) (benchtest.Lease, error) {
			id, keys := session+rand.Text(), []string{name, "token:{" + name + "}", "line:{" + name + "}"}
			told := make(chan struct{}, 1)
			waiting.Store(id, told)
			defer waiting.Delete(id)
			n, err := enqueueScript.Exec(ctx, c, keys, []string{id, ttlMillis}).AsInt64()
			if err != nil {
				return benchtest.Lease{}, err
			}
			if n == 0 {
				select {
				case <-told:
				case <-time.After(benchtest.TTL):
					return benchtest.Lease{}, errors.New("nobody handed it on")
				}
				if confirmed {
					n, err := confirmScript.Exec(ctx, c, keys[:1], []string{id, ttlMillis}).AsInt64()
					if err != nil || n == 0 {
						return benchtest.Lease{}, fmt.Errorf("not confirmed: %w", err)
					}
				}
			}
			return benchtest.Lease{Release: func() error {
				return handOverScript.Exec(ctx, c, keys, []string{id, ttlMillis}).Error()
			}}, nil
		}
	}
}

// retryInterval is the interval at which clients without notices poll: that of a client that is fast, and still spares
// the server.
const retryInterval = 3 * time.Millisecond

func openRedsync(b testing.TB, address string) benchtest.Lock {
	c := goredis9.NewClient(&goredis9.Options{Addr: hostOf(address)})
	b.Cleanup(func() { c.Close() })
	rs := redsync.New(goredis.NewPool(c))
	return func(ctx context.Context, name string, _ int) (benchtest.Lease, error) {
		m := rs.NewMutex(name, redsync.WithExpiry(benchtest.TTL), redsync.WithTries(1_000_000),
			redsync.WithRetryDelay(retryInterval))
		return benchtest.Lease{
			Release: func() error { _, err := m.UnlockContext(ctx); return err },
			Renew:   func() error { _, err := m.ExtendContext(ctx); return err },
		}, m.LockContext(ctx)
	}
}

func openRedislock(b testing.TB, address string) benchtest.Lock {
	c := goredis9.NewClient(&goredis9.Options{Addr: hostOf(address)})
	b.Cleanup(func() { c.Close() })
	locks := redislock.New(c)
	return func(ctx context.Context, name string, _ int) (benchtest.Lease, error) {
		l, err := locks.Obtain(ctx, name, benchtest.TTL,
			&redislock.Options{RetryStrategy: redislock.LinearBackoff(retryInterval)})
		return benchtest.Lease{
			Release: func() error { return l.Release(ctx) },
			Renew:   func() error { return l.Refresh(ctx, benchtest.TTL, nil) },
		}, err
	}
}

// openRueidislock makes rueidislock's locker, as it is by default or with NoLoopTracking, by which the server need not
// tell a client of its own writes.
func openRueidislock(noLoop bool) func(testing.TB, string) benchtest.Lock {
	return func(b testing.TB, address string) benchtest.Lock {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{KeyMajority: 1, NoLoopTracking: noLoop,
			KeyValidity: benchtest.TTL, ExtendInterval: benchtest.TTL / 3,
			ClientOption: rueidis.ClientOption{InitAddress: []string{hostOf(address)}}})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(l.Close)
		return func(ctx context.Context, name string, _ int) (benchtest.Lease, error) {
			return lockRueidis(ctx, l, name)
		}
	}
}

// lockRueidis bounds the locker's wait, and repeats it: it misses a wake-up now and then, and would never end.
func lockRueidis(ctx context.Context, l rueidislock.Locker, name string) (benchtest.Lease, error) {
	for {
		bounded, cancel := context.WithCancel(ctx)
		wake := time.AfterFunc(time.Second, cancel)
		_, release, err := l.WithContext(bounded, name)
		switch {
		case err == nil && wake.Stop():
			return benchtest.Lease{Release: func() error { release(); cancel(); return nil }}, nil
		case err == nil:
			release()
		case bounded.Err() == nil || ctx.Err() != nil:
			cancel()
			return benchtest.Lease{}, err
		}
		cancel()
	}
}

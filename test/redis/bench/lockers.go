package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis9 "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/holdfast-go/holdfast"
	_ "github.com/holdfast-go/holdfast/store/redis"
)

// ttl is the TTL of all locks.
const ttl = 30 * time.Second

// lockTurn acquires the lock of that key, calls inside if it is not nil, and releases the lock.
type lockTurn func(ctx context.Context, key string, inside func()) error

// locker is one client that is measured.
type locker struct {
	name     string
	open     func(ctx context.Context, addr string) (t lockTurn, end func(), err error)
	handOver bool // it only matters on a lock that many want
	alone    bool // it cannot wait, so it is measured only without competition
}

// The first one that may run is the floor of a table.
var lockers = []*locker{
	{name: "scripts", open: openScripts(acquireScript, releaseScript, true), alone: true},
	{name: "scripts, caller reads", open: openScripts(acquireScript, releaseScript, false), alone: true},
	{name: "scripts, timed token", open: openScripts(acquireTimedScript, releaseAndNotifyScript, true), alone: true},
	{name: "timed scripts, caller reads", open: openScripts(acquireTimedScript, releaseAndNotifyScript, false), alone: true},
	{name: "direct hand-over", open: openDirect(false), handOver: true},
	{name: "direct, confirmed", open: openDirect(true), handOver: true},
	{name: "holdfast", open: openHoldfast(nil)},
	{name: "holdfast fair", open: openHoldfast(&holdfast.LockOptions{Fair: true})},
	{name: "redsync", open: openRedsync},
	{name: "redislock", open: openRedislock},
	{name: "rueidislock", open: openRueidislock},
}

// selectLockers returns the lockers that -only allows.
func selectLockers(ok func(*locker) bool) (ls []*locker) {
	for _, l := range lockers {
		if ok(l) && matchesOnly(l.name, "scripts", "direct", "holdfast", "redsync", "redislock", "rueidislock") {
			ls = append(ls, l)
		}
	}
	return ls
}

// newClient makes a client with the settings of Holdfast's own. Without pipelining, a caller that is alone writes its
// request and reads the reply itself, until two callers come at the same time.
func newClient(addr string, pipelining bool) (rueidis.Client, error) {
	return rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true,
		DisableRetry: true, DisableCache: true,
		AlwaysPipelining: pipelining, PipelineMultiplex: -1, MaxFlushDelay: 20 * time.Microsecond})
}

// The minimum for a lock of the plain layout with a token: one script to acquire it, and one to release it.
var (
	acquireScript = rueidis.NewLuaScript(`if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end return 0`)
	releaseScript = rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
)

// The same with tokens that do not fall if the server loses its data, and with a notice for waiting clients: the
// minimum that does what Holdfast's plain mutex does.
var (
	acquireTimedScript = rueidis.NewLuaScript(`if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
		local last, t = redis.call('HGET', KEYS[2], 'token'), redis.call('TIME')
		local token = math.max((last or 0) + 1, t[1] * 1000000 + t[2])
		redis.call('HSET', KEYS[2], 'token', token, 'id', ARGV[1])
		return token`)
	releaseAndNotifyScript = rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end redis.call('DEL', KEYS[1]) redis.call('PUBLISH', KEYS[2], 'free') return 1`)
)

func openScripts(take, free *rueidis.Lua, pipelining bool) func(context.Context, string) (lockTurn, func(), error) {
	return func(_ context.Context, addr string) (lockTurn, func(), error) {
		c, err := newClient(addr, pipelining)
		if err != nil {
			return nil, nil, err
		}
		return func(ctx context.Context, key string, inside func()) error {
			id, keys := rand.Text(), []string{key, "token:{" + key + "}"}
			if n, err := take.Exec(ctx, c, keys, []string{id, "30000"}).AsInt64(); err != nil || n == 0 {
				return fmt.Errorf("not acquired: %w", err)
			}
			return free.Exec(ctx, c, keys, []string{id}).Error()
		}, c.Close, nil
	}
}

// The minimum for a lock with hand-over: one script that acquires it or enters the queue, and one that releases it, or
// hands it to the next client and notifies it. "Confirmed" means that a notified client renews the lock before it
// trusts it.
var (
	enqueueScript  = rueidis.NewLuaScript(`if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end redis.call('RPUSH', KEYS[3], ARGV[1]) return 0`)
	handOverScript = rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		local next = redis.call('LPOP', KEYS[3])
		if not next then return redis.call('DEL', KEYS[1]) end
		redis.call('SET', KEYS[1], next, 'PX', ARGV[2])
		redis.call('PUBLISH', string.sub(next, 1, 26), next .. ' ' .. redis.call('INCR', KEYS[2]))
		return 1`)
	confirmScript = rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0`)
)

func openDirect(confirmed bool) func(context.Context, string) (lockTurn, func(), error) {
	return func(ctx context.Context, addr string) (lockTurn, func(), error) {
		c, err := newClient(addr, true)
		if err != nil {
			return nil, nil, err
		}
		session := rand.Text()
		var waiting sync.Map // id -> channel
		ctx, cancel := context.WithCancel(ctx)
		listens := make(chan struct{})
		go c.Receive(rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) { close(listens) }),
			c.B().Subscribe().Channel(session).Build(), func(m rueidis.PubSubMessage) {
				id, _, _ := strings.Cut(m.Message, " ")
				if told, ok := waiting.Load(id); ok {
					told.(chan struct{}) <- struct{}{}
				}
			})
		<-listens
		return func(ctx context.Context, key string, inside func()) error {
			id, keys := session+rand.Text(), []string{key, "token:{" + key + "}", "line:{" + key + "}"}
			told := make(chan struct{}, 1)
			waiting.Store(id, told)
			defer waiting.Delete(id)
			n, err := enqueueScript.Exec(ctx, c, keys, []string{id, "30000"}).AsInt64()
			if err != nil {
				return err
			}
			if n == 0 {
				select {
				case <-told:
				case <-time.After(ttl):
					return errors.New("nobody handed it on")
				}
				if confirmed {
					if n, err := confirmScript.Exec(ctx, c, keys[:1], []string{id, "30000"}).AsInt64(); err != nil ||
						n == 0 {
						return fmt.Errorf("not confirmed: %w", err)
					}
				}
			}
			if inside != nil {
				inside()
			}
			return handOverScript.Exec(ctx, c, keys, []string{id, "30000"}).Error()
		}, func() { cancel(); c.Close() }, nil
	}
}

func openHoldfast(o *holdfast.LockOptions) func(context.Context, string) (lockTurn, func(), error) {
	return func(ctx context.Context, addr string) (lockTurn, func(), error) {
		c, err := holdfast.Open(ctx, "redis://"+addr, nil)
		if err != nil {
			return nil, nil, err
		}
		return func(ctx context.Context, key string, inside func()) error {
			lease, err := c.Mutex(key, o).Lock(ctx)
			if err != nil {
				return err
			}
			if inside != nil {
				inside()
			}
			return lease.Release()
		}, func() { _ = c.Close() }, nil
	}
}

// retry is the interval at which clients without notices poll: that of a client that is fast, and still spares the
// server.
const retry = 3 * time.Millisecond

func openRedsync(_ context.Context, addr string) (lockTurn, func(), error) {
	c := goredis9.NewClient(&goredis9.Options{Addr: addr})
	rs := redsync.New(goredis.NewPool(c))
	return func(ctx context.Context, key string, inside func()) error {
		m := rs.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(1_000_000), redsync.WithRetryDelay(retry))
		if err := m.LockContext(ctx); err != nil {
			return err
		}
		if inside != nil {
			inside()
		}
		_, err := m.UnlockContext(ctx)
		return err
	}, func() { _ = c.Close() }, nil
}

func openRedislock(_ context.Context, addr string) (lockTurn, func(), error) {
	c := goredis9.NewClient(&goredis9.Options{Addr: addr})
	locks := redislock.New(c)
	return func(ctx context.Context, key string, inside func()) error {
		l, err := locks.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)})
		if err != nil {
			return err
		}
		if inside != nil {
			inside()
		}
		return l.Release(ctx)
	}, func() { _ = c.Close() }, nil
}

func openRueidislock(_ context.Context, addr string) (lockTurn, func(), error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{KeyMajority: 1, NoLoopTracking: true, KeyValidity: ttl,
		ExtendInterval: ttl / 3,
		ClientOption:   rueidis.ClientOption{InitAddress: []string{addr}}})
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, key string, inside func()) error {
		// Its wait misses a wake-up now and then, and would never end. So it is bounded, and repeated.
		bounded, end := context.WithTimeout(ctx, time.Second)
		_, cancel, err := l.WithContext(bounded, key)
		for err != nil && bounded.Err() != nil && ctx.Err() == nil {
			end()
			bounded, end = context.WithTimeout(ctx, time.Second)
			_, cancel, err = l.WithContext(bounded, key)
		}
		defer end()
		if err != nil {
			return err
		}
		if inside != nil {
			inside()
		}
		cancel()
		return nil
	}, l.Close, nil
}

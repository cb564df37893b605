package redis

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// watchPoll is the mean interval at which a watched lock is read even without a notice. A waiting claim that expires
// changes no key, and a server or a user's permissions may lack what NextChange needs.
const watchPoll = time.Second

// NextChange returns the lock when it differs from seen. The server's key tracking sends the notices: the server
// remembers which keys a connection has read, and tells that connection when one of them changes (redis.io:
// "Client-side caching in Redis"). So a watcher writes nothing, no other script costs more, and the changes of foreign
// clients are noticed as well. Tracking belongs to a connection, so each call takes one of its own from the client's
// pool.
func (s *store) NextChange(ctx context.Context, seen driver.Lock) (driver.Lock, error) {
	if err := driver.CheckName(seen.Name, s.info); err != nil {
		return driver.Lock{}, err
	}
	return runAsync(ctx, s, func() (driver.Lock, error) {
		ctx, done := s.life.Bind(ctx)
		defer done()
		for {
			l, err := s.Inspect(ctx, seen.Name)
			if err != nil || l.Revision != seen.Revision {
				return l, err
			}
			if s.waitForChange(ctx, seen); ctx.Err() != nil {
				return l, context.Cause(ctx)
			}
		}
	})
}

// waitForChange returns when the lock may differ from seen.
func (s *store) waitForChange(ctx context.Context, seen driver.Lock) {
	changed := make(chan struct{}, 1)
	d, release := s.client.Dedicate()
	defer release()
	ended := d.SetOnInvalidations(func([]rueidis.RedisMessage) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	readRevision := func() (string, error) {
		l, err := s.inspectWith(seen.Name, func(keys, args []string) (rueidis.RedisMessage, error) {
			return d.Do(ctx, d.B().Eval().Script(s.scripts.inspect.text()).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()).ToMessage()
		})
		return l.Revision, err
	}
	// In a Cluster the first request on a dedicated connection decides to which node it goes, so that it must be one
	// with the lock's keys.
	_, err := readRevision()
	if err == nil {
		d.Do(ctx, d.B().ClientTracking().Off().Build()) // the user's client may have another mode on
		err = d.Do(ctx, d.B().ClientTracking().On().Build()).Error()
	}
	// Each read renews the tracking: the server forgets a key once it has sent the notice for it. A change between the
	// read and the wait is in the channel already.
	for err == nil {
		var now string
		if now, err = readRevision(); err != nil || now != seen.Revision {
			break
		}
		// Without a notice the lock is read again after about watchPoll. The time is random, so that many watchers do
		// not read at the same time.
		timer := time.NewTimer(s.watchPoll/2 + rand.N(s.watchPoll))
		select {
		case <-changed:
		case <-timer.C:
		case <-ended:
			err = errLinkEnded
		case <-ctx.Done():
			err = ctx.Err()
		}
		timer.Stop()
	}
	if err != nil {
		_ = s.life.Sleep(ctx, watchPoll/10)
	}
}

// Explain returns the keys of a claim. The TTL is not rounded.
func (s *store) Explain(c driver.Claim) driver.Plan {
	return driver.Plan{TTL: c.TTL, Keys: s.claimKeys(c)}
}

// claimKeys returns the keys that a claim reads and writes, the lock's own first.
func (s *store) claimKeys(c driver.Claim) []string {
	keys := s.keys.allKeys(c.Name)
	if s.scripts.releaseQueued == nil || c.Kind == driver.KindMutex && !c.Fair {
		return s.tryKeys(keys[0])
	}
	return keys[:]
}

// NextChange reads the servers about once per second.
func (r *redlockStore) NextChange(ctx context.Context, seen driver.Lock) (driver.Lock, error) {
	return driver.PollChange(ctx, seen, r.Inspect)
}

// Explain returns the keys, which are the same on each server.
func (r *redlockStore) Explain(c driver.Claim) driver.Plan { return r.servers[0].Explain(c) }

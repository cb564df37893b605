// Package redis keeps locks in Redis: on one server, behind Sentinels, in a Cluster, and, by [NewRedlock], on several
// servers that know nothing of one another.
//
// Every step is one server-side script, which decides by the server's clock and may be repeated without harm. A mutex
// stands in the layout that most clients use: the key is the lock's name (under Options.Key), the value is unique to
// the claim, and the server expires it. So those clients exclude us and we exclude them; whatever else is found under
// the key, of any type, counts as held. What that layout has no place for stands beside it, under keys that begin with
// "holdfast": the fencing token, who holds the lock, and the line of those who wait.
//
// What is shown of a foreign holder is a digest of the value under the key, and not the value: that may be all that it
// takes to release the lock. A foreign client that deletes a lock blindly is not told from our own release whose reply
// was lost.
//
// Redis keeps what it acknowledged only as far as it is set up to, and a failover may forget it: see the Info and the
// Warnings of the store. A token still rises then, as far as the servers' clocks agree.
package redis

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// Layout is how a lock stands in the store.
type Layout string

// The layouts.
const (
	// LayoutPlain is the string layout, with all that stands beside it. It carries every kind of lock.
	LayoutPlain Layout = "plain"
	// LayoutRedisson is that of Redisson's RLock and RFencedLock. It carries the plain mutex only. The key in which
	// Redisson counts the tokens of an RFencedLock has no end where Redisson has made it or used it when ours came;
	// else it ends a day after our last use. So a name that was ours first, and for a day is Redisson's alone before
	// ours comes again, is counted again from 1.
	LayoutRedisson Layout = "redisson"
)

// Options for New; nil means the defaults.
type Options struct {
	// Key makes the key of a lock: its name is put in the place of the star. Default "*".
	Key string
	// Layout is how a lock stands in the store. Default LayoutPlain.
	Layout Layout
	// Replicas is how many replicas must have a grant before it is returned, by Redis's WAIT. That makes it less likely
	// that a failover forgets it, at the price of a round trip to them, and does not rule it out. Default 0.
	Replicas int
	// ReplicaTimeout is how long a grant waits for that. Default 1 s.
	ReplicaTimeout time.Duration
	// MaxWaiters is how many claims may stand in line on a lock. Default 4096.
	MaxWaiters int
	// Place is what Info shows as the place of the store. Default: the addresses that the client knows.
	Place string
	// Clock is where time is read; the default is driver.SystemClock.
	Clock driver.Clock
}

// Topology is how the servers behind a client stand to one another.
type topology string

const (
	single   topology = "redis"
	sentinel topology = "redis+sentinel"
	cluster  topology = "redis+cluster"
)

// defaultMaxWaiters bounds a line. A waiting claim costs some 300 bytes and its notes.
const defaultMaxWaiters = 4096

// retention is how long a record is kept after the last that was heard of its lock, for its token.
const retention = 24 * time.Hour

// store is locks on a Redis server, a group of replicas, or a Cluster. It implements driver.Store and driver.Detacher.
type store struct {
	client       rueidis.Client
	owned        bool // Close closes the client
	opts         Options
	topology     topology
	info         driver.Info
	clock        driver.Clock
	keys         keyspace
	scripts      *layoutScripts
	session      string      // names this client's own channels
	shardedKnown atomic.Bool // whether sharded is known; only asked in a Cluster
	sharded      atomic.Bool // scripts tell by SPUBLISH, and not by PUBLISH

	life context.Context
	end  context.CancelCauseFunc
	// inBackground counts the store's own goroutines; it is added to only with mu held and life going on.
	inBackground sync.WaitGroup

	lastChange atomic.Int64 // the number of the last change of a weight; those of a later client are larger

	// it has granted: if its server takes no writes any more, another may be about to take over its name
	hasGranted    atomic.Bool
	linkUncertain atomic.Bool // the last request was not answered: the link may have to be made again
	disconnecting atomic.Bool // the connection is being ended

	rtt            atomic.Int64                  // smoothed round trip, nanoseconds
	window         atomic.Pointer[confirmWindow] // made of it
	maxWaitersText string
	watchPoll      time.Duration // watchPoll, but for tests of what is heard

	mu       sync.Mutex
	hubs     map[string]*waiterHub
	inFlight map[string]int // how many requests under way may still make a claim, by its id
}

var (
	_ driver.Store    = (*store)(nil)
	_ driver.Detacher = (*store)(nil)
)

// New makes a store of the user's own client, which stays open when the store is closed. The client may be for one
// server, for Sentinels or for a Cluster. Its ConnWriteTimeout bounds how long a link that is cut goes unnoticed: 1 to
// 3 seconds are good, as in [DefaultClientOption]. For a go-redis client there is New in package goredis, a module of
// its own below this one.
//
// New does no I/O, because the client is connected already, and ctx is not used. The error Is ErrInvalid if the client
// is nil or an option cannot work.
func New(ctx context.Context, client rueidis.Client, opts *Options) (driver.Store, error) {
	s, err := newStore(client, opts)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func newStore(client rueidis.Client, opts *Options) (*store, error) {
	s := &store{client: client, hubs: map[string]*waiterHub{}, inFlight: map[string]int{},
		session: strings.ToLower(rand.Text()), watchPoll: watchPoll}
	if opts != nil {
		s.opts = *opts
	}
	if client == nil {
		return nil, fmt.Errorf("%w: the client is nil: pass one that rueidis.NewClient has made", driver.ErrInvalid)
	}
	if err := s.opts.setDefaults(); err != nil {
		return nil, err
	}
	s.clock = s.opts.Clock
	s.keys = newKeyspace(s.opts.Key, s.opts.Layout)
	s.scripts = plainScripts
	if s.opts.Layout == LayoutRedisson {
		s.scripts = redissonScripts
	}
	switch client.Mode() {
	case rueidis.ClientModeCluster:
		s.topology = cluster
	case rueidis.ClientModeSentinel:
		s.topology = sentinel
	default:
		s.topology = single
	}
	s.lastChange.Store(time.Now().UnixMicro())
	s.rtt.Store(int64(time.Millisecond))
	s.recordRoundTrip(s.clock.Now())
	s.maxWaitersText = strconv.Itoa(s.opts.MaxWaiters)
	s.life, s.end = context.WithCancelCause(context.Background())
	s.info = s.buildInfo()
	return s, nil
}

func (o *Options) setDefaults() error {
	if o.Key == "" {
		o.Key = "*"
	}
	if o.Layout == "" {
		o.Layout = LayoutPlain
	}
	if o.ReplicaTimeout == 0 {
		o.ReplicaTimeout = time.Second
	}
	if o.MaxWaiters == 0 {
		o.MaxWaiters = defaultMaxWaiters
	}
	if o.Clock.Monotonic == nil {
		o.Clock = driver.SystemClock
	}
	switch {
	case strings.Count(o.Key, "*") != 1:
		return fmt.Errorf("%w: the key %q must have one star, in the place of the lock's name", driver.ErrInvalid,
			o.Key)
	case o.Layout != LayoutPlain && o.Layout != LayoutRedisson:
		return fmt.Errorf("%w: unknown layout %q; there are %s and %s", driver.ErrInvalid, o.Layout, LayoutPlain,
			LayoutRedisson)
	case o.Replicas < 0 || o.MaxWaiters < 1 || o.ReplicaTimeout < time.Millisecond:
		return fmt.Errorf("%w: Replicas, MaxWaiters or ReplicaTimeout is too small", driver.ErrInvalid)
	}
	return nil
}

// buildInfo is what Info says.
func (s *store) buildInfo() driver.Info {
	place := s.opts.Place
	if place == "" {
		place = string(s.topology) + "://"
	}
	i := driver.Info{
		Store: place, Engine: "script", Clock: s.clock, Tier: driver.TierAdvisory,
		ExpiredBy: driver.ExpiredByStore, ExpiryClock: driver.ExpiryClockStore, Order: driver.OrderFairOnly,
		Kinds:    []driver.Kind{driver.KindMutex, driver.KindRW, driver.KindSemaphore},
		Detached: true,
		TokenGap: time.Second,
		TokenRegression: "when the server's data were lost (restart, failover, eviction, FLUSHALL) and the clock that draws " +
			"the next one is behind the clock that drew the last one by more than the time between them",
		MinTTL: driver.MinTTL, MaxTTL: driver.MaxTTL, MaxName: driver.MaxName, MaxMeta: driver.MaxMeta,
		MaxHolders: driver.MaxHolders, MaxWaiters: s.opts.MaxWaiters,
	}
	if s.opts.Layout == LayoutRedisson {
		i.Kinds, i.Order, i.MaxWaiters = []driver.Kind{driver.KindMutex}, driver.OrderNone, 0
	}
	return i
}

// Info tells what the store promises. No kind of Redis is more than advisory as a rule: what it acknowledged it may
// forget when it restarts or fails over.
func (s *store) Info() driver.Info { return s.info }

// Close ends the calls under way. What stands stays until its TTL is over.
func (s *store) Close() error {
	if s.life.Err() != nil {
		return nil
	}
	s.mu.Lock() // so that nothing starts once we wait
	s.end(driver.ErrClosed)
	s.mu.Unlock()
	s.inBackground.Wait()
	if s.owned {
		s.client.Close()
	}
	return nil
}

// checkClaim refuses a claim that this store or layout cannot carry.
func (s *store) checkClaim(c driver.Claim) error {
	if err := c.Check(s.info); err != nil {
		return err
	}
	switch {
	case c.ID == "":
		return fmt.Errorf("%w: a claim needs an id", driver.ErrInvalid)
	case s.opts.Layout == LayoutRedisson && (c.Kind != driver.KindMutex || c.Fair):
		return fmt.Errorf("%w: the redisson layout carries the plain mutex only; open the store without it",
			driver.ErrUnsupported)
	}
	if s.opts.Layout == LayoutRedisson {
		if err := s.checkRedisson(c.Name); err != nil {
			return err
		}
	}
	return s.keys.checkName(c.Name)
}

// recordRoundTrip notes how long a round trip took. One that took very much longer than those before counts as four of
// them, and 10 ms: a stall says nothing about the next ones, and a link that stays slow is known after a few.
func (s *store) recordRoundTrip(from driver.Instant) {
	d, rtt := int64(s.clock.Since(from)), s.rtt.Load()
	d = min(d, 4*rtt+int64(10*time.Millisecond))
	rtt += (d - rtt) / 8
	s.rtt.Store(rtt)
	ms := 2000 + 10*(rtt/int64(time.Millisecond)+1)
	if w := s.window.Load(); w == nil || w.ms != ms {
		s.window.Store(&confirmWindow{ms, strconv.FormatInt(ms, 10)})
	}
}

// confirmWindow is how long a called claim has to show itself: long enough for a live one that needs a few round trips,
// and short beside a TTL.
type confirmWindow struct {
	ms   int64
	text string
}

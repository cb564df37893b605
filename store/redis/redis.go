// Package redis keeps locks in Redis: on one server, behind Sentinels, in a Cluster, and, by [NewRedlock], on several
// servers that know nothing of one another.
//
// Every step is one server-side script. A script runs alone on its server, decides by the server's clock, and may be
// repeated without harm. A mutex has the layout that most clients use: the key is the lock's name (under Options.Key),
// the value is unique to the claim, and the server expires it. So those clients and Holdfast exclude each other.
// Whatever else is found under the key, of any type, counts as held. That layout has no place for the fencing token,
// for the description of the holder, or for the queue of waiting claims. These are kept in keys of their own, which
// begin with "holdfast".
//
// Of a foreign holder, only a digest of the value under the key is shown, because the value itself may be all that is
// needed to release the lock. A foreign client that deletes a lock without checking its value looks like our own
// release whose reply was lost.
//
// Redis keeps what it acknowledged only as far as it is configured to, and a failover may lose it: see
// holdfast.Client.Info and Examine. Tokens still rise then, as far as the servers' clocks agree.
package redis

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Layout is the form of a lock in the store.
type Layout string

const (
	// LayoutPlain is the string layout, with the further keys beside it. It carries every kind of lock.
	LayoutPlain Layout = "plain"
	// LayoutRedisson is the layout of Redisson's RLock and RFencedLock. It carries the plain mutex only.
	// Redisson counts the tokens of an RFencedLock in a key that never expires. If Redisson made that key, or used it
	// after we did, it still never expires. Otherwise it expires a day after our last use. As a result, Redisson counts
	// from 1 again if we used the name first, and then Redisson alone for a day.
	LayoutRedisson Layout = "redisson"
)

// Options are the settings of a store. The zero value and nil mean the defaults.
type Options struct {
	// Key makes the key of a lock: the lock's name replaces the star. Default "*".
	Key string
	// Layout is the form of a lock in the store. Default LayoutPlain.
	Layout Layout
	// Replicas is how many replicas must have a grant before it counts, by Redis's WAIT. So it is with a renewal, a
	// larger weight, a detached claim and a step of a run. So a primary that was cut off, with fewer replicas than that,
	// keeps no lease for longer than its TTL. If too few replicas can be reached, nothing is granted, and leases are lost
	// at their deadlines. The price is a round trip to the replicas, one for all renewals that are due together; in a
	// Cluster each renewal waits on a connection of its own. A failover may still promote a replica that has not got
	// the last grant. Default 0.
	Replicas int
	// ReplicaTimeout is how long such a step waits for the replicas. Default 1 s.
	ReplicaTimeout time.Duration
	// ForeignTurn gives foreign clients of the plain layout a turn while claims queue on a lock. Such clients poll, and
	// a lock that is handed over from claim to claim is never free for them. With ForeignTurn, a release leaves the
	// lock free for so long if it was not free for a second: then no claim acquires it, and the queue keeps its order.
	// It should be a little longer than the time between two tries of a foreign client. If none comes, the lock is not
	// used for that time: with 100 ms a tenth of all time. Between 1 ms and 1 s; default 0: no turns. Each client of
	// the lock that has it gives turns, and all others respect them. LayoutPlain alone; not for a Redlock.
	ForeignTurn time.Duration
	// MaxWaiters is how many claims may wait in the queue of one lock. Default 4096.
	MaxWaiters int
	// Place is what Info shows as the address of the store. Default: the scheme of the servers, like "redis://".
	Place string
	// Clock is where time is read. Default driver.SystemClock. It is used for round trips and for the validity of a
	// grant, never to decide who holds a lock: the server's clock does that.
	Clock driver.Clock
}

// topology is how the servers behind a client are connected with each other. It decides which errors may pass by a
// change of server, and which channels carry the notices.
type topology string

const (
	// The values are the schemes of the URLs.
	single   topology = "redis"
	sentinel topology = "redis+sentinel"
	cluster  topology = "redis+cluster"
)

// defaultMaxWaiters bounds a queue. A waiting claim costs some 300 bytes of the server's memory, and its owner and meta
// texts.
const defaultMaxWaiters = 4096

// maxForeignTurn is the maximum of Options.ForeignTurn. The scripts end a turn after that time even if the server's
// clock is set back (MAX_TURN in shared/state.lua).
const maxForeignTurn = time.Second

// retention is how long the record of a lock is kept after its last use. The record has the last token, and a new token
// must be larger. A token is the server's time in microseconds, or one more than the last token if that is larger. So
// after a day without use the record is not needed, unless the server's clock was set back by more than a day.
const retention = 24 * time.Hour

// store keeps locks on a Redis server, a group of replicas, or a Cluster. All methods may be called
// at the same time.
type store struct {
	driver.Unsupported

	client       rueidis.Client
	owned        bool                  // Close closes the client
	settings     *rueidis.ClientOption // those of the client, if this package has made it
	opts         Options
	topology     topology
	info         driver.Info
	clock        driver.Clock
	keys         keyspace
	scripts      *layoutScripts
	session      string      // names the channels of this client alone, on which it is notified of its own claims
	shardedKnown atomic.Bool // whether sharded is known; it is asked only in a Cluster
	sharded      atomic.Bool // scripts notify by SPUBLISH, and not by PUBLISH

	life  *driverutil.Lifetime                       // ends with Close, which waits for its goroutines
	pause func(ctx context.Context, tries int) error // pauseBeforeRetry, made once

	// The number of the last change of a weight. It begins with the wall clock, so that the changes of a client that is
	// started later have larger numbers.
	lastChange atomic.Int64

	// This store has granted something, so the server accepted writes then. If it refuses writes now, a failover may be
	// under way, and another server may take over its name: see finalError.
	hasGranted    atomic.Bool
	admission     driverutil.Admission
	linkUncertain atomic.Bool // the last request was not answered, so the client may have to connect again
	disconnecting atomic.Bool // closeConnection is running

	direct directLink // for a caller that is alone

	rtt       atomic.Int64  // smoothed round trip, in nanoseconds
	watchPoll time.Duration // the constant watchPoll, except in tests of notifications

	mu       sync.Mutex
	hubs     map[string]*waiterHub
	inFlight map[string]int // by claim id: how many requests that may make the claim may still arrive
}

var _ driver.Store = (*store)(nil)

// New makes a store of the user's own client, which stays open when the store is closed. The client may be for one
// server, for Sentinels or for a Cluster. Its ConnWriteTimeout bounds how long a broken connection goes unnoticed: 1 to
// 3 seconds are good, as in [DefaultClientOption]. For a go-redis client, package goredis has a New of its own; it is a
// separate module below this one.
//
// New does no I/O, because the client is connected already, and ctx is not used. It returns ErrInvalid if the client is
// nil or an option cannot work.
func New(ctx context.Context, client rueidis.Client, opts *Options) (driver.Store, error) {
	s, err := newStore(client, opts)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// newStore is New for the tests and the other constructors of this package.
func newStore(client rueidis.Client, opts *Options) (*store, error) {
	s := &store{client: client, hubs: map[string]*waiterHub{}, inFlight: map[string]int{},
		session: strings.ToLower(rand.Text()), watchPoll: watchPoll}
	s.direct.after = minDirectStreak
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
	s.admission.Clock = s.clock
	s.admission.CredentialsAccepted() // the client is connected
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
	// Microseconds: a client would have to change weights a million times per second to overtake the clock of a later
	// one.
	s.lastChange.Store(time.Now().UnixMicro())
	s.rtt.Store(int64(time.Millisecond))
	s.recordRoundTrip(s.clock.Now())
	s.life, s.pause = driverutil.NewLifetime(), s.pauseBeforeRetry
	s.info = s.buildInfo()
	return s, nil
}

// setDefaults fills in the defaults, and returns ErrInvalid if an option cannot work.
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
	case o.ForeignTurn != 0 && (o.ForeignTurn < time.Millisecond || o.ForeignTurn > maxForeignTurn):
		return fmt.Errorf("%w: ForeignTurn must be between 1 ms and %v", driver.ErrInvalid, maxForeignTurn)
	case o.ForeignTurn != 0 && o.Layout == LayoutRedisson:
		return fmt.Errorf("%w: ForeignTurn is for the plain layout: that of Redisson has no queue", driver.ErrInvalid)
	}
	return nil
}

// buildInfo returns what Info reports. Nothing in it changes later.
func (s *store) buildInfo() driver.Info {
	place := s.opts.Place
	if place == "" {
		place = string(s.topology) + "://"
	}
	i := driver.Info{
		Store: place, Engine: "script", Clock: s.clock, Tier: driver.TierAdvisory,
		ExpiredBy: driver.ExpiredByStore, ExpiryClock: driver.ExpiryClockStore, Order: driver.OrderFairOnly,
		Kinds:     []driver.Kind{driver.KindMutex, driver.KindRW, driver.KindSemaphore},
		Abilities: driver.Abilities{Detach: true, SetWeight: true, Reasons: true, Forget: true, Tokens: true, Ledger: true},
		// A second is more than enough: a new token is the server's time in microseconds, which exceeds that of any
		// earlier grant unless the clock was set back.
		TokenGap: time.Second,
		TokenRegression: "when the server's data were lost (restart, failover, eviction, FLUSHALL) and the clock that draws " +
			"the next one is behind the clock that drew the last one by more than the time between them",
		MinTTL: driver.MinTTL, MaxTTL: driver.MaxTTL, MaxName: driver.MaxName, MaxMeta: driver.MaxMeta,
		MaxHolders: driver.MaxHolders, MaxWaiters: s.opts.MaxWaiters,
	}
	if s.opts.Layout == LayoutRedisson {
		i.Kinds, i.Order, i.MaxWaiters = []driver.Kind{driver.KindMutex}, driver.OrderNone, 0
		i.Abilities.SetWeight, i.Abilities.Reasons = false, false
	}
	return i
}

// Info returns what the store promises. No form of Redis is more than advisory: a server may lose what it acknowledged
// when it restarts or fails over (redis.io: "Redis persistence", "Redis replication").
func (s *store) Info() driver.Info { return s.info }

// Close ends the calls under way. Claims stay in the store until they are released or their TTL expires.
func (s *store) Close() error {
	if !s.life.End() {
		return nil
	}
	s.life.Wait()
	s.dropDirect(s.direct.conn.Load())
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

// recordRoundTrip adds a round trip to the smoothed mean, with a weight of 1/8. One that took very much longer than the
// mean counts as 4 times the mean and 10 ms: a single stall says nothing about later requests, while a link that stays
// slow is recognized after a few. Concurrent calls may overwrite each other's result, which only loses a measurement.
func (s *store) recordRoundTrip(from driver.Instant) {
	d, rtt := int64(s.clock.Since(from)), s.rtt.Load()
	d = min(d, 4*rtt+int64(10*time.Millisecond))
	rtt += (d - rtt) / 8
	s.rtt.Store(rtt)
}

// confirmWindow is for how many milliseconds a promoted claim may confirm: 2 s and 10 round trips. A live client needs
// one round trip to learn of its promotion and one to confirm, and some more if a connection is lost. A dead client
// delays the queue by the window, which is short beside a TTL. The window is in the arguments of the scripts, so the
// client that promotes a claim measures it.
func (s *store) confirmWindow() int64 { return 2000 + 10*(s.rtt.Load()/int64(time.Millisecond)+1) }

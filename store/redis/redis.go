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
//
// # Keys and queues
//
// A lock is a string key, so that other clients see it as held. On a mutex its value is the id of the holder's claim,
// and the server expires it. Next to it is a record, a hash with the largest token, which is kept for at least a day
// after the lock. A lock with a queue has three more keys: its claims, its holders and its queue. On a read-write lock
// or a semaphore the string is a mark that the record names. The holders, each with an end of its own, count only while
// the string is that mark. So if the string is lost, all holders lose the lock together.
//
// Each step is one script, which the server runs alone, by its own clock. A token is the server's time in microseconds,
// and larger than the last one in the record. If a reply was lost, the script is run again: it finds the claim by its
// id and replies with its token. If the claim is given up instead, its release leaves a tombstone, by which an acquire
// that arrives later is refused.
//
// A waiter in the queue sends a sign of life from time to time. A release promotes the first waiter: it sets the lock's
// string for it until the confirm window ends, and notifies its client. If a promoted claim does not confirm, there is
// a roll call: all waiters are asked for a sign of life, and those that give none are removed together. A plain mutex
// claim that has to wait queues as well, one per client, so that a release wakes one client and not all. But when its
// turn comes, the lock's string is removed and not set. So clients that know no queue, such as redis-py, can take the
// lock in between, as they could always; our own cannot. The record has the time at which the lock was left free for
// it. If it does not come, the script of the one behind it promotes it, for what is left of its confirm window. So does
// the script of a newcomer, but not in the first half second.
//
// If a client wants that (foreign-turn), a lock that was not free for a second is left free for longer: the record has
// the time until which the scripts count it as held for claims in the queue, and the first two of these are told to
// come then. In Redisson's layout, which has no queue, waiters listen to the lock's channel, and all of them try when
// the lock is released.
//
// # Decisions
//
// The usual case of a mutex comes first. If the mutex is only held, handed over and waited for (the scripts call
// it quiet), a few commands at the start of a script are enough. Setting up the rest of the script would take the
// server longer than they do.
//
// Steps of several locks are not batched. Rejected: one script that takes many locks. A cycle (acquire and release)
// costs the server 14.1 us with it instead of 17.8, and the client the same time and 14 more allocations. Measured on
// one machine, the number of cycles per second was the same.
//
// A promoted claim confirms, even if it gave a sign of life a moment ago. Rejected: trusting the lock without
// confirming, until the confirm window has passed. Between eight processes on one machine a fair lock would make 5,200
// turns per second in place of 3,600 (figures/profiles.md). But anyone who may publish on the channel could give the lock
// to two, and the lease would begin with a second or two instead of its TTL, so a short network cut would lose it.
//
// A plain mutex claim that waits is in the queue, but the lock is not reserved for it. With 200 processes, all of which
// try whenever the lock is free, a turn costs 285 scripts; with a queue it costs 6. Rejected: to reserve the lock, as
// for fair claims: clients that know no queue would never get it while ours contend. Rejected: to let newcomers of ours
// take the free lock before the one whose turn it is: they would need a bound, and save no request. Rejected: to let a
// newcomer's script promote a claim for which the lock was left free just now: the lock would be free for less time,
// and the claim would be notified twice.
//
// A client that waits for a mutex, or did just now, runs the scripts for a queue at once. The cheap scripts for a lock
// for which nobody waits would only reply that claims wait: one script more per acquire and one per release. So a claim
// that is the first of its client to wait asks twice, which costs it nothing, since it waits anyway. A fair release runs
// the script for a queue always, so that a hand-over takes one round trip.
//
// A lock that becomes free is no notice. All waiters stand in the queue, and a release promotes or tells the first of
// them. So the scripts of a lock for which nobody waits publish nothing.
//
// Foreign clients get turns only where a client asks for them, since the lock is not used during a turn to which nobody
// comes, and our scripts cannot know whether anybody polls. The record notes when the lock was last free together with
// the lock's value, and each hand-over passes the time on. So a lock that was free meanwhile needs no write that says
// so: its value is another one, and the usual scripts are as they were. Rejected: to count from the last turn only:
// then a contended lock would pay for a turn each time that a second claim comes after a quiet second. Rejected: to
// notify foreign clients: they do not listen, but for Redisson's and rueidislock. Rejected: to let shared holders run
// out, so that the lock becomes free: new readers would wait for the slowest reader, for clients that may not exist.
//
// The first waiter looks more often where foreign holders change. A foreign client sends no notice when it releases,
// and between two busy ones the lock is free for a round trip. A waiter that looked every 75 ms got in after 300 to 400
// holders of 5 ms (four busy clients of redis-py or redsync). One that looks every 4 ms at most, and at the age of a
// holder divided by 64, gets in after 8 to 20, whether they hold the lock for 5, 50 or 300 ms. Its looks took the
// server 2.5 % of a core. Rejected: to look that often at any foreign holder: most of them stay for seconds, and
// thousands of locks may be waited for. Rejected: keyspace notifications, which are off by default, and client
// tracking, which needs a further connection in RESP3 that a user's own client may not have.
//
// A break leaves a note, a release does not: breaks are rare, and a note per release would be one more write in every
// cycle. The note is a field of the record, so the steps that take, renew and release find it in what they read anyway.
// It is kept for the claim's TTL and ten minutes. After that, a repeated release returns ErrUncertain.
//
// A step on a long queue looks at a part of it. The rest is left to later steps. Finding the dead claims of a full
// queue would cost the server 10 ms for each claim that comes; so one claim per confirm window looks at 128 of them.
//
// Redisson's token key expires with ours if only Holdfast uses it. Otherwise one key per name would remain forever. If
// Redisson takes over a name that was ours, and Holdfast stays away for a day, Redisson's counter starts again.
//
// A raised token is a field of its own in the record, since the field of the largest token is also that of a mutex's
// holder. The record is then kept until the server's clock has passed it.
//
// A caller that is alone has a connection of its own. On the shared connection two goroutines write and read, so that
// requests of many callers go together. For one caller that costs two more switches between threads per cycle. So on
// one server, after 32 requests in a row that came alone, the store makes a second connection, on which the caller
// writes and reads. A context that ends closes it, since nobody else could read the reply; the request then counts as
// one that may have run. One that was idle is looked at before it is used, so that a request is not sent to a server
// that has ended. Rejected: the client library's own way for a lone caller. A context that can be canceled starts its
// two goroutines, which then never end.
//
// Holders learn of a break at their next renewal. Rejected: key tracking by the server. It reports each renewal, too,
// and only for keys that the listening connection has read since: one more request per lock and renewal.
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
	// LayoutPlain is the string layout, with the further keys next to it. It carries every kind of lock.
	LayoutPlain Layout = "plain"
	// LayoutRedisson is the layout of Redisson's RLock and RFencedLock. It carries the plain mutex only.
	// Redisson counts the tokens of an RFencedLock in a key that never expires. If Redisson made that key, or used it
	// after we did, it still never expires. Otherwise it expires a day after our last use. As a result, Redisson counts
	// from 1 again if we used the name first, and then Redisson alone for a day.
	LayoutRedisson Layout = "redisson"
)

// layouts are all of them, the default first.
var layouts = []Layout{LayoutPlain, LayoutRedisson}

// Options are the settings of a store. The zero value and nil mean the defaults.
type Options struct {
	// Key makes the key of a lock: the lock's name replaces the star. Default "*".
	Key string
	// Layout is the form of a lock in the store. Default LayoutPlain.
	Layout Layout
	// Replicas is how many replicas must have a grant before it counts, by Redis's WAIT. So it is with a renewal, a
	// larger weight, a detached claim and a step of a run. So a primary that was cut off, with fewer replicas than
	// that, keeps no lease for longer than its TTL. If too few replicas can be reached, nothing is granted, and
	// leases are lost at their deadlines. The price is a round trip to the replicas, one for all renewals that are
	// due together; in a Cluster each renewal waits on a connection of its own. A failover may still promote a
	// replica that has not got the last grant. Default 0.
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
	if client == nil {
		return nil, fmt.Errorf("%w: the client is nil: pass one that rueidis.NewClient has made", driver.ErrInvalid)
	}
	var err error
	if s.opts, err = opts.withDefaults(); err != nil {
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

// withDefaults checks the options, and fills in the defaults.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Key == "" {
		c.Key = "*"
	}
	if c.Layout == "" {
		c.Layout = LayoutPlain
	}
	if c.ReplicaTimeout == 0 {
		c.ReplicaTimeout = time.Second
	}
	if c.MaxWaiters == 0 {
		c.MaxWaiters = defaultMaxWaiters
	}
	if c.Clock.Monotonic == nil {
		c.Clock = driver.SystemClock
	}
	if err := driverutil.CheckLayout(c.Layout, layouts...); err != nil {
		return c, err
	}
	switch {
	case strings.Count(c.Key, "*") != 1:
		return c, fmt.Errorf("%w: the key %q must have one star, in the place of the lock's name", driver.ErrInvalid,
			c.Key)
	case c.Replicas < 0 || c.MaxWaiters < 1 || c.ReplicaTimeout < time.Millisecond:
		return c, fmt.Errorf("%w: Replicas, MaxWaiters or ReplicaTimeout is too small", driver.ErrInvalid)
	case c.ForeignTurn != 0 && (c.ForeignTurn < time.Millisecond || c.ForeignTurn > maxForeignTurn):
		return c, fmt.Errorf("%w: ForeignTurn must be between 1 ms and %v", driver.ErrInvalid, maxForeignTurn)
	case c.ForeignTurn != 0 && c.Layout == LayoutRedisson:
		return c, driverutil.RefuseForLayout("ForeignTurn", LayoutPlain)
	}
	return c, nil
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
		Kinds: []driver.Kind{driver.KindMutex, driver.KindRW, driver.KindSemaphore},
		Abilities: driver.Abilities{Detach: true, SetWeight: true, NewestOnly: true, Reasons: true, Forget: true,
			Tokens: true, Ledger: true, Permits: true},
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
		a := &i.Abilities
		a.SetWeight, a.NewestOnly, a.Reasons, a.Permits = false, false, false, false
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
		return driverutil.OnlyUnfairMutexes(LayoutRedisson)
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
// delays the queue by the window, which is short compared with a TTL. The window is in the arguments of the scripts,
// so the client that promotes a claim measures it.
func (s *store) confirmWindow() int64 { return 2000 + 10*(s.rtt.Load()/int64(time.Millisecond)+1) }

// Package postgres keeps locks in a table of PostgreSQL: one row per lock, one statement per operation.
//
// # Time
//
// The server's clock decides when a claim has expired, so the clocks of the clients do not matter.
//
// # Waiting
//
// A client that waits for locks listens on one connection, however many locks it waits for. It is
// notified in the commit that frees the lock. It also polls, in case a notification is lost.
//
// # Safety
//
// A lock's row is as safe as any row of that database. With synchronous_commit and fsync on, which is
// the default, no grant is forgotten. With synchronous standbys no grant is forgotten in a failover
// either. [driver.Info] says what the server's settings promise, and the store's Examine says which
// settings should be improved.
//
// # Tables
//
// [Migrate] makes the tables, and so does opening the store with create=true. [New] works on the
// user's own pool. In a transaction of the user's own, [Fence] refuses the work of a holder that has
// lost its lock.
//
// # Poolers
//
// Behind a pooler such as PgBouncer, in any mode, everything works except listening. The store
// detects a pooler, prepares no statement for longer than a transaction, and its waiters poll.
//
// # Decisions
//
// A NOTIFY only where somebody listens, because notifications make commits wait for one another. A client
// that watches a lock holds a shared advisory lock on one of 256 buckets, and the writing statement notifies on the
// bucket's channel only if it cannot have that bucket alone. A claim in the queue has its client's channel instead,
// whose name is in the record. So a notification goes to those whom it concerns. Rejected: one channel for all, with
// the names in the notification: each hand-over then wakes every process that waits for any lock of the table. Before
// version 19, PostgreSQL's own processes are woken nevertheless, one for each connection of the database that listens,
// but they send nothing to the client. Rejected: to wait without LISTEN, which would spare the server that too: for an
// advisory lock of the claim ahead, a client would need a connection for each lock that it waits for, and a holder one
// as long as it holds. The table's channel is left for clients behind a pooler, which do not know whom they concern,
// and for the versions before; all listen there.
//
// A swap takes the sessions to notify with it, and does not notify afterwards. On PostgreSQL, NATS and Kubernetes the
// store itself tells the waiting clients of the write, in one step with it. So the notice costs no request, and is sent
// even if the reply to the swap is lost. A notification brings the row if it is shorter than 5,400 bytes, which some
// fifty claims are, so that the next holder makes one request and not two. Clients of the versions before look at the
// name alone, and read. The server keeps notifications until all that listen in its cluster have read them, in a queue
// of 8 GB. If it is full, writes that notify fail. So no connection that listens may stay in a transaction: such a queue
// has room for a million notifications of the longest records.
//
// Statements share a few connections. A caller that finds one free runs its statement on it; the statements
// of others follow in batches. A caller that gives up leaves at once and breaks no connection.
package postgres

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Options say where and how locks are kept in a database. The zero value and nil mean the defaults.
type Options struct {
	// Schema and Table say where the locks are kept. Default: the table holdfast in the schema
	// public; for LayoutShedLock the table shedlock. The fence table is in the same schema; its name
	// is that of the table with _fence appended.
	Schema, Table string
	// Layout is how a lock is stored in its row. Default: LayoutRecord, which supports all kinds.
	Layout Layout
	// Create makes the tables if they do not exist: see [Migrate].
	Create bool
	// Timeout is how long the server may take to answer one statement. After that the connection is
	// given up. Default: 3 s.
	Timeout time.Duration
	// Clock is the client's clock, which tests replace. Default: driver.SystemClock.
	Clock driver.Clock

	secrets []driverutil.SecretSource
}

// Layout is how a lock is stored in its row.
type Layout string

// All users of a table must use the same layout.
const (
	// LayoutRecord is Holdfast's own layout.
	LayoutRecord Layout = "record"
	// LayoutShedLock is the layout of ShedLock's JDBC provider with usingDbTime(). Its clients and
	// Holdfast's exclude each other. (Without usingDbTime() ShedLock's clients write the time of their
	// own time zone, and exclude no client in another time zone.) It supports plain mutexes and
	// elections. The table is ShedLock's own, called shedlock by default.
	LayoutShedLock Layout = "shedlock"
)

// layouts are all of them, the default first.
var layouts = []Layout{LayoutRecord, LayoutShedLock}

// defaultTimeout is the default of Options.Timeout.
const defaultTimeout = 3 * time.Second

// New makes a store that uses the connections of the user's own pool. It closes none of them. When a
// caller waits for a lock, the store opens one more connection, with the pool's settings, to listen on.
//
// The locks use at most three quarters of the pool. A program that may use up its pool should give the
// locks a pool of their own, because a renewal that finds no free connection is late. Set lock_timeout
// for that pool, to 2s for example; a pool made from a URL has it. Without lock_timeout, a statement
// that waits while another session has locked the table keeps its connection on the server, even after
// this client has given it up.
//
// ctx bounds the first request to the server. New returns ErrInvalid if the pool is nil, an option
// cannot work, or the table is missing or not Holdfast's, and ErrDenied if a permission is missing.
func New(ctx context.Context, pool *pgxpool.Pool, opts *Options) (driver.Store, error) {
	return openStore(ctx, pool, opts, nil)
}

// openStore is New for a pool that may belong to the store: if closePool is set, Close calls it last.
func openStore(ctx context.Context, pool *pgxpool.Pool, opts *Options, release func()) (driver.Store, error) {
	t, err := newTable(ctx, pool, opts, release)
	switch {
	case err != nil:
		return nil, err
	case t.location.layout == LayoutShedLock:
		return newShedlock(t), nil
	}
	return record.New(t), nil
}

// NewTable gives access to bare records, for data that is built on records but is no lock. Use another
// Options.Table than the one that holds the locks.
func NewTable(ctx context.Context, pool *pgxpool.Pool, opts *Options) (record.Table, error) {
	t, err := newTable(ctx, pool, opts, nil)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// OpenLedgerTable opens the records of the run ledger: a table of its own, whose name is that of the locks' table with
// _runs after it. It is made as the locks' table is: see Options.Create and [Migrate].
func (t *table) OpenLedgerTable(ctx context.Context) (record.Table, error) {
	o := t.opts
	o.Table = cmp.Or(o.Table, "holdfast") + "_runs"
	return NewTable(ctx, t.batcher.pool, &o)
}

// location says where the locks of a store are kept, and in which layout.
type location struct {
	displayURL             string // the server and the database, without secrets
	schema                 string
	locksTable, fenceTable string // quoted, with their schema
	layout                 Layout
	channel                string // all clients that wait listen on it: see listener
	lockClass              int32  // class of the advisory locks that they hold
	watchClass             int32  // class of those that clients hold which look at each change
	severalServers         bool   // the URL names other servers that may take over

	// hasWritten: the server has accepted a write of this store. If it refuses writes later, it was
	// probably demoted, and another server may be about to take over its name.
	hasWritten atomic.Bool
	admission  driverutil.Admission
}

// mayReadStandby reports whether replies of a standby may be used. They may if the store names only one
// server, and that server has never accepted a write: then the user wants to look at a standby.
// Otherwise the store is meant for the primary, and what a standby knows of its locks may be old.
func (p *location) mayReadStandby() bool { return !p.severalServers && !p.hasWritten.Load() }

// maxTableName leaves room for the suffix of the fence table within PostgreSQL's limit of 63 bytes.
const maxTableName = 57

// resolveLocation checks the options and says where the locks are. The channel and the classes of the
// advisory locks are hashes of the table's name, so that two tables in one database do not disturb each
// other.
func (o *Options) resolveLocation() (*location, error) {
	if o == nil {
		o = &Options{}
	}
	standard := "holdfast"
	if err := driverutil.CheckLayout(o.Layout, layouts...); err != nil {
		return nil, err
	}
	if o.Layout == LayoutShedLock {
		standard = "shedlock"
	}
	if o.Timeout < 0 {
		return nil, fmt.Errorf("%w: a timeout cannot be negative", driver.ErrInvalid)
	}
	schema, table := cmp.Or(o.Schema, "public"), cmp.Or(o.Table, standard)
	for _, name := range []string{schema, table} {
		if len(name) > maxTableName || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
			return nil, fmt.Errorf("%w: the name of a schema or table must be UTF-8 of at most %d bytes, %q is not",
				driver.ErrInvalid, maxTableName, name)
		}
	}
	p := &location{schema: schema, layout: o.Layout, locksTable: pgx.Identifier{schema, table}.Sanitize(),
		fenceTable: pgx.Identifier{schema, table + "_fence"}.Sanitize()}
	h := fnv.New64a()
	h.Write([]byte(p.locksTable))
	p.channel, p.lockClass = "holdfast_"+strconv.FormatUint(h.Sum64(), 36), int32(h.Sum64())
	p.watchClass = int32(h.Sum64() >> 32)
	return p, nil
}

// bucketChannel is the channel of those that look at each change in a bucket.
func (p *location) bucketChannel(bucket int32) string {
	return p.channel + "_" + strconv.Itoa(int(bucket))
}

// maxChannel is the size of the longest channel in bytes (PostgreSQL manual, "Identifiers").
const maxChannel = 63

// noticeChannels returns the channels of clients that a write concerns, as an array of PostgreSQL. What has no
// channel of its own is a session of a version before, which listens on the table's.
func (p *location) noticeChannels(sessions []string) string {
	text := []byte{'{'}
	for _, s := range sessions {
		s = record.JoinSessions([]string{s}, maxChannel)
		switch {
		case s == "":
			continue
		case !strings.HasPrefix(s, p.channel+"_"):
			s = p.channel
		}
		if len(text) > 1 {
			text = append(text, ',')
		}
		text = append(text, s...)
	}
	return string(append(text, '}'))
}

func checkPool(pool *pgxpool.Pool) error {
	if pool == nil {
		return fmt.Errorf("%w: the pool is nil: pass one that pgxpool.New has made", driver.ErrInvalid)
	}
	return nil
}

// hasSeveralServers reports whether a client may be connected to one of several servers.
func hasSeveralServers(o *pgx.ConnConfig) bool {
	return slices.ContainsFunc(o.Fallbacks, func(f *pgconn.FallbackConfig) bool {
		return f.Host != o.Host || f.Port != o.Port
	})
}

// newTable checks the server and the table, makes the tables if the options say so, and reads the server's
// clock. closePool is set if the pool belongs to the store.
func newTable(ctx context.Context, pool *pgxpool.Pool, opts *Options, release func()) (*table, error) {
	p, err := opts.resolveLocation()
	if err == nil {
		err = checkPool(pool)
	}
	if err != nil {
		return nil, err
	}
	o := pool.Config().ConnConfig
	p.displayURL = "postgres://" + net.JoinHostPort(o.Host, strconv.Itoa(int(o.Port))) + "/" + o.Database
	p.severalServers = hasSeveralServers(o)
	if opts != nil && opts.Create {
		s, err := p.readServerState(ctx, pool)
		if err == nil && !s.Found {
			err = Migrate(ctx, pool, opts)
		}
		if err != nil {
			return nil, err
		}
	}
	s, err := p.readServerState(ctx, pool)
	if err == nil {
		err = p.checkServerState(s)
	}
	if err != nil {
		return nil, err
	}
	t, own := &table{location: p, behindPooler: s.behindPooler}, release != nil
	timeout := defaultTimeout
	clock := driver.SystemClock
	if opts != nil {
		t.opts = *opts
		timeout = cmp.Or(opts.Timeout, timeout)
		if opts.Clock.Monotonic != nil {
			clock = opts.Clock
		}
	}
	t.clock.Clock, p.admission.Clock, p.admission.Sources = clock, clock, t.opts.secrets
	p.admission.CredentialsAccepted()
	t.info = driver.Info{
		Store: p.displayURL, Clock: clock, Tier: driver.TierFenceSafe,
		ExpiryClock: driver.ExpiryClockStore, Survives: s.faultsSurvived(),
		TokenGap: time.Minute,
	}
	if !t.info.Survives.PowerCut {
		t.info.Tier = driver.TierSettings
		t.info.TokenRegression = "after a power cut, or a crash of the server, within a minute of the last grant: " +
			"fsync or synchronous_commit is off"
	}
	t.nameSize, t.ownerSize, t.atSize = s.NameSize, s.OwnerSize, s.AtSize
	t.batcher = newBatcher(pool, p, s.behindPooler, timeout, clock)
	if own {
		// After a failover all connections lead to the old server. With a pool of the user's own, that is the user's
		// concern.
		t.batcher.onBrokenConn = pool.Reset
	} else if n := t.batcher.freeConns; n > 1 {
		t.batcher.freeConns -= (n + 3) / 4 // the rest of the pool is for the program itself
	}
	t.buildStatements()
	t.listener = newListener(t.batcher, p)
	if p.layout != LayoutShedLock {
		if _, err := t.Load(ctx, "clock"); err != nil { // the reply tells the server's clock
			_ = t.Close()
			return nil, err
		}
	}
	t.closePool = release
	return t, nil
}

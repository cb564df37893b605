// Package postgres keeps locks in a table of PostgreSQL: a row a lock, one statement an operation.
//
// The server's clock judges who has fallen silent, so the clocks of the clients do not matter. Who waits listens, on one
// connection a client, and is told in the commit that frees the lock; polling stands behind that. A lock's row is as safe
// as any row of that database: with synchronous_commit and fsync on, as they are by default, no grant is forgotten, and
// with synchronous standbys not in a failover either. [driver.Info] says what the server's settings promise, and the store's
// Warnings what could be set better.
//
// The tables are made by [Migrate], or by opening the store with create=true. The user's own pool can be used ([New]), and
// in a transaction of the user's own [Fence] refuses the work of a holder that has lost its lock.
//
// Behind a pooler such as PgBouncer, in whatever mode, everything works but the listening: it is noticed, no statement is
// prepared for longer than a transaction, and those who wait poll.
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
	"github.com/holdfast-go/holdfast/engine/record"
)

// Options are how locks stand in a database. The zero value, and nil, mean the defaults.
type Options struct {
	// Schema and Table are where the locks are kept. Default: the table holdfast in the schema public. Beside it stands
	// a table of the same name with _fence behind it.
	Schema, Table string
	// Layout is how a lock stands in its row. Default: Holdfast's own, which carries everything.
	Layout Layout
	// Create makes the tables if there are none: see [Migrate].
	Create bool
	// Timeout is how long the server may take to answer one statement before the connection counts as cut. Default 3 s.
	Timeout time.Duration
	// Clock is where time is read; the default is driver.SystemClock.
	Clock driver.Clock
}

// Layout is how a lock stands in its row.
type Layout string

// The layouts.
const (
	// LayoutHoldfast is Holdfast's own.
	LayoutHoldfast Layout = ""
	// LayoutShedLock is that of ShedLock's JDBC provider with usingDbTime(): its clients and Holdfast's exclude each
	// other. (Without it they write the time of their own time zone, and exclude nobody in another one.) It carries plain mutexes and elections. The table is ShedLock's, by default shedlock.
	LayoutShedLock Layout = "shedlock"
)

// defaultTimeout is that of Options.Timeout.
const defaultTimeout = 3 * time.Second

// New makes a store that uses the connections of the user's own pool, and closes none of them; beside them it opens one
// that listens, with the pool's settings, when somebody waits. A program that can use up its pool should give the locks
// another one: a renewal that finds no free connection is late. The locks use three quarters of the pool at the most. Set lock_timeout for it, to 2s say, as a pool made from a URL
// has it: what waits on the server while somebody has locked the table keeps a connection there although it was given up here.
// ctx bounds the first look at the server.
//
// The error Is ErrInvalid if the table is missing or not Holdfast's, ErrDenied if a permission is.
func New(ctx context.Context, pool *pgxpool.Pool, opts *Options) (driver.Store, error) {
	return openStore(ctx, pool, opts, nil)
}

// openStore is New; release, if set, is called last by Close: the pool is the store's own.
func openStore(ctx context.Context, pool *pgxpool.Pool, opts *Options, release func()) (driver.Store, error) {
	t, err := newTable(ctx, pool, opts, release)
	switch {
	case err != nil:
		return nil, err
	case t.location.layout == LayoutShedLock:
		return newShedlock(t), nil
	case t.behindPooler:
		return record.New(struct { // without the listening
			record.Table
			record.ClockRefresher
			record.KeyLister
			driver.Warner
		}{t, t, t, t}), nil
	}
	return record.New(t), nil
}

// NewTable gives bare records, for what is built on records but is no lock. Use another Options.Table than that of the
// locks.
func NewTable(ctx context.Context, pool *pgxpool.Pool, opts *Options) (record.Table, error) {
	return newTable(ctx, pool, opts, nil)
}

// location is where the locks of a store are, and how they stand there.
type location struct {
	displayURL             string // the server and the database, without secrets
	schema                 string
	locksTable, fenceTable string // quoted, with their schema
	layout                 Layout
	channel                string // of the notifications
	lockClass              int32  // of the advisory locks by which those who wait make themselves known
	severalServers         bool   // there are other servers that may take over

	hasWritten atomic.Bool // it has taken a write: if it takes no more, another server may be about to take over its name
}

// mayReadStandby reports whether this can only be somebody who looks at a standby: it is the only server named, and has taken no write.
// Elsewhere the primary is meant, and what a standby says of its locks may be old.
func (p *location) mayReadStandby() bool { return !p.severalServers && !p.hasWritten.Load() }

// maxTableName leaves room for the fence table's ending within PostgreSQL's 63 bytes.
const maxTableName = 57

func (o *Options) resolveLocation() (*location, error) {
	if o == nil {
		o = &Options{}
	}
	standard := "holdfast"
	switch o.Layout {
	case LayoutHoldfast:
	case LayoutShedLock:
		standard = "shedlock"
	default:
		return nil, fmt.Errorf("%w: there is no layout %q, only shedlock and Holdfast's own", driver.ErrInvalid, o.Layout)
	}
	schema, table := cmp.Or(o.Schema, "public"), cmp.Or(o.Table, standard)
	for _, name := range []string{schema, table} {
		if len(name) > maxTableName || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
			return nil, fmt.Errorf("%w: the name of a schema or table must be UTF-8 of at most %d bytes, %q is not", driver.ErrInvalid, maxTableName, name)
		}
	}
	p := &location{schema: schema, layout: o.Layout, locksTable: pgx.Identifier{schema, table}.Sanitize(),
		fenceTable: pgx.Identifier{schema, table + "_fence"}.Sanitize()}
	h := fnv.New64a()
	h.Write([]byte(p.locksTable))
	p.channel, p.lockClass = "holdfast_"+strconv.FormatUint(h.Sum64(), 36), int32(h.Sum64())
	return p, nil
}

// hasSeveralServers reports whether a client may come to one of several servers.
func hasSeveralServers(o *pgx.ConnConfig) bool {
	return slices.ContainsFunc(o.Fallbacks, func(f *pgconn.FallbackConfig) bool { return f.Host != o.Host || f.Port != o.Port })
}

func newTable(ctx context.Context, pool *pgxpool.Pool, opts *Options, release func()) (*table, error) {
	p, err := opts.resolveLocation()
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
		timeout = cmp.Or(opts.Timeout, timeout)
		if opts.Clock.Monotonic != nil {
			clock = opts.Clock
		}
	}
	t.clock.Clock = clock
	t.info = driver.Info{
		Store: p.displayURL, Clock: clock, Tier: driver.TierFenceSafe, ExpiryClock: driver.ExpiryClockStore, Survives: s.faultsSurvived(),
		TokenGap: time.Minute,
	}
	if !t.info.Survives.PowerCut {
		t.info.Tier = driver.TierSettings
		t.info.TokenRegression = "after a power cut, or a crash of the server, within a minute of the last grant: fsync or synchronous_commit is off"
	}
	t.nameSize, t.ownerSize, t.atSize = s.NameSize, s.OwnerSize, s.AtSize
	t.batcher = newBatcher(pool, p, s.behindPooler, timeout, clock)
	if own {
		t.batcher.onBrokenConn = pool.Reset
	} else if n := t.batcher.freeConns; n > 1 {
		t.batcher.freeConns -= (n + 3) / 4 // the rest is the user's
	}
	t.buildStatements()
	t.listener = newListener(t.batcher, p)
	if p.layout != LayoutShedLock {
		if _, err := t.Load(ctx, "clock"); err != nil { // so that the server's clock is known
			_ = t.Close()
			return nil, err
		}
	}
	t.closePool = release
	return t, nil
}

// Package mysql keeps locks in a table of MySQL or MariaDB: one row per lock, one statement per operation.
//
// # Time
//
// The server's clock decides when a claim has expired, so the clocks of the clients do not matter. Where several
// servers take the writes (a Galera cluster, a group with several primaries, a proxy in front of them), the clocks of
// these servers may be as far apart as Options.ClockSkew says.
//
// # Waiting
//
// MySQL cannot notify a client of a change. Waiters poll, with growing pauses: see docs/urls.md for what that costs.
//
// # Safety
//
// The table uses InnoDB. With innodb_flush_log_at_trx_commit = 1, the default, no grant is forgotten. If the server has
// a binary log, it must also have sync_binlog = 1, which is MySQL's default and not MariaDB's. Replication that is not
// synchronous loses the last grants in a failover. [driver.Info] says what the server's settings promise, and the
// store's Examine says which settings should be improved. In a Galera cluster, reads must wait for the writes of the
// other members: wsrep_sync_wait = 1 is required.
//
// # Tables
//
// [Migrate] makes the table, and so does opening the store with create=true. [New] works on the user's own pool. In a
// transaction of the user's own, fence.SQL refuses the work of a holder that has lost its lock.
//
// # Decisions
//
// MySQL and PostgreSQL: no layout for users of GET_LOCK and pg_advisory_lock. Such a lock is free at the moment at
// which the server ends the connection. The holder learns of that later, so a foreign client could begin before our
// holder has stopped. A row next to the lock would not help, because foreign clients do not read it. Users take both
// locks while they move.
//
// A replica that takes writes is refused, if the server shows what it is. Rejected: a finding of doctor alone,
// which comes too late, since locks are granted twice although nothing has failed. Users whose servers replicate in a
// circle say so in the URL.
//
// What shows a read-only server ends the connections to it. Rejected: a largest age of connections, which would
// leave claims failing until then, and the driver's own RejectReadOnly, which does not see reads and is not set in a
// pool of the user's.
package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Options say where and how locks are kept in a database. The zero value and nil mean the defaults.
type Options struct {
	// Table is the table that holds the locks, in the database that the connections use. Default: holdfast, or shedlock
	// for LayoutShedLock.
	Table string
	// Prefix begins the names of the rows, so that several stores share a table: no prefix of one may begin with that
	// of another, as a/ and b/ do not. It takes its room from the names of locks, and has at most 255 bytes.
	// ShedLock's layout has none.
	Prefix string
	// Create makes the table if it does not exist: see [Migrate].
	Create bool
	// Layout is how a lock is stored in its row. Default: LayoutRecord, which supports all kinds.
	Layout Layout
	// Timeout is how long the server may take to answer one statement. After that the connection is given up.
	// Default: 3 s.
	Timeout time.Duration
	// ClockSkew is how far the clocks of the servers that this store is connected to may be apart. A claim that is not
	// renewed expires up to twice that time later. ShedLock's layout cannot allow for it. Default: 1 s on a member of a
	// Galera cluster and of a group with several primaries, and 0 elsewhere.
	ClockSkew time.Duration
	// Replica accepts a server that takes writes although it replicates from another one. In a circle of such servers,
	// locks are safe only while all clients use the same one. Without it, a server that is seen to be a replica is
	// refused.
	Replica bool
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
	// LayoutShedLock is the layout of ShedLock's JDBC providers with usingDbTime(). Its clients and Holdfast's exclude
	// each other. (Without usingDbTime() ShedLock's clients write the time of their own clocks, in their own time
	// zone.) It supports plain mutexes and elections. The table is ShedLock's own, called shedlock by default.
	//
	// If its columns are of the type TIMESTAMP, all clients must have the same time_zone. If they use the server's, and
	// it has a summer time, no client can take a lock during the hour that is left out each year.
	LayoutShedLock Layout = "shedlock"
)

// layouts are all of them, the default first.
var layouts = []Layout{LayoutRecord, LayoutShedLock}

const (
	defaultTable   = "holdfast"
	defaultTimeout = 3 * time.Second
	// defaultClockSkew is for servers that take writes next to other ones.
	defaultClockSkew = time.Second
	// maxTableName leaves room for the suffix of the ledger's table within MySQL's limit of 64 characters.
	maxTableName = 58
	maxPrefix    = 255 // bytes, half of what the rows' names may have
)

// New makes a store that uses the connections of the user's own pool, which go-sql-driver/mysql has made. It does not
// close the pool. A renewal needs a connection within its time: give the locks a pool of their own if the program may
// use up its own.
//
// ctx bounds the first requests to the server. New returns ErrInvalid if the pool is nil, an option cannot work, or
// the table is missing or not Holdfast's, ErrUnsupported if the server's settings make locks impossible, and ErrDenied
// if a permission is missing, or the server is a replica.
func New(ctx context.Context, db *sql.DB, opts *Options) (driver.Store, error) {
	t, err := newTable(ctx, db, opts, nil)
	if err != nil {
		return nil, err
	}
	return t.newStore(ctx)
}

// NewTable gives access to bare records, for data that is built on records but is no lock. Use another Options.Table
// than the one that holds the locks.
func NewTable(ctx context.Context, db *sql.DB, opts *Options) (record.Table, error) {
	if opts != nil && opts.Layout == LayoutShedLock {
		return nil, fmt.Errorf("%w: the layout %s has no records", driver.ErrInvalid, opts.Layout)
	}
	t, err := newTable(ctx, db, opts, nil)
	if err != nil {
		return nil, err
	}
	return record.WithPrefix(t, t.opts.Prefix), nil
}

// OpenLedgerTable opens the records of the run ledger: a table of its own, whose name is that of the locks' table with
// _runs after it. It is made as the locks' table is: see Options.Create and [Migrate].
func (t *table) OpenLedgerTable(ctx context.Context) (record.Table, error) {
	o := t.opts
	o.Table, o.Prefix = cmp.Or(o.Table, defaultTable)+"_runs", "" // record.WithPrefix adds it
	return NewTable(ctx, t.db, &o)
}

// withDefaults checks the options, and fills in the defaults.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	standard := defaultTable
	if c.Layout == LayoutShedLock {
		standard = string(LayoutShedLock)
	}
	c.Table, c.Timeout = cmp.Or(c.Table, standard), cmp.Or(c.Timeout, defaultTimeout)
	if err := driverutil.CheckLayout(c.Layout, layouts...); err != nil {
		return c, err
	}
	switch {
	case c.Timeout < 0 || c.ClockSkew < 0:
		return c, fmt.Errorf("%w: neither a timeout nor a clock skew can be negative", driver.ErrInvalid)
	case c.ClockSkew > 0 && c.Layout == LayoutShedLock:
		return c, fmt.Errorf("%w: ShedLock's layout needs one server, whose clock all clients use: it allows for no clock "+
			"skew", driver.ErrInvalid)
	case c.Prefix != "" && c.Layout == LayoutShedLock:
		return c, driverutil.RefuseForLayout("Prefix", LayoutRecord)
	case !utf8.ValidString(c.Prefix) || strings.ContainsRune(c.Prefix, 0) || len(c.Prefix) > maxPrefix:
		return c, fmt.Errorf("%w: a prefix must be UTF-8 of at most %d bytes without NUL, %q is not", driver.ErrInvalid,
			maxPrefix, c.Prefix)
	case !utf8.ValidString(c.Table) || strings.ContainsRune(c.Table, 0) ||
		utf8.RuneCountInString(c.Table) > maxTableName:
		return c, fmt.Errorf("%w: the name of a table must be UTF-8 of at most %d characters, %q is not",
			driver.ErrInvalid,
			maxTableName, c.Table)
	}
	if c.Clock.Monotonic == nil {
		c.Clock = driver.SystemClock
	}
	return c, nil
}

// newStore makes the store of the table's layout. It closes the table if it fails.
func (t *table) newStore(ctx context.Context) (driver.Store, error) {
	if t.opts.Layout != LayoutShedLock {
		return record.New(record.WithPrefix(t, t.opts.Prefix)), nil
	}
	s, err := newShedlock(ctx, t)
	if err != nil {
		_ = t.Close()
		return nil, err
	}
	return s, nil
}

// newTable checks the server and the table, makes the table if the options say so, and reads the server's clock.
// closePool is set if the pool belongs to the store.
func newTable(ctx context.Context, db *sql.DB, opts *Options, closePool func()) (*table, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if db == nil {
		return nil, fmt.Errorf("%w: the pool is nil: pass one that sql.Open has made", driver.ErrInvalid)
	}
	t := &table{db: db, opts: o, quotedName: quoteName(o.Table), closePool: closePool, life: driverutil.NewLifetime()}
	t.clock.Clock, t.admission.Clock, t.admission.Sources = o.Clock, o.Clock, o.secrets
	state, err := t.readServerState(ctx)
	if err == nil {
		err = t.refuseReplica(ctx, state)
	}
	if err == nil && !state.tableExists && o.Create {
		if err = t.createTable(ctx); err == nil {
			state, err = t.readServerState(ctx)
		}
	}
	if err == nil {
		err = t.checkServerState(state)
	}
	if err == nil {
		err = t.checkPrivileges(ctx)
	}
	if err != nil {
		return nil, err
	}
	t.admission.CredentialsAccepted()
	t.setInfo(state)
	if o.Layout == LayoutShedLock {
		return t, nil // which has statements of its own
	}
	if err := t.prepareStatements(ctx, map[**sql.Stmt]string{&t.loadStmt: loadText, &t.pageStmt: pageText,
		&t.insertStmt: insertText, &t.updateStmt: updateText, &t.deleteStmt: deleteText}); err != nil {
		return nil, err
	}
	if _, err := t.Load(ctx, "clock"); err != nil { // the reply tells the server's clock
		_ = t.closeStatements()
		return nil, err
	}
	return t, nil
}

// setInfo says what the server's settings promise.
func (t *table) setInfo(s *serverState) {
	t.clock.HostsApart = t.opts.ClockSkew
	if s.isOneOfSeveral() {
		t.clock.HostsApart = cmp.Or(t.opts.ClockSkew, defaultClockSkew)
	}
	t.info = driver.Info{
		Store: "mysql://" + s.host + "/" + s.database, Clock: t.opts.Clock, Tier: driver.TierFenceSafe,
		ExpiryClock: driver.ExpiryClockStore, Survives: driver.Survives{Restart: s.isWritten(),
			PowerCut: s.isFlushed() && !s.mayTearPages()},
		TokenGap: time.Minute + 2*t.clock.HostsApart,
	}
	if !s.isFlushed() {
		t.info.Tier = driver.TierSettings
		setting := "innodb_flush_log_at_trx_commit"
		if s.flushesRedoLog() {
			setting = "sync_binlog"
		}
		t.info.TokenRegression = "after a power cut, or a crash of the server, within a minute of the last grant: " +
			setting + " is not 1"
	}
	t.nameSize, t.ownerSize, t.zoneMatters = s.sizes["name"], s.sizes["locked_by"], s.zoneMatters
	t.maxRecord = min(record.MaxData, s.maxPacket-packetReserve)
}

package postgres

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/shedlock"
)

// The findings, without what was seen. The settings are explained in PostgreSQL's manual under their names.
var (
	findingFsync = driver.Finding{Code: "postgres-fsync", Severity: driver.SeverityWarning,
		Why: "after a power cut locks are forgotten, and the database may be broken",
		Fix: "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf()"}
	findingFullPageWrites = driver.Finding{Code: "postgres-full-page-writes", Severity: driver.SeverityWarning,
		Why: "a power cut can tear a page, and the locks in it",
		Fix: "ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf()"}
	findingSynchronousCommit = driver.Finding{Code: "postgres-synchronous-commit", Severity: driver.SeverityWarning,
		Why: "after a crash of the server the last locks are forgotten",
		Fix: "set it to on, at least for the user of the locks: ALTER ROLE <user> SET synchronous_commit = on"}
	findingStandbys = driver.Finding{Code: "postgres-standbys", Severity: driver.SeverityWarning,
		Why: "a failover may forget locks that are held",
		Fix: "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)', and synchronous_commit = on"}
	findingClientMinMessages = driver.Finding{Code: "postgres-client-min-messages", Severity: driver.SeverityWarning,
		Why: "a commit that the standbys did not confirm looks like one that they did",
		Fix: "ALTER ROLE <user> SET client_min_messages = warning"}
	findingSSLMode = driver.Finding{Code: "postgres-sslmode", Severity: driver.SeverityWarning,
		Why: "an attacker between this client and the server can read the password and impersonate the server",
		Fix: "set sslmode=verify-full in the URL"}
	findingTargetSession = driver.Finding{Code: "postgres-target-session-attrs", Severity: driver.SeverityWarning,
		Why: "a new connection may lead to a standby, which accepts no claims",
		Fix: "set target_session_attrs=read-write in the URL"}
	findingReadOnly = driver.Finding{Code: "postgres-read-only", Severity: driver.SeverityCritical,
		Why: "it accepts no claims"}
	findingPooler = driver.Finding{Code: "postgres-pooler", Severity: driver.SeverityWarning,
		What: "there is a pooler between this client and the server",
		Why:  "nobody can listen through it, so waiters poll, and are granted a lock later",
		Fix:  "give the locks the address of the server itself"}
	findingStatementTimeout = driver.Finding{Code: "postgres-statement-timeout", Severity: driver.SeverityWarning,
		Why: "on a busy server renewals are canceled, and locks are lost",
		Fix: "ALTER ROLE <user> SET statement_timeout = '5s', or 0"}
	findingIdleTimeout = driver.Finding{Code: "postgres-idle-timeout", Severity: driver.SeverityWarning,
		Why: "the server ends the connection on which a waiter listens, and those on which the next renewal is sent",
		Fix: "ALTER ROLE <user> SET idle_session_timeout = 0"}
	findingLockTimeout = driver.Finding{Code: "postgres-lock-timeout", Severity: driver.SeverityWarning,
		What: "lock_timeout is not set",
		Why:  "while another session has locked the table, statements that were given up keep their connections",
		Fix:  "set it to 2s for the user or the pool of the locks: ALTER ROLE <user> SET lock_timeout = '2s'"}
	findingUnlogged = driver.Finding{Code: "postgres-unlogged", Severity: driver.SeverityWarning,
		Why: "after a crash the server empties it, and a standby has nothing of it: all locks and tokens are forgotten",
		Fix: "ALTER TABLE <table> SET LOGGED"}
	findingRowSecurity = driver.Finding{Code: "postgres-row-security", Severity: driver.SeverityCritical,
		Why: "a policy can hide the locks of others from this user, who then acquires them too or is refused",
		Fix: "ALTER TABLE <table> DISABLE ROW LEVEL SECURITY"}
	findingTrigger = driver.Finding{Code: "postgres-trigger", Severity: driver.SeverityWarning,
		Why: "a trigger can change or skip the writes of locks, and slows each of them down",
		Fix: "drop the triggers and rules of the table"}
	findingAutovacuum = driver.Finding{Code: "postgres-autovacuum", Severity: driver.SeverityWarning,
		Why: "rows of locks change with each renewal: without vacuum the table grows, and each step takes longer",
		Fix: "ALTER SYSTEM SET autovacuum = on, and ALTER TABLE <table> RESET (autovacuum_enabled)"}
	findingShedLockTime = driver.Finding{Code: "postgres-shedlock-time", Severity: driver.SeverityCritical,
		Why: "clients of different time zones do not exclude each other",
		Fix: "make ShedLock's clients use usingDbTime()"}
)

// Examine checks the server's settings, and how the server is reached. It needs no permission beyond those that locks
// need.
func (t *table) Examine(ctx context.Context) ([]driver.Finding, error) {
	if t.batcher.life.Err() != nil {
		return nil, driver.ErrClosed
	}
	asking, cancel := context.WithTimeout(ctx, t.batcher.timeout)
	defer cancel()
	s, err := t.location.readServerState(asking, t.batcher.pool)
	if err != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	x, err := t.location.readSettings(asking, t.batcher)
	if err != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	config := t.batcher.pool.Config().ConnConfig
	all := append(s.listFindings(t.location.severalServers), x.listFindings(t.location)...)
	if t.location.severalServers && config.ValidateConnect == nil {
		all = append(all, findingTargetSession.With("", "several servers are named without target_session_attrs"))
	}
	return append(all, connectionFindings(config)...), nil
}

// listFindings looks at settings of the server and of the user.
func (s *serverState) listFindings(several bool) (all []driver.Finding) {
	if s.Fsync != "on" {
		all = append(all, findingFsync.With("", "fsync is off"))
	}
	if s.SynchronousCommit == "off" {
		all = append(all, findingSynchronousCommit.With("", "synchronous_commit is off"))
	}
	switch {
	case s.StandbyNames != "" && s.ClientMinMessages == "error":
		all = append(all, findingClientMinMessages.With("", "client_min_messages is error"))
	case several && !s.waitsForStandbys():
		all = append(all, findingStandbys.With("", "several servers are named, and commits do not wait for the standbys "+
			"(synchronous_standby_names)"))
	}
	if s.behindPooler {
		all = append(all, findingPooler)
	}
	return all
}

// examinedSettings are settings that matter to an examination alone.
type examinedSettings struct {
	FullPageWrites, Autovacuum         string
	InRecovery                         bool
	ReadOnly                           string // default_transaction_read_only
	StatementTimeout, IdleTimeout      time.Duration
	LockTimeout                        time.Duration
	Unlogged, RowSecurity, NotVacuumed bool
	Triggers                           int
	behindPooler                       bool
}

const settingsText = `select current_setting('full_page_writes'), current_setting('autovacuum'), pg_is_in_recovery(),
	current_setting('default_transaction_read_only'),
	(select coalesce(max(setting::int8) filter (where name = 'statement_timeout'), 0) from pg_settings),
	(select coalesce(max(setting::int8) filter (where name = 'idle_session_timeout'), 0) from pg_settings),
	(select coalesce(max(setting::int8) filter (where name = 'lock_timeout'), 0) from pg_settings),
	c.relpersistence = 'u', row_security_active(c.oid),
	coalesce(c.reloptions::text like '%autovacuum_enabled=false%', false)
		or coalesce(c.reloptions::text like '%autovacuum_enabled=off%', false),
	(select count(*)::int4 from pg_trigger t where t.tgrelid = c.oid and not t.tgisinternal and t.tgenabled <> 'D')
		+ (select count(*)::int4 from pg_rewrite r where r.ev_class = c.oid)
	from pg_class c where c.oid = to_regclass($1)`

// readSettings reads the settings as a statement of the locks meets them.
func (p *location) readSettings(ctx context.Context, b *batcher) (*examinedSettings, error) {
	var x examinedSettings
	var statement, idle, lock int64
	c, err := b.pool.Acquire(ctx)
	if err != nil {
		return nil, p.explainError(err)
	}
	defer c.Release()
	err = c.QueryRow(ctx, settingsText, pgx.QueryExecModeExec, p.locksTable).Scan(&x.FullPageWrites, &x.Autovacuum,
		&x.InRecovery, &x.ReadOnly, &statement, &idle, &lock, &x.Unlogged, &x.RowSecurity, &x.NotVacuumed, &x.Triggers)
	if err != nil {
		return nil, p.explainError(err)
	}
	for to, from := range map[*time.Duration]int64{&x.StatementTimeout: statement, &x.IdleTimeout: idle,
		&x.LockTimeout: lock} {
		*to = time.Duration(from) * time.Millisecond
	}
	x.behindPooler = b.behindPooler
	return &x, nil
}

// minStatementTimeout is the statement_timeout from which on the client gives a statement up before the server does.
const minStatementTimeout = 2 * time.Second

// listFindings compares the settings with what locks need.
func (x *examinedSettings) listFindings(p *location) (all []driver.Finding) {
	add := func(when bool, f driver.Finding, format string, args ...any) {
		if when {
			f.Fix = strings.ReplaceAll(f.Fix, "<table>", p.locksTable)
			all = append(all, f.With(f.Subject, fmt.Sprintf(format, args...)))
		}
	}
	add(x.FullPageWrites == "off", findingFullPageWrites, "full_page_writes is off")
	add(x.Autovacuum == "off", findingAutovacuum, "autovacuum is off")
	add(x.Autovacuum != "off" && x.NotVacuumed, findingAutovacuum, "the table %s has autovacuum_enabled = off", p.locksTable)
	readOnly := findingReadOnly
	readOnly.Fix = "open the primary, or name all servers and set target_session_attrs=read-write"
	add(x.InRecovery, readOnly, "the server is a standby")
	readOnly.Fix = "ALTER ROLE <user> SET default_transaction_read_only = off"
	add(!x.InRecovery && x.ReadOnly == "on", readOnly, "default_transaction_read_only is on")
	add(x.StatementTimeout > 0 && x.StatementTimeout < minStatementTimeout, findingStatementTimeout,
		"statement_timeout is %v", x.StatementTimeout)
	add(x.IdleTimeout > 0, findingIdleTimeout, "idle_session_timeout is %v", x.IdleTimeout)
	add(x.LockTimeout == 0 && !x.behindPooler, findingLockTimeout, "%s", findingLockTimeout.What)
	add(x.Unlogged, findingUnlogged, "the table %s is UNLOGGED", p.locksTable)
	add(x.RowSecurity, findingRowSecurity, "row level security applies to this user on the table %s", p.locksTable)
	add(x.Triggers > 0, findingTrigger, "the table %s has %d triggers or rules", p.locksTable, x.Triggers)
	return all
}

// connectionFindings looks at the settings of the connection.
func connectionFindings(c *pgx.ConnConfig) []driver.Finding {
	plain, encrypted := false, false
	note := func(host string, tls bool) {
		if isRemoteHost(host) {
			plain, encrypted = plain || !tls, encrypted || tls
		}
	}
	note(c.Host, c.TLSConfig != nil)
	for _, f := range c.Fallbacks {
		note(f.Host, f.TLSConfig != nil)
	}
	if plain && encrypted {
		return []driver.Finding{findingSSLMode.With(c.Host, "sslmode is prefer, the default, or allow")}
	}
	return nil
}

// isRemoteHost reports whether a host is another machine.
func isRemoteHost(host string) bool {
	network, _ := pgconn.NetworkAddress(host, 0)
	return network != "unix" && !filepath.IsAbs(host) && !driverutil.IsLoopback(host)
}

// Examine also names rows whose times cannot be right.
func (s *shedlockTable) Examine(ctx context.Context) ([]driver.Finding, error) {
	all, err := s.table.Examine(ctx)
	if err != nil {
		return nil, err
	}
	a := s.batcher.runStatement(ctx, s.suspectStmt)
	if a.err != nil {
		return nil, cmp.Or(ctx.Err(), s.location.explainError(a.err))
	}
	var suspects []shedlock.Row
	for _, row := range a.rows {
		suspects = append(suspects, parseShedlockRow(row))
	}
	return append(all, shedlock.ListTimeFaults(suspects, findingShedLockTime)...), nil
}

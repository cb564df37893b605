package mysql

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// The findings, without what was seen. The settings are explained in the manuals of MySQL and MariaDB under their
// names.
var (
	findingFlush = driver.Finding{Code: "mysql-flush", Severity: driver.SeverityWarning,
		Why: "after a crash of the server or a power cut the last locks are forgotten",
		Fix: "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and the same in the server's configuration"}
	findingDoublewrite = driver.Finding{Code: "mysql-doublewrite", Severity: driver.SeverityWarning,
		Why: "a power cut can tear a page, and the locks in it",
		Fix: "set innodb_doublewrite = ON in the server's configuration"}
	findingSyncBinlog = driver.Finding{Code: "mysql-sync-binlog", Severity: driver.SeverityWarning,
		Why: "after a power cut the server itself forgets the last locks, and a replica may know of other ones",
		Fix: "SET GLOBAL sync_binlog = 1, and the same in the server's configuration"}
	findingStatementTime = driver.Finding{Code: "mysql-statement-time", Severity: driver.SeverityWarning,
		Why: "on a busy server renewals are canceled, and locks are lost",
		Fix: "SET max_statement_time = 0 for the user of the locks"}
	findingLockWait = driver.Finding{Code: "mysql-lock-wait", Severity: driver.SeverityWarning,
		Why: "while another session has locked the table, statements that were given up keep their connections",
		Fix: "set innodb_lock_wait_timeout=2 in the settings of the pool of the locks"}
	findingTriggers = driver.Finding{Code: "mysql-trigger", Severity: driver.SeverityWarning,
		Why: "a trigger can change or refuse the writes of locks, and slows each of them down",
		Fix: "drop the triggers of the table"}
	findingPlain = driver.Finding{Code: "mysql-plain", Severity: driver.SeverityWarning,
		What: "the connection to another machine is not encrypted",
		Why:  "an attacker between this client and the server can read the locks and impersonate the server",
		Fix:  "set tls=true in the URL"}
	findingShedLockTime = driver.Finding{Code: "mysql-shedlock-time", Severity: driver.SeverityCritical,
		Why: "clients of different time zones do not exclude each other",
		Fix: "make ShedLock's clients use usingDbTime()"}
	findingShedLockZone = driver.Finding{Code: "mysql-shedlock-zone", Severity: driver.SeverityCritical,
		Why: "in columns of the type TIMESTAMP, clients of different time_zone do not exclude each other",
		Fix: "leave time_zone away from the settings of the pool, or change the columns to DATETIME(3) while no job runs"}
	findingShedLockSummer = driver.Finding{Code: "mysql-shedlock-summer", Severity: driver.SeverityWarning,
		Why: "columns of the type TIMESTAMP lack an hour in spring, during which no client can take a lock",
		Fix: "change lock_until and locked_at to DATETIME(3) while no job runs, or run the server in UTC"}
	findingReplicas = driver.Finding{Code: "mysql-replicas", Severity: driver.SeverityWarning,
		Why: "a replica that takes over may not know the last locks",
		Fix: "before a replica is promoted, let all holders' TTLs pass, or raise the tokens: holdfast token floor"}
	findingReplica = driver.Finding{Code: "mysql-replica", Severity: driver.SeverityWarning,
		Why: "its sources can grant the same locks, and overwrite those that are granted here",
		Fix: "let all clients use one server alone, and set read_only on the others"}
	findingReadOnlyUser = driver.Finding{Code: "mysql-read-only-user", Severity: driver.SeverityWarning,
		Why: "read_only does not stop this user on a primary that was demoted: Holdfast looks at it in each of its statements, " +
			"but ShedLock's clients, and what else this user does, go on writing there",
		Fix: "use a user without SUPER, READ ONLY ADMIN and CONNECTION_ADMIN"}
	findingUnseen = driver.Finding{Code: "mysql-unseen", Severity: driver.SeverityUnknown,
		Why: "a replica that takes writes grants locks that its source has granted, and one that is promoted may not know " +
			"the last locks",
		Fix: "examine the store as a user with REPLICATION CLIENT and PROCESS"}
)

// Examine checks the server's settings, and how the server is reached. It says what the user may not see of the
// server's replication. A trigger is found only by a user with TRIGGER.
func (t *table) Examine(ctx context.Context) ([]driver.Finding, error) {
	s, err := t.readServerState(ctx)
	if err != nil {
		return nil, err
	}
	var all []driver.Finding
	add := func(when bool, f driver.Finding, format string, args ...any) {
		if when {
			all = append(all, f.With(f.Subject, fmt.Sprintf(format, args...)))
		}
	}
	add(!s.flushesRedoLog(), findingFlush, "innodb_flush_log_at_trx_commit is %s", s.flushAtCommit)
	add(s.mayTearPages(), findingDoublewrite, "innodb_doublewrite is %s", s.settings["innodb_doublewrite"])
	add(!s.syncsBinlog(), findingSyncBinlog, "sync_binlog is %s", s.settings["sync_binlog"])
	add(isShort(s.settings["max_statement_time"], 1), findingStatementTime, "max_statement_time is %s s",
		s.settings["max_statement_time"])
	add(t.closePool == nil && !isShort(s.settings["innodb_lock_wait_timeout"], t.opts.Timeout.Seconds()),
		findingLockWait,
		"innodb_lock_wait_timeout is %s s", s.settings["innodb_lock_wait_timeout"])
	add(t.isPlain, findingPlain, "%s", findingPlain.What)
	triggers, err := t.countTriggers(ctx)
	if err != nil {
		return nil, err
	}
	add(triggers > 0, findingTriggers, "the table %s has %d triggers", t.quotedName, triggers)
	part, err := t.readReplication(ctx)
	if err != nil {
		return nil, err
	}
	if part.sources != 0 || part.replicas != 0 { // the server may be demoted
		rights, err := t.readOverrides(ctx, s.user)
		if err != nil {
			return nil, err
		}
		add(len(rights) > 0, findingReadOnlyUser, "the user %s may write to a read-only server: %s", s.user,
			strings.Join(rights, ", "))
	}
	return append(all, part.findings()...), nil
}

// readOverrides returns the permissions of a user to write although read_only is set. user is what current_user()
// returns.
func (t *table) readOverrides(ctx context.Context, user string) (rights []string, err error) {
	at := strings.LastIndexByte(user, '@')
	if at < 0 {
		return nil, nil
	}
	err = t.callServer(ctx, func(ctx context.Context) error {
		rows, err := t.queryTexts(ctx, `select privilege_type as Type from information_schema.user_privileges
			where privilege_type in ('SUPER', 'READ ONLY ADMIN', 'READ_ONLY ADMIN', 'CONNECTION_ADMIN') and grantee = ?
			order by 1`, "'"+user[:at]+"'@'"+user[at+1:]+"'")
		rights = nil
		for _, row := range rows {
			rights = append(rights, row["Type"])
		}
		return err
	})
	return rights, err
}

// isShort reports whether a time in seconds is set, and is less than a limit.
func isShort(seconds string, limit float64) bool {
	n, err := strconv.ParseFloat(seconds, 64)
	return err == nil && n > 0 && n < limit
}

// countTriggers counts the triggers of the table that this user may see.
func (t *table) countTriggers(ctx context.Context) (triggers int, err error) {
	err = t.callServer(ctx, func(ctx context.Context) error {
		return t.db.QueryRowContext(ctx, `select count(*) from information_schema.triggers
			where event_object_schema = database() and event_object_table = ?`, t.opts.Table).Scan(&triggers)
	})
	return triggers, err
}

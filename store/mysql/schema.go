package mysql

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
)

var (
	//go:embed schema.sql
	schemaText string
	//go:embed shedlock.sql
	shedlockText string
)

// SchemaVersion is the version of the table that this code uses. The comment of the table says its version.
const SchemaVersion = 1

var tableComment = fmt.Sprintf("Holdfast locks, version %d", SchemaVersion)

// Schema returns the SQL by which [Migrate] makes the table, for users who run migrations in their own way. It depends
// on Options.Table and Options.Layout.
func Schema(opts *Options) (string, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return "", err
	}
	return o.schema(), nil
}

// schema is the SQL that makes the table.
func (o *Options) schema() string {
	text := schemaText
	if o.Layout == LayoutShedLock {
		text = shedlockText
	}
	return strings.NewReplacer("LOCKS", quoteName(o.Table), "COMMENT_TEXT", tableComment).Replace(text)
}

// quoteName quotes the name of a table.
func quoteName(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// Migrate makes the table if it does not exist. It does not change what exists: a table of this version is accepted,
// and any other gives ErrInvalid. Several programs may call it at once. It also makes the table of the run
// ledger, when it is called with Options.Table set to that name: the locks' table and _runs.
func Migrate(ctx context.Context, db *sql.DB, opts *Options) error {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.Create = true
	t, err := newTable(ctx, db, &o, nil)
	if err != nil {
		return err
	}
	return t.Close()
}

// createTable makes the table. It succeeds if another program has made it at the same time.
func (t *table) createTable(ctx context.Context) error {
	_, err := t.db.ExecContext(ctx, t.opts.schema())
	var refused *mysql.MySQLError
	switch {
	case errors.As(err, &refused) && refused.Number == tableExists:
		return nil
	case errors.As(err, &refused) && permissionErrors[refused.Number]:
		return fmt.Errorf("%w: %s: there is no table %s; to make it the user needs CREATE on the database; or have another "+
			"user open the store once with create=true", driver.ErrDenied, refused.Message, t.quotedName)
	}
	return t.explainError(ctx, err)
}

// serverState is what a server says about itself and about the locks' table.
type serverState struct {
	host, database, user string
	autocommit           bool
	readOnly             bool
	flushAtCommit        string // innodb_flush_log_at_trx_commit
	maxPacket            int    // max_allowed_packet
	tableExists          bool
	tableEngine          string
	tableComment         string
	isGalera             bool
	syncWait             int // wsrep_sync_wait, of a Galera cluster
	settings             map[string]string

	// Of ShedLock's table only.
	columns     int            // how many of its columns there are, of the right types
	sizes       map[string]int // of the columns of text, in characters
	zoneMatters bool           // a column is of the type TIMESTAMP
	nameIsKey   bool           // the names are unique
	generatesID bool           // a column is AUTO_INCREMENT
}

// packetReserve is how much larger than its record a statement can be.
const packetReserve = 16 << 10

// minPacket is the smallest max_allowed_packet that is accepted: a record with a few holders fits into it.
const minPacket = 64 << 10

// examinedVariables are the server's settings that matter to locks. A server that does not know one does not return it.
var examinedVariables = []string{"innodb_flush_log_at_trx_commit", "sync_binlog", "log_bin", "innodb_doublewrite",
	"sql_mode", "wait_timeout", "innodb_lock_wait_timeout", "wsrep_on", "wsrep_sync_wait", "read_only", "innodb_read_only",
	"autocommit", "binlog_format", "max_allowed_packet", "max_statement_time", "max_execution_time", "group_replication_group_name",
	"group_replication_single_primary_mode", "group_replication_consistency", "character_set_client",
	"character_set_results"}

// readServerState reads the state in two statements.
func (t *table) readServerState(ctx context.Context) (*serverState, error) {
	s := &serverState{settings: map[string]string{}}
	err := t.callServer(ctx, func(ctx context.Context) error {
		var database, engine, comment sql.NullString
		row := t.db.QueryRowContext(ctx, `select concat(@@hostname, ':', @@port), database(), current_user(), t.engine, t.table_comment
			from (select 1) one left join information_schema.tables t
			on t.table_schema = database() and t.table_name = ?`, t.opts.Table)
		if err := row.Scan(&s.host, &database, &s.user, &engine, &comment); err != nil {
			return err
		}
		s.database, s.tableExists, s.tableEngine, s.tableComment = database.String, engine.Valid, engine.String, comment.String
		names := "'" + strings.Join(examinedVariables, "','") + "'"
		rows, err := t.db.QueryContext(ctx, `show session variables where variable_name in (`+names+`)`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var name, value string
			if err := rows.Scan(&name, &value); err != nil {
				return err
			}
			s.settings[strings.ToLower(name)] = value
		}
		return rows.Err()
	})
	if err != nil {
		return nil, err
	}
	if t.opts.Layout == LayoutShedLock {
		if err := t.readShedlockColumns(ctx, s); err != nil {
			return nil, err
		}
	}
	isOn := func(name string) bool { return s.settings[name] == "ON" || s.settings[name] == "1" }
	s.autocommit, s.isGalera = isOn("autocommit"), isOn("wsrep_on")
	s.readOnly = isReadOnly(s.settings["read_only"]) || isOn("innodb_read_only")
	s.flushAtCommit = s.settings["innodb_flush_log_at_trx_commit"]
	_, _ = fmt.Sscan(s.settings["max_allowed_packet"], &s.maxPacket)
	_, _ = fmt.Sscan(s.settings["wsrep_sync_wait"], &s.syncWait)
	return s, nil
}

// isFlushed reports whether a write is on the server's disk when its commit is confirmed. With a binary log, only the
// preparation of a commit is flushed to InnoDB's own log. After a crash the server asks its binary log which prepared
// transactions were committed, and rolls the others back.
func (s *serverState) isFlushed() bool { return s.flushesRedoLog() && s.syncsBinlog() }

// flushesRedoLog reports whether InnoDB flushes its own log at each commit. 3 is MariaDB's: it flushes twice.
func (s *serverState) flushesRedoLog() bool { return s.flushAtCommit == "1" || s.flushAtCommit == "3" }

// syncsBinlog reports whether the server syncs its binary log, if it has one, at each commit.
func (s *serverState) syncsBinlog() bool {
	return s.settings["log_bin"] != "ON" || s.settings["sync_binlog"] == "1"
}

// isWritten reports whether a write has left the server's process when its commit is confirmed.
func (s *serverState) isWritten() bool { return s.flushAtCommit != "0" }

// mayTearPages reports whether a power cut can leave a page of the table half written, for good.
func (s *serverState) mayTearPages() bool {
	how := s.settings["innodb_doublewrite"]
	return how == "OFF" || how == "DETECT_ONLY"
}

// isOneOfSeveral reports whether other servers, with clocks of their own, take writes to the same tables.
func (s *serverState) isOneOfSeveral() bool {
	return s.isGalera ||
		s.settings["group_replication_group_name"] != "" && s.settings["group_replication_single_primary_mode"] == "OFF"
}

// syncedReads are the values of group_replication_consistency with which a read sees what was committed before, on any
// member.
var syncedReads = []string{"BEFORE", "AFTER", "BEFORE_AND_AFTER"}

// checkServerState reports why locks cannot be kept there.
func (t *table) checkServerState(s *serverState) error {
	switch {
	case s.database == "":
		return fmt.Errorf("%w: no database is chosen: name it in the URL, after the host", driver.ErrInvalid)
	case !s.tableExists:
		return t.missingTableError()
	case t.opts.Layout != LayoutShedLock && s.tableComment != tableComment:
		return fmt.Errorf("%w: the table %s has the comment %q, and %q is required: it is not Holdfast's, or of another "+
			"version; it is left as it is", driver.ErrInvalid, t.quotedName, s.tableComment, tableComment)
	case !strings.EqualFold(s.tableEngine, "InnoDB"):
		return fmt.Errorf("%w: the table %s uses the engine %s, which does not survive a crash: ALTER TABLE %s ENGINE=InnoDB",
			driver.ErrUnsupported, t.quotedName, s.tableEngine, t.quotedName)
	case !s.autocommit:
		return fmt.Errorf("%w: autocommit is off, so no statement would be committed: add autocommit=true to the "+
			"connection's settings", driver.ErrUnsupported)
	case s.settings["log_bin"] == "ON" && s.settings["binlog_format"] == "STATEMENT":
		return fmt.Errorf("%w: binlog_format is STATEMENT, so a replica would run the statements itself, and as it is read-only "+
			"they would change nothing there: SET GLOBAL binlog_format = 'ROW', or MIXED", driver.ErrUnsupported)
	case s.maxPacket < minPacket:
		return fmt.Errorf("%w: max_allowed_packet is %d bytes: SET GLOBAL max_allowed_packet = 16777216",
			driver.ErrUnsupported, s.maxPacket)
	case s.isGalera && s.syncWait&1 == 0:
		return fmt.Errorf("%w: this is a member of a Galera cluster, and its reads do not wait for the writes of the "+
			"others: SET GLOBAL wsrep_sync_wait = 1", driver.ErrUnsupported)
	case !s.isGalera && s.isOneOfSeveral() && !slices.Contains(syncedReads, s.settings["group_replication_consistency"]):
		return fmt.Errorf("%w: this is a member of a group with several primaries, and its reads do not wait for the writes "+
			"of the others: SET GLOBAL group_replication_consistency = 'BEFORE'", driver.ErrUnsupported)
	case t.opts.Layout == LayoutShedLock && s.isOneOfSeveral():
		return fmt.Errorf("%w: this server is one of several that take writes, and ShedLock's layout judges by the clock of "+
			"one server: use Holdfast's own layout, which allows for other clocks", driver.ErrUnsupported)
	case t.opts.Layout == LayoutShedLock:
		return t.checkShedlockColumns(s)
	}
	return nil
}

// missingTableError says how to make the table.
func (t *table) missingTableError() error {
	return fmt.Errorf("%w: there is no table %s in this database: to make it, add create=true to the URL once "+
		"(Options.Create), with a user who may make tables", driver.ErrInvalid, t.quotedName)
}

// checkPrivileges tries each kind of statement on no row, so that a missing permission is reported now and not when a
// lock has to be released. No lock has an empty name. With sql_safe_updates, the server refuses conditions on no key.
func (t *table) checkPrivileges(ctx context.Context) error {
	texts := []string{
		`insert into LOCKS (name, version, data) select name, version, data from LOCKS where 1 = 0`,
		`update LOCKS set data = data where name = ''`,
		`delete from LOCKS where name = ''`,
	}
	if t.opts.Layout == LayoutShedLock {
		texts = shedlockTrials
	}
	for _, text := range texts {
		err := t.callServer(ctx, func(ctx context.Context) error {
			_, err := t.db.ExecContext(ctx, strings.ReplaceAll(text, "LOCKS", t.quotedName))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

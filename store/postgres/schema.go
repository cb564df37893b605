package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

var (
	//go:embed schema.sql
	schemaText string
	//go:embed shedlock.sql
	shedlockText string
)

// SchemaVersion is the version of the tables that this code uses. The comment of the locks' table says its version.
const SchemaVersion = 1

// migrationLock is the key of the advisory lock that Migrate holds: one migration at a time per database.
const migrationLock = 0x686f6c6466617374

var locksComment = fmt.Sprintf("Holdfast locks, version %d", SchemaVersion)

// Schema returns the SQL by which [Migrate] makes the tables, for users who run migrations in their own way.
// It depends on the options Schema, Table and Layout.
func Schema(opts *Options) (string, error) {
	p, err := opts.resolveLocation()
	if err != nil {
		return "", err
	}
	text := schemaText
	if p.layout == LayoutShedLock {
		text = shedlockText
	}
	return strings.NewReplacer("LOCKS", p.locksTable, "FENCE", p.fenceTable).Replace(text), nil
}

// Migrate makes the tables, and their schema, if they do not exist. It does not change what exists: tables of
// this version are accepted, and any others give ErrInvalid. Several programs may call it at once.
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts *Options) error {
	text, err := Schema(opts)
	if err != nil {
		return err
	}
	p, err := opts.resolveLocation()
	if err == nil {
		err = checkPool(pool)
	}
	if err != nil {
		return err
	}
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var found bool
		// "create table if not exists" is not enough: two sessions that run it at once can both find no table, and
		// then one of them fails.
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", pgx.QueryExecModeExec,
			migrationLock); err != nil {
			return err
		}
		const findSchema = "select exists (select from pg_namespace where nspname = $1)"
		if err := tx.QueryRow(ctx, findSchema, pgx.QueryExecModeExec, p.schema).Scan(&found); err != nil {
			return err
		}
		if !found {
			text = "create schema " + pgx.Identifier{p.schema}.Sanitize() + ";\n" + text
		} else {
			const findTable = "select to_regclass($1) is not null"
			err := tx.QueryRow(ctx, findTable, pgx.QueryExecModeExec, p.locksTable).Scan(&found)
			if err != nil || found {
				return err
			}
		}
		_, err := tx.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol)
		return err
	})
	if denied := (*pgconn.PgError)(nil); errors.As(err, &denied) && denied.Code == notPermitted {
		return fmt.Errorf("%w: %s: there is no table %s; to make it the user needs CREATE on its schema, "+
			"and on the database if the schema is missing; or have another user open the store once with create=true "+
			"and grant it to this one", driver.ErrDenied, denied.Message, p.locksTable)
	}
	if err != nil {
		return p.explainError(err)
	}
	s, err := p.readServerState(ctx, pool)
	if err == nil {
		err = p.checkServerState(s)
	}
	return err
}

// serverState is what a server says about itself and about the locks' table.
type serverState struct {
	Backend           uint32 // the process that answered
	behindPooler      bool   // another process answered than the one that we connected to
	Encoding          string
	Fsync             string
	SynchronousCommit string // synchronous_commit
	StandbyNames      string // synchronous_standby_names
	ClientMinMessages string // client_min_messages
	User              string
	Found             bool
	Comment           string   // the table's comment
	MissingPrivileges []string // permissions on the table that the user lacks
	Columns           int      // how many of ShedLock's columns the table has, of the right types
	NameSize          int      // limits of ShedLock's columns name and locked_by; -1: no limit
	OwnerSize         int
	AtSize            int // how many digits of a second locked_at keeps; -1: all
}

const serverStateText = `select pg_backend_pid(), current_setting('server_encoding'), current_setting('fsync'),
	current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
	current_setting('client_min_messages'), current_user::text,
	to_regclass($1) is not null, coalesce(obj_description(to_regclass($1), 'pg_class'), ''),
	array(select p from unnest($2::text[]) p where not has_table_privilege(to_regclass($1), p)),
	c.columns, c.name_size, c.owner_size, c.at_size
	from (select count(*) filter (
			where atttypid in ('text'::regtype, 'varchar'::regtype) and attname in ('name', 'locked_by')
			or atttypid = 'timestamp'::regtype and (atttypmod < 0 or atttypmod >= 3)
				and attname in ('lock_until', 'locked_at')) as columns,
		coalesce(max(atttypmod) filter (where attname = 'name'), -1) as name_size,
		coalesce(max(atttypmod) filter (where attname = 'locked_by'), -1) as owner_size,
		coalesce(max(atttypmod) filter (where attname = 'locked_at'), -1) as at_size
		from pg_attribute where attrelid = to_regclass($1) and not attisdropped) c`

// readServerState reads everything in one statement, because behind a pooler two may reach two processes. A pooler
// shows itself by the process: PgBouncer gives its clients a process id of its own making, and pg_backend_pid() returns
// that of the server.
func (p *location) readServerState(ctx context.Context, pool *pgxpool.Pool) (*serverState, error) {
	var s serverState
	err := pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		row := c.QueryRow(ctx, serverStateText, pgx.QueryExecModeExec, p.locksTable, p.requiredPrivileges())
		err := row.Scan(&s.Backend, &s.Encoding, &s.Fsync, &s.SynchronousCommit, &s.StandbyNames,
			&s.ClientMinMessages, &s.User, &s.Found, &s.Comment, &s.MissingPrivileges, &s.Columns,
			&s.NameSize, &s.OwnerSize, &s.AtSize)
		s.behindPooler = s.Backend != c.Conn().PgConn().PID()
		return err
	})
	if err != nil {
		return nil, p.explainError(err)
	}
	return &s, nil
}

// requiredPrivileges are the permissions on the locks' table that its user needs. They are checked when the store is
// opened, so that a missing one is reported then and not when a lock has to be released.
func (p *location) requiredPrivileges() []string {
	if p.layout == LayoutShedLock {
		return []string{"SELECT", "INSERT", "UPDATE"} // rows of this layout are never deleted
	}
	return []string{"SELECT", "INSERT", "UPDATE", "DELETE"}
}

// checkServerState reports why locks cannot be kept there.
func (p *location) checkServerState(s *serverState) error {
	switch {
	case s.Encoding != "UTF8":
		return fmt.Errorf("%w: the database's encoding is %s, and lock names are UTF-8: use a database made with ENCODING 'UTF8'",
			driver.ErrUnsupported, s.Encoding)
	case !s.Found:
		return p.missingTableError()
	case p.layout == LayoutShedLock && s.Columns < 4:
		return fmt.Errorf("%w: the table %s is not like ShedLock's: it needs name and locked_by as varchar, "+
			"lock_until and locked_at as timestamp without time zone",
			driver.ErrInvalid, p.locksTable)
	case p.layout != LayoutShedLock && s.Comment != locksComment:
		return fmt.Errorf("%w: the table %s has the comment %q, and %q is required: it is not Holdfast's, "+
			"or of another version; it is left as it is",
			driver.ErrInvalid, p.locksTable, s.Comment, locksComment)
	case len(s.MissingPrivileges) > 0:
		missing := strings.Join(s.MissingPrivileges, ", ")
		return fmt.Errorf("%w: GRANT %s ON %s TO %s", driverutil.LackPermission(missing, "the table "+p.locksTable), missing,
			p.locksTable, pgx.Identifier{s.User}.Sanitize())
	}
	return nil
}

// missingTableError says how to make the table.
func (p *location) missingTableError() error {
	return fmt.Errorf("%w: there is no table %s: to make it, add create=true to the URL once (Options.Create), "+
		"with a user who may make tables", driver.ErrInvalid, p.locksTable)
}

// waitsForStandbys reports whether a write is on the standbys when its commit is confirmed. PostgreSQL also
// confirms a commit whose wait for the standbys was canceled, and then sends a warning. Where warnings are
// turned off that cannot be detected, so nothing is promised.
//
// The values are explained in the manual under synchronous_commit. With local and off the commit waits for no
// standby. With remote_write the standby has the write in its operating system's memory: this survives the loss of
// the primary, which is what a failover is, but not a power cut of both at once.
func (s *serverState) waitsForStandbys() bool {
	return s.StandbyNames != "" && s.ClientMinMessages != "error" &&
		slices.Contains([]string{"on", "remote_write", "remote_apply"}, s.SynchronousCommit)
}

// faultsSurvived says which faults a granted claim survives, by the server's settings. With fsync or
// synchronous_commit off the server confirms what is not on its disk yet. A restart alone loses none of that: a server
// that is stopped in an orderly way writes everything first.
func (s *serverState) faultsSurvived() driver.Survives {
	flushed := s.Fsync == "on" && s.SynchronousCommit != "off"
	return driver.Survives{
		Restart:  true,
		PowerCut: flushed,
		Failover: flushed && s.waitsForStandbys(),
	}
}

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
)

var (
	//go:embed schema.sql
	schemaText string
	//go:embed shedlock.sql
	shedlockText string
)

// SchemaVersion is the version of the tables that this code works on. They carry theirs in their comments.
const SchemaVersion = 1

// migrationLock is the advisory lock under which tables are made, one in a database at a time.
const migrationLock = 0x686f6c6466617374

var locksComment = fmt.Sprintf("Holdfast locks, version %d", SchemaVersion)

// Schema is the SQL by which [Migrate] makes the tables, for those who run such things in their own way. The options'
// Schema, Table and Layout count.
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

// Migrate makes the tables where there are none, and the schema they are in. It leaves alone what is there: tables of this
// version are what is wanted, and any others are an error that Is ErrInvalid. Any number of programs may call it at once.
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts *Options) error {
	text, err := Schema(opts)
	if err != nil {
		return err
	}
	p, err := opts.resolveLocation()
	if err != nil {
		return err
	}
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var found bool
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", pgx.QueryExecModeExec, migrationLock); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, "select exists (select from pg_namespace where nspname = $1)", pgx.QueryExecModeExec, p.schema).Scan(&found); err != nil {
			return err
		}
		if !found {
			text = "create schema " + pgx.Identifier{p.schema}.Sanitize() + ";\n" + text
		} else if err := tx.QueryRow(ctx, "select to_regclass($1) is not null", pgx.QueryExecModeExec, p.locksTable).Scan(&found); err != nil || found {
			return err
		}
		_, err := tx.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol)
		return err
	})
	if denied := (*pgconn.PgError)(nil); errors.As(err, &denied) && denied.Code == notPermitted {
		return fmt.Errorf("%w: %s: there is no table %s, and to make it the user needs CREATE on its schema, or on the database if that is missing, too; "+
			"or have another user open the store once with create=true, and grant it to this one", driver.ErrDenied, denied.Message, p.locksTable)
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

// serverState is what a server tells about itself and about the table.
type serverState struct {
	Backend           uint32 // the process that answers
	behindPooler      bool   // some pooler stands in between
	Encoding          string
	Fsync             string
	SynchronousCommit string // synchronous_commit
	StandbyNames      string // synchronous_standby_names
	ClientMinMessages string // client_min_messages
	User              string
	Found             bool
	Comment           string   // the table's comment
	MissingPrivileges []string // permissions on it that the user lacks
	Columns           int      // how many of ShedLock's it has, of the right types
	NameSize          int      // how long ShedLock's name and locked_by may be; -1: as long as they like
	OwnerSize         int
	AtSize            int // how many digits of a second locked_at keeps; -1: all
}

const serverStateText = `select pg_backend_pid(), current_setting('server_encoding'), current_setting('fsync'),
	current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), current_setting('client_min_messages'), current_user::text,
	to_regclass($1) is not null, coalesce(obj_description(to_regclass($1), 'pg_class'), ''),
	array(select p from unnest($2::text[]) p where not has_table_privilege(to_regclass($1), p)),
	c.columns, c.name_size, c.owner_size, c.at_size
	from (select count(*) filter (where atttypid in ('text'::regtype, 'varchar'::regtype) and attname in ('name', 'locked_by')
			or atttypid = 'timestamp'::regtype and (atttypmod < 0 or atttypmod >= 3) and attname in ('lock_until', 'locked_at')) as columns,
		coalesce(max(atttypmod) filter (where attname = 'name'), -1) as name_size,
		coalesce(max(atttypmod) filter (where attname = 'locked_by'), -1) as owner_size,
		coalesce(max(atttypmod) filter (where attname = 'locked_at'), -1) as at_size
		from pg_attribute where attrelid = to_regclass($1) and not attisdropped) c`

// readServerState asks for it in one statement, which works behind every pooler.
func (p *location) readServerState(ctx context.Context, pool *pgxpool.Pool) (*serverState, error) {
	var s serverState
	err := pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		err := c.QueryRow(ctx, serverStateText, pgx.QueryExecModeExec, p.locksTable, p.requiredPrivileges()).Scan(&s.Backend, &s.Encoding, &s.Fsync,
			&s.SynchronousCommit, &s.StandbyNames, &s.ClientMinMessages, &s.User, &s.Found, &s.Comment, &s.MissingPrivileges, &s.Columns, &s.NameSize, &s.OwnerSize, &s.AtSize)
		s.behindPooler = s.Backend != c.Conn().PgConn().PID()
		return err
	})
	if err != nil {
		return nil, p.explainError(err)
	}
	return &s, nil
}

func (p *location) requiredPrivileges() []string {
	if p.layout == LayoutShedLock {
		return []string{"SELECT", "INSERT", "UPDATE"} // its rows are never deleted
	}
	return []string{"SELECT", "INSERT", "UPDATE", "DELETE"}
}

// checkServerState says why locks cannot be kept there.
func (p *location) checkServerState(s *serverState) error {
	switch {
	case s.Encoding != "UTF8":
		return fmt.Errorf("%w: the database's encoding is %s, and locks have names in UTF8: use a database made with ENCODING 'UTF8'",
			driver.ErrUnsupported, s.Encoding)
	case !s.Found:
		return p.missingTableError()
	case p.layout == LayoutShedLock && s.Columns < 4:
		return fmt.Errorf("%w: the table %s is not as ShedLock's: it needs name and locked_by as varchar, lock_until and locked_at as timestamp without time zone",
			driver.ErrInvalid, p.locksTable)
	case p.layout != LayoutShedLock && s.Comment != locksComment:
		return fmt.Errorf("%w: the table %s has the comment %q where %q is wanted: it is not Holdfast's, or of another version; it is left as it is",
			driver.ErrInvalid, p.locksTable, s.Comment, locksComment)
	case len(s.MissingPrivileges) > 0:
		return fmt.Errorf("%w: the user %s lacks a permission: GRANT %s ON %s TO %s",
			driver.ErrDenied, s.User, strings.Join(s.MissingPrivileges, ", "), p.locksTable, pgx.Identifier{s.User}.Sanitize())
	}
	return nil
}

func (p *location) missingTableError() error {
	return fmt.Errorf("%w: there is no table %s: open the store with create=true once, call postgres.Migrate, or run what postgres.Schema gives",
		driver.ErrInvalid, p.locksTable)
}

// waitsForStandbys reports whether the standbys have what a commit was answered for. A commit whose wait for them was cancelled is answered
// as well, with a warning: who has turned warnings off is not told.
func (s *serverState) waitsForStandbys() bool {
	return s.StandbyNames != "" && slices.Contains([]string{"on", "remote_write", "remote_apply"}, s.SynchronousCommit) && s.ClientMinMessages != "error"
}

// faultsSurvived is what standing claims survive, by the server's settings.
func (s *serverState) faultsSurvived() driver.Survives {
	flushed := s.Fsync == "on" && s.SynchronousCommit != "off"
	return driver.Survives{
		Restart:  true,
		PowerCut: flushed,
		Failover: flushed && s.waitsForStandbys(),
	}
}

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

// migration is the advisory lock under which tables are made, one in a database at a time.
const migration = 0x686f6c6466617374

var locksMark = fmt.Sprintf("Holdfast locks, version %d", SchemaVersion)

// Schema is the SQL by which [Migrate] makes the tables, for those who run such things in their own way. The options'
// Schema, Table and Layout count.
func Schema(opts *Options) (string, error) {
	p, err := opts.place()
	if err != nil {
		return "", err
	}
	text := schemaText
	if p.layout == LayoutShedLock {
		text = shedlockText
	}
	return strings.NewReplacer("LOCKS", p.locks, "FENCE", p.fence).Replace(text), nil
}

// Migrate makes the tables where there are none, and the schema they are in. It leaves alone what is there: tables of this
// version are what is wanted, and any others are an error that Is ErrInvalid. Any number of programs may call it at once.
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts *Options) error {
	text, err := Schema(opts)
	if err != nil {
		return err
	}
	p, err := opts.place()
	if err != nil {
		return err
	}
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var found bool
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", pgx.QueryExecModeExec, migration); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, "select exists (select from pg_namespace where nspname = $1)", pgx.QueryExecModeExec, p.schema).Scan(&found); err != nil {
			return err
		}
		if !found {
			text = "create schema " + pgx.Identifier{p.schema}.Sanitize() + ";\n" + text
		} else if err := tx.QueryRow(ctx, "select to_regclass($1) is not null", pgx.QueryExecModeExec, p.locks).Scan(&found); err != nil || found {
			return err
		}
		_, err := tx.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol)
		return err
	})
	if denied := (*pgconn.PgError)(nil); errors.As(err, &denied) && denied.Code == notPermitted {
		return fmt.Errorf("%w: %s: there is no table %s, and to make it the user needs CREATE on its schema, or on the database if that is missing, too; "+
			"or have another user open the store once with create=true, and grant it to this one", driver.ErrDenied, denied.Message, p.locks)
	}
	if err != nil {
		return p.explain(err)
	}
	s, err := p.look(ctx, pool)
	if err == nil {
		err = p.check(s)
	}
	return err
}

// situation is what a server tells about itself and about the table.
type situation struct {
	Backend   uint32 // the process that answers
	behind    bool   // some pooler stands in between
	Encoding  string
	Fsync     string
	Commit    string // synchronous_commit
	Standbys  string // synchronous_standby_names
	Messages  string // client_min_messages
	User      string
	Found     bool
	Mark      string   // the table's comment
	Missing   []string // permissions on it that the user lacks
	Columns   int      // how many of ShedLock's it has, of the right types
	NameSize  int      // how long ShedLock's name and locked_by may be; -1: as long as they like
	OwnerSize int
	AtSize    int // how many digits of a second locked_at keeps; -1: all
}

const lookText = `select pg_backend_pid(), current_setting('server_encoding'), current_setting('fsync'),
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

// look asks for it in one statement, which works behind every pooler.
func (p *place) look(ctx context.Context, pool *pgxpool.Pool) (*situation, error) {
	var s situation
	err := pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		err := c.QueryRow(ctx, lookText, pgx.QueryExecModeExec, p.locks, p.privileges()).Scan(&s.Backend, &s.Encoding, &s.Fsync,
			&s.Commit, &s.Standbys, &s.Messages, &s.User, &s.Found, &s.Mark, &s.Missing, &s.Columns, &s.NameSize, &s.OwnerSize, &s.AtSize)
		s.behind = s.Backend != c.Conn().PgConn().PID()
		return err
	})
	if err != nil {
		return nil, p.explain(err)
	}
	return &s, nil
}

func (p *place) privileges() []string {
	if p.layout == LayoutShedLock {
		return []string{"SELECT", "INSERT", "UPDATE"} // its rows are never deleted
	}
	return []string{"SELECT", "INSERT", "UPDATE", "DELETE"}
}

// check says why locks cannot be kept there.
func (p *place) check(s *situation) error {
	switch {
	case s.Encoding != "UTF8":
		return fmt.Errorf("%w: the database's encoding is %s, and locks have names in UTF8: use a database made with ENCODING 'UTF8'",
			driver.ErrUnsupported, s.Encoding)
	case !s.Found:
		return p.missing()
	case p.layout == LayoutShedLock && s.Columns < 4:
		return fmt.Errorf("%w: the table %s is not as ShedLock's: it needs name and locked_by as varchar, lock_until and locked_at as timestamp without time zone",
			driver.ErrInvalid, p.locks)
	case p.layout != LayoutShedLock && s.Mark != locksMark:
		return fmt.Errorf("%w: the table %s has the comment %q where %q is wanted: it is not Holdfast's, or of another version; it is left as it is",
			driver.ErrInvalid, p.locks, s.Mark, locksMark)
	case len(s.Missing) > 0:
		return fmt.Errorf("%w: the user %s lacks a permission: GRANT %s ON %s TO %s",
			driver.ErrDenied, s.User, strings.Join(s.Missing, ", "), p.locks, pgx.Identifier{s.User}.Sanitize())
	}
	return nil
}

func (p *place) missing() error {
	return fmt.Errorf("%w: there is no table %s: open the store with create=true once, call postgres.Migrate, or run what postgres.Schema gives",
		driver.ErrInvalid, p.locks)
}

// synced reports whether the standbys have what a commit was answered for. A commit whose wait for them was cancelled is answered
// as well, with a warning: who has turned warnings off is not told.
func (s *situation) synced() bool {
	return s.Standbys != "" && slices.Contains([]string{"on", "remote_write", "remote_apply"}, s.Commit) && s.Messages != "error"
}

// survives is what standing claims survive, by the server's settings.
func (s *situation) survives() driver.Survives {
	flushed := s.Fsync == "on" && s.Commit != "off"
	return driver.Survives{
		Restart:  true,
		PowerCut: flushed,
		Failover: flushed && s.synced(),
	}
}

package fence

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
)

// Dialect is the kind of a database.
type Dialect string

// The databases that [SQL] knows.
const (
	PostgreSQL Dialect = "postgresql" // and what speaks its SQL
	MySQL      Dialect = "mysql"      // and MariaDB
	SQLite     Dialect = "sqlite"
)

// maxMySQLName is the size of the column for names on MySQL, in bytes. Outside its strict mode, MySQL cuts longer ones.
const maxMySQLName = 512

// DefaultTable is the name of the fence table if none is given.
const DefaultTable = "holdfast_fence"

// SQL is a fence in a database, for any driver of database/sql. It keeps the largest tokens in a table, which
// [SQL.Migrate] makes. All methods may be called from any goroutine.
type SQL struct {
	dialect Dialect
	table   string // quoted
	upsert  string
	checked atomic.Bool // the table has the right columns
}

// Tx is a transaction: a *sql.Tx, or a *sql.Conn on which one was begun.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// NewSQL makes a fence. table is the name of its table, with a schema before a dot if needed; empty: [DefaultTable].
// It does no I/O. It returns [ErrInvalid] if there is no such dialect, or no such name for a table.
func NewSQL(d Dialect, table string) (*SQL, error) {
	if table == "" {
		table = DefaultTable
	}
	quoted, err := quoteTable(d, table)
	if err != nil {
		return nil, err
	}
	f := &SQL{dialect: d, table: quoted}
	switch d {
	case PostgreSQL:
		f.upsert = `insert into T as f (resource, token) values ($1, $2)
			on conflict (resource) do update set token = excluded.token where f.token <= excluded.token`
	case SQLite:
		f.upsert = `insert into T as f (resource, token) values (?, ?)
			on conflict (resource) do update set token = excluded.token
			where typeof(f.token) = 'integer' and f.token <= excluded.token`
	case MySQL:
		// MySQL cannot tell a row that it has left alone from one that was written with the same values. So the
		// statement returns the larger token, in the place of a generated key.
		f.upsert = `insert into T (resource, token) values (?, last_insert_id(?))
			on duplicate key update token = last_insert_id(greatest(token, ?))`
	}
	f.upsert = strings.ReplaceAll(f.upsert, "into T", "into "+f.table)
	return f, nil
}

// quoteTable quotes the name of a table. Names with other characters are refused, and not escaped: they are mistakes.
func quoteTable(d Dialect, table string) (string, error) {
	quote := `"`
	switch d {
	case PostgreSQL, SQLite:
	case MySQL:
		quote = "`"
	default:
		return "", invalid("the dialect %q is none of postgresql, mysql and sqlite", d)
	}
	parts := strings.Split(table, ".")
	for i, p := range parts {
		isOther := func(r rune) bool {
			return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		}
		if p == "" || len(p) > 63 || len(parts) > 2 || strings.ContainsFunc(p, isOther) {
			return "", invalid("%q is not the name of a table: it has letters, digits and underscores, and maybe a schema", table)
		}
		parts[i] = quote + p + quote
	}
	return strings.Join(parts, "."), nil
}

// Migrate makes the fence table if there is none. It can be called at every start, and by several servers at once. An
// existing table with other columns is left as it is; the error is [ErrInvalid] and says what to do.
func (f *SQL) Migrate(ctx context.Context, db *sql.DB) error {
	switch {
	case ctx == nil:
		return errNilContext
	case db == nil:
		return invalid("the database is nil")
	}
	statements := map[Dialect][]string{
		PostgreSQL: {
			`create table if not exists T (resource text collate "C" primary key, token bigint not null)`,
			`comment on table T is 'Holdfast fence, version 1'`,
		},
		// The names are bytes, since most collations take A for a, and a for a with a space after it.
		MySQL: {
			fmt.Sprintf(`create table if not exists T (resource varbinary(%d) primary key, token bigint not null)
				engine = InnoDB`, maxMySQLName),
		},
		SQLite: {
			`create table if not exists T (resource text primary key, token integer not null check (typeof(token) = 'integer'))`,
		},
	}
	var failed error
	for _, s := range statements[f.dialect] {
		if _, err := db.ExecContext(ctx, strings.Replace(s, " T ", " "+f.table+" ", 1)); err != nil {
			failed = fmt.Errorf("make the fence table %s: %w", f.table, err)
			break
		}
	}
	// Two servers that make the table at the same moment can get in each other's way. What counts is whether it exists.
	if err := f.checkTable(ctx, db); err != nil {
		if failed != nil {
			return failed
		}
		return err
	}
	return nil
}

// Check checks a token in the transaction that writes to the resource, and remembers it. Call it first, before the
// transaction reads what it decides by. After an error, roll back.
//
// A smaller token than the largest one is a [*StaleError]. A transaction, token, resource or table that cannot work is
// [ErrInvalid]. Other transactions that check a token for the same resource
// wait until this one ends, so the writes are in the order of their tokens. A transaction that is rolled back remembers
// nothing; neither does one that is rolled back to a savepoint from before the check.
//
// It is correct under every isolation level. Under repeatable read and serializable, PostgreSQL may end the wait with a
// serialization failure, and MySQL with a deadlock; SQLite may be busy, and should begin its transactions with BEGIN
// IMMEDIATE. Then repeat the whole transaction. A replica cannot check anything, since a check writes: use the primary.
//
// It costs one round trip. The first call, and the one after an error, makes one more to look at the table's columns,
// and on MySQL another one for its engine. On MySQL it changes what LAST_INSERT_ID() returns in the session.
func (f *SQL) Check(ctx context.Context, tx Tx, resource string, t Token) error {
	// Only a pool has Stats: a *sql.DB, and the types of other libraries that have one inside.
	if _, isPool := tx.(interface{ Stats() sql.DBStats }); isPool {
		return invalid("a fence needs the transaction that does the work, and not a %T, which makes one of its own", tx)
	}
	if tx == nil {
		return invalid("the transaction is nil: pass the one that does the work")
	}
	if err := checkWrite(ctx, resource, t); err != nil {
		return err
	}
	if f.dialect == MySQL && len(resource) > maxMySQLName {
		return invalid("the name of the resource has %d bytes, and the fence table of MySQL keeps at most %d: use a hash",
			len(resource), maxMySQLName)
	}
	if err := f.checkTable(ctx, tx); err != nil {
		return err
	}
	largest, err := f.store(ctx, tx, resource, t)
	switch {
	case err != nil:
		f.checked.Store(false)
		return fmt.Errorf("fence %q by %s: %w", resource, f.table, err)
	case largest > t:
		return &StaleError{Resource: resource, Token: t, Largest: largest}
	}
	return nil
}

// store stores a token unless the table has a larger one, and returns the larger of the two.
func (f *SQL) store(ctx context.Context, tx Tx, resource string, t Token) (Token, error) {
	if f.dialect == MySQL {
		result, err := tx.ExecContext(ctx, f.upsert, resource, int64(t), int64(t))
		if err != nil {
			return 0, err
		}
		largest, err := result.LastInsertId()
		if err == nil && largest < int64(t) {
			err = invalid("the driver does not report LAST_INSERT_ID, so the fence cannot see the largest token")
		}
		return Token(largest), err
	}
	result, err := tx.ExecContext(ctx, f.upsert, resource, int64(t))
	if err != nil {
		return 0, err
	}
	if n, err := result.RowsAffected(); err != nil || n > 0 {
		return t, err
	}
	query := `select token from ` + f.table + ` where resource = $1`
	if f.dialect == SQLite {
		query = `select token from ` + f.table + ` where resource = ?`
	}
	var largest int64
	if err := tx.QueryRowContext(ctx, query, resource).Scan(&largest); err != nil {
		return 0, err
	}
	if largest <= int64(t) { // SQLite keeps text in any column, and text was not compared
		return 0, invalid("the token of %q is stored as text: make the column an integer, as Migrate does", resource)
	}
	return Token(largest), nil
}

// querier is a transaction or a pool.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// checkTable reports what is wrong with the fence table. Tokens in a column for text would be compared as text, where 9
// is larger than 10. In a column for smaller integers, MySQL may cut them all to the same one. Without a primary key,
// MySQL adds a row for each token and compares none. In a table without transactions, MySQL lets a stale holder pass.
func (f *SQL) checkTable(ctx context.Context, tx querier) error {
	if f.checked.Load() {
		return nil
	}
	// It reads no row: the first read may fix what the transaction sees, and that must be after the wait for others.
	query := `select resource, token from ` + f.table + ` where 1 = 0`
	if f.dialect == MySQL {
		query = `select resource, token from ` + f.table + ` force index (primary) where 1 = 0`
	}
	rows, err := tx.QueryContext(ctx, query)
	if err != nil {
		return fmt.Errorf("read the fence table %s: %w (if there is no such table, or it has no primary key, make it with "+
			"SQL.Migrate)", f.table, err)
	}
	defer rows.Close()
	columns, err := rows.ColumnTypes()
	if err != nil {
		return fmt.Errorf("read the columns of the fence table %s: %w", f.table, err)
	}
	if err := f.checkTypes(columns[0].DatabaseTypeName(), columns[1].DatabaseTypeName()); err != nil {
		return err
	}
	if err := rows.Close(); err != nil {
		return err
	}
	if f.dialect == MySQL {
		if err := f.checkEngine(ctx, tx); err != nil {
			return err
		}
	}
	f.checked.Store(true)
	return nil
}

// checkEngine reports a table that is not transactional: its writes are not rolled back, and nobody waits for the end
// of the transaction that has checked a token. It asks for the table's definition and not for rows of
// information_schema, which InnoDB keeps in newer servers, and which would fix what the transaction sees.
func (f *SQL) checkEngine(ctx context.Context, tx querier) error {
	rows, err := tx.QueryContext(ctx, `show create table `+f.table)
	if err != nil {
		return fmt.Errorf("read the definition of the fence table %s: %w", f.table, err)
	}
	defer rows.Close()
	var name, text string
	for rows.Next() {
		if err := rows.Scan(&name, &text); err != nil {
			return fmt.Errorf("read the definition of the fence table %s: %w", f.table, err)
		}
	}
	if err := cmp.Or(rows.Err(), rows.Close()); err != nil {
		return fmt.Errorf("read the definition of the fence table %s: %w", f.table, err)
	}
	_, options, _ := strings.Cut(text, "\n)") // after the last column
	_, engine, shown := strings.Cut(options, "ENGINE=")
	engine, _, _ = strings.Cut(engine, " ")
	switch {
	case !shown:
		return invalid("the server does not show the engine of the fence table %s: remove NO_TABLE_OPTIONS from sql_mode", f.table)
	case !strings.EqualFold(engine, "InnoDB"):
		return invalid("the fence table %s uses the engine %s, which has no transactions: ALTER TABLE %s ENGINE=InnoDB, or "+
			"drop the table and call SQL.Migrate", f.table, engine, f.table)
	}
	return nil
}

// checkTypes reports columns that cannot keep all tokens, or all names apart.
func (f *SQL) checkTypes(resource, token string) error {
	wide := map[Dialect][]string{
		PostgreSQL: {"INT8", "BIGINT"}, // drivers differ
		MySQL:      {"BIGINT", "UNSIGNED BIGINT"},
	}[f.dialect]
	switch token := strings.ToUpper(token); {
	case f.dialect == SQLite && strings.Contains(token, "INT"): // which has one size of integers
	case slices.Contains(wide, token):
	default:
		return invalid("the column token of the fence table %s is of type %s, and must be an integer of 64 bits: "+
			"drop the table, or change the column, and call SQL.Migrate", f.table, token)
	}
	if f.dialect == MySQL && !strings.EqualFold(resource, "VARBINARY") {
		return invalid("the column resource of the fence table %s is of type %s, in which names that differ in case or "+
			"spaces may be equal, and must be varbinary(%d): drop the table, or change it, and call SQL.Migrate",
			f.table, resource, maxMySQLName)
	}
	return nil
}

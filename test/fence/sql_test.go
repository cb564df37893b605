package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/fencetest"
)

// inTx runs f in a transaction, and commits if it returns nil.
func inTx(ctx context.Context, db *sql.DB, level sql.IsolationLevel, f func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func check(ctx context.Context, db database, f *fence.SQL, resource string, token fence.Token) error {
	return inTx(ctx, db.DB, sql.LevelDefault, func(tx *sql.Tx) error { return f.Check(ctx, tx, resource, token) })
}

// TestSQL: a resource accepts a token again, and a larger one, and rejects a smaller one with both tokens. A
// transaction that is rolled back remembers nothing. Names are told apart by their bytes.
func TestSQL(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db database) {
		ctx := t.Context()
		f := db.mustMigrate(t, "")
		for _, token := range []fence.Token{5, 5, 9, 10, 1<<53 - 1} {
			if err := check(ctx, db, f, "shoe", token); err != nil {
				t.Errorf("token %d: %v", token, err)
			}
		}
		for _, token := range []fence.Token{1, 9, 1<<53 - 2} {
			err := check(ctx, db, f, "shoe", token)
			stale, ok := errors.AsType[*fence.StaleError](err)
			if !ok || stale.Token != token || stale.Largest != 1<<53-1 || !errors.Is(err, holdfast.ErrLost) {
				t.Errorf("token %d: %v", token, err)
			}
		}
		for i, name := range []string{"Shoe", "shoe ", "shoé", "sho\u0065\u0301", strings.Repeat("n", 512)} {
			if err := check(ctx, db, f, name, fence.Token(i+1)); err != nil {
				t.Errorf("the name %q: %v", name, err)
			}
		}
		for _, token := range []fence.Token{0, -1, 1 << 53} {
			if err := check(ctx, db, f, "shoe", token); !errors.Is(err, fence.ErrInvalid) {
				t.Errorf("token %d: %v", token, err)
			}
		}
		if err := check(ctx, db, f, "", 1); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("no name: %v", err)
		}
		if err := f.Check(ctx, db.DB, "shoe", 1); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("without a transaction: %v", err)
		}
		if err := f.Check(ctx, nil, "shoe", 1); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("a nil transaction: %v", err)
		}
		rolledBack := errors.New("rolled back")
		err := inTx(ctx, db.DB, sql.LevelDefault, func(tx *sql.Tx) error {
			if err := f.Check(ctx, tx, "boot", 100); err != nil {
				return err
			}
			return rolledBack
		})
		if err != rolledBack {
			t.Error(err)
		}
		if err := check(ctx, db, f, "boot", 7); err != nil {
			t.Errorf("after a larger token was rolled back: %v", err)
		}
	})
}

// TestSQLTable: a missing table, and one that keeps tokens as text, are reported with the remedy. Several servers can
// make the table at once.
func TestSQLTable(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db database) {
		missing, err := fence.NewSQL(db.dialect, "missing")
		if err != nil {
			t.Fatal(err)
		}
		if err := check(t.Context(), db, missing, "shoe", 5); err == nil || !strings.Contains(err.Error(), "Migrate") {
			t.Errorf("a missing table: %v", err)
		}
		text := map[fence.Dialect]string{
			fence.PostgreSQL: `create table texts (resource text primary key, token text not null)`,
			fence.MySQL:      `create table texts (resource varchar(100) primary key, token varchar(100) not null)`,
			fence.SQLite:     `create table texts (resource text primary key, token text not null)`,
		}
		db.mustExec(t, text[db.dialect])
		f, err := fence.NewSQL(db.dialect, "texts")
		if err != nil {
			t.Fatal(err)
		}
		for name, err := range map[string]error{
			"check": check(t.Context(), db, f, "shoe", 5), "migrate": f.Migrate(t.Context(), db.DB),
		} {
			if !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), "Migrate") {
				t.Errorf("%s: a table of texts: %v", name, err)
			}
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { db.mustMigrate(t, "made_by_many") })
		}
		all.Wait()
		for _, name := range []string{"a b", "a.b.c", `x"`, "x`", ".", "é", strings.Repeat("x", 64)} {
			if _, err := fence.NewSQL(db.dialect, name); !errors.Is(err, fence.ErrInvalid) {
				t.Errorf("the table %q: %v", name, err)
			}
		}
	})
	if _, err := fence.NewSQL("oracle", ""); !errors.Is(err, fence.ErrInvalid) {
		t.Error(err)
	}
}

// isRetryable reports whether a database has ended a transaction that its client should repeat.
func isRetryable(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code == "40001" || pg.Code == "40P01"
	}
	if my, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return my.Number == 1213 || my.Number == 1020 || my.Number == 1205
	}
	return err != nil && strings.Contains(err.Error(), "SQLITE_BUSY")
}

// TestSQLIsolation: under each isolation level, transactions that race take effect in the order of their tokens, and
// what a rejected one has written is gone.
func TestSQLIsolation(t *testing.T) {
	levels := map[fence.Dialect][]sql.IsolationLevel{
		fence.PostgreSQL: {sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable},
		fence.MySQL:      {sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable},
		fence.SQLite:     {sql.LevelDefault},
	}
	onEachDatabase(t, func(t *testing.T, db database) {
		f := db.mustMigrate(t, "")
		for _, level := range levels[db.dialect] {
			serial := map[fence.Dialect]string{
				fence.PostgreSQL: "bigserial primary key", fence.MySQL: "bigint auto_increment primary key",
				fence.SQLite: "integer primary key autoincrement",
			}
			db.mustExec(t, `drop table if exists writes`, fmt.Sprintf(`create table writes (id %s, token bigint)`, serial[db.dialect]))
			resource := "shoe under " + level.String()
			var mu sync.Mutex
			accepted, rejected := map[fence.Token]bool{}, 0
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					for range 15 {
						token := fence.Token(1 + rand.N(1000))
						err := writeOnce(t.Context(), db, f, level, resource, token)
						for isRetryable(err) {
							err = writeOnce(t.Context(), db, f, level, resource, token)
						}
						mu.Lock()
						switch {
						case err == nil:
							accepted[token] = true
						case errors.Is(err, fence.ErrStale):
							rejected++
						default:
							t.Errorf("%v: token %d: %v", level, token, err)
						}
						mu.Unlock()
					}
				})
			}
			all.Wait()
			rows, err := db.QueryContext(t.Context(), `select token from writes order by id`)
			if err != nil {
				t.Fatal(err)
			}
			var before fence.Token
			n := 0
			for ; rows.Next(); n++ {
				var token fence.Token
				if err := rows.Scan(&token); err != nil {
					t.Fatal(err)
				}
				if token < before || !accepted[token] {
					t.Errorf("%v: the write of token %d follows that of %d; accepted: %t", level, token, before, accepted[token])
				}
				before = token
			}
			if err := rows.Err(); err != nil {
				t.Error(err)
			}
			if n == 0 || n+rejected != 120 {
				t.Errorf("%v: %d writes are there, and %d were rejected, of 120", level, n, rejected)
			}
		}
	})
}

// writeOnce writes a token in a transaction that checks it first, so that the row's number is drawn in the order of the
// checks.
func writeOnce(ctx context.Context, db database, f *fence.SQL, level sql.IsolationLevel, resource string,
	token fence.Token) error {
	return inTx(ctx, db.DB, level, func(tx *sql.Tx) error {
		if err := f.Check(ctx, tx, resource, token); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, db.query(`insert into writes (token) values (?)`), int64(token))
		return err
	})
}

// TestSQLStaleHolder: no stale holder writes, wherever in its transaction it was stopped.
func TestSQLStaleHolder(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db database) {
		f := db.mustMigrate(t, "")
		db.mustExec(t, `create table stock (id int primary key, value varchar(100))`, `insert into stock values (1, '')`)
		fencetest.Tell(t, fencetest.Resource{
			Steps: 3,
			Write: func(ctx context.Context, token fence.Token, value string, reached func(), fenced bool) error {
				reached()
				return inTx(ctx, db.DB, sql.LevelDefault, func(tx *sql.Tx) error {
					if fenced {
						if err := f.Check(ctx, tx, "stock/1", token); err != nil {
							return err
						}
					}
					reached()
					if _, err := tx.ExecContext(ctx, db.query(`update stock set value = ? where id = 1`), value); err != nil {
						return err
					}
					reached()
					return nil
				})
			},
			Read: func(ctx context.Context) (value string, err error) {
				err = db.QueryRowContext(ctx, `select value from stock where id = 1`).Scan(&value)
				return value, err
			},
		})
	})
}

// TestSQLGate: a gate in the database lets writers in like one in memory, and remembers the token of one that has not
// left when its process ends.
func TestSQLGate(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db database) {
		gate := fence.NewSQLGate(db.mustMigrate(t, ""), db.DB)
		leave, err := gate.Enter(t.Context(), "r", 5)
		if err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := gate.Enter(short, "r", 7); err == nil || errors.Is(err, fence.ErrStale) {
			t.Errorf("while another writer is in: %v", err)
		}
		entered := make(chan error, 1)
		go func() {
			leave, err := gate.Enter(t.Context(), "r", 6)
			if err == nil {
				leave()
			}
			entered <- err
		}()
		leave()
		leave()
		if err := <-entered; err != nil {
			t.Error(err)
		}
		_, err = gate.Enter(t.Context(), "r", 5)
		if stale, ok := errors.AsType[*fence.StaleError](err); !ok || stale.Largest != 6 {
			t.Errorf("token 5 after 6: %v", err)
		}
	})
}

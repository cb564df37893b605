package fence_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/fence"
)

// pool is a *sql.DB in a type of its own, as libraries on top of database/sql have it.
type pool struct{ *sql.DB }

// TestSQLNeedsTransaction: a pool of connections is refused, also inside another type. A check through it would be
// committed on its own, before the write.
func TestSQLNeedsTransaction(t *testing.T) {
	db := mustOpen(t, fence.SQLite)
	f := db.mustMigrate(t, "")
	for _, tx := range []fence.Tx{db.DB, pool{db.DB}, &pool{db.DB}} {
		if err := f.Check(t.Context(), tx, "shoe", 5); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%T: %v", tx, err)
		}
	}
	if err := check(t.Context(), db, f, "shoe", 4); err != nil {
		t.Errorf("a refused check has remembered its token: %v", err)
	}
}

// TestMySQLUnfitTables: tables in which MySQL would accept stale tokens, or take two names for one, are refused before
// a token is stored. Not all servers report what does not fit into a column: sql_mode decides.
func TestMySQLUnfitTables(t *testing.T) {
	db := mustOpen(t, fence.MySQL)
	db.SetMaxOpenConns(1)
	db.mustExec(t, `set session sql_mode = ''`)
	for table, columns := range map[string]string{
		"short_tokens": `resource varbinary(512) primary key, token int not null`,
		"folded_names": `resource varchar(512) primary key, token bigint not null`,
		"without_key":  `resource varbinary(512), token bigint not null`,
		"no_rollback":  `resource varbinary(512) primary key, token bigint not null`,
	} {
		engine := "InnoDB"
		if table == "no_rollback" {
			engine = "MyISAM"
		}
		db.mustExec(t, `create table `+table+` (`+columns+`) engine=`+engine)
		f, err := fence.NewSQL(db.dialect, table)
		if err != nil {
			t.Fatal(err)
		}
		for _, token := range []fence.Token{1 << 52, 1 << 51} {
			err := check(t.Context(), db, f, "shoe", token)
			if err == nil || !strings.Contains(err.Error(), "Migrate") {
				t.Errorf("%s: token %d: %v", table, token, err)
			}
		}
	}
	f := db.mustMigrate(t, "")
	name := strings.Repeat("n", 512)
	for resource, fits := range map[string]bool{name: true, name + "x": false, name + "y": false} {
		err := check(t.Context(), db, f, resource, 7)
		if (err == nil) != fits || err != nil && !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("a name of %d bytes: %v", len(resource), err)
		}
	}
}

// TestPostgreSQLShortTokens: a column for integers of 32 bits is reported before the first token that does not fit.
func TestPostgreSQLShortTokens(t *testing.T) {
	db := mustOpen(t, fence.PostgreSQL)
	db.mustExec(t, `create table ints (resource text primary key, token int not null)`)
	f, err := fence.NewSQL(db.dialect, "ints")
	if err != nil {
		t.Fatal(err)
	}
	if err := check(t.Context(), db, f, "shoe", 5); !errors.Is(err, fence.ErrInvalid) {
		t.Error(err)
	}
}

package fence_test

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
)

// database is a database in which a fence is tested.
type database struct {
	*sql.DB
	dialect fence.Dialect
}

// servers starts a server of each kind for one test, and returns the driver and the name of an empty database for
// database/sql. Commits are not synced to disk.
var servers = map[fence.Dialect]func(testing.TB) (driver, name string){
	fence.PostgreSQL: func(t testing.TB) (string, string) {
		server, err := pgtest.Start("fsync=off")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Stop() })
		return "pgx", "postgres://test@" + server.Addr + "/postgres?sslmode=disable"
	},
	fence.MySQL: func(t testing.TB) (string, string) { return "mysql", startMariaDB(t) },
	fence.SQLite: func(t testing.TB) (string, string) {
		return "sqlite", "file:" + filepath.Join(t.TempDir(), "shop.db") +
			"?_txlock=immediate&_pragma=busy_timeout(2000)&_pragma=journal_mode(WAL)&_pragma=synchronous(off)"
	},
}

func mustOpen(t testing.TB, dialect fence.Dialect) database {
	t.Helper()
	driver, name := servers[dialect](t)
	db, err := sql.Open(driver, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(20)
	return database{db, dialect}
}

// onEachDatabase runs a test on an empty database of each kind.
func onEachDatabase(t *testing.T, test func(t *testing.T, db database)) {
	for dialect := range servers {
		t.Run(string(dialect), func(t *testing.T) {
			t.Parallel()
			test(t, mustOpen(t, dialect))
		})
	}
}

// query writes the parameters of a statement as the database wants them.
func (db database) query(text string) string {
	if db.dialect != fence.PostgreSQL {
		return text
	}
	for _, p := range []string{"$1", "$2", "$3"} {
		text = strings.Replace(text, "?", p, 1)
	}
	return text
}

func (db database) mustExec(t testing.TB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// mustMigrate returns a fence whose table exists.
func (db database) mustMigrate(t testing.TB, table string) *fence.SQL {
	t.Helper()
	f, err := fence.NewSQL(db.dialect, table)
	if err == nil {
		err = f.Migrate(t.Context(), db.DB)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

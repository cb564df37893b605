package mysql_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/benchtest"
	_ "github.com/holdfast-go/holdfast/store/mysql"
	"github.com/holdfast-go/holdfast/store/mysql/mysqltest"
)

// The floor is the minimum that any lock in a row has to do: one statement takes it, and one releases it. The token is
// read with the write, by last_insert_id.
const (
	floorTable = `create table shop.floor (name varchar(64) primary key, token bigint not null,
		owner varchar(64) not null, ends datetime(6) not null)`
	floorTake = `insert into floor values (?, last_insert_id(1), ?, utc_timestamp(6) + interval 12 second)
		on duplicate key update token = if(ends < utc_timestamp(6), last_insert_id(token + 1), token),
		owner = if(ends < utc_timestamp(6), values(owner), owner),
		ends = if(ends < utc_timestamp(6), values(ends), ends)`
	floorRelease = `update floor set ends = '1970-01-01' where name = ? and owner = ?`
)

// BenchmarkLocks: next to the floor is GET_LOCK, which has no TTL and no token, and writes nothing. The server flushes
// each commit.
func BenchmarkLocks(b *testing.B) {
	var server *mysqltest.Server
	s := benchtest.Store{
		Start: func(b testing.TB) string {
			var err error
			if server, err = mysqltest.Start("innodb-flush-log-at-trx-commit=1"); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(server.Close)
			if err := server.Exec(floorTable); err != nil {
				b.Fatal(err)
			}
			return server.URL()
		},
		Requests: func(ctx context.Context) (n int64, err error) { // statements
			db, err := sql.Open("mysql", server.DSN())
			if err != nil {
				return 0, err
			}
			defer db.Close()
			err = db.QueryRowContext(ctx, "show global status like 'Questions'").Scan(new(string), &n)
			return n, err
		},
		Lockers: append([]benchtest.Locker{
			benchtest.Floor(openBenchFloor),
			{Name: "get-lock", In: benchtest.Cycles, Open: openGetLock}, // each lock that is held takes a connection
		}, benchtest.Holdfast("create=true")...),
	}
	s.Run(b)
}

// benchDatabase opens as many connections as the store does.
func benchDatabase(b testing.TB, address string) *sql.DB {
	u, err := url.Parse(address)
	if err != nil {
		b.Fatal(err)
	}
	db, err := sql.Open("mysql", "root@tcp("+u.Host+")/"+strings.TrimPrefix(u.Path, "/"))
	if err != nil {
		b.Fatal(err)
	}
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	b.Cleanup(func() { db.Close() })
	return db
}

func prepare(b testing.TB, db *sql.DB, text string) *sql.Stmt {
	statement, err := db.PrepareContext(b.Context(), text)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { statement.Close() })
	return statement
}

func openBenchFloor(b testing.TB, address string) benchtest.Cycle {
	db := benchDatabase(b, address)
	take, release := prepare(b, db, floorTake), prepare(b, db, floorRelease)
	changed := func(result sql.Result, err error) error {
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); n == 0 || err != nil {
			return fmt.Errorf("nothing was changed: %w", err)
		}
		return nil
	}
	return func(ctx context.Context, lock string) error {
		owner := rand.Text()
		if err := changed(take.ExecContext(ctx, lock, owner)); err != nil {
			return err
		}
		return changed(release.ExecContext(ctx, lock, owner))
	}
}

func openGetLock(b testing.TB, address string) benchtest.Lock {
	db := benchDatabase(b, address)
	return func(ctx context.Context, name string, _ int) (benchtest.Lease, error) {
		c, err := db.Conn(ctx)
		if err != nil {
			return benchtest.Lease{}, err
		}
		var got int
		if err = c.QueryRowContext(ctx, "select get_lock(?, 60)", name).Scan(&got); err == nil && got != 1 {
			err = fmt.Errorf("the lock %s was not free for a minute", name)
		}
		return benchtest.Lease{Release: func() error {
			defer c.Close()
			_, err := c.ExecContext(ctx, "do release_lock(?)", name)
			return err
		}}, err
	}
}

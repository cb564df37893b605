package mysql

import (
	"crypto/rand"
	"database/sql"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/storetest"
)

// The floor is the minimum that any lock in a row has to do: one statement takes it, and one releases it. It has no
// token, no waiters and no record.
const (
	floorTake = `update floor set owner = ?, ends = utc_timestamp(6) + interval 30 second where name = ? and ends < utc_timestamp(6)`
	floorFree = `update floor set ends = '1970-01-01' where name = ? and owner = ?`
)

// BenchmarkCycle compares an acquire and a release by one caller with the floor, on a server that flushes each commit.
func BenchmarkCycle(b *testing.B) {
	s := startServer(b, "innodb-flush-log-at-trx-commit=1")
	if err := s.Exec("create table shop.floor (name varchar(64) primary key, owner varchar(64) not null, ends datetime(6) not null)"); err != nil {
		b.Fatal(err)
	}
	if err := s.Exec("insert into shop.floor values ('m', '', '1970-01-01')"); err != nil {
		b.Fatal(err)
	}
	b.Run("floor", func(b *testing.B) {
		db := openPool(b, s)
		take, err := db.PrepareContext(b.Context(), floorTake)
		if err != nil {
			b.Fatal(err)
		}
		free, err := db.PrepareContext(b.Context(), floorFree)
		if err != nil {
			b.Fatal(err)
		}
		changeOne := func(statement *sql.Stmt, args ...any) {
			result, err := statement.ExecContext(b.Context(), args...)
			if err != nil {
				b.Fatal(err)
			}
			if n, err := result.RowsAffected(); n != 1 || err != nil {
				b.Fatal(n, err)
			}
		}
		for b.Loop() {
			changeOne(take, "me", "m")
			changeOne(free, "m", "me")
		}
	})
	b.Run("holdfast", func(b *testing.B) {
		store := mustOpen(b, s.URL()+"?create=true")
		for b.Loop() {
			c := storetest.Mutex("m", 30*time.Second)
			c.ID = rand.Text()
			release(b, store, acquire(b, store, c).Claim)
		}
	})
}

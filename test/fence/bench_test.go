package fence_test

import (
	"database/sql"
	"testing"

	"github.com/holdfast-go/holdfast/fence"
)

// BenchmarkTransaction is a transaction that updates one row: plain, with the fence, and with any other statement in
// the place of the fence, since a round trip has its price whatever is asked.
func BenchmarkTransaction(b *testing.B) {
	for _, dialect := range []fence.Dialect{fence.PostgreSQL, fence.MySQL, fence.SQLite} {
		db := mustOpen(b, dialect)
		f := db.mustMigrate(b, "")
		db.mustExec(b, `create table stock (id int primary key, left_over int)`, `insert into stock values (1, 0)`)
		update := db.query(`update stock set left_over = ? where id = 1`)
		for _, kind := range []string{"plain", "fenced", "one-more-statement"} {
			b.Run(string(dialect)+"/"+kind, func(b *testing.B) {
				for n := 0; b.Loop(); n++ {
					err := inTx(b.Context(), db.DB, sql.LevelDefault, func(tx *sql.Tx) error {
						switch kind {
						case "fenced":
							if err := f.Check(b.Context(), tx, "stock/1", fence.Token(n+1)); err != nil {
								return err
							}
						case "one-more-statement":
							if _, err := tx.ExecContext(b.Context(), `select 1`); err != nil {
								return err
							}
						}
						_, err := tx.ExecContext(b.Context(), update, n)
						return err
					})
					if err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

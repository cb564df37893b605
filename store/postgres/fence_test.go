package postgres

import (
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// TestFence: a resource accepts a token again, and a larger one, and refuses a smaller one. What the refused
// transaction wrote is rolled back. Concurrent transactions are ordered by their tokens.
func TestFence(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	config, opts := parseURL(t, freshURL(t, s))
	pool := newPool(t, config)
	if err := Migrate(t.Context(), pool, opts); err != nil {
		t.Fatal(err)
	}
	execSQL(t, s, `create table stock (item text, by bigint)`)
	write := func(token int64) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `insert into stock values ('shoe', $1)`, token); err != nil {
				return err
			}
			return Fence(t.Context(), tx, opts, "shoe", token)
		})
	}
	for _, token := range []int64{5, 5, 9, 1 << 52} {
		if err := write(token); err != nil {
			t.Errorf("token %d: %v", token, err)
		}
	}
	for _, token := range []int64{1, 9, 1<<52 - 1} {
		err := write(token)
		checkError(t, err, driver.ErrLost, "shoe")
		if loss, ok := errors.AsType[*holdfast.LossError](err); !ok || loss.Cause != holdfast.LossTaken {
			t.Errorf("token %d: the caller's type of a loss: %+v, %v", token, loss, ok)
		}
		if loss, ok := errors.AsType[*driver.LossError](err); !ok || loss.Cause != driver.LossTaken {
			t.Errorf("token %d: the driver's type of a loss: %+v, %v", token, loss, ok)
		}
	}
	checkError(t, write(0), driver.ErrInvalid)
	if n, err := s.QueryValue(`select string_agg(by::text, ' ' order by by) from stock`); err != nil ||
		n != "5 5 9 4503599627370496" {
		t.Errorf("written: %s %v", n, err)
	}
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			if err := write(1<<52 + int64(i)); err != nil && !errors.Is(err, driver.ErrLost) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n, err := s.QueryValue(`select token = (select max(by) from stock) from ` +
		mustLocate(t, opts).fenceTable); err != nil || n != "t" {
		t.Errorf("the fence's token is that of the last write: %s %v", n, err)
	}
}

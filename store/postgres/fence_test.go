package postgres

import (
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
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
	write := func(token fence.Token) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `insert into stock values ('shoe', $1)`, int64(token)); err != nil {
				return err
			}
			return Fence(t.Context(), tx, opts, "shoe", token)
		})
	}
	for _, token := range []fence.Token{5, 5, 9, 1 << 52} {
		if err := write(token); err != nil {
			t.Errorf("token %d: %v", token, err)
		}
	}
	for _, token := range []fence.Token{1, 9, 1<<52 - 1} {
		err := write(token)
		checkError(t, err, driver.ErrLost, "shoe")
		if stale, ok := errors.AsType[*fence.StaleError](err); !ok || stale.Token != token || stale.Largest != 1<<52 {
			t.Errorf("token %d: %v", token, err)
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
			if err := write(1<<52 + fence.Token(i)); err != nil && !errors.Is(err, driver.ErrLost) {
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

// TestFenceSharesTable: users of pgx and of database/sql share a table.
func TestFenceSharesTable(t *testing.T) {
	t.Parallel()
	_, opts := parseURL(t, freshURL(t, sharedServer(t)))
	opts.Schema, opts.Table = "", ""
	p := mustLocate(t, opts)
	if want := `"public"."` + fence.DefaultTable + `"`; p.fenceTable != want {
		t.Errorf("the table of Fence is %s, and that of fence.SQL %s", p.fenceTable, want)
	}
}

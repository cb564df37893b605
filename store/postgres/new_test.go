package postgres

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
)

// TestNewRefuses: a nil pool, a nil transaction and options that cannot work are refused with an error that says why.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none") // no server is asked
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for what, c := range map[string]struct {
		pool *pgxpool.Pool
		opts *Options
	}{
		"no pool":                   {nil, nil},
		"an unknown layout":         {pool, &Options{Layout: "other"}},
		"a schema that is no name":  {pool, &Options{Schema: "\xff"}},
		"a negative statement time": {pool, &Options{Timeout: -time.Second}},
	} {
		if s, err := New(t.Context(), c.pool, c.opts); s != nil || !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v, %v", what, s, err)
		}
		if s, err := NewTable(t.Context(), c.pool, c.opts); s != nil || !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("a table, %s: %v, %v", what, s, err)
		}
		if err := Migrate(t.Context(), c.pool, c.opts); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("Migrate, %s: %v", what, err)
		}
	}
	if err := Fence(t.Context(), nil, nil, "stock", 1); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("Fence without a transaction: %v", err)
	}
}

package postgres

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestTableContract: the bare records keep their contract.
func TestTableContract(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	storetest.ConformTable(t, tabletest.Harness{Open: func(ctx context.Context) (record.Table, error) {
		pool, err := pgxpool.New(ctx, s.URL("test")+"?sslmode=disable&pool_max_conns=2")
		if err != nil {
			return nil, err
		}
		t.Cleanup(pool.Close)
		return NewTable(ctx, pool, &Options{Table: "tabletest_rows", Create: true})
	}})
}

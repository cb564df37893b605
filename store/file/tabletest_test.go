package file

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestTableContract: the bare records keep the contract of record.Table.
func TestTableContract(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/store"
	storetest.ConformTable(t, tabletest.Harness{Open: func(ctx context.Context) (record.Table,
		error) {
		return openTable(ctx, dir, nil)
	}})
}

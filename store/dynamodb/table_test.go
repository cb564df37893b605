package dynamodb

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// TestTableContract: the bare records keep their contract.
func TestTableContract(t *testing.T) {
	t.Parallel()
	table, endpoint := newTableName(), sharedServer(t).Endpoint
	mustOpen(t, storeURL(table, endpoint, "")) // makes the table
	storetest.ConformTable(t, tabletest.Harness{Open: func(ctx context.Context) (record.Table, error) {
		return NewTable(ctx, dynamodbtest.Client(endpoint), table, nil)
	}})
}

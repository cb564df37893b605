package memory_test

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestTableContract promises that the table keeps the contract of record.Table.
func TestTableContract(t *testing.T) {
	t.Parallel()
	m := memory.New(nil)
	storetest.ConformTable(t, tabletest.Harness{Open: func(context.Context) (record.Table, error) {
		return m.Table(),
			nil
	}})
}

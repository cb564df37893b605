package dynamodb

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// TestTableContract: the bare records keep their contract.
func TestTableContract(t *testing.T) {
	t.Parallel()
	table, endpoint := newTableName(), sharedServer(t).Endpoint
	mustOpen(t, urlOf(table, endpoint, "")) // makes the table
	storetest.ConformTable(t, tabletest.Harness{Open: func(ctx context.Context) (record.Table, error) {
		return NewTable(ctx, dynamodbtest.Client(endpoint), table, nil)
	}})
}

// TestRunsExpire: the item of a key has the table's TTL attribute only while its history is kept for a limited time,
// and no run is in progress. So the service removes no run in progress, and takes the attribute's value into account
// in the step that removes the item.
func TestRunsExpire(t *testing.T) {
	t.Parallel()
	table, client := newTableName(), dynamodbtest.Client(sharedServer(t).Direct)
	l := storetest.OpenLedger(t, mustOpen(t, urlOf(table, sharedServer(t).Direct, "")))
	expiresAt := func() (seconds int64, exists bool) {
		t.Helper()
		it := getItem(t, client, table, runsPrefix+"k")
		n, ok := it["expired_at"].(*types.AttributeValueMemberN)
		if !ok {
			return 0, false
		}
		seconds, _ = strconv.ParseInt(n.Value, 10, 64)
		return seconds, true
	}
	begin := func(keepFor time.Duration) driver.Grant {
		t.Helper()
		c := storetest.NewRun("k")
		c.Run.KeepFor = keepFor
		g := acquire(t, l, c)
		if at, exists := expiresAt(); exists {
			t.Errorf("the item of a run in progress may be removed at %d", at)
		}
		return g
	}
	fail := func(g driver.Grant) {
		t.Helper()
		if err := l.FinishRun(t.Context(), g, driver.RunOutcome{State: driver.RunFailed, Error: "no"}); err != nil {
			t.Fatal(err)
		}
	}
	fail(begin(24 * time.Hour))
	soonest := time.Now().Add(24 * time.Hour)
	if at, exists := expiresAt(); !exists || at < soonest.Unix() || at > soonest.Add(24*time.Hour).Unix() {
		t.Errorf("the item may be removed at %d (%t), want a day from now, %d, and what its token needs", at, exists,
			soonest.Unix())
	}
	fail(begin(0))
	if at, exists := expiresAt(); exists {
		t.Errorf("the item of a history that is kept forever may be removed at %d", at)
	}
}

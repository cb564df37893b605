package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// ledgerAt opens the ledger of a table.
func ledgerAt(t testing.TB, table, endpoint, more string) *ledger {
	t.Helper()
	s := mustOpen(t, urlOf(table, endpoint, "&layout=ledger"+more))
	l, err := s.OpenLedger(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.(*ledger)
}

// runClaim is a claim that begins a run of an event, in the ledger of the table.
func runClaim(table, key string, ttl time.Duration) driver.Claim {
	c := mutexClaim(table+"/"+key, ttl)
	c.Run = &driver.RunTerms{}
	return c
}

func succeed(t testing.TB, l driver.Ledger, g driver.Grant, result string) {
	t.Helper()
	if err := l.FinishRun(t.Context(), g, succeeded(result)); err != nil {
		t.Fatal(err)
	}
}

func fail(t testing.TB, l driver.Ledger, g driver.Grant) {
	t.Helper()
	if err := l.FinishRun(t.Context(), g, driver.RunOutcome{State: driver.RunFailed, Error: "no"}); err != nil {
		t.Fatal(err)
	}
}

func succeeded(result string) driver.RunOutcome {
	return driver.RunOutcome{State: driver.RunSucceeded, Result: []byte(result)}
}

// mustRefuseRun begins a run, which must be refused for a reason.
func mustRefuseRun(t testing.TB, l driver.Ledger, c driver.Claim, reason error) *driver.RunError {
	t.Helper()
	_, err := l.Acquire(t.Context(), c)
	var refused *driver.RunError
	if !errors.Is(err, reason) || !errors.As(err, &refused) {
		t.Fatalf("a run is refused with %v, want %v", err, reason)
	}
	return refused
}

func readRuns(t testing.TB, l driver.Ledger, name string) []driver.Run {
	t.Helper()
	h, err := l.ReadRuns(t.Context(), name, 0)
	if err != nil {
		t.Fatal(err)
	}
	return h.Runs
}

// statesOf returns the states of a history, in words.
func statesOf(runs []driver.Run) (text string) {
	for _, r := range runs {
		text += " " + string(r.State)
	}
	return text
}

// plainWorker follows the scheme of the layout to the letter, as people write it.
type plainWorker struct {
	client *sdk.Client
	table  string
}

func newPlainWorker(t testing.TB, table string) *plainWorker {
	return &plainWorker{dynamodbtest.Client(sharedServer(t).Endpoint), table}
}

// newest reads the newest row of an event; sequence 0: there is none.
func (w *plainWorker) newest(ctx context.Context, key string) (sequence int64, status string, err error) {
	out, err := w.client.Query(ctx, &sdk.QueryInput{
		TableName: &w.table, KeyConditionExpression: new("partition_key = :k"), ScanIndexForward: new(false), Limit: new(int32(1)),
		ConsistentRead: new(true), ExpressionAttributeValues: item{":k": textValue(key)},
	})
	if err != nil || len(out.Items) == 0 {
		return 0, "", err
	}
	sequence, err = strconv.ParseInt(numberOf(out.Items[0]["sequence"]), 10, 64)
	return sequence, stringOf(out.Items[0]["exec_status"]), err
}

// start sends the start, and returns the counter that comes back.
func (w *plainWorker) start(ctx context.Context, key string, sequence int64, createdAt string) (
	counter string, err error) {
	out, err := w.client.UpdateItem(ctx, &sdk.UpdateItemInput{
		TableName: &w.table, Key: item{"partition_key": textValue(key), "sequence": numberValue(sequence)},
		UpdateExpression: new("ADD atomic_counter :one SET exec_status = :started, created_at = :now"),
		ReturnValues:     types.ReturnValueAllNew,
		ExpressionAttributeValues: item{":one": numberValue(1), ":started": textValue("started"),
			":now": textValue(createdAt)},
	})
	if err != nil {
		return "", err
	}
	return numberOf(out.Attributes["atomic_counter"]), nil
}

// begin returns the sequence of a start, or 0 if somebody else runs or has run the event.
func (w *plainWorker) begin(ctx context.Context, key string) (sequence int64, err error) {
	sequence, status, err := w.newest(ctx, key)
	if err != nil || status == "started" || status == "succeeded" {
		return 0, err
	}
	counter, err := w.start(ctx, key, sequence+1, time.Now().UTC().Format(time.RFC3339))
	if err != nil || counter != "1" {
		return 0, err
	}
	return sequence + 1, nil
}

func (w *plainWorker) end(ctx context.Context, key string, sequence int64, status string) error {
	_, err := w.client.PutItem(ctx, &sdk.PutItemInput{TableName: &w.table, Item: item{
		"partition_key": textValue(key), "sequence": numberValue(sequence + 1), "exec_status": textValue(status),
		"created_at": textValue(time.Now().UTC().Format(time.RFC3339))}})
	return err
}

func (w *plainWorker) mustBegin(t testing.TB, key string) int64 {
	t.Helper()
	sequence, err := w.begin(t.Context(), key)
	if err != nil || sequence == 0 {
		t.Fatalf("a plain worker does not begin %q (%v)", key, err)
	}
	return sequence
}

func (w *plainWorker) mustNotBegin(t testing.TB, key string) {
	t.Helper()
	if sequence, err := w.begin(t.Context(), key); err != nil || sequence != 0 {
		t.Fatalf("a plain worker begins %q at %d (%v)", key, sequence, err)
	}
}

func (w *plainWorker) mustEnd(t testing.TB, key string, sequence int64, status string) {
	t.Helper()
	if err := w.end(t.Context(), key, sequence, status); err != nil {
		t.Fatal(err)
	}
}

// row reads one row.
func (w *plainWorker) row(t testing.TB, key string, sequence int64) item {
	t.Helper()
	out, err := w.client.GetItem(t.Context(), &sdk.GetItemInput{TableName: &w.table, ConsistentRead: new(true),
		Key: item{"partition_key": textValue(key), "sequence": numberValue(sequence)}})
	if err != nil {
		t.Fatal(err)
	}
	return out.Item
}

// rows reads the statuses of all rows, as "1:started 2:failed".
func (w *plainWorker) rows(t testing.TB, key string) (text string) {
	t.Helper()
	out, err := w.client.Query(t.Context(), &sdk.QueryInput{TableName: &w.table, ConsistentRead: new(true),
		KeyConditionExpression: new("partition_key = :k"), ExpressionAttributeValues: item{":k": textValue(key)}})
	if err != nil {
		t.Fatal(err)
	}
	for i, it := range out.Items {
		if i > 0 {
			text += " "
		}
		text += fmt.Sprintf("%s:%s", numberOf(it["sequence"]), stringOf(it["exec_status"]))
	}
	return text
}

// itemsWithoutStatus returns the partition keys of the items that a worker who scans the table takes for no run.
func (w *plainWorker) itemsWithoutStatus(t testing.TB) (keys []string) {
	t.Helper()
	out, err := w.client.Scan(t.Context(), &sdk.ScanInput{TableName: &w.table, ConsistentRead: new(true)})
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range out.Items {
		if it["exec_status"] == nil {
			keys = append(keys, stringOf(it["partition_key"]))
		}
	}
	return keys
}

// onceBefore calls f before the next request of an operation that is forwarded.
func onceBefore(p *dynamodbtest.Proxy, operation string, f func()) {
	done := false
	p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate {
		if r.Operation == operation && !done {
			done = true
			f()
		}
		return dynamodbtest.Fate{}
	})
}

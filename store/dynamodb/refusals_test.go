package dynamodb

import (
	"errors"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// TestErrorsOfRefusals: what the service refuses for good is reported at once, with what to do about it. Secrets
// are never shown.
func TestErrorsOfRefusals(t *testing.T) {
	t.Parallel()
	table := newTableName()
	p := newProxy(t, sharedServer(t).Direct)
	endpoint := url.QueryEscape(p.Endpoint)
	s := mustOpen(t, urlOf(table, p.Endpoint, ""))
	sorted := newTableName()
	if _, err := dynamodbtest.Client(sharedServer(t).Endpoint).CreateTable(t.Context(), &sdk.CreateTableInput{
		TableName: &sorted, BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: new("primary_id"), AttributeType: types.ScalarAttributeTypeS}, {AttributeName: new("n"),
				AttributeType: types.ScalarAttributeTypeN}},
		KeySchema: []types.KeySchemaElement{{AttributeName: new("primary_id"), KeyType: types.KeyTypeHash},
			{AttributeName: new("n"), KeyType: types.KeyTypeRange}},
	}); err != nil {
		t.Fatal(err)
	}
	check := func(err, is error, words ...string) {
		t.Helper()
		if !errors.Is(err, is) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v, want %v", err, is)
			return
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: does not name %s", err, w)
			}
		}
		t.Log(err)
	}
	for raw, words := range map[string][]string{
		"dynamodb://no-such-table?region=eu-central-1&endpoint=" +
			endpoint: {"no-such-table", "create=true", "region"},
		"dynamodb://" + table + "?region=eu-central-1&partition-key=other&endpoint=" +
			endpoint: {"primary_id (S)", "other"},
		"dynamodb://" + sorted + "?region=eu-central-1&create=true&endpoint=" + endpoint: {"RANGE n (N)",
			"primary_id"},
		"dynamodb://" + table + "?region=eu-central-1&partition-key=expired_at&endpoint=" + endpoint: {"expired_at"},
		"dynamodb://" + table + "?region=eu-central-1&endpoint=nowhere":                              {"https://"},
		"dynamodb://AKIA:hunter2@" + table +
			"?region=eu-central-1": {"AWS_ACCESS_KEY_ID"},
		"dynamodb://?region=eu-central-1": {"dynamodb://table"},
		"dynamodb://" + table + "?region=eu-central-1&nope=1": {"nope",
			"endpoint"},
		"dynamodb://" + table + "?create=maybe": {"create"},
	} {
		_, err := driver.Open(t.Context(), raw)
		check(err, driver.ErrInvalid, words...)
	}

	refuse := func(code, message string) {
		p.Decide(func(dynamodbtest.Request) dynamodbtest.Fate {
			return dynamodbtest.Fate{Status: 400, Code: code, Message: message}
		})
	}
	refuse("AccessDeniedException", "User: arn:aws:iam::1:user/x is not authorized to perform: dynamodb:PutItem")
	from := time.Now()
	_, err := s.Acquire(t.Context(), waitingClaim(mutexClaim("m", time.Minute)))
	check(err, driver.ErrDenied, "dynamodb:PutItem", table)
	refuse("ExpiredTokenException", "The security token included in the request is expired")
	_, err = s.Acquire(t.Context(), waitingClaim(mutexClaim("m", time.Minute)))
	check(err, driver.ErrDenied, "ExpiredToken")
	refuse("ResourceNotFoundException", "Requested resource not found")
	_, err = s.Acquire(t.Context(), waitingClaim(mutexClaim("m", time.Minute)))
	check(err, driver.ErrInvalid, table, "region")
	if took := time.Since(from); took > 30*time.Second { // of three minutes
		t.Errorf("what is final was asked for %v", took)
	}

	// Throttled for a while: backed off, and then let in.
	var asked atomic.Int32
	until := time.Now().Add(time.Second)
	p.Decide(func(dynamodbtest.Request) dynamodbtest.Fate {
		if time.Now().After(until) {
			return dynamodbtest.Fate{}
		}
		asked.Add(1)
		return dynamodbtest.Fate{Status: 400, Code: "ThrottlingException", Message: "Rate exceeded"}
	})
	g := acquire(t, s, mutexClaim("m", time.Minute))
	t.Logf("throttled for a second, it asked %d times", asked.Load())
	if asked.Load() > 60 {
		t.Errorf("throttled for a second, it asked %d times", asked.Load())
	}
	release(t, s, g.Claim)
}

// TestCreateTableDenied: a user who may make a table, but may not look whether it is active, learns that at once.
func TestCreateTableDenied(t *testing.T) {
	t.Parallel()
	p := newProxy(t, sharedServer(t).Direct)
	p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate {
		if r.Operation == "DescribeTable" {
			return dynamodbtest.Fate{Status: 400, Code: "AccessDeniedException", Message: "not authorized"}
		}
		return dynamodbtest.Fate{}
	})
	from := time.Now()
	_, err := driver.Open(t.Context(), urlOf(newTableName(), p.Endpoint, ""))
	if took := time.Since(from); !errors.Is(err, driver.ErrDenied) ||
		!strings.Contains(err.Error(), "dynamodb:DescribeTable") || took > maxCreateTime/2 {
		t.Errorf("after %v: %v", took, err)
	}
}

// TestRecordTooLarge: a record that is too large for an item of DynamoDB is refused, and nothing changes.
// Attributes of other clients in the item do not count.
func TestRecordTooLarge(t *testing.T) {
	t.Parallel()
	table, client := newTableName(), dynamodbtest.Client(sharedServer(t).Endpoint)
	s := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, ""))
	putItem(t, client, table, item{"primary_id": textValue("m"), "expired_at": numberText(1),
		"ballast": textValue(strings.Repeat("x", 409000))})
	c := mutexClaim("m", time.Minute)
	c.Meta = strings.Repeat("m", s.Info().MaxMeta)
	release(t, s, acquire(t, s, c).Claim)
	rows, err := NewTable(t.Context(), client, table, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	row := record.Row{Name: "r", Data: make([]byte, maxItem+1)}
	if _, err := rows.Swap(t.Context(), row); !errors.Is(err, driver.ErrQueueFull) {
		t.Errorf("a record of %d bytes: %v", len(row.Data), err)
	}
	row.Data = row.Data[1:]
	if row, err = rows.Swap(t.Context(), row); err != nil {
		t.Errorf("a record of %d bytes: %v", len(row.Data), err)
	}
	if got, err := rows.Load(t.Context(), "r"); err != nil || len(got.Data) != maxItem || got.Version != row.Version {
		t.Errorf("%d bytes came back, version %s: %v", len(got.Data), got.Version, err)
	}
	if err := rows.Delete(t.Context(), row); err != nil {
		t.Error(err)
	}
	if err := rows.Delete(t.Context(), row); err != nil {
		t.Error("deleting what is not there:", err)
	}
	for l, err := range s.List(t.Context(), "") {
		t.Errorf("listed: %+v %v", l, err)
	}
}

package dynamodb

import (
	"context"
	"errors"
	"strings"
	"testing"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/fencetest"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// newFencedTable returns a table for items of the tests' own.
func newFencedTable(t *testing.T) (client *sdk.Client, table string) {
	t.Helper()
	s := sharedServer(t)
	table = newTableName()
	mustOpen(t, urlOf(table, s.Endpoint, ""))
	return dynamodbtest.Client(s.Endpoint), table
}

// refusedItem adds to the refusal of a write the item as it is. DynamoDB sends it, since the request asks for it, and
// the emulator does not.
func refusedItem(t *testing.T, client *sdk.Client, table string, err error) error {
	if refused, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok && refused.Item == nil {
		refused.Item = getItem(t, client, table, "shoe")
	}
	return err
}

// TestFence: puts and updates are rejected under a smaller token, with both tokens. A condition of the request's own is
// checked as well, and an item with a token that is text is reported.
func TestFence(t *testing.T) {
	t.Parallel()
	client, table := newFencedTable(t)
	put := func(token fence.Token) error {
		in := &sdk.PutItemInput{TableName: &table, Item: item{"primary_id": textValue("shoe"), "stock": numberText(int64(token))}}
		if err := FencePut(in, token); err != nil {
			return err
		}
		_, err := client.PutItem(t.Context(), in)
		return FenceError(refusedItem(t, client, table, err), "shoe", token)
	}
	update := func(token fence.Token, expression, condition string) error {
		in := &sdk.UpdateItemInput{TableName: &table, Key: item{"primary_id": textValue("shoe")},
			ExpressionAttributeValues: item{":stock": numberText(int64(token))}}
		if expression != "" {
			in.UpdateExpression = &expression
		}
		if strings.Contains(condition, ":none") {
			in.ExpressionAttributeValues[":none"] = numberText(0)
		}
		if condition != "" {
			in.ConditionExpression = &condition
		}
		if err := FenceUpdate(in, token); err != nil {
			return err
		}
		_, err := client.UpdateItem(t.Context(), in)
		return FenceError(refusedItem(t, client, table, err), "shoe", token)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	must(put(9))
	must(put(9))
	must(put(10))
	must(update(10, "SET stock = :stock", ""))
	must(update(100, "remove was set stock = :stock", "attribute_exists(stock) AND stock > :none"))
	must(update(101, "ADD sold :stock", ""))
	for _, err := range []error{put(11), update(11, "SET stock = :stock", ""), update(11, "ADD sold :stock", "stock > :none")} {
		if stale, ok := errors.AsType[*fence.StaleError](err); !ok || stale.Token != 11 || stale.Largest != 101 {
			t.Errorf("token 11 after 101: %v", err)
		}
	}
	err := update(102, "SET stock = :stock", "stock < :none")
	if _, ok := errors.AsType[*types.ConditionalCheckFailedException](err); !ok || errors.Is(err, fence.ErrStale) {
		t.Errorf("the request's own condition is false: %v", err)
	}
	for _, token := range []fence.Token{0, -1, 1 << 53} {
		if err := put(token); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("token %d: %v", token, err)
		}
	}
	it := getItem(t, client, table, "shoe")
	it[fenceAttribute] = textValue("5")
	putItem(t, client, table, it)
	if err := put(200); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("a token that is text: %v", err)
	}
}

// TestFenceStaleHolder: no stale holder writes an item.
func TestFenceStaleHolder(t *testing.T) {
	t.Parallel()
	client, table := newFencedTable(t)
	fencetest.Tell(t, fencetest.Resource{
		Steps: 1,
		Write: func(ctx context.Context, token fence.Token, value string, reached func(), fenced bool) error {
			in := &sdk.PutItemInput{TableName: &table, Item: item{"primary_id": textValue("shoe"), "value": textValue(value)}}
			if fenced {
				if err := FencePut(in, token); err != nil {
					return err
				}
			}
			reached()
			_, err := client.PutItem(ctx, in)
			return FenceError(refusedItem(t, client, table, err), "shoe", token)
		},
		Read: func(context.Context) (string, error) {
			value, ok := getItem(t, client, table, "shoe")["value"].(*types.AttributeValueMemberS)
			if !ok {
				return "", errors.New("the item has no value")
			}
			return value.Value, nil
		},
	})
}

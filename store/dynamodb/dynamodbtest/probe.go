package dynamodbtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// Probe checks that a service obeys the conditions of writes, on which locks rely. It lets clients race for
// one item: each race must have one winner. The error names the first race that did not. It makes a table of
// its own.
func Probe(ctx context.Context, endpoint string) error {
	const table, racers, rounds = "probe", 8, 25
	client, key := Client(endpoint), "primary_id"
	_, err := client.CreateTable(ctx, &sdk.CreateTableInput{
		TableName: new(table), BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: &key,
			AttributeType: types.ScalarAttributeTypeS}},
		KeySchema: []types.KeySchemaElement{{AttributeName: &key, KeyType: types.KeyTypeHash}},
	})
	if err != nil {
		return err
	}
	if err := sdk.NewTableExistsWaiter(client, func(o *sdk.TableExistsWaiterOptions) {
		o.MinDelay, o.MaxDelay = 10*time.Millisecond, 100*time.Millisecond
	}).Wait(ctx, &sdk.DescribeTableInput{TableName: new(table)}, startTime); err != nil {
		return err
	}
	s := func(v string) types.AttributeValue { return &types.AttributeValueMemberS{Value: v} }
	n := func(v int) types.AttributeValue { return &types.AttributeValueMemberN{Value: strconv.Itoa(v)} }
	type item = map[string]types.AttributeValue
	update := func(round, by int, condition string, values item) error {
		values[":by"], values[":round"] = n(by), n(round)
		_, err := client.UpdateItem(ctx, &sdk.UpdateItemInput{
			TableName: new(table), Key: item{key: s("item")},
			UpdateExpression:    new("SET writer = :by, version = :round, expired_at = :round"),
			ConditionExpression: &condition, ExpressionAttributeValues: values,
			ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
		})
		return err
	}
	// All racers try each of these writes at once. Exactly one may succeed, and the item must be what it wrote.
	ways := []struct {
		what string
		do   func(round, by int) error
	}{
		{"create", func(round, by int) error { return update(round, by, "attribute_not_exists(primary_id)", item{}) }},
		{"replace", func(round, by int) error {
			return update(round, by, "version = :was AND expired_at = :was", item{":was": n(round - 1)})
		}},
		{"put over an expired", func(round, by int) error {
			_, err := client.PutItem(ctx, &sdk.PutItemInput{TableName: new(table),
				Item: item{key: s("item"), "writer": n(by), "version": n(round),
					"expired_at": n(round)},
				ConditionExpression:       new("attribute_not_exists(primary_id) OR expired_at < :now"),
				ExpressionAttributeValues: item{":now": n(round)}})
			return err
		}},
		{"delete", func(round, by int) error {
			_, err := client.DeleteItem(ctx, &sdk.DeleteItemInput{TableName: new(table), Key: item{key: s("item")},
				ConditionExpression: new("version = :was"), ExpressionAttributeValues: item{":was": n(round - 1)}})
			return err
		}},
	}
	for round := range rounds * len(ways) {
		way := ways[round%len(ways)]
		var winners, winner atomic.Int32
		var failed atomic.Value
		var wg sync.WaitGroup
		for by := range racers {
			wg.Go(func() {
				err := way.do(round, by)
				var refused *types.ConditionalCheckFailedException
				switch {
				case err == nil:
					winners.Add(1)
					winner.Store(int32(by))
				case !errors.As(err, &refused):
					failed.Store(err)
				}
			})
		}
		wg.Wait()
		if err := failed.Load(); err != nil {
			return err.(error)
		}
		if n := winners.Load(); n != 1 {
			return fmt.Errorf("this DynamoDB cannot keep locks: of %d clients that %s at once %d succeeded", racers,
				way.what, n)
		}
		got, err := client.GetItem(ctx,
			&sdk.GetItemInput{TableName: new(table), Key: item{key: s("item")}, ConsistentRead: new(true)})
		if err != nil {
			return err
		}
		writer, ok := got.Item["writer"].(*types.AttributeValueMemberN)
		if way.what == "delete" && ok || way.what != "delete" &&
			(!ok || writer.Value != strconv.Itoa(int(winner.Load()))) {
			return fmt.Errorf("this DynamoDB cannot keep locks: after %s a consistent read returns %v", way.what,
				got.Item)
		}
	}
	return nil
}

package dynamodb

import (
	"context"
	"crypto/rand"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cirello.io/dynamolock/v2"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/benchtest"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// BenchmarkLocks, on an emulator. The floor is the minimum that any lock has to do: one conditional put and one delete.
// Two updates cost the service the same, but cost the emulator more; so two updates of the size of Holdfast's, without
// a lock, are measured, too. The peer is dynamolock.
func BenchmarkLocks(b *testing.B) {
	s := benchtest.Store{
		Start: func(b testing.TB) string {
			direct := server(b).Direct
			for _, address := range []string{storeURL(direct), awslockAt(direct)} { // this makes the tables
				c, err := holdfast.Open(b.Context(), address, nil)
				if err != nil {
					b.Fatal(err)
				}
				c.Close()
			}
			return storeURL(direct)
		},
		Lockers: append([]benchtest.Locker{
			benchtest.Floor(openPutAndDelete), twoUpdates(),
			{Name: "dynamolock", Open: openDynamolock},
			benchtest.At("holdfast-awslock", func(address string) string { return awslockAt(endpointOf(address)) }),
		}, benchtest.Holdfast("")...),
	}
	s.Run(b)
}

// endpointOf is the endpoint in a store's URL.
func endpointOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		panic(err)
	}
	return u.Query().Get("endpoint")
}

func keyOf(lock string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{"primary_id": &types.AttributeValueMemberS{Value: lock}}
}

func openPutAndDelete(_ testing.TB, address string) benchtest.Cycle {
	client := dynamodbtest.Client(endpointOf(address))
	return func(ctx context.Context, lock string) error {
		_, err := client.PutItem(ctx, &sdk.PutItemInput{TableName: new("locks"), Item: keyOf(lock),
			ConditionExpression: new("attribute_not_exists(primary_id)")})
		if err == nil {
			_, err = client.DeleteItem(ctx, &sdk.DeleteItemInput{TableName: new("locks"), Key: keyOf(lock)})
		}
		return err
	}
}

func twoUpdates() benchtest.Locker {
	l := benchtest.Floor(openTwoUpdates)
	l.Name = "two-updates"
	return l
}

func openTwoUpdates(_ testing.TB, address string) benchtest.Cycle {
	client := dynamodbtest.Client(endpointOf(address))
	var versions sync.Map
	return func(ctx context.Context, lock string) error {
		for range 2 {
			last, _ := versions.LoadOrStore(lock, "")
			ends := strconv.FormatInt(time.Now().Unix(), 10)
			condition, version := "attribute_not_exists(#v)", rand.Text()
			values := map[string]types.AttributeValue{":e": &types.AttributeValueMemberN{Value: ends},
				":v": &types.AttributeValueMemberS{Value: version},
				":d": &types.AttributeValueMemberS{Value: strings.Repeat("d", 300)}}
			if last != "" {
				condition, values[":was"] = "#v = :was", &types.AttributeValueMemberS{Value: last.(string)}
			}
			update := &sdk.UpdateItemInput{TableName: new("locks"), Key: keyOf("updates/" + lock),
				UpdateExpression: new("SET #d = :d, #v = :v, #e = :e"), ConditionExpression: &condition,
				ExpressionAttributeValues: values,
				ExpressionAttributeNames:  map[string]string{"#d": "data", "#v": "version", "#e": "expired_at"}}
			if _, err := client.UpdateItem(ctx, update); err != nil {
				return err
			}
			versions.Store(lock, version)
		}
		return nil
	}
}

func openDynamolock(b testing.TB, address string) benchtest.Lock {
	c := dynamolockAt(b, endpointOf(address), benchtest.TTL)
	b.Cleanup(func() { _ = c.CloseWithContext(context.WithoutCancel(b.Context())) })
	return func(ctx context.Context, name string, _ int) (benchtest.Lease, error) {
		l, err := c.AcquireLockWithContext(ctx, name, dynamolock.WithRefreshPeriod(10*time.Millisecond),
			dynamolock.WithAdditionalTimeToWaitForLock(time.Minute))
		return benchtest.Lease{Release: func() error { _, err := c.ReleaseLock(l); return err }}, err
	}
}

package dynamodb

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// contestants take a lock and give it back, each in its own way. The floor is what any lock has to do at the least: one
// conditional put, and one delete.
var contestants = []struct {
	name string
	open func(b *testing.B) (cycle func(lock string) error)
}{
	{"floor", func(b *testing.B) func(string) error {
		client := floorClient(b)
		return func(lock string) error {
			key := map[string]types.AttributeValue{"primary_id": &types.AttributeValueMemberS{Value: lock}}
			_, err := client.PutItem(b.Context(), &sdk.PutItemInput{TableName: new("locks"), Item: key, ConditionExpression: new("attribute_not_exists(primary_id)")})
			if err == nil {
				_, err = client.DeleteItem(b.Context(), &sdk.DeleteItemInput{TableName: new("locks"), Key: key})
			}
			return err
		}
	}},
	{"plain", func(b *testing.B) func(string) error {
		client := floorClient(b)
		return func(lock string) error {
			number := func(n int64) types.AttributeValue {
				return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
			}
			key, now := map[string]types.AttributeValue{"primary_id": &types.AttributeValueMemberS{Value: lock}}, time.Now().Unix()
			_, err := client.PutItem(b.Context(), &sdk.PutItemInput{TableName: new("locks"),
				Item:                      map[string]types.AttributeValue{"primary_id": key["primary_id"], "expired_at": number(now + 30)},
				ConditionExpression:       new("attribute_not_exists(primary_id) OR expired_at < :timestamp"),
				ExpressionAttributeValues: map[string]types.AttributeValue{":timestamp": number(now)}})
			if err == nil {
				_, err = client.UpdateItem(b.Context(), &sdk.UpdateItemInput{TableName: new("locks"), Key: key, UpdateExpression: new("SET expired_at = :past"),
					ConditionExpression:       new("expired_at = :mine"),
					ExpressionAttributeValues: map[string]types.AttributeValue{":past": number(now - 1), ":mine": number(now + 30)}})
			}
			return err
		}
	}},
	{"holdfast", func(b *testing.B) func(string) error { return holdfastCycle(b, storeURL(server(b).Direct)) }},
	{"holdfast-awslock", func(b *testing.B) func(string) error { return holdfastCycle(b, awslockAt(server(b).Direct)) }},
	{"dynamolock", func(b *testing.B) func(string) error {
		open(b, awslockAt(server(b).Direct)) // makes the table
		c := dynamolockAt(b, server(b).Direct, 20*time.Second)
		b.Cleanup(func() { _ = c.CloseWithContext(context.Background()) })
		return func(lock string) error {
			l, err := c.AcquireLock(lock)
			if err == nil {
				_, err = c.ReleaseLock(l)
			}
			return err
		}
	}},
}

func floorClient(b *testing.B) *sdk.Client {
	open(b, storeURL(server(b).Direct)) // makes the table
	return dynamodbtest.Client(server(b).Direct)
}

func holdfastCycle(b *testing.B, url string) func(string) error {
	c := open(b, url)
	var locks sync.Map
	return func(lock string) error {
		mu, _ := locks.LoadOrStore(lock, c.Mutex(lock, nil))
		l, err := mu.(*holdfast.Mutex).Lock(b.Context())
		if err == nil {
			err = l.Unlock()
		}
		return err
	}
}

// BenchmarkUncontended is one lock and one unlock of a lock that nobody else wants.
func BenchmarkUncontended(b *testing.B) {
	for _, c := range contestants {
		b.Run(c.name, func(b *testing.B) {
			cycle, lock := c.open(b), name()
			for b.Loop() {
				if err := cycle(lock); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkOwnKeys is the same by 64 goroutines at once, each on a lock of its own.
func BenchmarkOwnKeys(b *testing.B) {
	for _, c := range contestants {
		b.Run(c.name, func(b *testing.B) {
			cycle, prefix := c.open(b), name()
			var todo atomic.Int64
			todo.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ResetTimer()
			for i := range 64 {
				wg.Go(func() {
					for todo.Add(-1) >= 0 {
						if err := cycle(fmt.Sprint(prefix, i)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

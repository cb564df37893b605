package dynamodb

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// contestants are ways to take and release a lock. The floor is the minimum that any lock has to do: one
// conditional put and one delete. Two updates cost the service the same, but cost the emulator more; so the costs
// of two updates of the size of Holdfast's, without a lock, are measured, too.
var contestants = []struct {
	name string
	open func(b *testing.B) (cycle func(lock string) error)
}{
	{"floor", func(b *testing.B) func(string) error {
		client := floorClient(b)
		return func(lock string) error {
			key := map[string]types.AttributeValue{"primary_id": &types.AttributeValueMemberS{Value: lock}}
			_, err := client.PutItem(b.Context(), &sdk.PutItemInput{TableName: new("locks"), Item: key,
				ConditionExpression: new("attribute_not_exists(primary_id)")})
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
				Item: map[string]types.AttributeValue{"primary_id": key["primary_id"],
					"expired_at": number(now + 30)},
				ConditionExpression:       new("attribute_not_exists(primary_id) OR expired_at < :timestamp"),
				ExpressionAttributeValues: map[string]types.AttributeValue{":timestamp": number(now)}})
			if err == nil {
				_, err = client.UpdateItem(b.Context(),
					&sdk.UpdateItemInput{TableName: new("locks"), Key: key,
						UpdateExpression:    new("SET expired_at = :past"),
						ConditionExpression: new("expired_at = :mine"),
						ExpressionAttributeValues: map[string]types.AttributeValue{":past": number(now - 1),
							":mine": number(now + 30)}})
			}
			return err
		}
	}},
	{"updates", func(b *testing.B) func(string) error {
		client, was := floorClient(b), sync.Map{}
		return func(lock string) error {
			for range 2 {
				last, _ := was.LoadOrStore(lock, "")
				condition, version := "attribute_not_exists(#v)", "1795281045."+rand.Text()
				values := map[string]types.AttributeValue{":e": &types.AttributeValueMemberN{Value: version[:10]},
					":v": &types.AttributeValueMemberS{Value: version},
					":d": &types.AttributeValueMemberS{Value: strings.Repeat("d", 300)}}
				if last != "" {
					condition = "#v = :was AND #e = :ends"
					values[":was"], values[":ends"] = &types.AttributeValueMemberS{Value: last.(string)}, values[":e"]
				}
				if _, err := client.UpdateItem(b.Context(), &sdk.UpdateItemInput{TableName: new("locks"),
					Key:              map[string]types.AttributeValue{"primary_id": &types.AttributeValueMemberS{Value: "updates" + lock}},
					UpdateExpression: new("SET #d = :d, #v = :v, #e = :e"), ConditionExpression: &condition, ExpressionAttributeValues: values,
					ExpressionAttributeNames: map[string]string{"#d": "data", "#v": "version",
						"#e": "expired_at"}}); err != nil {
					return err
				}
				was.Store(lock, version)
			}
			return nil
		}
	}},
	{"holdfast", func(b *testing.B) func(string) error { return holdfastCycle(b, storeURL(server(b).Direct)) }},
	{"holdfast-awslock", func(b *testing.B) func(string) error {
		return holdfastCycle(b,
			awslockAt(server(b).Direct))
	}},
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
			err = l.Release()
		}
		return err
	}
}

// counted reports the processor time that a cycle costs this process and the emulator. The emulator has one
// thread, so this shows whether a cycle waits for the lock or for the emulator.
func counted(b *testing.B, work func()) {
	spent := func() (ours, emulators time.Duration) {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano()), server(b).ProcessorTime()
	}
	ours, emulators := spent()
	b.ReportAllocs()
	b.ResetTimer()
	work()
	b.StopTimer()
	oursNow, emulatorsNow := spent()
	b.ReportMetric(float64((oursNow-ours).Microseconds())/float64(b.N), "client-cpu-us/op")
	b.ReportMetric(float64((emulatorsNow-emulators).Microseconds())/float64(b.N), "emulator-cpu-us/op")
}

// BenchmarkUncontended: one goroutine takes and releases a lock that no other wants.
func BenchmarkUncontended(b *testing.B) {
	for _, c := range contestants {
		b.Run(c.name, func(b *testing.B) {
			cycle, lock := c.open(b), name()
			counted(b, func() {
				for range b.N {
					if err := cycle(lock); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// BenchmarkOwnKeys: 64 goroutines each take and release a lock of their own.
func BenchmarkOwnKeys(b *testing.B) {
	for _, c := range contestants {
		b.Run(c.name, func(b *testing.B) {
			cycle, prefix := c.open(b), name()
			var todo atomic.Int64
			todo.Store(int64(b.N))
			counted(b, func() {
				var wg sync.WaitGroup
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
		})
	}
}

package dynamodb

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// prove runs the long counts, which take minutes.
var prove = flag.Bool("prove", false, "run the long counts")

var started bool

// startShared starts the emulator of all tests but those that stop it, and probes it.
var startShared = sync.OnceValues(func() (*dynamodbtest.Server, error) {
	s, err := dynamodbtest.Start(context.Background())
	if err != nil {
		return nil, err
	}
	started = true
	return s, dynamodbtest.Probe(context.Background(), s.Endpoint)
})

func TestMain(m *testing.M) {
	flag.Parse()
	if p := flag.Lookup("test.parallel"); p.Value.String() == p.DefValue {
		_ = p.Value.Set("6") // the tests wait more than they work
	}
	os.Setenv("AWS_ACCESS_KEY_ID", "test")
	os.Setenv("AWS_SECRET_ACCESS_KEY", "hunter2secret")
	os.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	code := m.Run()
	if started {
		s, _ := startShared()
		if said := s.Stop(); said != "" {
			fmt.Fprintln(os.Stderr, "the emulator had ended by itself:", said)
			code = 1
		}
	}
	os.Exit(code)
}

// Helpers that the tests of all stores share.
var (
	mustOpen     = storetest.Open
	shiftedClock = storetest.ShiftedClock
	mutexClaim   = storetest.Mutex
	waitingClaim = storetest.Waiting
	acquire      = storetest.Acquire
	renew        = storetest.Renew
	release      = storetest.Release
	lossOf       = storetest.LossOf
	eventually   = storetest.Eventually
)

func sharedServer(t testing.TB) *dynamodbtest.Server {
	t.Helper()
	s, err := startShared()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newProxy(t testing.TB, to string) *dynamodbtest.Proxy {
	t.Helper()
	p, err := dynamodbtest.NewProxy(to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// newTableName returns a name that no other test has.
func newTableName() string { return "t-" + strings.ToLower(rand.Text()[:12]) }

func urlOf(table, endpoint, more string) string {
	return fmt.Sprintf("dynamodb://%s?region=eu-central-1&create=true&endpoint=%s%s", table,
		url.QueryEscape(endpoint), more)
}

func holdersOf(t testing.TB, s driver.Store, name string) []driver.ClaimInfo {
	t.Helper()
	l, err := s.Inspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return l.Holders
}

func numberText(v int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(v, 10)}
}

func getItem(t testing.TB, client *sdk.Client, table, key string) item {
	t.Helper()
	out, err := client.GetItem(t.Context(), &sdk.GetItemInput{TableName: &table,
		Key: item{"primary_id": textValue(key)}, ConsistentRead: new(true)})
	if err != nil {
		t.Fatal(err)
	}
	return out.Item
}

// putItem writes an item whatever is there, like an operator.
func putItem(t testing.TB, client *sdk.Client, table string, it item) {
	t.Helper()
	if _, err := client.PutItem(t.Context(), &sdk.PutItemInput{TableName: &table, Item: it}); err != nil {
		t.Fatal(err)
	}
}

func deleteItem(t testing.TB, client *sdk.Client, table, key string) {
	t.Helper()
	if _, err := client.DeleteItem(t.Context(),
		&sdk.DeleteItemInput{TableName: &table, Key: item{"primary_id": textValue(key)}}); err != nil {
		t.Fatal(err)
	}
}

// plainLock takes a lock in the common pattern, as people write it, until a second of the client's own clock.
func plainLock(ctx context.Context, client *sdk.Client, table, key, owner string, until int64) (bool, error) {
	_, err := client.PutItem(ctx, &sdk.PutItemInput{
		TableName: &table, Item: item{"primary_id": textValue(key), "expired_at": numberText(until),
			"owner": textValue(owner)},
		ConditionExpression:       new("attribute_not_exists(primary_id) OR expired_at < :timestamp"),
		ExpressionAttributeValues: item{":timestamp": numberText(time.Now().Unix())},
	})
	var refused *types.ConditionalCheckFailedException
	if errors.As(err, &refused) {
		return false, nil
	}
	return err == nil, err
}

func mustPlainLock(t testing.TB, client *sdk.Client, table, key string, until int64) bool {
	t.Helper()
	took, err := plainLock(t.Context(), client, table, key, "plain", until)
	if err != nil {
		t.Fatal(err)
	}
	return took
}

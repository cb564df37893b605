package foreign

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"cirello.io/dynamolock/v2"
	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/torture"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

const table = "locks"

// startDynamoDB starts an emulator. What dynamolock leaves in the table is not counted: an item without a holder stays,
// and whether it has one is seen by watching it for a TTL.
func startDynamoDB(t *testing.T) (s server) {
	t.Helper()
	e, err := dynamodbtest.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Stop() })
	s.address, s.text = e.Direct, "DynamoDB, emulator"
	client := dynamodbtest.Client(e.Direct)
	locks, err := dynamolock.New(client, table)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locks.CreateTableWithContext(t.Context(), table); err != nil {
		t.Fatal(err)
	}
	s.list = func(ctx context.Context, _ string) ([]string, error) {
		_, err := client.DescribeTable(ctx, &sdk.DescribeTableInput{TableName: aws.String(table)})
		return nil, err
	}
	return s
}

// dynamolockClient sends a heartbeat four times per lease, as it recommends, and believes until dynamolock says that
// the lock has expired.
type dynamolockClient struct {
	locks *dynamolock.Client
	ttl   time.Duration
}

func openDynamolock(_ context.Context, o torture.ForeignOptions) (torture.ForeignClient, error) {
	credentials := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
	})
	client := sdk.New(sdk.Options{BaseEndpoint: &o.Store, Region: "eu-central-1", Credentials: credentials,
		// A request that has no answer must not outlast the lease.
		HTTPClient: &http.Client{Timeout: o.TTL / 3, Transport: &http.Transport{DialContext: o.Dial, MaxIdleConnsPerHost: 16}}})
	c, err := dynamolock.New(client, table, dynamolock.WithLeaseDuration(o.TTL), dynamolock.WithHeartbeatPeriod(o.TTL/4))
	return &dynamolockClient{c, o.TTL}, err
}

func (c *dynamolockClient) Close() error {
	limited, cancel := context.WithTimeout(context.Background(), c.ttl)
	defer cancel()
	return c.locks.CloseWithContext(limited)
}

func (c *dynamolockClient) Lock(ctx context.Context, name string) (torture.ForeignLock, error) {
	l, err := c.locks.AcquireLockWithContext(ctx, name, dynamolock.WithRefreshPeriod(50*time.Millisecond),
		dynamolock.WithAdditionalTimeToWaitForLock(time.Hour), dynamolock.WithDeleteLockOnRelease())
	if err != nil {
		return nil, err
	}
	return &dynamoLock{c, l}, nil
}

type dynamoLock struct {
	client *dynamolockClient
	lock   *dynamolock.Lock
}

func (l *dynamoLock) Valid() bool  { return !l.lock.IsExpired() }
func (l *dynamoLock) Token() int64 { return 0 }

func (l *dynamoLock) Release() error {
	limited, cancel := context.WithTimeout(context.Background(), l.client.ttl)
	defer cancel()
	ok, err := l.client.locks.ReleaseLockWithContext(limited, l.lock)
	if err == nil && !ok {
		return errors.New("dynamolock did not release the lock")
	}
	return err
}

package ledger

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"
	"go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/internal/storetest"
)

// floors make the floor of each store: one write that is refused if the key exists, and one that is refused if somebody
// has changed it since. That is the least that any way to run a key once can do.
var floors = map[string]func(b *testing.B, s server) func(key string) error{
	"file": func(b *testing.B, _ server) func(string) error {
		dir := b.TempDir()
		write := func(path string, flags int) error {
			f, err := os.OpenFile(path, flags, 0o600)
			if err != nil {
				return err
			}
			_, err = f.WriteString("state")
			return errors.Join(err, f.Close())
		}
		return func(key string) error {
			path := filepath.Join(dir, key)
			if err := write(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY); err != nil {
				return err
			}
			return errors.Join(write(path+".new", os.O_CREATE|os.O_WRONLY), os.Rename(path+".new", path))
		}
	},
	"redis": func(b *testing.B, s server) func(string) error {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: s.at})
		failOn(b, err)
		b.Cleanup(client.Close)
		end := rueidis.NewLuaScript(`return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('SET', KEYS[1], 'succeeded')`)
		return func(key string) error {
			err := client.Do(b.Context(), client.B().Set().Key(key).Value("started").Nx().Build()).Error()
			return errors.Join(err, end.Exec(b.Context(), client, []string{key}, []string{"started"}).Error())
		}
	},
	"postgres": func(b *testing.B, s server) func(string) error {
		db, err := pgxpool.New(b.Context(), strings.Split(s.urlAt(s.at), "?")[0]+"?sslmode=disable")
		failOn(b, err)
		b.Cleanup(db.Close)
		_, err = db.Exec(b.Context(), `create table floor (key text primary key, state text)`)
		failOn(b, err)
		return func(key string) error {
			_, err1 := db.Exec(b.Context(), `insert into floor values ($1, 'started')`, key)
			_, err2 := db.Exec(b.Context(), `update floor set state = 'succeeded' where key = $1 and state = 'started'`, key)
			return errors.Join(err1, err2)
		}
	},
	"etcd": func(b *testing.B, s server) func(string) error {
		client, err := clientv3.New(clientv3.Config{Endpoints: s.at})
		failOn(b, err)
		b.Cleanup(func() { _ = client.Close() })
		write := func(key, state string, version int64) error {
			r, err := client.Txn(b.Context()).If(clientv3.Compare(clientv3.Version(key), "=", version)).
				Then(clientv3.OpPut(key, state)).Commit()
			if err == nil && !r.Succeeded {
				err = errors.New("refused")
			}
			return err
		}
		return func(key string) error { return errors.Join(write(key, "started", 0), write(key, "succeeded", 1)) }
	},
	"zookeeper": func(b *testing.B, s server) func(string) error {
		client, _, err := zk.Connect(s.at, 30_000_000_000, zk.WithLogInfo(false))
		failOn(b, err)
		b.Cleanup(client.Close)
		return func(key string) error {
			_, err1 := client.Create("/"+key, []byte("started"), 0, zk.WorldACL(zk.PermAll))
			_, err2 := client.Set("/"+key, []byte("succeeded"), 0)
			return errors.Join(err1, err2)
		}
	},
	"dynamodb":        dynamoDBFloor,
	"dynamodb-ledger": dynamoDBFloor,
}

// makeTable makes a table of DynamoDB with the partition key id, and returns the client that made it.
func makeTable(b *testing.B, s server, name string) *dynamodb.Client {
	c, err := config.LoadDefaultConfig(b.Context(), config.WithRegion("eu-central-1"))
	failOn(b, err)
	client := dynamodb.NewFromConfig(c, func(o *dynamodb.Options) { o.BaseEndpoint = aws.String("http://" + s.at[0]) })
	_, err = client.CreateTable(b.Context(), &dynamodb.CreateTableInput{TableName: &name,
		BillingMode:          types.BillingModePayPerRequest,
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("id"), KeyType: types.KeyTypeHash}},
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("id"), AttributeType: types.ScalarAttributeTypeS}}})
	failOn(b, err)
	return client
}

func dynamoDBFloor(b *testing.B, s server) func(string) error {
	client := makeTable(b, s, "floor")
	put := func(ctx context.Context, key, state, condition string) error {
		_, err := client.PutItem(ctx, &dynamodb.PutItemInput{TableName: aws.String("floor"),
			Item: map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: key},
				"exec": &types.AttributeValueMemberS{Value: state}},
			ConditionExpression: &condition})
		return err
	}
	return func(key string) error {
		return errors.Join(put(b.Context(), key, "started", "attribute_not_exists(id)"),
			put(b.Context(), key, "succeeded", "attribute_exists(id)"))
	}
}

// BenchmarkRun measures runs of new keys, alone and by 16 workers, on each store of the flag -stores; see
// storetest.BenchmarkLedger.
func BenchmarkRun(b *testing.B) {
	for name := range strings.SplitSeq(*which, ",") {
		b.Run(name, func(b *testing.B) {
			s := stores[name](b)
			floor := floors[name](b, s)
			storetest.BenchmarkLedger(b, storetest.Open(b, s.urlAt(s.at)), floor)
		})
	}
}

// BenchmarkPowertools is the same for the idempotency utility of AWS Powertools for Python, by one caller. Compare it
// with dynamodb/run/1 of BenchmarkRun: the emulator is the same. scripts/bench installs it.
func BenchmarkPowertools(b *testing.B) {
	s := stores["dynamodb"](b)
	makeTable(b, s, "powertools")
	c := exec.CommandContext(b.Context(), "python3", "testdata/powertools.py", "http://"+s.at[0], strconv.Itoa(b.N))
	c.Stderr = os.Stderr
	out, err := c.Output()
	failOn(b, err)
	seconds, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	failOn(b, err)
	b.ReportMetric(seconds*1e9, "ns/op")
	b.ReportMetric(1/seconds, "keys/s")
}
